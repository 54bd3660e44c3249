# SPDX-License-Identifier: Apache-2.0
"""A real API server accepts the manifests, and the DaemonSets replace the package's units."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from nvshared import __version__
from nvshared.kubelet.claims import DRIVER, REFUSED_CONDITION
from nvshared.kubelet.node import LEAVING_TAINT, PROBLEM_CONDITION
from nvshared.kubelet.slices import SLICES
from tests.kubernetes.cluster import RESTRICTED, Cluster, claim, pod
from tests.kubernetes.conftest import MANIFESTS
from tests.kubernetes.node import ADDRESS, IMAGE, NAME, PKI
from tests.system import card

# All examples except Kubeflow's and Kueue's, for which the API server has no resource types, and
# quota.yaml, which needs an existing namespace: test_claims.py applies quota.yaml.
EXAMPLES = sorted({path.name for path in MANIFESTS.glob("examples/*")} - {
    "kubeflow-notebook.yaml", "kueue.yaml", "quota.yaml"})
STRATEGIES = sorted(path.name for path in MANIFESTS.glob("overlays/*"))
KINDS = ",".join((
    "namespaces", "daemonsets", "configmaps", "serviceaccounts", "clusterroles",
    "clusterrolebindings", "validatingadmissionpolicies", "validatingadmissionpolicybindings"))
EVENTS = "/api/v1/namespaces/default/events"
# Without a kube-proxy, pods connect to the API server's own address.
SERVER = {"KUBERNETES_SERVICE_HOST": ADDRESS, "KUBERNETES_SERVICE_PORT": "6443"}
# A request without kubectl: kubectl would first read the pod, which is denied.
SEND = """
import ssl, sys, urllib.error, urllib.request
authority, method, url, token, body = sys.argv[1:]
kind = "strategic-merge-patch+json" if method == "PATCH" else "json"
headers = {"Authorization": f"Bearer {token}", "Content-Type": f"application/{kind}"}
request = urllib.request.Request(url, body.encode(), headers, method=method)
try:
    urllib.request.urlopen(request, context=ssl.create_default_context(cafile=authority)).close()
except urllib.error.HTTPError as error:
    print(error.read().decode())
"""
# Without the policy nvshare-kubelet, not the API server, refuses wrong annotations.
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
    """A patch of the DaemonSet that adds variables and host folders to a container."""
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
    """A kustomization with patches, as an administrator would write it."""
    return json.dumps({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": [of], "images": [
            {"name": "debian", "newName": IMAGE.partition(":")[0], "newTag": "1"},
        ],
        "patches": [{"patch": json.dumps(one)} for one in patches],
    })


@contextmanager
def without(cluster: Cluster, manifests: str, *units: str) -> Iterator[None]:
    """Disables units while the `with` block runs; at its end removes the DaemonSet's strategy."""
    cluster.run("systemctl", "disable", "--now", *units)
    cluster.until(lambda: cluster.allocatable() == 0, "the unit's shares are gone")
    cluster.kubectl("label", "--overwrite", "node", NAME, "nvidia.com/gpu.present=true")
    try:
        yield
    finally:
        cluster.kubectl("delete", "--ignore-not-found", f"--kustomize={manifests}/overlays/none")
        cluster.run("systemctl", "enable", "--now", *units)
    cluster.until(lambda: cluster.allocatable() == 10, "the unit's shares are back")


def pods(cluster: Cluster) -> list[str]:
    """The sharing strategies of the DaemonSet's pods, also of pods that are ending."""
    listed = cluster.get("pods", "--namespace=nvshare")["items"]
    return [one["metadata"]["labels"]["nvshare.com/strategy"] for one in listed]


@pytest.mark.parametrize("example", EXAMPLES)
def test_api_server_accepts_each_example_manifest(
    cluster: Cluster, manifests: str, example: str
) -> None:
    cluster.kubectl("create", "--dry-run=server", f"--filename={manifests}/examples/{example}")


