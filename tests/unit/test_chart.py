# SPDX-License-Identifier: Apache-2.0
"""The Helm chart, rendered by helm, equals the output of kustomize except for its values."""

import json
import shlex
import shutil
import subprocess
from pathlib import Path
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

def rendered(
    *values: str, given: Any = None, release: str = "nvshared", chart: Path = CHART
) -> dict[tuple[str, str], Any]:
    """The objects of a release with values as of --set, and of a file."""
    done = helm("template", release, str(chart), "--namespace=nvshare", *sets(values),
                given=given)
    assert done.returncode == 0, done.stderr
    found = [one for one in yaml.safe_load_all(done.stdout) if one]
    made = {(one["kind"], one["metadata"]["name"]): one for one in found}
    assert len(made) == len(found)
    return made


def helm(*command: str, given: Any = None) -> "subprocess.CompletedProcess[str]":
    """Runs helm; `given`: values in a file."""
    more = [] if given is None else ["--values=-"]
    return subprocess.run(
        [program("helm"), *command, *more], input=json.dumps(given), capture_output=True,
        text=True, check=False)


def sets(values: tuple[str, ...]) -> list[str]:
    return [part for one in values if one for part in ("--set", one)]


def pod(objects: dict[tuple[str, str], Any], name: str = "gpu-sharing") -> dict[str, Any]:
    """The pod template of the DaemonSet: containers and volumes by name, mounts sorted by path."""
    spec: dict[str, Any] = objects["DaemonSet", name]["spec"]["template"]["spec"]
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
    # kubelet has this folder there whatever its --root-dir is
    assert [path for path in paths if path.startswith("/var/lib/kubelet")] == [
        "/var/lib/kubelet/device-plugins"]
    assert container["image"] == "registry/it:v7"
    assert container["resources"] == {"limits": {"memory": "1Gi"}}
    assert (spec["imagePullSecrets"], spec["nodeSelector"]) == ([{"name": "key"}], {"gpu": "yes"})
    daemon_set = objects["DaemonSet", "gpu-sharing"]["spec"]
    assert daemon_set["updateStrategy"] == {"type": "OnDelete"}
    assert daemon_set["template"]["metadata"]["annotations"] == {"a": "b"}


def test_helm_chart_variable_of_a_user_replaces_the_one_of_the_same_name() -> None:
    given = [{"name": "NODE_NAME", "value": "a"}, {"name": "B", "value": "1"},
             {"name": "B", "value": "2"}]
    containers = pod(rendered(given={"env": given, "daemon": {"enabled": True, "env": [
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "0"}]}}))["containers"]
    assert containers["nvshare-kubelet"]["env"] == [given[0], given[2]]
    names = [one["name"] for one in containers["nvshared"]["env"]]
    assert len(names) == len(set(names)) > 1
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "0"} in containers["nvshared"]["env"]


def nulled(values: Any) -> Any:
    """The values, with null in the place of each that is no map, and of empty maps."""
    return {key: nulled(value) for key, value in values.items()} if values and isinstance(
        values, dict) else None


def test_helm_chart_values_that_are_absent_are_the_defaults(tmp_path: Path) -> None:
    (values,) = documents(CHART / "values.yaml")
    for enabled in ((), ("daemon.enabled=true", "dra.enabled=true")):
        usual = rendered(*enabled)
        assert rendered(*enabled, given=nulled(values)) == usual
    assert rendered(given=dict.fromkeys(values)) == rendered()
    # `upgrade --reuse-values` has the values of the chart of before, without those that are new.
    shutil.copytree(CHART, tmp_path / "chart")
    (tmp_path / "chart" / "values.yaml").write_text("{}")
    assert rendered(chart=tmp_path / "chart") == rendered()
    off = rendered("policies.annotations=false", "replicas=0")
    assert ("ValidatingAdmissionPolicy", "nvshare-annotations") not in off
    assert "0" in pod(off)["containers"]["nvshare-kubelet"]["args"]


def test_helm_chart_image_with_a_digest_has_no_tag() -> None:
    digest = f"sha256:{'0a' * 32}"
    spec = pod(rendered("image.repository=reg:5000/a/it", "image.tag=v1", f"image.digest={digest}",
                        "daemon.enabled=true", f"daemon.image.digest={digest}"))["containers"]
    assert spec["nvshare-kubelet"]["image"] == f"reg:5000/a/it@{digest}"
    assert spec["nvshared"]["image"] == spec["bus"]["image"] == f"localhost/nvshared@{digest}"


