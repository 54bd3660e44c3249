# SPDX-License-Identifier: Apache-2.0
"""The manifests of packaging/kubernetes fit nvshare-kubelet and nvshared.

Only fields on which they depend are checked; tests/kubernetes applies them to a real API server.
"""

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from nvshared import __version__
from nvshared.containers.cdi import STATIC
from nvshared.kubelet import options
from nvshared.kubelet.annotations import ANNOTATION_TERMS
from nvshared.kubelet.api import PATIENCE
from nvshared.kubelet.card import CHECKPOINT
from nvshared.kubelet.claims import (
    CAPACITIES,
    DRIVER,
    PREFIX,
    REFUSED_CONDITION,
    RESOURCE,
    parameters,
)
from nvshared.kubelet.leaving import ADMISSION, REMOVAL, REPORT, SETTLE
from nvshared.kubelet.plugin import REGISTRY
from nvshared.names import DEFAULT_SOCKET, KUBELET_STATE
from nvshared.terms import TERMS
from tests.kubernetes.programs import fetch, search_path
from tests.kubernetes.values import VALUES

MANIFESTS = Path(__file__).parents[2] / "packaging" / "kubernetes"
BASE = MANIFESTS / "nvshared"
STRATEGIES = sorted(path.name for path in MANIFESTS.glob("overlays/*"))


def documents(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text()))


def listed(folder: Path) -> list[Path]:
    (kustomization,) = documents(folder / "kustomization.yaml")
    paths = [folder / name for name in kustomization.get("resources", [])]
    return [file for path in paths for file in (listed(path) if path.is_dir() else [path])]


def base() -> dict[str, Any]:
    return {one["kind"]: one for path in listed(BASE) for one in documents(path)}


