# SPDX-License-Identifier: Apache-2.0
"""Pods with DRA claims for parts of a GPU, with a real scheduler and kubelet."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from nvshared.units import MIB
from tests.kubernetes.cluster import DRIVER, Cluster, claim, deployment, pod
from tests.kubernetes.conftest import MANIFESTS
from tests.kubernetes.node import HERE
from tests.kubernetes.test_device_plugin import first_process, main_process
from tests.kubernetes.values import PARAMETERS
from tests.system import card

CLAIMS = MANIFESTS / "claims"
CLASS = CLAIMS / "deviceclass.yaml"
DROP_IN = "/etc/systemd/system/nvshare-kubelet.service.d/zz-claims.conf"


pytestmark = pytest.mark.usefixtures("cdi")


@pytest.fixture(scope="module")
def _claims(cluster: Cluster, cdi: None) -> Iterator[None]:
    cluster.write(DROP_IN, "[Service]\nExecStart=\nExecStart=/usr/bin/nvshare-kubelet --dra\n")
    cluster.run("systemctl", "daemon-reload")
    cluster.run("systemctl", "restart", "nvshare-kubelet")
    cluster.kubectl("apply", "--filename=-", given=CLASS.read_text())
    cluster.until(lambda: devices(cluster), "the GPU is offered")
    yield
    cluster.kubectl("delete", "--filename=-", given=CLASS.read_text())
    cluster.run("rm", DROP_IN)
    cluster.run("systemctl", "daemon-reload")
    cluster.run("systemctl", "restart", "nvshare-kubelet")
    cluster.until(lambda: cluster.allocatable() == 10, "the shares are back")


@pytest.fixture(autouse=True)
def _no_claims_left(cluster: Cluster, _nothing_left: None) -> Iterator[None]:
    """Deletes each test's claims, before its pods; Kubernetes removes a claim after its pods."""
    yield
    cluster.kubectl("delete", "resourceclaim", "--all", "--wait=false")


def devices(cluster: Cluster) -> list[dict[str, Any]]:
    found = cluster.get("resourceslices")["items"]
    return [one for each in found if each["spec"]["driver"] == DRIVER
            for one in each["spec"]["devices"]]


def created(cluster: Cluster, said: Sequence[dict[str, Any]]) -> list[str]:
    """Returns the index in `said` for each claim, template and class that the server accepts."""
    claims = [claim(f"c{number}", **one) for number, one in enumerate(said)]
    for number, one in enumerate(said):     # claim() adds no config for empty parameters
        config = [{"opaque": {"driver": DRIVER, "parameters": one}}]
        claims[number]["spec"]["devices"]["config"] = config
        claims += [
            claims[number] | {"kind": "ResourceClaimTemplate", "spec": {
                "spec": claims[number]["spec"]}},
            claims[number] | {"kind": "DeviceClass", "spec": {"config": config}},
        ]
    listed = {"apiVersion": "v1", "kind": "List", "items": claims}
    printed = cluster.kubectl(
        "create", "--dry-run=server", "--filename=-", "--output=name", given=json.dumps(listed),
        check=False)
    return re.findall(r"/c(\d+)$", printed, re.MULTILINE)


