# SPDX-License-Identifier: Apache-2.0
"""Pods get shares of a GPU by the device plugin, from a real kubelet."""

import json

import pytest

from nvshared.kubelet.card import CHECKPOINT
from tests.kubernetes.cluster import RESTRICTED, TOLD, Cluster, deployment, pod
from tests.kubernetes.node import MANIFESTS, NAME
from tests.system import card

MOST_OF_IT = card.MEMORY * 6 // 10      # MiB: two of these do not fit together


def first_process(cluster: Cluster, name: str) -> str:
    (client,) = [one for one in card.clients(cluster) if one["tenant"] == cluster.tenant(name)]
    return str(client["pid"])


def main_process(cluster: Cluster, unit: str) -> str:
    """The id of the main process of a systemd unit; 0 while it has none."""
    return cluster.output("systemctl", "show", unit, "--property=MainPID", "--value")


def test_node_offers_ten_shares_per_gpu(cluster: Cluster) -> None:
    status = cluster.get("node", NAME)["status"]
    assert status["capacity"]["nvshare.com/gpu"] == "10"
    assert status["allocatable"]["nvshare.com/gpu"] == "10"
    wanted = {"shared": "true", "count": "1", "replicas": "10", "memory": str(card.MEMORY)}

    def labels() -> dict[str, str]:
        every = cluster.get("node", NAME)["metadata"]["labels"]
        return {name: every.get(f"nvshare.com/gpu.{name}", "") for name in wanted}

    cluster.until(lambda: labels() == wanted, "the node's labels say so")


def test_pod_with_a_share_gets_library_and_socket_and_is_a_tenant(cluster: Cluster) -> None:
    cluster.start_pods(pod("one"))
    process = f"/proc/{first_process(cluster, 'one')}"
    environment = cluster.run("cat", f"{process}/environ").stdout.split("\0")
    assert "NVSHARE_SOCKET=/run/nvshare/nvshare.sock" in environment
    assert "NVSHARE_REQUIRED=1" in environment
    assert not any(one.startswith("LD_PRELOAD=") for one in environment)
    assert "/usr/lib/nvshare/libnvshare.so" in cluster.output("cat", f"{process}/maps")
    mounts = cluster.output("cat", f"{process}/mounts").splitlines()
    for folder in ("/usr/lib/nvshare", "/run/nvshare", "/etc/ld.so.preload"):
        (options,) = [line.split()[3] for line in mounts if line.split()[1] == folder]
        assert "ro" in options.split(","), folder
    cluster.finish("one")


def test_pods_that_do_not_fit_together_take_turns_with_right_results(cluster: Cluster) -> None:
    cluster.run("nvsharectl", "set-tq", "100ms")
    turns = card.status(cluster)["gpus"][0]["turns"]
    cluster.start_pods(*(pod(name, MOST_OF_IT, seed=seed) for seed, name in enumerate("ab", 1)))
    cluster.until(lambda: card.status(cluster)["gpus"][0]["turns"] - turns > 4, "they take turns")
    cluster.finish("a", "b")


def test_pod_with_restricted_security_shares_the_gpu(cluster: Cluster) -> None:
    cluster.start_pods(pod("free"), pod("restricted", security=RESTRICTED))
    cluster.finish("free", "restricted")


def test_eleventh_pod_waits_while_all_ten_shares_of_the_gpu_are_in_use(cluster: Cluster) -> None:
    names = [f"p{number}" for number in range(11)]
    cluster.apply(*map(pod, names))
    cluster.until(lambda: [cluster.phase(name) for name in names].count("Running") == 10, "ten run")
    (last,) = [name for name in names if cluster.phase(name) == "Pending"]
    (condition,) = cluster.get("pod", last)["status"]["conditions"]
    assert "Insufficient nvshare.com/gpu" in condition["message"]
    cluster.finish(next(name for name in names if name != last))
    cluster.until(lambda: cluster.phase(last) == "Running", "it has its share")


def test_pod_with_a_share_starts_only_when_nvshared_runs(cluster: Cluster) -> None:
    with cluster.stopped("nvshared"):
        cluster.apply(pod("early"))
        cluster.until(
            lambda: cluster.get("pod", "early")["status"].get("conditions"), "it is judged")
        assert cluster.phase("early") == "Pending"
    cluster.until(lambda: cluster.shares("early"), "it uses the GPU")
    cluster.finish("early")


