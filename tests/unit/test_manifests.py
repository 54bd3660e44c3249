# SPDX-License-Identifier: Apache-2.0
"""What packaging/kubernetes gives to a cluster agrees with what nvshare-kubelet does.

The fields that matter; a real API server takes them in tests/kubernetes.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from nvshared.kubelet import options
from nvshared.kubelet.annotations import MEANINGS
from nvshared.kubelet.given import CHECKPOINT
from nvshared.kubelet.plugin import REGISTRY, RESOURCE
from nvshared.kubelet.pod import PREFIX
from nvshared.names import DEFAULT_SOCKET
from nvshared.settings.rules import TERMS
from tests.kubernetes.values import VALUES

MANIFESTS = Path(__file__).parents[2] / "packaging" / "kubernetes"
BASE = MANIFESTS / "nvshared"


def documents(path: Path) -> list[Any]:
    """All of a file."""
    return list(yaml.safe_load_all(path.read_text()))


def base() -> dict[str, Any]:
    """What kustomize is told to take, by kind."""
    (kustomization,) = documents(BASE / "kustomization.yaml")
    listed = {BASE / name for name in kustomization["resources"] if name.endswith(".yaml")}
    assert listed == set(BASE.glob("*.yaml")) - {BASE / "kustomization.yaml"}
    return {one["kind"]: one for path in listed for one in documents(path)}


def test_the_daemon_set_has_the_folders_that_nvshare_kubelet_uses() -> None:
    spec = base()["DaemonSet"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    paths = {one["name"]: one["hostPath"]["path"] for one in spec["volumes"]}
    mounts = {one["mountPath"]: one for one in container["volumeMounts"]}
    assert {one["mountPath"]: one["name"] for one in mounts.values()} == {
        path: name for name, path in paths.items()}     # each where the host has it
    written = {path for path, mount in mounts.items() if not mount.get("readOnly")}
    assert written == {f"{options.KUBELET}/{REGISTRY}", options.STATE}
    assert set(mounts) - written == {
        str(Path(options.KUBELET, CHECKPOINT).parent), str(Path(DEFAULT_SOCKET).parent),
        "/run/dbus",
    }
    assert container["env"][0]["name"] == options.NODE_VARIABLE


def test_it_may_do_what_it_does_and_no_more() -> None:
    found = base()
    security = found["DaemonSet"]["spec"]["template"]["spec"]["containers"][0]["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert "privileged" not in security
    allowed = {one["resources"][0]: one["verbs"] for one in found["ClusterRole"]["rules"]}
    assert allowed == {"pods": ["list", "watch"], "events": ["create"]}


@pytest.mark.parametrize("path", sorted((MANIFESTS / "examples").glob("*.yaml")), ids=str)
def test_an_example_asks_for_what_there_is(path: Path) -> None:
    for one in documents(path):
        pod = one["spec"].get("template", one)
        for key, text in pod["metadata"].get("annotations", {}).items():
            _, parse = MEANINGS[key]
            assert parse(text)
        (container,) = pod["spec"]["containers"]
        assert container["resources"]["limits"][RESOURCE] == 1


def takes(key: str, text: str) -> bool:
    """Whether nvshare-kubelet sets a term of this annotation, and nvshared takes it."""
    term, parse = MEANINGS[key]
    try:
        return 1 <= parse(text.strip()) <= TERMS[term].most
    except ValueError:
        return False


@pytest.mark.parametrize("key", MEANINGS)
def test_the_values_that_the_policy_is_tried_with_are_what_nvshare_kubelet_takes(key: str) -> None:
    good, bad = VALUES[key]
    assert [text for text in good if not takes(key, text)] == []
    assert [text for text in bad if takes(key, text)] == []


def test_the_policy_knows_all_annotations_and_no_others() -> None:
    (policy, _) = documents(MANIFESTS / "annotations" / "policy.yaml")
    texts = [one["expression"] for one in policy["spec"]["variables"]]
    assert set(re.findall(rf'"({PREFIX}[^"]+)"', " ".join(texts))) == MEANINGS.keys()