EVERYTHING = (
    "daemon.enabled=true", "dra.enabled=true", "policies.shares=true", "policies.nvidiaGPU=true",
    "nodeSettings.a.replicas=2", "metrics.podMonitor.enabled=true", "metrics.service.enabled=true",
)


@pytest.mark.parametrize("release", ["second", "x" * 53])
def test_helm_chart_releases_of_one_cluster_share_no_object(release: str) -> None:
    first = rendered(*EVERYTHING)
    other = rendered(*EVERYTHING, "dra.deviceClass=false", release=release)
    assert not first.keys() & other.keys()
    assert len(other) == len(first) - 1
    for objects in (first, other):
        names = {kind: {name for of, name in objects if of == kind} for kind, _ in objects}
        ((daemon_set,),) = [names["DaemonSet"]]
        spec = objects["DaemonSet", daemon_set]["spec"]
        template = spec["template"]
        assert names["ServiceAccount"] == {template["spec"]["serviceAccountName"]}
        assert names["ConfigMap"] == {
            one["configMap"]["name"] for one in template["spec"]["volumes"] if "configMap" in one}
        selectors = [
            spec["selector"]["matchLabels"],
            *(one["spec"]["selector"] for (kind, _), one in objects.items() if kind == "Service"),
            *(one["spec"]["selector"]["matchLabels"]
              for (kind, _), one in objects.items() if kind == "PodMonitor")]
        assert selectors == [{"app.kubernetes.io/name": daemon_set}] * 3
        assert template["metadata"]["labels"].items() >= selectors[0].items()
        for (kind, name), one in objects.items():
            assert len(name) <= 63
            if kind == "ClusterRoleBinding":
                assert one["roleRef"]["name"] in names["ClusterRole"]
                assert {each["name"] for each in one["subjects"]} == names["ServiceAccount"]
            if kind.endswith("PolicyBinding"):
                assert one["spec"]["policyName"] in names[kind.removesuffix("Binding")]
        text = json.dumps([*objects.values()])
        (account,) = names["ServiceAccount"]
        assert text.count(f'system:serviceaccount:nvshare:{account}\\"') == text.count(
            "system:serviceaccount:")


def test_helm_chart_settings_of_nodes_are_complete_options_of_nvshare_kubelet() -> None:
    objects = rendered(given={
        "replicas": 7, "foreignAnnotations": True, "extraArgs": ["--cdi", "on"], "nodeSettings": {
            "a100": {"replicas": 20, "foreignAnnotations": False},
            "desk": {"priorityClasses": [{"class": "..-1", "priority": "background"}]}}})
    args = pod(objects)["containers"]["nvshare-kubelet"]["args"]
    folder = options.parse(args).settings
    mounts = {one["mountPath"]: one["name"] for one in pod(objects)["containers"][
        "nvshare-kubelet"]["volumeMounts"]}
    assert pod(objects)["volumes"][mounts[str(folder)]]["configMap"] == {
        "name": "gpu-sharing-settings"}
    files = objects["ConfigMap", "gpu-sharing-settings"]["data"]
    found = {name: options.parse([*args, *shlex.split(text)]) for name, text in files.items()}
    assert {name: (one.replicas[-1], one.foreign, bool(one.classes))
            for name, one in found.items()} == {
        "default": (("", 7), True, False), "a100": (("", 20), False, False),
        "desk": (("", 7), True, True)}