def test_static_pod_started_before_the_plugin_is_reported(cluster: Cluster) -> None:
    one = pod("early")
    one["spec"]["containers"][0]["command"] = ["/bin/sleep", "infinity"]
    early = f"early-{NAME}"
    cluster.run("systemctl", "stop", "nvshare-kubelet", "kubelet")
    cluster.run("rm", f"/var/lib/kubelet/{CHECKPOINT}")
    cluster.write(f"{MANIFESTS}/early.yaml", json.dumps(one))
    try:
        cluster.run("systemctl", "start", "kubelet")
        cluster.until(lambda: cluster.phase(early) == "Running", "it runs")
        cluster.run("systemctl", "start", "nvshare-kubelet")
        cluster.until(lambda: cluster.refusals(early, "StartedWithoutGPU"), "an event says so")
        assert "it started without" in cluster.refusals(early, "StartedWithoutGPU")
    finally:
        cluster.run("rm", f"{MANIFESTS}/early.yaml")
        cluster.run("systemctl", "start", "kubelet", "nvshare-kubelet")
    cluster.until(lambda: early not in cluster.kubectl("get", "pods"), "it is gone")
    cluster.until(lambda: cluster.allocatable() == 10, "the shares are there")


def test_program_started_without_nvshared_waits_and_logs_the_reason(cluster: Cluster) -> None:
    one = pod("late")
    (main,) = one["spec"]["containers"]
    main["command"][-1] = f"until [ -e {TOLD}/go ]; do sleep 0.1; done; {main['command'][-1]}"
    cluster.apply(one)
    cluster.until(lambda: cluster.phase("late") == "Running", "it runs")
    with cluster.stopped("nvshared.socket", "nvshared"):
        cluster.write(f"{TOLD}/go", "")
        cluster.until(
            lambda: "waits for nvshared, which is not running" in cluster.kubectl("logs", "late"),
            "it says why it waits")
        cluster.run("rm", f"{TOLD}/go")
        assert cluster.phase("late") == "Running"
    cluster.until(lambda: cluster.shares("late"), "it shares the GPU")
    cluster.finish("late")


def test_allocation_beyond_the_pods_host_memory_limit_is_out_of_memory(cluster: Cluster) -> None:
    """Swapped bytes count against the host memory limit of the pod's containers."""
    little, enough = pod("little", MOST_OF_IT), pod("enough", MOST_OF_IT)
    for one, limit in ((little, MOST_OF_IT + 10), (enough, card.MEMORY * 2)):
        one["spec"]["containers"][0]["resources"]["limits"]["memory"] = f"{limit}Mi"
    cluster.apply(little)
    cluster.until(lambda: cluster.has_ended("little"), "it has ended")
    assert "out of memory" in cluster.kubectl("logs", "little")
    (status,) = cluster.get("pod", "little")["status"]["containerStatuses"]
    assert status["state"]["terminated"]["reason"] == "Error"       # it is not "OOMKilled"
    cluster.run("nvsharectl", "set-tq", "100ms")
    turns = card.status(cluster)["gpus"][0]["turns"]
    cluster.start_pods(enough, pod("other", MOST_OF_IT, seed=2))
    cluster.until(lambda: card.status(cluster)["gpus"][0]["turns"] - turns > 4, "they take turns")
    cluster.finish("enough", "other")


@pytest.mark.parametrize("unit", ["kubelet", "nvshared", "nvshare-kubelet", "containerd"])
def test_pods_keep_running_when_a_daemon_of_the_node_is_killed(cluster: Cluster, unit: str) -> None:
    cluster.start_pods(pod("steady"))
    process = first_process(cluster, "steady")
    killed = main_process(cluster, unit)
    cluster.run("kill", "-KILL", killed)
    cluster.until(lambda: main_process(cluster, unit) not in ("0", killed), "systemd starts it")
    cluster.apply(deployment("later"))
    cluster.until(lambda: cluster.programs() == 2, "another one shares the GPU")
    cluster.run("systemctl", "restart", unit)
    cluster.apply(deployment("latest"))
    cluster.until(lambda: cluster.programs() == 3, "and one more")
    assert first_process(cluster, "steady") == process
    cluster.finish("steady")


def test_pod_with_a_share_runs_again_after_a_reboot(cluster: Cluster) -> None:
    cluster.apply(deployment("it"))
    cluster.until(lambda: cluster.programs() == 1, "it uses the GPU")
    cluster.reboot()
    cluster.until(cluster.is_ready, "the node is ready")
    cluster.until(lambda: cluster.programs() == 1, "it uses the GPU again")
    assert cluster.allocatable() == 10
