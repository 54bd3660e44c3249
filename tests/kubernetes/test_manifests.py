# SPDX-License-Identifier: Apache-2.0
"""A real API server takes the manifests, and DaemonSets do what the package's units do."""

import json
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from nvshared import __version__
from nvshared.kubelet.pod import CONDITION
from tests.kubernetes.cluster import RESTRICTED, Cluster, claim, pod
from tests.kubernetes.conftest import MANIFESTS, ROOT
from tests.kubernetes.node import ADDRESS, IMAGE, NAME, PKI
from tests.system import card

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
# But Kubeflow's, of which the API server knows nothing.
EXAMPLES = sorted({path.name for path in MANIFESTS.glob("examples/*")} - {"kubeflow-notebook.yaml"})
STRATEGIES = sorted(path.name for path in MANIFESTS.glob("overlays/*"))
KINDS = ",".join((
    "namespaces", "daemonsets", "configmaps", "serviceaccounts", "clusterroles",
    "clusterrolebindings", "validatingadmissionpolicies", "validatingadmissionpolicybindings",
))
# No kube-proxy is there, so pods find the API server where it is.
SERVER = {"KUBERNETES_SERVICE_HOST": ADDRESS, "KUBERNETES_SERVICE_PORT": "6443"}
# kubectl would read the pod before.
PATCH = """
import ssl, sys, urllib.error, urllib.request
authority, url, token, body = sys.argv[1:]
headers = {
    "Authorization": f"Bearer {token}", "Content-Type": "application/strategic-merge-patch+json"}
request = urllib.request.Request(url, body.encode(), headers, method="PATCH")
try:
    urllib.request.urlopen(request, context=ssl.create_default_context(cafile=authority)).close()
except urllib.error.HTTPError as error:
    print(error.read().decode())
"""
# What makes no sense is refused by nvshare-kubelet, not by the API server.
WITHOUT_POLICY = {
    "$patch": "delete", "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": "nvshare-annotations"},
}
SETTINGS = {
    "apiVersion": "v1", "kind": "ConfigMap",
    "metadata": {"name": "gpu-sharing", "namespace": "nvshare"},
    "data": {"nvshared.conf": "[gpu]\ncontext-reserve = 8MiB\n"},
}


def container(
    name: str, variables: Mapping[str, str], folders: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """A change of the DaemonSet: a container has these besides."""
    folders = folders or {}
    return {
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"name": "gpu-sharing", "namespace": "nvshare"},
        "spec": {"template": {"spec": {
            "containers": [{
                "name": name, "env": [{"name": key, "value": variables[key]} for key in variables],
                "volumeMounts": [{"name": key, "mountPath": folders[key]} for key in folders],
            }],
            "volumes": [{"name": key, "hostPath": {"path": folders[key]}} for key in folders],
        }}},
    }


def kustomization(of: str, *patches: Mapping[str, Any]) -> str:
    """As an administrator would write it."""
    return json.dumps({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": [of], "images": [
            {"name": "nvshared", "newName": "localhost/nvshared", "newTag": __version__},
            {"name": "nvshare-kubelet", "newName": "localhost/nvshare-kubelet",
             "newTag": __version__},
            {"name": "debian", "newName": IMAGE.partition(":")[0], "newTag": "1"},
        ],
        "patches": [{"patch": json.dumps(one)} for one in patches],
    })


