# SPDX-License-Identifier: Apache-2.0
"""DRA claims, with a simulated kubelet, API server and container runtime, and the real daemon on
two simulated GPUs."""

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from nvshared.containers.cdi import FILE
from nvshared.kubelet.claims import DRIVER
from nvshared.kubelet.slices import UNAVAILABLE_TAINT
from nvshared.units import GIB, MIB
from tests.integration.apiserver import NODE, ApiServer
from tests.integration.apiserver import UID as POD
from tests.integration.conftest import wait_until
from tests.integration.fakehook import PATIENCE
from tests.integration.kubelet_node import Node, small_disk
from tests.integration.runtime import Runtime
from tests.integration.test_kubelet_annotations import Lab
from tests.integration.test_lacks import fill, needs_root

SLICE = f"{NODE}-{DRIVER}"
UID = "c1a1a1a1-0000-4000-8000-000000000000"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    made = ApiServer(tmp_path, "claims")
    yield made
    if made.runs:
        made.stop()


@pytest.fixture
def runtime(short_path: Path) -> Iterator[Runtime]:
    """A container runtime that supports CDI devices."""
    made = Runtime(short_path)
    yield made
    made.stop()


class ClaimLab(Lab):
    """A node that serves claims. There is a pod "old"."""

    def __init__(self, node: Node, api: ApiServer, runtime: Runtime) -> None:
        self.runtime, self.cdi = runtime, node.kubelet.folder.parent / "cdi"
        api.annotate("old")
        super().__init__(node, api)
        wait_until(lambda: SLICE in api.slices)
        self.first, self.second = (one["name"] for one in self.devices())

    def start(self, *options: str) -> None:
        before = self.node.kubelet.registrations
        self.node.start(
            "--kubeconfig", str(self.api.kubeconfig), "--node", NODE, "--dra", "--cdi", "auto",
            "--runtime", str(self.runtime.path), "--cdi-folder", str(self.cdi), *options)
        self.node.kubelet.wait(lambda: self.node.kubelet.registrations > before)

    def devices(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.api.slices[SLICE]["spec"]["devices"]
        return found

    def expect_taints(self, *wanted: bool) -> None:
        wait_until(
            lambda: SLICE in self.api.slices
            and [one.get("taints") == [UNAVAILABLE_TAINT] for one in self.devices()] == [*wanted])

    def claim(
        self, name: str = "it", *pods: str, device: str = "", owner: str = "Pod",
        parameters: Any = None, **capacity: str,
    ) -> dict[str, Any]:
        config = [] if parameters is None else [
            {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": parameters}}]
        found = self.api.claims[name] = {
            "metadata": {
                "namespace": "lab", "name": name, "uid": f"{UID}-{name}",
                "ownerReferences": [{"kind": owner}] if owner else None,
            },
            "status": {
                "allocation": {"devices": {"config": config, "results": [{
                    "driver": DRIVER, "pool": NODE, "device": device or self.first,
                    "request": "gpu", "shareID": "s1", "consumedCapacity": capacity,
                }]}},
                "reservedFor": [
                    {"resource": "pods", "name": pod, "uid": self.api.pods[pod]["uid"]}
                    for pod in pods or ("old",)
                ],
            },
        }
        return found

    def reserve(self, name: str, pod: str) -> None:
        self.api.claims[name]["status"]["reservedFor"].append(
            {"resource": "pods", "name": pod, "uid": f"{POD}{len(self.api.pods)}"})
        self.api.write(pod, {}, resourceClaims=[{"name": "gpu", "resourceClaimName": name}])

    def prepare(self, name: str = "it") -> Any:
        return self.node.kubelet.prepare(name, f"{UID}-{name}")

    def prepare_error(self, name: str = "it") -> str:
        answer = self.prepare(name)
        assert not answer.devices
        found: str = answer.error
        assert found
        return found

    def unprepare(self, name: str = "it") -> None:
        assert self.node.kubelet.unprepare(name, f"{UID}-{name}") == ""


@pytest.fixture
def lab(node: Node, api: ApiServer, runtime: Runtime) -> ClaimLab:
    return ClaimLab(node, api, runtime)


def test_each_card_is_a_device_of_the_nodes_resource_slice(lab: ClaimLab) -> None:
    spec = lab.api.slices[SLICE]["spec"]
    assert (spec["driver"], spec["nodeName"], spec["pool"]["name"]) == (DRIVER, NODE, NODE)
    assert lab.api.slices[SLICE]["metadata"]["ownerReferences"][0]["uid"] == "of-the-node"
    assert [one["allowMultipleAllocations"] for one in lab.devices()] == [True, True]
    assert all(one["attributes"]["memory"]["int"] > 0 for one in lab.devices())
    lab.node.kubelet.wait(lambda: lab.node.kubelet.devices() == {
        lab.first: "Healthy", lab.second: "Healthy"})


def test_prepared_claim_has_terms_and_a_cdi_device_and_can_be_prepared_again(lab: ClaimLab) -> None:
    lab.claim(memory="12Gi", compute="50", parameters={"weight": 200, "priority": "background"})
    answer = lab.prepare()
    (device,) = answer.devices
    # The terms are set when kubelet gets the answer, before any program of the pod starts.
    assert lab.terms(lab.api.tenant("old")) == {
        "memory-limit": 12 * GIB, "compute-limit": 50, "weight": 200, "priority": 1}
    assert (device.pool_name, device.device_name, device.share_id) == (NODE, lab.first, "s1")
    assert list(device.request_names) == ["gpu"]
    kind, _, name = device.cdi_device_ids[0].partition("=")
    said = json.loads((lab.cdi / FILE).read_text())
    assert said["kind"] == kind
    assert name in [one["name"] for one in said["devices"]]
    mounts = {one["containerPath"]: Path(one["hostPath"]) for one in (
        said["containerEdits"]["mounts"])}
    assert (mounts["/run/nvshare"] / "sock").is_socket()
    assert (mounts["/usr/lib/nvshare"] / "libnvshare.so").is_file()
    assert lab.prepare() == answer
    for _ in range(2):
        lab.unprepare()
    lab.expect(lab.api.tenant("old"))
    lab.unprepare("never-there")


def test_pod_with_claims_of_two_gpus_needs_cdi_devices_of_nvidia(lab: ClaimLab) -> None:
    lab.claim("a", compute="70")
    lab.claim("b", device=lab.second, compute="70")
    assert lab.prepare("a").devices
    assert "several GPUs only by NVIDIA's CDI devices" in lab.prepare_error("b")
    lab.cdi.joinpath("nvidia.json").write_text(json.dumps({"kind": "nvidia.com/gpu", "devices": [
        {"name": one["attributes"]["uuid"]["string"]} for one in lab.devices()]}))
    (device,) = lab.prepare("b").devices
    assert device.cdi_device_ids[1].lower() == f"nvidia.com/gpu={lab.second}"
    assert lab.terms(lab.api.tenant("old")) == {"compute-limit": 70}


def test_dra_driver_refuses_malformed_input_from_kubelet_and_api_server(lab: ClaimLab) -> None:
    (path,) = (lab.node.kubelet.folder / "plugins_registry").iterdir()
    for noise in (b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 64, b""):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(noise)
    assert 'resourceclaims "it" not found' in lab.prepare_error()
    garbage: Any
    for garbage in (None, [], {}, {"metadata": {}}, "x", {"metadata": 1, "status": 2}):
        lab.api.claims["it"] = garbage
        assert "nvshare:" in lab.prepare_error()
    lab.claim()["status"] = {}
    assert f"has nothing of {DRIVER}" in lab.prepare_error()
    lab.claim()["metadata"]["uid"] = "another"
    assert "there is another claim of that name now" in lab.prepare_error()
    lab.claim()["status"]["reservedFor"] = None
    assert "reserved for no pod" in lab.prepare_error()
    lab.claim(device="gpu-of-before")
    assert "there is no device gpu-of-before" in lab.prepare_error()
    lab.claim()
    assert lab.prepare().devices


def test_prepare_of_a_claim_without_a_daemon_fails_and_devices_are_tainted(lab: ClaimLab) -> None:
    lab.node.kill_daemon()
    lab.claim()
    # Kubelet repeats the call, too: on a busy machine the bus may not answer the first one in time.
    wait_until(lambda: "nvshared is not running" in lab.prepare_error())
    lab.expect_taints(True, True)
    lab.node.kubelet.wait(lambda: [*lab.node.kubelet.devices().values()] == ["Unhealthy"] * 2)
    lab.unprepare()                     # pods may end while the GPUs are unhealthy
    lab.node.daemon()
    lab.expect_taints(False, False)
    lab.node.kubelet.wait(lambda: [*lab.node.kubelet.devices().values()] == ["Healthy"] * 2)
    wait_until(lambda: bool(lab.prepare().devices))


def test_dra_driver_uses_exactly_the_rights_of_the_kubernetes_service_account(
    lab: ClaimLab
) -> None:
    lab.claim()
    assert lab.prepare().devices
    lab.api.annotate("old", weight="x")
    lab.expect_condition("old", "True")
    lab.node.kill_daemon()
    lab.expect_taints(True, True)
    wait_until(lambda: lab.api.used == lab.api.rights)


def test_claims_stay_prepared_over_restarts_of_dra_driver_and_daemon(lab: ClaimLab) -> None:
    lab.claim(compute="50", parameters={"weight": 200})
    before = lab.prepare()
    old = lab.api.tenant("old")
    lab.node.kill_plugin()
    assert (lab.cdi / FILE).is_file()   # containers may restart while no plugin runs
    lab.restart_daemon()
    assert lab.terms(old) == {}
    lab.start()
    lab.expect(old, compute_limit=50, weight=200)
    lab.restart_daemon()
    lab.expect(old, compute_limit=50, weight=200)
    assert lab.prepare() == before
    lab.unprepare()
    lab.expect(old)


def test_dra_driver_restarted_after_a_kill_prepares_the_open_claim(lab: ClaimLab) -> None:
    lab.claim(compute="50")
    with ThreadPoolExecutor(1) as kubelet, lab.api.gate:
        asking = kubelet.submit(lab.prepare)
        assert lab.api.asked.acquire(timeout=PATIENCE)
        lab.node.kill_plugin()
        with pytest.raises(grpc.RpcError):
            asking.result(PATIENCE)
    lab.start()
    assert lab.prepare().devices
    assert lab.terms(lab.api.tenant("old")) == {"compute-limit": 50}


def test_claims_of_many_pods_prepared_at_the_same_time_set_the_terms_of_each_pod(
    lab: ClaimLab
) -> None:
    names = [f"p{number}" for number in range(1, 9)]
    for number, name in enumerate(names, 1):
        lab.api.annotate(name)
        lab.claim(name, name, compute=str(number))
    with ThreadPoolExecutor(len(names)) as kubelet:
        assert all(one.devices for one in kubelet.map(lab.prepare, names))
        for number, name in enumerate(names, 1):
            assert lab.terms(lab.api.tenant(name)) == {"compute-limit": number}
        list(kubelet.map(lab.unprepare, names))
    for name in names:
        lab.expect(lab.api.tenant(name))
    assert json.loads((lab.node.state / "claims.json").read_text()) == []


def test_claims_wait_for_a_slow_api_server_at_the_same_time(lab: ClaimLab) -> None:
    """The event loop has six threads on a machine with two cores, and others' work to do."""
    names = [f"p{number}" for number in range(1, 25)]
    for name in names:
        lab.claim(name)
    with ThreadPoolExecutor(len(names)) as kubelet:
        with lab.api.gate:
            answers = [kubelet.submit(lab.prepare, name) for name in names]
            for _ in names:
                assert lab.api.asked.acquire(timeout=PATIENCE)
        assert [one.result().error for one in answers] == [""] * len(names)


def test_dra_driver_registers_and_rewrites_the_resource_slice_after_a_kubelet_restart(
    lab: ClaimLab
) -> None:
    lab.claim(compute="50")
    before = lab.prepare()
    lab.node.kubelet.stop()
    lab.api.remove_slice(SLICE)
    lab.node.kubelet.start()
    wait_until(lambda: SLICE in lab.api.slices)
    lab.node.kubelet.wait(lambda: lab.node.kubelet.registrations == 2)
    assert lab.prepare() == before
    assert lab.terms(lab.api.tenant("old")) == {"compute-limit": 50}


def test_claim_deleted_while_the_dra_driver_was_down_loses_its_terms_at_the_next_start(
    lab: ClaimLab
) -> None:
    lab.claim(compute="50")
    assert lab.prepare().devices
    old = lab.api.tenant("old")
    lab.node.kill_plugin()
    lab.api.delete("old")
    lab.start()
    lab.expect(old)
    wait_until(lambda: json.loads((lab.node.state / "claims.json").read_text()) == [])


def test_claims_stay_prepared_while_the_api_server_is_down(lab: ClaimLab) -> None:
    lab.claim(compute="50")
    assert lab.prepare().devices
    lab.api.stop()
    assert "claim lab/it is not known" in lab.prepare_error()
    lab.restart_daemon()
    lab.expect(lab.api.tenant("old"), compute_limit=50)
    lab.api.start()
    assert lab.prepare().devices


def test_dra_driver_that_cannot_write_the_cdi_file_goes_on_and_writes_it_later(
        lab: ClaimLab) -> None:
    lab.claim(compute="50")
    wait_until((lab.cdi / FILE).exists)
    (lab.cdi / FILE).unlink()
    lab.cdi.rmdir()
    lab.cdi.write_text("no folder")
    wait_until(lambda: f"cannot write to {lab.cdi}" in lab.node.log.read_text())
    assert f"cannot write to {lab.cdi}" in lab.prepare_error()
    lab.cdi.unlink()
    wait_until((lab.cdi / FILE).exists)
    assert lab.prepare().devices
    assert lab.node.kubelet.registrations == 1


@needs_root
def test_claim_is_unprepared_on_a_full_disk_and_prepared_when_there_is_room(
        node: Node, api: ApiServer, runtime: Runtime) -> None:
    """Kubelet keeps a pod, and the volumes that fill the disk, until its claims are unprepared."""
    with small_disk(node) as disk:
        lab = ClaimLab(node, api, runtime)
        old = lab.api.tenant("old")
        lab.claim(compute="50")
        assert lab.prepare().devices
        ballast = fill(disk)
        lab.claim("other", compute="30")
        assert "No space left on device" in lab.prepare_error("other")
        lab.unprepare()
        lab.expect(old)
        assert "No space left on device" in node.log.read_text()
        lab.api.delete("old")
        node.kill_plugin()
        lab.start()                     # from the file, which still has the claim
        wait_until(lambda: "claim lab/it is gone" in node.log.read_text())
        lab.expect(old)
        ballast.unlink()
        lab.api.annotate("old")
        lab.claim("other", compute="30")
        assert lab.prepare("other").devices
        assert [one["metadata"]["name"] for one in json.loads(
            (disk / "claims.json").read_text())] == ["other"]


def test_annotations_apply_only_within_the_limits_of_the_claim(lab: ClaimLab) -> None:
    old = lab.api.tenant("old")
    lab.api.annotate("old", gpu_memory_limit="32Mi", gpu_core_limit="60", weight="900")
    lab.expect(old, memory_limit=32 * MIB, compute_limit=60, weight=900)
    lab.claim(memory="64Mi", compute="50", parameters={"weight": 200})
    assert lab.prepare().devices
    assert lab.terms(old) == {"memory-limit": 32 * MIB, "compute-limit": 50, "weight": 900}
    assert lab.sources(old) == {
        "memory-limit": "annotation", "compute-limit": "claim", "weight": "annotation"}
    said = "nvshare.com/gpu-core-limit cannot be 60 %: 50 % are claimed"
    assert lab.api.event(0)["message"] == said
    lab.api.annotate("old", gpu_memory_limit="65Mi", gpu_core_limit="20", weight=None)
    said = "nvshare.com/gpu-memory-limit cannot be 65MiB: 64MiB are claimed"
    assert lab.api.event(1)["message"] == said
    lab.expect(old, memory_limit=32 * MIB, compute_limit=20, weight=200)
    lab.api.annotate("old", gpu_memory_limit=None)
    lab.expect(old, memory_limit=64 * MIB, compute_limit=20, weight=200)
    lab.unprepare()
    lab.expect(old, compute_limit=20)


def test_pods_that_share_a_claim_get_equal_parts_of_the_compute_limit(lab: ClaimLab) -> None:
    """Kubelet has a claim prepared once only, for the first pod that uses it."""
    lab.claim(compute="60", owner="")
    assert lab.prepare().devices
    assert lab.terms(lab.api.tenant("old")) == {"compute-limit": 60}
    lab.reserve("it", "new")
    lab.api.stop()                      # without the API server no watch reports the pod
    lab.reserve("it", "late")
    lab.api.start()
    for name in lab.api.pods:
        lab.expect(lab.api.tenant(name), compute_limit=20)
    late = lab.api.tenant("late")
    lab.api.delete("late")
    lab.expect(lab.api.tenant("old"), compute_limit=30)
    lab.expect(late)
    lab.unprepare()
    for name in lab.api.pods:
        lab.expect(lab.api.tenant(name))


def test_annotation_above_a_pods_part_of_a_claim_holds_again_when_the_part_grows(
        lab: ClaimLab) -> None:
    old = lab.api.tenant("old")
    lab.api.annotate("old", gpu_core_limit="40", weight="none")
    lab.claim(compute="60", owner="")
    assert lab.prepare().devices
    lab.expect(old, compute_limit=40)
    lab.reserve("it", "new")
    lab.expect(old, compute_limit=30)
    lab.expect_condition("old", "True", "gpu-core-limit cannot be 40 %: 30 % are claimed")
    lab.api.delete("new")
    lab.expect(old, compute_limit=40)
    wait_until(lambda: "gpu-core-limit" not in lab.api.condition("old")[1])
    lab.api.annotate("old", gpu_core_limit="70")        # 40 stays
    wait_until(lambda: "70 %: 60 % are claimed" in lab.api.condition("old")[1])
    lab.expect(old, compute_limit=40)
    lab.unprepare()
    lab.expect(old, compute_limit=70)
    assert len(lab.api.events) == 3     # one for each refusal: of the weight, of 40 and of 70 %


def test_pod_deleted_by_force_keeps_terms_until_kubelet_unprepares_its_claim(lab: ClaimLab) -> None:
    lab.api.annotate("new")
    lab.claim(compute="50")
    assert lab.prepare().devices
    old = lab.api.tenant("old")
    lab.api.delete("old")
    lab.api.annotate("new", weight="7")
    lab.expect(lab.api.tenant("new"), weight=7)            # changes of the pod are noticed, too
    assert lab.terms(old) == {"compute-limit": 50}
    lab.unprepare()
    lab.expect(old)


def test_resource_slice_changed_by_another_writer_is_written_again(lab: ClaimLab) -> None:
    lab.api.put_slice(json.loads(json.dumps(lab.api.slices[SLICE])), "MODIFIED")
    lab.restart()
    lab.expect_taints(False, False)
    lab.node.kill_daemon()
    lab.expect_taints(True, True)


def test_terminated_dra_driver_unregisters_and_keeps_terms(lab: ClaimLab) -> None:
    lab.claim(compute="50")
    assert lab.prepare().devices
    (plugin,) = lab.node.plugins
    plugin.terminate()
    assert plugin.wait(PATIENCE) == 0
    assert not list((lab.node.kubelet.folder / "plugins_registry").iterdir())
    assert lab.terms(lab.api.tenant("old")) == {"compute-limit": 50}    # pods keep their terms
    assert "Traceback" not in lab.node.log.read_text()