def taken(cluster: Cluster, said: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the accepted parameters. Fails unless claim, template and class accept the same."""
    names = created(cluster, said)
    assert all(names.count(name) == 3 for name in names)
    return [said[number] for number in sorted(map(int, set(names)))]


def is_limited(cluster: Cluster, name: str) -> bool:
    (client,) = [one for one in card.clients(cluster) if one["tenant"] == cluster.tenant(name)]
    return bool(client["state"] == "limited")


def events(cluster: Cluster, name: str) -> str:
    uid = cluster.get("pod", name)["metadata"]["uid"]
    return cluster.kubectl(
        "get", "events", f"--field-selector=involvedObject.uid={uid}",
        "--output=jsonpath={.items[*].message}")


def test_pod_gets_a_share_by_a_cdi_device_when_the_runtime_supports_cdi(cluster: Cluster) -> None:
    cluster.start_pods(pod("one"))
    process = f"/proc/{first_process(cluster, 'one')}"
    environment = cluster.run("cat", f"{process}/environ").stdout.split("\0")
    assert "NVSHARE_REQUIRED=1" in environment
    assert "/usr/lib/nvshare/libnvshare.so" in cluster.output("cat", f"{process}/maps")
    mounts = cluster.output("cat", f"{process}/mounts").splitlines()
    (options,) = [line.split()[3] for line in mounts if line.split()[1] == "/usr/lib/nvshare"]
    assert {"ro", "nodev"} <= set(options.split(","))   # only nvshare-kubelet's CDI file sets nodev
    cluster.finish("one")


@pytest.mark.usefixtures("_claims")
class TestClaims:
    """nvshare-kubelet runs with --dra."""

    def test_node_offers_a_single_device_for_all_claims(self, cluster: Cluster) -> None:
        (device,) = devices(cluster)
        assert device["allowMultipleAllocations"]
        assert set(device["capacity"]) == {"memory", "compute", "clients"}
        assert "taints" not in device
        assert device["attributes"]["uuid"]["string"].lower() == device["name"]
        cluster.until(lambda: cluster.allocatable() == 0, "no share is offered besides")

    def test_third_compute_claim_waits_until_enough_of_the_gpu_is_unclaimed(
        self, cluster: Cluster
    ) -> None:
        parts = {"a": "50", "b": "40", "c": "40"}
        cluster.apply(*(claim(name, {"compute": part}) for name, part in parts.items()))
        cluster.start_pods(pod("a", claimed="a"), pod("b", claimed="b"))
        cluster.apply(pod("c", claimed="c"))
        cluster.until(
            lambda: cluster.get("pod", "c")["status"].get("conditions"), "the third is judged")
        (condition,) = cluster.get("pod", "c")["status"]["conditions"]
        assert condition["reason"] == "Unschedulable"
        assert "cannot allocate all claims" in condition["message"]
        assert cluster.terms("a") == {"compute-limit": 50}
        assert cluster.terms("b") == {"compute-limit": 40}
        for name in "ab":
            cluster.until(partial(is_limited, cluster, name), "it has had its part, and waits")
        cluster.finish("b")
        cluster.until(lambda: cluster.shares("c"), "the third uses the GPU")
        assert cluster.terms("c") == {"compute-limit": 40}
        cluster.finish("a", "c")

    def test_claim_memory_is_the_memory_limit_of_the_program(self, cluster: Cluster) -> None:
        cluster.apply(claim("small", {"memory": "32Mi"}), pod("large", 64, claimed="small"))
        cluster.until(lambda: cluster.has_ended("large"), "it has ended")
        assert "out of memory" in cluster.kubectl("logs", "large")
        assert "OOMKilled" not in cluster.kubectl("get", "pod", "large", "--output=yaml")

    def test_unknown_claim_parameter_keeps_the_pod_pending_with_the_reason(
        self, cluster: Cluster
    ) -> None:
        cluster.apply(claim("it", wieght=300), pod("it", claimed="it"))
        cluster.until(
            lambda: "there is no parameter 'wieght'" in events(cluster, "it"), "kubelet says why")
        assert cluster.phase("it") == "Pending"

    def test_policy_refuses_invalid_claim_parameters(self, cluster: Cluster) -> None:
        good, bad = PARAMETERS
        policy = (CLAIMS / "policy.yaml").read_text()
        cluster.kubectl("apply", "--filename=-", given=policy)
        try:
            cluster.until(lambda: not created(cluster, bad[:1]), "it is in force for all three")
            assert taken(cluster, bad) == []
            assert taken(cluster, good) == [*good]
        finally:
            cluster.kubectl("delete", "--filename=-", given=policy)

    def test_namespace_quota_refuses_too_many_and_too_large_claims(
        self, cluster: Cluster
    ) -> None:
        example = (MANIFESTS / "examples" / "quota.yaml").read_text()

        def create(name: str, capacity: dict[str, str], *options: str) -> str:
            """The API server's error for a claim in the namespace lab; empty if accepted."""
            return cluster.run(
                f"{HERE}/kubectl", "--kubeconfig=/etc/kubernetes/admin.conf", "create",
                "--namespace=lab", "--filename=-", *options,
                given=json.dumps(claim(name, capacity)), check=False).stderr

        cluster.kubectl("apply", "--filename=-", given=example)
        try:
            fits = {"memory": "24Gi", "compute": "50"}
            large = {"memory": "25Gi", "compute": "50"}     # made while no policy is in force
            cluster.until(
                lambda: "at most 24Gi" in create("large", large, "--dry-run=server"),
                "the policy is in force")
            assert "at most 24Gi" in create("free", {"compute": "50"})
            assert "at most 24Gi" in create("busy", {**fits, "compute": "51"})
            cluster.until(
                lambda: cluster.get("resourcequota", "gpus", "--namespace=lab").get("status"),
                "the quota is counted")
            assert [create(f"c{number}", fits) for number in range(4)] == [""] * 4
            assert "exceeded quota: gpus" in create("c4", fits)
        finally:
            cluster.kubectl("delete", "--filename=-", given=example)

    def test_pod_with_a_share_gets_a_claim_made_by_kubernetes(self, cluster: Cluster) -> None:
        cluster.start_pods(pod("one"), pod("two"))
        status = cluster.get("pod", "one")["status"]["extendedResourceClaimStatus"]
        made = cluster.get("resourceclaim", status["resourceClaimName"])
        (result,) = made["status"]["allocation"]["devices"]["results"]
        assert result["driver"] == DRIVER
        assert cluster.terms("one") == {}       # the claim named no capacity, so no limit is set
        cluster.finish("one", "two")

    def test_claim_waits_for_nvshared_and_kubelet_shows_the_device_health(
        self, cluster: Cluster
    ) -> None:
        def health() -> str:
            return cluster.kubectl("get", "pod", "it", "--output=jsonpath={.status"
                                   ".containerStatuses[0].allocatedResourcesStatus"
                                   "[0].resources[0].health}")

        cluster.run("systemctl", "stop", "nvshared")
        cluster.until(lambda: "taints" in devices(cluster)[0], "the device is tainted")
        cluster.apply(claim("it", {"compute": "50"}), pod("it", claimed="it"))
        cluster.until(lambda: cluster.get("pod", "it")["status"].get("conditions"), "it is judged")
        assert cluster.phase("it") == "Pending"
        cluster.run("systemctl", "start", "nvshared")
        cluster.until(lambda: cluster.shares("it"), "it uses the GPU")
        cluster.until(lambda: health() == "Healthy", "it is healthy")
        cluster.run("systemctl", "stop", "nvshared")
        cluster.until(lambda: health() == "Unhealthy", "it is not")
        cluster.run("systemctl", "start", "nvshared")
        cluster.until(lambda: health() == "Healthy", "it is healthy again")
        cluster.finish("it")

    @pytest.mark.parametrize("unit", ["kubelet", "nvshared", "nvshare-kubelet", "containerd"])
    def test_claim_stays_in_force_when_a_service_of_the_node_is_killed(
        self, cluster: Cluster, unit: str
    ) -> None:
        cluster.apply(*(claim(name, {"compute": "40"}, weight=300, priority="background")
                        for name in ("old", "new")))
        cluster.start_pods(pod("old", claimed="old"))
        process, killed = first_process(cluster, "old"), main_process(cluster, unit)
        cluster.run("kill", "-KILL", killed)
        cluster.until(lambda: main_process(cluster, unit) not in ("0", killed), "systemd starts it")
        wanted = {"compute-limit": 40, "weight": 300, "priority": 1}
        cluster.start_pods(pod("new", claimed="new"))
        cluster.until(lambda: cluster.terms("old") == wanted, "its terms hold")
        assert cluster.terms("new") == wanted
        assert first_process(cluster, "old") == process
        tenant = cluster.tenant("old")
        cluster.finish("old", "new")
        cluster.until(lambda: tenant not in cluster.tenants(), "its terms went with it")

    def test_pod_with_a_claim_runs_again_after_a_reboot(self, cluster: Cluster) -> None:
        wanted = deployment("it")
        wanted["spec"]["template"]["spec"] |= {
            key: pod("it", claimed="it")["spec"][key] for key in ("containers", "resourceClaims")}
        cluster.apply(claim("it", {"compute": "40"}), wanted)
        cluster.until(lambda: cluster.programs() == 1, "it uses the GPU")
        cluster.reboot()
        cluster.until(cluster.is_ready, "the node is ready")
        cluster.until(lambda: cluster.programs() == 1, "it uses the GPU again")
        (one,) = [one for name, one in cluster.tenants().items() if name.startswith("pod:")]
        assert ("compute-limit", 40) in {(term["name"], term["value"]) for term in one["terms"]}

    def test_nvshare_kubelet_uses_at_most_45_mib(
        self, cluster: Cluster, record_property: Callable[[str, object], None]
    ) -> None:
        status = cluster.output("cat", f"/proc/{main_process(cluster, 'nvshare-kubelet')}/status")
        resident = int(next(
            line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))
        record_property("MiB of nvshare-kubelet", round(resident / 1024, 1))
        assert resident * 1024 <= 45 * MIB