def test_switch_of_sharing_strategy_leaves_no_manifest_field_of_the_previous_strategy(
    cluster: Cluster, manifests: str
) -> None:
    """No pod runs, because no node has the label."""
    cluster.kubectl("create", "namespace", "nvshare")
    fresh = {}
    for name in STRATEGIES:             # the objects with the API server's defaults
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
    """Kind and name of a Kubernetes object, and its content without the API server's additions."""
    meta = one.pop("metadata")
    one.pop("status", None)
    one["labels"] = meta.get("labels")
    return (one["kind"], meta["name"]), one


def test_daemon_set_without_the_kubelet_unit_offers_shares(
    cluster: Cluster, manifests: str, imported: None
) -> None:
    cluster.write(f"{manifests}/mine/kustomization.yaml", kustomization(
        "../overlays/nvshared", container("nvshare-kubelet", SERVER), WITHOUT_POLICY))
    with without(cluster, manifests, "nvshare-kubelet"):
        cluster.kubectl("apply", f"--kustomize={manifests}/mine")
        cluster.until(lambda: cluster.allocatable() == 10, "the pod's shares are there")
        cluster.start_pods(pod("it", annotations={"nvshare.com/weight": "300"}))
        cluster.until(lambda: cluster.terms("it") == {"weight": 300}, "annotations are read")
        cluster.kubectl("annotate", "--overwrite", "pod", "it", "nvshare.com/weight=x")
        cluster.until(lambda: "cannot be 'x'" in cluster.refusals("it"), "the reason is an event")
        cluster.until(lambda: "cannot be 'x'" in cluster.is_refused("it"), "its status says so")
        assert "its own condition alone" in patched(cluster, "it", {"phase": "Failed"})
        ours = {"type": REFUSED_CONDITION, "status": "False"}
        assert patched(cluster, "it", {"conditions": [ours]}) == ""
        for wrong in (
            event("kubelet", NAME, "Pod", "it"), event("nvshare-kubelet", "another", "Pod", "it"),
            event("nvshare-kubelet", NAME, "Node", "another")):
            assert "events of its own node alone" in sent(cluster, "POST", EVENTS, wrong)
        assert sent(cluster, "POST", EVENTS, event("nvshare-kubelet", NAME, "Node", NAME)) == ""
        check_labels(cluster)
        cluster.finish("it")


def check_labels(cluster: Cluster) -> None:
    """The DaemonSet's account may write labels, a taint and a condition of its own node alone."""
    cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "another"}})
    ours = {"metadata": {"labels": {"nvshare.com/gpu.count": "7"}}}
    for name, said, why in (
        ("another", ours, "its own node alone"), (NAME, ours, ""),
        (NAME, {"metadata": {"labels": {"example.com/it": "x"}}}, "of a node alone"),
        (NAME, {"metadata": {"labels": {"nvidia.com/gpu.present": None}}}, "of a node alone"),
        (NAME, {"metadata": {"annotations": {"it": "x"}}}, "of a node alone"),
        (NAME, {"spec": {"unschedulable": True}}, "of a node alone"),
        (NAME, {"spec": {"taints": [{"key": "it", "effect": "NoSchedule"}]}}, "of a node alone"),
        (NAME, {"spec": {"taints": [LEAVING_TAINT]}}, ""), (NAME, {"spec": {"taints": []}}, ""),
        (f"{NAME}/status", {"status": {"conditions": [
            {"type": PROBLEM_CONDITION, "status": "False"}]}}, ""),
        (f"{NAME}/status", {"status": {"conditions": [
            {"type": "Ready", "status": "False"}]}}, "of a node alone"),
        (f"{NAME}/status", {"status": {"capacity": {"example.com/it": "1"}}}, "of a node alone"),
        ("another/status", {"status": {"conditions": [
            {"type": PROBLEM_CONDITION, "status": "False"}]}}, "its own node alone")):
        answer = sent(cluster, "PATCH", f"/api/v1/nodes/{name}", said)
        assert why in answer if why else answer == "", (said, answer)
    cluster.kubectl("delete", "node", "another")