@pytest.fixture(scope="module")
def images(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> None:
    """As `make image` makes them, for this machine alone."""
    folder = tmp_path_factory.mktemp("dist")
    made = subprocess.run(
        ["make", "--no-print-directory", "--file=packaging/packaging.mk", "image",
         f"DIST={folder}", f"PYTHON={sys.executable}",
         f"ARCHITECTURES={ARCHITECTURES[platform.machine()]}"],
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    for path in sorted(folder.glob("*.tar")):
        cluster.import_image(path)


@contextmanager
def without(cluster: Cluster, manifests: str, *units: str) -> Iterator[None]:
    """The node has not these, but may have a strategy, which is gone afterwards."""
    cluster.run("systemctl", "disable", "--now", *units)
    cluster.until(lambda: cluster.allocatable() == 0, "the unit's shares are gone")
    cluster.kubectl("label", "--overwrite", "node", NAME, "nvidia.com/gpu.present=true")
    try:
        yield
    finally:
        cluster.kubectl(
            "delete", "--ignore-not-found", f"--kustomize={manifests}/overlays/none")
        cluster.run("systemctl", "enable", "--now", *units)
    cluster.until(lambda: cluster.allocatable() == 10, "the unit's shares are back")


def pods(cluster: Cluster) -> list[str]:
    """The strategies of the DaemonSet's pods, which may be on their way out."""
    listed = cluster.get("pods", "--namespace=nvshare")["items"]
    return [one["metadata"]["labels"]["nvshare.com/strategy"] for one in listed]


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_api_server_takes_an_example(cluster: Cluster, manifests: str, example: str) -> None:
    cluster.kubectl("create", "--dry-run=server", f"--filename={manifests}/examples/{example}")


def test_switching_leaves_nothing_of_the_strategy_before(cluster: Cluster, manifests: str) -> None:
    """Nothing runs: no node has the label."""
    cluster.kubectl("create", "namespace", "nvshare")
    fresh = {}
    for name in STRATEGIES:             # with all that the API server adds
        said = cluster.kubectl(
            "apply", "--dry-run=server", "--output=json",
            f"--kustomize={manifests}/overlays/{name}")
        fresh[name] = dict(map(content, json.loads(said)["items"]))
        assert len(fresh[name]) == len(fresh[STRATEGIES[0]])
    for name in (*STRATEGIES, STRATEGIES[0]):
        cluster.kubectl("apply", f"--kustomize={manifests}/overlays/{name}")
        there = dict(map(content, cluster.get(KINDS, "--namespace=nvshare")["items"]))
        assert {key: there[key] for key in fresh[name]} == fresh[name]
        ours = {key for key in there if key[1].startswith(("nvshare", "gpu-", "nvidia"))}
        assert ours == fresh[name].keys()
    cluster.kubectl("delete", f"--kustomize={manifests}/overlays/{STRATEGIES[0]}")


def content(one: dict[str, Any]) -> tuple[tuple[str, str], Any]:
    """What an object is called, and is, without what the API server notes about it."""
    meta = one.pop("metadata")
    one.pop("status", None)
    one["labels"] = meta.get("labels")
    return (one["kind"], meta["name"]), one


def test_a_daemon_set_offers_the_shares_in_place_of_the_unit(
    cluster: Cluster, manifests: str, images: None
) -> None:
    cluster.write(f"{manifests}/mine/kustomization.yaml", kustomization(
        "../overlays/nvshared", container("nvshare-kubelet", SERVER), WITHOUT_POLICY))
    with without(cluster, manifests, "nvshare-kubelet"):
        cluster.kubectl("apply", f"--kustomize={manifests}/mine")
        cluster.until(lambda: cluster.allocatable() == 10, "the pod's shares are there")
        cluster.start_pods(pod("it", annotations={"nvshare.com/weight": "300"}))
        cluster.until(lambda: cluster.terms("it") == {"weight": 300}, "annotations are heeded")
        cluster.kubectl("annotate", "--overwrite", "pod", "it", "nvshare.com/weight=x")
        cluster.until(lambda: "cannot be 'x'" in cluster.refusals("it"), "the reason is an event")
        cluster.until(lambda: "cannot be 'x'" in cluster.is_refused("it"), "its status says so")
        assert "its own condition alone" in patched(cluster, "it", {"phase": "Failed"})
        ours = {"type": CONDITION, "status": "False"}
        assert patched(cluster, "it", {"conditions": [ours]}) == ""
        cluster.finish("it")


def patched(cluster: Cluster, name: str, status: Mapping[str, Any]) -> str:
    """Why the DaemonSet's account may not write this of a pod's status."""
    (one,) = cluster.get("pods", "--namespace=nvshare")["items"]
    token = cluster.kubectl(
        "create", "token", "nvshare-kubelet", "--namespace=nvshare", "--bound-object-kind=Pod",
        f"--bound-object-name={one['metadata']['name']}").strip()
    return cluster.output(
        "python3", "-c", PATCH, f"{PKI}/ca.crt", f"https://{ADDRESS}:6443/api/v1/namespaces/"
        f"default/pods/{name}/status", token, json.dumps({"status": status}))


def test_a_daemon_set_serves_claims_in_place_of_the_units_shares(
    cluster: Cluster, manifests: str, images: None, cdi: None
) -> None:
    """As itself, not as the node: its account may do what it does."""
    cluster.write(f"{manifests}/mine/kustomization.yaml", kustomization(
        "../claims", container("nvshare-kubelet", SERVER)))
    with without(cluster, manifests, "nvshare-kubelet"):
        cluster.kubectl("apply", f"--kustomize={manifests}/mine")
        cluster.apply(claim("it", {"compute": "50"}))
        cluster.start_pods(pod("it", claimed="it"), pod("other"))
        assert cluster.terms("it") == {"compute-limit": 50}
        cluster.kubectl("delete", "resourceslices", "--all")
        cluster.until(lambda: cluster.get("resourceslices")["items"], "the slice is there again")
        cluster.finish("it", "other")
        cluster.kubectl("delete", f"--kustomize={manifests}/mine")


def test_a_daemon_set_does_all_on_a_node_with_nothing_and_is_switched_off(
    cluster: Cluster, manifests: str, images: None
) -> None:
    cluster.write(f"{manifests}/mine/kustomization.yaml", kustomization(
        "../overlays/nvshared-daemonset", SETTINGS, container("nvshare-kubelet", SERVER),
        container("nvshared", card.ENVIRONMENT, {"card": card.FOLDER}),
    ))
    check(cluster, manifests, "nvshared")
    with without(cluster, manifests, "nvshare-kubelet", "nvshared", "nvshared.socket"):
        cluster.kubectl("apply", f"--kustomize={manifests}/mine")
        cluster.until(lambda: cluster.allocatable() == 10, "the pod's shares are there")
        cluster.kubectl("apply", f"--kustomize={manifests}/check")
        cluster.kubectl("rollout", "status", "deployment/gpu-validation", "--timeout=120s")
        most = card.MEMORY * 6 // 10
        cluster.apply(*(pod(name, most, seed=seed) for seed, name in enumerate("ab", 1)))
        cluster.until(lambda: len([
            one for one in inside(cluster, "tenants")["tenants"]
            if one["name"].startswith("pod:default/")]) == 2, "both share")
        inside(cluster, "set-tq", "100ms")
        turns = inside(cluster, "status")["gpus"][0]["turns"]
        cluster.until(
            lambda: inside(cluster, "status")["gpus"][0]["turns"] > turns + 4, "they take turns")
        cluster.finish("a", "b")
        cluster.kubectl("apply", f"--kustomize={manifests}/overlays/none")
        cluster.until(lambda: set(pods(cluster)) == {"none"}, "the other pod is there alone")
        cluster.until(lambda: cluster.allocatable() == 0, "no share is left")


def inside(cluster: Cluster, *command: str) -> Any:
    """What nvsharectl says in the pod."""
    return json.loads(cluster.kubectl(
        "exec", "--namespace=nvshare", "daemonset/gpu-sharing", "--container=nvshared", "--",
        "nvsharectl", *command, "--json"))


def test_an_init_container_brings_the_library_alone(cluster: Cluster, images: None) -> None:
    one = pod("it")
    (main,) = one["spec"]["containers"]
    del main["resources"]               # by hand, without a device plugin
    folder = {"name": "library", "mountPath": "/nvshare"}
    sockets = {"name": "sockets", "mountPath": "/run/nvshare", "readOnly": True}
    main["volumeMounts"] += [folder, sockets]
    main["env"].append({"name": "LD_PRELOAD", "value": "/nvshare/libnvshare.so"})
    one["spec"]["volumes"] += [
        {"name": "library", "emptyDir": {}},
        {"name": "sockets", "hostPath": {"path": "/run/nvshare", "type": "Directory"}},
    ]
    one["spec"]["initContainers"] = [{
        "name": "library", "image": f"localhost/libnvshare:{__version__}",
        "securityContext": RESTRICTED, "volumeMounts": [folder],
    }]
    cluster.start_pods(one)
    cluster.finish("it")


@pytest.mark.parametrize("cards", [1, 2])
def test_without_sharing_as_many_replicas_run_as_there_are_gpus(
    cluster: Cluster, manifests: str, cards: int
) -> None:
    """The node says that it has them, as NVIDIA's device plugin would have it say."""
    check(cluster, manifests, "nvidia")
    say(cluster, cards)
    cluster.kubectl("apply", f"--kustomize={manifests}/check")
    wanted = ["Pending"] * (2 - cards) + ["Running"] * cards
    cluster.until(lambda: phases(cluster) == wanted, "as many run as there are")
    say(cluster, 0)


def check(cluster: Cluster, manifests: str, name: str) -> None:
    """The validation with an image that is there."""
    patch = {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "gpu-validation"},
        "spec": {"template": {"spec": {"containers": [
            {"name": "it", "command": ["/bin/sleep", "infinity"]}]}}},
    }
    cluster.write(
        f"{manifests}/check/kustomization.yaml", kustomization(f"../validation/{name}", patch))


def say(cluster: Cluster, cards: int) -> None:
    """The node has so many GPUs."""
    patch = {"status": {"capacity": {"nvidia.com/gpu": str(cards)}}}
    cluster.kubectl("patch", "node", NAME, "--subresource=status", f"--patch={json.dumps(patch)}")


def phases(cluster: Cluster) -> list[str]:
    """Of the validation's pods."""
    listed = cluster.get("pods", "--selector=app.kubernetes.io/name=gpu-validation")["items"]
    return sorted(one["status"]["phase"] for one in listed)