def test_helm_chart_metrics_are_scraped_with_the_labels_of_programs() -> None:
    objects = rendered("daemon.enabled=true", given={"metrics": {
        "podMonitor": {"enabled": True, "interval": "30s", "labels": {"release": "prometheus"}},
        "service": {"enabled": True, "annotations": {"prometheus.io/scrape": "true"}}}})
    monitor = objects["PodMonitor", "nvshared"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert (endpoint["interval"], endpoint["honorLabels"]) == ("30s", True)
    (port,) = pod(objects)["containers"]["nvshared"]["ports"]
    assert endpoint["port"] == port["name"]
    service = objects["Service", "nvshared"]
    assert service["metadata"]["annotations"] == {"prometheus.io/scrape": "true"}
    (shown,) = service["spec"]["ports"]
    assert (shown["targetPort"], shown["port"]) == (port["name"], port["containerPort"])
    for name in ("podMonitor", "service"):
        done = helm("template", str(CHART), *sets((f"metrics.{name}.enabled=true",)))
        assert "need daemon.enabled" in done.stderr


def test_helm_chart_default_affinity_gives_way_to_a_node_selector_or_affinity() -> None:
    usual = pod(rendered())
    assert "gpu.present" in str(usual["affinity"])
    assert "nodeSelector" not in usual
    chosen = pod(rendered("nodeSelector.pool=a"))
    assert (chosen.get("affinity"), chosen["nodeSelector"]) == (None, {"pool": "a"})
    both = {"affinity": {"podAffinity": {}}, "nodeSelector": {"pool": "a"}}
    assert pod(rendered(given=both)).items() >= both.items()


def test_helm_chart_takes_values_in_all_forms_that_the_api_server_takes() -> None:
    given = {
        "image": {"repository": "registry.example:5000/Team".lower(), "tag": "v1.0_x-2"},
        "imagePullSecrets": [{"name": "my.key-1"}], "priorityClassName": "",
        "tolerations": [
            {"operator": "Exists"}, {"key": "a.b/c", "effect": "NoSchedule"},
            {"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute",
             "tolerationSeconds": 3}],
        "updateStrategy": {"rollingUpdate": {"maxUnavailable": "20%"}},
        "resources": {"limits": {"memory": "1.5Gi", "cpu": 0.5}, "requests": {"cpu": 1}},
        "nodeSelector": {"kubernetes.io/os": "linux", "a": ""}, "podLabels": {"team": "a_b"},
        "podAnnotations": {"a/b": "any: text"}, "env": [
            {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
            {"name": "B"}],
        "priorityClasses": [{"class": "a.b-c", "priority": "high"},
                            {"class": "..", "priority": "normal"}],
        "kubeletRootDir": "/var/snap/x/.kube..let"}
    spec = pod(rendered(given=given))
    assert [spec[key] for key in ("tolerations", "nodeSelector", "imagePullSecrets")] == [
        given[key] for key in ("tolerations", "nodeSelector", "imagePullSecrets")]
    assert spec["containers"]["nvshare-kubelet"]["resources"] == given["resources"]


@pytest.mark.parametrize("wrong", [
    "replicas=-1", "replicas=1001", "replica=3", "image.pullPolicy=Sometimes", "dra=true",
    "priorityClasses[0].class=it", "policies.nvidia=true", "kubeletRootDir=var",
    # what the API server or nvshare-kubelet would refuse
    "kubeletRootDir=/a:b", "kubeletRootDir=/a/../b", "image.tag=a/b", "image.tag=a@b",
    "image.repository=it:v1", "image.repository=It", "image.digest=sha256:1",
    "env[0].name=A=B", "env[0].value=x", "env[0].name=A,env[0].value=1",
    "env[0].name=A,env[0].value=x,env[0].valueFrom.fieldRef.fieldPath=x",
    "daemon.env[0].name=A,daemon.env[0].valuefrom=x", "nodeSelector.a=true", "nodeSelector.a=b/c",
    "podAnnotations.a=1", "podLabels.a=b c", "resources.limits.memory=1GB", "resources.limit.cpu=1",
    "tolerations[0].operator=Is", "tolerations[0].effect=Never", "tolerations[0].value=a",
    "tolerations[0].operator=Exists,tolerations[0].value=a",
    "tolerations[0].operator=Exists,tolerations[0].tolerationSeconds=3",
    "updateStrategy.type=Recreate", "updateStrategy.rollingUpdate.maxSurge=1",
    "updateStrategy.type=OnDelete,updateStrategy.rollingUpdate.maxUnavailable=1",
    "updateStrategy.rollingUpdate.maxUnavailable=half", "affinity.node=x",
    "priorityClassName=A", "imagePullSecrets[0].name=A_b", "priorityClasses[0].priority=high",
    "priorityClasses[0].class=A,priorityClasses[0].priority=high",
    "nodeSettings.a.replica=1", "nodeSettings.a.replicas=-1", "metrics.podMonitor.interval=often",
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