def sent(cluster: Cluster, method: str, path: str, body: Mapping[str, Any], token: str = "") -> str:
    """The API server's error for a request of the DaemonSet's account; "": it is permitted. The
    default `token` is of the pod on the node."""
    (one,) = cluster.get("pods", "--namespace=nvshare")["items"]
    token = token or cluster.kubectl(
        "create", "token", "nvshare-kubelet", "--namespace=nvshare", "--bound-object-kind=Pod",
        f"--bound-object-name={one['metadata']['name']}").strip()
    return cluster.output(
        "python3", "-c", SEND, f"{PKI}/ca.crt", method, f"https://{ADDRESS}:6443{path}", token,
        json.dumps(body))


def patched(cluster: Cluster, name: str, status: Mapping[str, Any]) -> str:
    """The API server's error for a change of a pod's status; "": it is permitted."""
    return sent(cluster, "PATCH", f"/api/v1/namespaces/default/pods/{name}/status",
                {"status": status})


def check_slices(cluster: Cluster) -> None:
    """The account may write only slices of its driver and node, with a token of that node."""
    def slice_of(name: str, driver: str, node: str) -> dict[str, Any]:
        return {
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
            "metadata": {"name": name}, "spec": {
                "driver": driver, "nodeName": node, "devices": [],
                "pool": {"name": name, "generation": 1, "resourceSliceCount": 1}},
        }

    for number, (driver, node, why) in enumerate((
        (DRIVER, "another", "its own node alone"), ("gpu.nvidia.com", NAME, f"of {DRIVER} alone"),
        (DRIVER, NAME, ""))):
        said = sent(cluster, "POST", SLICES, slice_of(f"it{number}", driver, node))
        assert why in said if why else said == ""
    unbound = cluster.kubectl("create", "token", "nvshare-kubelet", "--namespace=nvshare").strip()
    assert "its own node alone" in sent(
        cluster, "POST", SLICES, slice_of("unbound", DRIVER, NAME), unbound)
    theirs = slice_of("theirs", "gpu.nvidia.com", NAME)
    cluster.apply(theirs)
    theirs = cluster.get("resourceslice", "theirs")
    assert f"of {DRIVER} alone" in sent(cluster, "PUT", f"{SLICES}/theirs", theirs)
    cluster.kubectl("delete", "resourceslice", "theirs", "it2")


def event(component: str, host: str, kind: str, name: str) -> dict[str, Any]:
    """An event as nvshare-kubelet writes it."""
    return {
        "metadata": {"generateName": "it.", "namespace": "default"}, "type": "Warning",
        "involvedObject": {"kind": kind, "name": name, "namespace": "default"},
        "reason": "It", "message": "it", "source": {"component": component, "host": host},
    }


def test_daemon_set_serves_claims_while_the_nodes_nvshare_kubelet_unit_is_disabled(
    cluster: Cluster, manifests: str, imported: None, cdi: None
) -> None:
    """nvshare-kubelet has only the rights of the DaemonSet's account, not the node's."""
    cluster.write(f"{manifests}/mine/kustomization.yaml", kustomization(
        "../claims", container("nvshare-kubelet", SERVER)))
    with without(cluster, manifests, "nvshare-kubelet"):
        cluster.kubectl("apply", f"--kustomize={manifests}/mine")
        cluster.apply(claim("it", {"compute": "50"}))
        cluster.start_pods(pod("it", claimed="it"), pod("other"))
        assert cluster.terms("it") == {"compute-limit": 50}
        cluster.kubectl("delete", "resourceslices", "--all")
        cluster.until(lambda: cluster.get("resourceslices")["items"], "the slice is there again")
        check_slices(cluster)
        cluster.finish("it", "other")
        cluster.kubectl("delete", f"--kustomize={manifests}/mine")


def test_daemon_set_shares_the_gpu_of_a_bare_node_until_switched_off(
    cluster: Cluster, manifests: str, imported: None
) -> None:
    cluster.write(f"{manifests}/mine/kustomization.yaml", kustomization(
        "../overlays/nvshared-daemonset", SETTINGS, container("nvshare-kubelet", SERVER),
        container("nvshared", card.ENVIRONMENT, {"card": card.FOLDER})))
    check(cluster, manifests, "nvshared")
    with without(cluster, manifests, "nvshare-kubelet", "nvshared", "nvshared.socket"):
        cluster.kubectl("apply", f"--kustomize={manifests}/mine")
        cluster.until(lambda: cluster.allocatable() == 10, "the pod's shares are there")
        cluster.kubectl("apply", f"--kustomize={manifests}/check")
        cluster.kubectl("rollout", "status", "deployment/gpu-validation", "--timeout=120s")
        most = card.MEMORY * 6 // 10
        # Five: what does not fit on the GPU is more than any limit of the daemon's own pod.
        cluster.apply(*(pod(name, most, seed=seed) for seed, name in enumerate("abcde", 1)))
        cluster.until(lambda: len([
            one for one in inside(cluster, "tenants")["tenants"]
            if one["name"].startswith("pod:default/")]) == 5, "all share")
        inside(cluster, "set-tq", "100ms")
        turns = inside(cluster, "status")["gpus"][0]["turns"]
        cluster.until(
            lambda: inside(cluster, "status")["gpus"][0]["turns"] > turns + 4, "they take turns")
        cluster.finish(*"abcde")
        cluster.kubectl("apply", f"--kustomize={manifests}/overlays/none")
        cluster.until(lambda: set(pods(cluster)) == {"none"}, "the other pod is there alone")
        cluster.until(lambda: cluster.allocatable() == 0, "no share is left")


def inside(cluster: Cluster, *command: str) -> Any:
    return json.loads(cluster.kubectl(
        "exec", "--namespace=nvshare", "daemonset/gpu-sharing", "--container=nvshared", "--",
        "nvsharectl", *command, "--json"))


def test_init_container_installs_the_library_without_a_device_plugin(
    cluster: Cluster, imported: None
) -> None:
    one = pod("it")
    (main,) = one["spec"]["containers"]
    del main["resources"]               # without a device plugin no node offers the shares
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
def test_example_deployment_without_sharing_runs_one_replica_per_gpu(
    cluster: Cluster, manifests: str, cards: int
) -> None:
    """The test sets the node's number of GPUs, as NVIDIA's device plugin would."""
    check(cluster, manifests, "nvidia")
    say(cluster, cards)
    cluster.kubectl("apply", f"--kustomize={manifests}/check")
    wanted = ["Pending"] * (2 - cards) + ["Running"] * cards
    cluster.until(lambda: phases(cluster) == wanted, "as many run as there are")
    say(cluster, 0)


def check(cluster: Cluster, manifests: str, name: str) -> None:
    patch = {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "gpu-validation"},
        "spec": {"template": {"spec": {"containers": [
            {"name": "it", "command": ["/bin/sleep", "infinity"]}]}}},
    }
    cluster.write(
        f"{manifests}/check/kustomization.yaml", kustomization(f"../validation/{name}", patch))


def say(cluster: Cluster, cards: int) -> None:
    patch = {"status": {"capacity": {"nvidia.com/gpu": str(cards)}}}
    cluster.kubectl("patch", "node", NAME, "--subresource=status", f"--patch={json.dumps(patch)}")


def phases(cluster: Cluster) -> list[str]:
    listed = cluster.get("pods", "--selector=app.kubernetes.io/name=gpu-validation")["items"]
    return sorted(one["status"]["phase"] for one in listed)
