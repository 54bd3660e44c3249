# SPDX-License-Identifier: Apache-2.0
"""The real helm installs, upgrades and rolls back the chart while pods run."""

import json
from collections.abc import Iterator

import pytest

from nvshared.kubelet.options import SETTINGS_LABEL
from tests.kubernetes.cluster import Cluster, pod
from tests.kubernetes.node import HERE, NAME
from tests.kubernetes.test_device_plugin import first_process
from tests.kubernetes.test_manifests import KINDS, SERVER, without

SPACE = "--namespace=nvshare"
VALUES = "/root/values.yaml"


def run_helm(cluster: Cluster, *command: str) -> str:
    return cluster.output(
        "env", "KUBECONFIG=/etc/kubernetes/admin.conf", f"{HERE}/helm", *command, SPACE)


@pytest.fixture
def release(helm: None, cluster: Cluster, manifests: str, imported: None) -> Iterator[str]:
    """The folder of the Helm chart, while no systemd unit of the node offers shares."""
    cluster.write(VALUES, json.dumps({
        "env": [{"name": key, "value": value} for key, value in SERVER.items()],
        "priorityClasses": [{"class": "urgent", "priority": "high"}],
        "foreignAnnotations": True,
    }))
    with without(cluster, manifests, "nvshare-kubelet"):
        yield f"{manifests}/chart"


def test_pods_keep_running_through_upgrade_and_rollback_of_the_chart(
    cluster: Cluster, release: str
) -> None:
    run_helm(cluster, "install", "nvshared", release, "--create-namespace", "--values", VALUES)
    cluster.until(lambda: cluster.allocatable() == 10, "ten shares are offered")
    cluster.start_pods(pod("steady", annotations={"gpu-memory": "64"}))
    cluster.until(lambda: cluster.terms("steady") == {"memory-limit": 64 << 20}, "it is read")
    process = first_process(cluster, "steady")
    run_helm(cluster, "upgrade", "nvshared", release, "--values", VALUES, "--set", "replicas=4")
    cluster.until(lambda: cluster.allocatable() == 4, "four shares are offered")
    cluster.start_pods(pod("later"))
    run_helm(cluster, "rollback", "nvshared", "1")
    cluster.until(lambda: cluster.allocatable() == 10, "ten shares are offered again")
    cluster.start_pods(pod("latest"))
    assert first_process(cluster, "steady") == process
    assert cluster.terms("steady") == {"memory-limit": 64 << 20}
    cluster.finish("steady", "later", "latest")
    run_helm(cluster, "uninstall", "nvshared", "--wait")
    left = cluster.kubectl("get", KINDS, SPACE, "--output=name").split()
    assert [one for one in left if "nvshare" in one or "gpu-sharing" in one] == [
        "namespace/nvshare"]
    cluster.kubectl("delete", "namespace", "nvshare")


def test_node_settings_of_the_chart_hold_and_an_uninstall_leaves_no_taint(
    cluster: Cluster, release: str
) -> None:
    cluster.kubectl("label", "node", NAME, f"{SETTINGS_LABEL}=few")
    try:
        run_helm(cluster, "install", "nvshared", release, "--create-namespace", "--values", VALUES,
                 "--set", "nodeSettings.few.replicas=3")
        cluster.until(lambda: cluster.allocatable() == 3, "three shares are offered")
        run_helm(cluster, "uninstall", "nvshared", "--wait")
        cluster.until(lambda: not cluster.get("pods", SPACE)["items"], "no pod is left")
        assert not cluster.get("node", NAME)["spec"].get("taints")
        cluster.kubectl("delete", "namespace", "nvshare")
    finally:
        cluster.kubectl("label", "node", NAME, f"{SETTINGS_LABEL}-")


@pytest.mark.parametrize("values", [
    ["daemon.enabled=true"], ["dra.enabled=true"],
    ["policies.shares=true", "policies.nvidiaGPU=true", "image.repository=registry.example/it"],
])
def test_api_server_accepts_the_chart(
    cluster: Cluster, helm: None, manifests: str, values: list[str]
) -> None:
    options = [part for one in values for part in ("--set", one)]
    made = run_helm(cluster, "template", "nvshared", f"{manifests}/chart", *options)
    cluster.kubectl("create", "namespace", "nvshare")
    try:
        taken = cluster.kubectl(
            "create", "--dry-run=server", "--filename=-", "--output=name", given=made).split()
    finally:
        cluster.kubectl("delete", "namespace", "nvshare")
    assert len(taken) == made.count("\nkind: ")
    assert "daemonset.apps/gpu-sharing" in taken