def test_daemon_set_mounts_the_folders_that_nvshare_kubelet_uses() -> None:
    spec = base()["DaemonSet"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    paths = {one["name"]: one["hostPath"]["path"] for one in spec["volumes"]}
    mounts = {one["mountPath"]: one for one in container["volumeMounts"]}
    assert {one["mountPath"]: one["name"] for one in mounts.values()} == {
        path: name for name, path in paths.items()}     # same path as on the host
    written = {path for path, mount in mounts.items() if not mount.get("readOnly")}
    assert written == {f"{options.KUBELET}/{REGISTRY}", KUBELET_STATE}
    assert set(mounts) - written == {
        str(Path(options.KUBELET, CHECKPOINT).parent), str(Path(DEFAULT_SOCKET).parent),
        "/run/dbus"}
    assert container["env"][0]["name"] == options.NODE_VARIABLE


def test_nvshare_kubelets_role_has_no_more_permissions_than_needed() -> None:
    found = base()
    security = found["DaemonSet"]["spec"]["template"]["spec"]["containers"][0]["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert "privileged" not in security
    allowed = {one["resources"][0]: one["verbs"] for one in found["ClusterRole"]["rules"]}
    assert allowed == {
        "pods": ["list", "watch"], "pods/status": ["patch"], "events": ["create"],
        "nodes": ["get", "patch"], "nodes/status": ["patch"]}
    (policy,) = [
        one for path in listed(BASE) for one in documents(path)
        if (one["kind"], one["metadata"]["name"]) == (
            "ValidatingAdmissionPolicy", "nvshare-kubelet")]
    said = str(policy["spec"]["variables"])
    assert said.count(f'one.type != "{REFUSED_CONDITION}"') == 2


@pytest.mark.parametrize("folder", ["overlays/nvshared", "overlays/nvshared-daemonset", "claims"])
def test_daemon_set_is_updated_node_by_node_when_nvshare_kubelet_is_ready(folder: str) -> None:
    spec = built(MANIFESTS / folder)["DaemonSet", "gpu-sharing"]["spec"]
    # two nvshare-kubelets of one node cannot run
    assert spec["updateStrategy"] == {
        "type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}
    pod = spec["template"]["spec"]
    (container,) = (one for one in pod["containers"] if one["name"] == "nvshare-kubelet")
    command = container["readinessProbe"]["exec"]["command"]
    assert command[:1] == container["command"]
    given = options.parse(command[1:])
    assert given.ready
    assert given.state == options.parse(container["args"]).state
    assert pod["terminationGracePeriodSeconds"] > (
        REMOVAL + SETTLE + ADMISSION + REPORT + 2 * PATIENCE)
    # programs have nvshared until kubelet, which reports each ten seconds, has forgotten the shares
    others = [one for one in pod["containers"] if one is not container]
    assert len(others) == 2 * (folder == "overlays/nvshared-daemonset")
    for one in others:
        wait = one["lifecycle"]["preStop"]["sleep"]["seconds"]
        assert REMOVAL + SETTLE + 10 < wait < pod["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("path", sorted((MANIFESTS / "examples").glob("*.yaml")), ids=str)
def test_example_manifests_request_only_offered_resources(path: Path) -> None:
    every = [one for one in documents(path) if not one["apiVersion"].startswith("kueue.")]
    templates = [one for one in every if one["kind"] == "ResourceClaimTemplate"]
    for one in (template["spec"]["spec"]["devices"] for template in templates):
        (request,) = one["requests"]
        assert set(request["exactly"]["capacity"]["requests"]) <= {*CAPACITIES, "clients"}
        assert all(parameters(config["opaque"]["parameters"]) for config in one["config"])
    quotas = {key for one in every if one["kind"] == "ResourceQuota" for key in one["spec"]["hard"]}
    assert quotas <= {f"{DRIVER}.deviceclass.resource.k8s.io/devices", f"requests.{RESOURCE}"}
    for one in (one for one in every if one not in templates):
        pod = one.get("spec", {}).get("template", one)
        if "containers" not in pod.get("spec", {}):
            continue
        for key, text in pod.get("metadata", one["metadata"]).get("annotations", {}).items():
            _, parse = ANNOTATION_TERMS[key]
            assert parse(text)
        (container,) = pod["spec"]["containers"]
        shares = container.get("resources", {}).get("limits", {}).get(RESOURCE, 0)
        assert shares + bool(templates) == (path.name != "library.yaml")    # without the plugin


def test_claims_overlay_adds_only_needed_mounts_and_permissions() -> None:
    """Mounts and permissions are compared with the base's."""
    folder = MANIFESTS / "claims"
    (device_class,) = documents(folder / "deviceclass.yaml")
    assert device_class["metadata"]["name"] == DRIVER
    assert device_class["spec"]["extendedResourceName"] == RESOURCE
    (selector,) = device_class["spec"]["selectors"]
    assert selector["cel"]["expression"] == f'device.driver == "{DRIVER}"'
    (kustomization,) = documents(folder / "kustomization.yaml")
    patch = yaml.safe_load(kustomization["patches"][0]["patch"])
    (daemon_set,) = documents(BASE / "daemonset.yaml")
    for name in ("name", "namespace"):
        assert patch["metadata"][name] == daemon_set["metadata"][name]
    spec = patch["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert options.parse(container["args"]).dra
    mounts = {one["mountPath"]: one.get("readOnly", False) for one in container["volumeMounts"]}
    assert mounts == {options.CDI: False, str(STATIC): True}
    paths = {one["name"]: one["hostPath"]["path"] for one in spec["volumes"]}
    assert {one["mountPath"]: one["name"] for one in container["volumeMounts"]} == {
        path: name for name, path in paths.items()}
    role, *_ = documents(folder / "account.yaml")
    allowed = {one["resources"][0]: one["verbs"] for one in role["rules"]}
    assert allowed == {
        "resourceclaims": ["get"], "resourceslices": ["list", "watch", "create", "update"]}


def takes(key: str, text: str) -> bool:
    """Whether nvshare-kubelet derives a term from the annotation, and nvshared accepts it."""
    term, parse = ANNOTATION_TERMS[key]
    try:
        return 1 <= (parse(text.strip()) or 0) <= TERMS[term].unit.most
    except ValueError:
        return False


@pytest.mark.parametrize("key", ANNOTATION_TERMS)
def test_nvshare_kubelet_accepts_only_the_valid_annotations_of_the_policy_tests(key: str) -> None:
    good, bad = VALUES[key]
    assert [text for text in good if not takes(key, text)] == []
    assert [text for text in bad if takes(key, text)] == []


def test_admission_policy_names_exactly_the_annotations_that_nvshare_kubelet_accepts() -> None:
    policy, *_ = documents(MANIFESTS / "annotations" / "policy.yaml")
    texts = [one["expression"] for one in policy["spec"]["variables"]]
    assert set(re.findall(rf'"({PREFIX}[^"]+)"', " ".join(texts))) == ANNOTATION_TERMS.keys()


def test_strategies_page_compares_each_gpu_sharing_strategy_that_has_manifests() -> None:
    page = (MANIFESTS.parents[1] / "docs" / "strategies.md").read_text()
    rows = re.findall(r"^\| (`.*?) \|", page.partition("What each costs")[0], re.MULTILINE)
    named = set(re.findall(r"`([a-z0-9-]+)`", " ".join(rows)))
    assert named == {"-4"} | {name for name in STRATEGIES if not name.endswith("-4")}


def program(name: str) -> str:
    """The path of helm or kubectl; downloads it at need, or skips the test."""
    if not (found := shutil.which(name, path=search_path())):
        if why := fetch():
            pytest.skip(f"there is no {name}: {why}")
        found = shutil.which(name, path=search_path())
    assert found
    return found


@cache
def kustomized(folder: Path) -> bytes:
    command = [kustomize, "build"] if (kustomize := shutil.which("kustomize")) else [
        program("kubectl"), "kustomize"]
    return subprocess.run([*command, folder], capture_output=True, check=True).stdout


def built(folder: Path) -> dict[tuple[str, str], Any]:
    """The objects that kustomize makes of a folder."""
    objects = yaml.safe_load_all(kustomized(folder))
    return {(one["kind"], one["metadata"]["name"]): one for one in objects}


@pytest.mark.parametrize(("folder", "roles"), [
    ("overlays/nvshared", {"nvshare-kubelet"}),
    ("overlays/nvshared-daemonset", {"nvshare-kubelet"}),
    ("claims", {"nvshare-kubelet", "nvshare-kubelet-claims"}),
])
def test_daemon_set_uses_the_service_account_with_the_roles_and_images_of_the_kustomize_component(
        folder: str, roles: set[str]) -> None:
    """The roles have no other rules; tests/integration/apiserver.py checks their use."""
    objects = built(MANIFESTS / folder)
    spec = objects["DaemonSet", "gpu-sharing"]["spec"]["template"]["spec"]
    assert spec["serviceAccountName"] == "nvshare-kubelet"
    assert spec.get("automountServiceAccountToken", True)
    bound = [one for (kind, _), one in objects.items() if kind.endswith("RoleBinding")]
    assert {one["roleRef"]["name"] for one in bound} == roles
    for one in bound:
        assert one["subjects"] == [
            {"kind": "ServiceAccount", "name": "nvshare-kubelet", "namespace": "nvshare"}]
        assert ("ClusterRole", one["roleRef"]["name"]) in objects
    assert ("ServiceAccount", "nvshare-kubelet") in objects
    (component,) = documents(MANIFESTS / "images" / "kustomization.yaml")
    named = {f"{one['newName']}:{one['newTag']}" for one in component["images"]}
    assert named == {f"localhost/{one}:{__version__}" for one in ("nvshared", "nvshare-kubelet")}
    assert {one["image"] for one in spec["containers"]} <= named
    for one in spec["containers"]:
        # nvshared takes a limit of its own for the host memory that all pods of a node can have.
        assert set(one["resources"].get("limits", ())) == (
            set() if one["name"] == "nvshared" else {"memory"})


def test_overlays_of_all_sharing_strategies_have_the_same_kubernetes_objects() -> None:
    found = {}
    for name in STRATEGIES:
        objects = built(MANIFESTS / "overlays" / name)
        found[name] = objects.keys()
        template = objects["DaemonSet", "gpu-sharing"]["spec"]["template"]
        assert template["metadata"]["labels"]["nvshare.com/strategy"] == name
        # without the field, an update would keep the previous value
        assert "serviceAccountName" in template["spec"]
    assert all(keys == found["none"] for keys in found.values())


def test_internals_page_on_kubernetes_names_only_existing_tests() -> None:
    page = (MANIFESTS.parents[1] / "docs/internals/kubernetes.md").read_text()
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", page)
    assert len(named) > 10
    for file, test in named:
        (*paths,) = (MANIFESTS.parents[1] / "tests").glob(f"*/{file}")
        assert any(f"def {test}(" in path.read_text() for path in paths), f"{file}::{test}"
