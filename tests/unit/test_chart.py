# SPDX-License-Identifier: Apache-2.0
"""The Helm chart, rendered by helm, equals the output of kustomize except for its values."""

import subprocess
from typing import Any

import pytest
import yaml

from nvshared import __version__
from nvshared.kubelet import options
from tests.unit.test_manifests import MANIFESTS, built, documents, program

CHART = MANIFESTS / "chart"
# The values of the chart that correspond to each folder of kustomize.
SAME = {
    "overlays/nvshared": "", "overlays/nvshared-daemonset": "daemon.enabled=true",
    "claims": "dra.enabled=true",
}

def rendered(*values: str) -> dict[tuple[str, str], Any]:
    done = helm("template", "it", str(CHART), "--namespace=nvshare", *sets(values))
    assert done.returncode == 0, done.stderr
    found = [one for one in yaml.safe_load_all(done.stdout) if one]
    made = {(one["kind"], one["metadata"]["name"]): one for one in found}
    assert len(made) == len(found)
    return made


def helm(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([program("helm"), *command], capture_output=True, text=True, check=False)


def sets(values: tuple[str, ...]) -> list[str]:
    return [part for one in values if one for part in ("--set", one)]


def pod(objects: dict[tuple[str, str], Any]) -> dict[str, Any]:
    """The pod template of the DaemonSet: containers and volumes by name, mounts sorted by path."""
    spec: dict[str, Any] = objects["DaemonSet", "gpu-sharing"]["spec"]["template"]["spec"]
    for one in spec["containers"]:
        one["volumeMounts"].sort(key=lambda mount: mount["mountPath"])
    return spec | {
        key: {one["name"]: one for one in spec[key]} for key in ("containers", "volumes")}


@pytest.mark.parametrize("folder", SAME)
def test_helm_chart_renders_the_same_objects_as_kustomize(folder: str) -> None:
    ours, theirs = rendered(SAME[folder]), built(MANIFESTS / folder)
    del theirs["Namespace", "nvshare"]      # helm itself creates the namespace
    if ("ConfigMap", "gpu-sharing") not in ours:
        del theirs["ConfigMap", "gpu-sharing"]
    assert ours.keys() == theirs.keys()
    here, there = pod(ours), pod(theirs)
    for name, one in here["containers"].items():
        assert one.pop("imagePullPolicy") == "IfNotPresent"
        if name == "nvshare-kubelet":
            assert one["args"][-2:] == ["--replicas", "10"]
            del one["args"][-2:]
    assert here == there
    for key in ours.keys() - {("DaemonSet", "gpu-sharing")}:
        one, other = ours[key], theirs[key]
        labels = [each["metadata"].pop("labels", {}) for each in (one, other)]
        assert labels[0].items() >= labels[1].items()
        for each in (one, other):
            for text in each.get("data", {}):
                each["data"][text] = each["data"][text].strip()
        assert one == other
    template = ours["DaemonSet", "gpu-sharing"]["spec"]["template"]
    selector = ours["DaemonSet", "gpu-sharing"]["spec"]["selector"]["matchLabels"]
    assert template["metadata"]["labels"].items() >= selector.items()


def test_helm_chart_values_become_options_of_nvshare_kubelet() -> None:
    objects = rendered(
        "replicas=4", "priorityClasses[0].class=..-1", "priorityClasses[0].priority=background",
        "priorityClasses[1].class=urgent", "priorityClasses[1].priority=high",
        "foreignAnnotations=true", "kubeletRootDir=/data/kubelet",
        "extraArgs={--replicas,1=0}", "image.repository=registry/it", "image.tag=v7",
        "imagePullSecrets[0].name=key", "nodeSelector.gpu=yes", "updateStrategy.type=OnDelete",
        "podAnnotations.a=b", "resources.limits.memory=1Gi")
    spec = pod(objects)
    container = spec["containers"]["nvshare-kubelet"]
    given = options.parse(container["args"])
    assert given.foreign
    assert list(given.classes) == [(range(-(1 << 31), 0), 1), ("urgent", 3)]
    assert given.replicas == [("", 10), ("", 4), ("1", 0)]
    assert str(given.kubelet) == "/data/kubelet"
    assert spec["volumes"]["registry"]["hostPath"]["path"] == "/data/kubelet/plugins_registry"
    paths = [one["mountPath"] for one in container["volumeMounts"]]
    assert "/data/kubelet/plugins_registry" in paths
    assert not any(path.startswith("/var/lib/kubelet") for path in paths)
    assert container["image"] == "registry/it:v7"
    assert container["resources"] == {"limits": {"memory": "1Gi"}}
    assert (spec["imagePullSecrets"], spec["nodeSelector"]) == ([{"name": "key"}], {"gpu": "yes"})
    daemon_set = objects["DaemonSet", "gpu-sharing"]["spec"]
    assert daemon_set["updateStrategy"] == {"type": "OnDelete"}
    assert daemon_set["template"]["metadata"]["annotations"] == {"a": "b"}


@pytest.mark.parametrize("wrong", [
    "replicas=-1", "replicas=1001", "replica=3", "image.pullPolicy=Sometimes", "dra=true",
    "priorityClasses[0].class=it", "policies.nvidia=true", "kubeletRootDir=var",
])
def test_helm_chart_values_outside_the_schema_are_refused(wrong: str) -> None:
    done = helm("template", str(CHART), *sets((wrong,)))
    assert done.returncode != 0
    assert "don't meet the specifications of the schema" in done.stderr


def test_helm_chart_passes_helm_lint_strict_and_has_the_version_of_nvshared() -> None:
    (chart,) = documents(CHART / "Chart.yaml")
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr
