# SPDX-License-Identifier: Apache-2.0
"""Terms of DRA claims, published devices, and CDI devices."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvshared.containers.cdi import FILE as CDI_FILE
from nvshared.containers.cdi import Share
from nvshared.errors import InvalidArgs, NvshareError
from nvshared.kubelet.card import NodeGPU, Offer
from nvshared.kubelet.claims import DRIVER, FILE, Pod, Prepared, parameters, quantity, read, terms
from nvshared.kubelet.container import Containers
from nvshared.kubelet.plugin import DevicePlugin
from nvshared.kubelet.rpc import DP
from nvshared.kubelet.runtime import Runtime, endpoint, refusal, root_directory
from nvshared.kubelet.slices import UNAVAILABLE_TAINT, device_entry, devices_of_other_drivers
from nvshared.units import GIB
from tests.kubernetes.values import PARAMETERS

CARD = NodeGPU("GPU-0A", 0, "00000000:17:00.0", "", "NVIDIA H200", 141 * GIB)
POD, OTHER = (Pod("lab", "train", uid, f"pod:{uid}") for uid in ("p1", "p2"))


def result(device: str = "gpu-0a", request: str = "gpu", **capacity: str) -> dict[str, Any]:
    return {
        "driver": DRIVER, "pool": "node", "device": device, "request": request, "shareID": "s",
        "consumedCapacity": {"clients": "1", **capacity}}


def config(requests: tuple[str, ...] = (), driver: str = DRIVER, **said: object) -> dict[str, Any]:
    return {"requests": [*requests], "opaque": {"driver": driver, "parameters": said}}


def claim(*results: dict[str, Any], configs: tuple[dict[str, Any], ...] = (), uid: str = "c1",
          pods: tuple[str, ...] = ("p1",), owner: str = "Pod") -> dict[str, Any]:
    return {
        "metadata": {
            "namespace": "lab", "name": uid, "uid": uid, "managedFields": [],
            "ownerReferences": [{"kind": owner}] if owner else []},
        "status": {
            "allocation": {"devices": {"results": [*results], "config": [*configs]}},
            "reservedFor": [{"resource": "pods", "name": "train", "uid": pod} for pod in pods]}}


@pytest.mark.parametrize(("text", "number"), [
    ("50", 50), ("12Gi", 12 * GIB), ("1.5Ki", 1536), ("4G", 4 * 10**9), ("2k", 2000),
    ("1500m", 2), ("1e3", 1000), ("1E", 10**18), ("1Ei", 1 << 60), ("2E2", 200), ("1n", 1),
])
def test_quantities_in_the_notation_of_kubernetes_are_parsed(text: str, number: int) -> None:
    assert quantity(text) == number


@given(st.text())
def test_quantity_of_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        assert quantity(text) >= 0
    except ValueError as wrong:
        assert "is no quantity" in str(wrong)   # noqa: PT017


def test_resource_claim_parameters_for_a_request_override_parameters_for_all_requests() -> None:
    found = read(claim(result(request="gpu/large"), configs=(
        config(weight=50, priority="high"), config(("gpu",), weight="200"),
        config(("other",), weight=1), config(driver="gpu.nvidia.com", weight="?"))))
    assert terms([found]) == {"weight": 200, "priority": 3}


@pytest.mark.parametrize(("said", "why"), [
    ({"wieght": 1}, "there is no parameter 'wieght'; there are weight, priority"),
    ({"weight": 0}, "its weight cannot be 0; give a whole number from 1 to 1000"),
    ({"weight": True}, "its weight cannot be True"), ({"weight": 1.5}, "its weight cannot be 1.5"),
    ({"weight": None}, "its weight cannot be None"), ({"priority": 3}, "its priority cannot be 3"),
    ({"priority": "low"}, "give background, normal, high"), ([], "are no object"),
    (None, "are no object"),
])
def test_invalid_claim_parameters_are_refused_with_the_valid_values(said: object, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        parameters(said)


def test_nvshare_kubelet_accepts_only_the_valid_claim_parameters_of_the_policy_tests() -> None:
    good, bad = PARAMETERS
    assert all(len(parameters(said)) == len(said) for said in good)
    for said in bad:
        with pytest.raises(ValueError, match=r"parameter|cannot be"):
            parameters(said)


def test_invalid_claim_is_refused_with_the_name_of_the_claim_and_the_reason() -> None:
    with pytest.raises(InvalidArgs, match="claim lab/c1: its weight cannot be 'x'"):
        read(claim(result(), configs=(config(weight="x"),)))
    with pytest.raises(InvalidArgs, match=f"claim lab/c1 has nothing of {DRIVER}"):
        read(claim())
    with pytest.raises(InvalidArgs, match="'-1' is no quantity"):
        read(claim(result(memory="-1")))


def test_memory_claimed_by_a_pod_is_summed_per_card_and_terms_must_be_equal_on_all_cards() -> None:
    two = claim(result(memory="8Gi"), result(memory="4Gi", request="b"))
    same = claim(result("gpu-1b", memory="12Gi"), uid="c2")
    assert terms([read(two)]) == {"memory-limit": 12 * GIB}
    assert terms([read(two), read(same)]) == {"memory-limit": 12 * GIB}
    other = claim(result("gpu-1b", memory="8Gi"), uid="c2")
    with pytest.raises(InvalidArgs, match="on different GPUs; give it the same on each"):
        terms([read(two), read(other)])
    low, high = (claim(result(), configs=(config(weight=weight),)) for weight in (1, 2))
    with pytest.raises(InvalidArgs, match="a weight of 1 and of 2"):
        terms([read(low), read(high)])


@pytest.mark.parametrize("wrong", [
    1, {"metadata": {}}, claim(), claim(result(), configs=(config(weight="x"),)),
    claim(result(), uid=[]),    # type: ignore[arg-type]
])
def test_malformed_prepared_claim_is_logged_and_other_claims_are_kept(
        tmp_path: Path, caplog: pytest.LogCaptureFixture, wrong: object) -> None:
    (tmp_path / FILE).write_text(json.dumps([claim(result()), wrong, claim(result(), uid="c2")]))
    prepared = Prepared(tmp_path)
    assert [one.uid for one in prepared.claims()] == ["c1", "c2"]
    assert f"{tmp_path / FILE} is put aside as {FILE}.aside-1" in caplog.text
    assert "Not used: claim 2: " in caplog.text
    prepared.change("c3", read(claim(result(), uid="c3")))
    assert [one.uid for one in Prepared(tmp_path).claims()] == ["c1", "c2", "c3"]


def test_dra_device_describes_uuid_memory_and_pci_address_of_a_card() -> None:
    device = device_entry(CARD, 10, is_tainted=False)
    assert device["name"] == "gpu-0a"
    assert device["attributes"]["uuid"] == {"string": "GPU-0A"}
    assert device["attributes"]["memory"] == {"int": 141 * GIB}
    assert device["attributes"]["resource.kubernetes.io/pciBusID"] == {"string": "0000:17:00.0"}
    assert quantity(device["capacity"]["memory"]["value"]) == 1410 * GIB
    policy = device["capacity"]["memory"]["requestPolicy"]
    assert policy == {
        "default": "0", "validRange": {"min": "0", "max": str(141 * GIB), "step": "1"}}
    assert device["capacity"]["clients"]["value"] == "10"
    assert "taints" not in device
    assert device_entry(CARD, 10, is_tainted=True)["taints"] == [UNAVAILABLE_TAINT]


def test_card_offered_by_another_dra_driver_is_not_shared() -> None:
    offer = Offer([("", 2)])
    offer.update((CARD,))
    slices = {"ours": {"spec": {"driver": DRIVER, "devices": [device_entry(
        CARD, 1, is_tainted=False)]}}}
    offer.update_other_drivers(devices_of_other_drivers(slices))
    assert offer.problem(CARD) == ""
    for name, text in (
        ("uuid", CARD.uuid), ("parentUUID", CARD.uuid), ("example.com/id", f"{CARD.uuid}-0"),
        ("resource.kubernetes.io/pciBusID", "0000:17:00.0"), ("busID", CARD.pci_bus_id),
    ):
        slices["theirs"] = {"spec": {"driver": "gpu.nvidia.com", "devices": [
            {"attributes": {name: {"string": text}, "memory": {"int": 1}}}, {}]}}
        offer.update_other_drivers(devices_of_other_drivers(slices))
        assert offer.problem(CARD) == "GPU-0A is offered by gpu.nvidia.com already"
        assert not any(offer.shares().values())


@pytest.mark.parametrize(("name", "version", "said", "supported"), [
    ("containerd", "1.6.20~ds1", {}, False), ("containerd", "1.6.20", {"enableCDI": True}, False),
    ("containerd", "1.7.24", {"enableCDI": True}, True), ("containerd", "1.7.24", {}, False),
    ("containerd", "1.7.24", {"enableCDI": False}, False),
    ("containerd", "v2.1.0", {"enableCDI": True}, True), ("containerd", "2.1.0", {}, True),
    ("cri-o", "1.27.9", {}, False), ("cri-o", "1.28.0", {}, True), ("docker", "28.0.0", {}, False),
    ("containerd", "development", {"enableCDI": True}, False),
])
def test_container_runtime_without_cdi_support_is_refused_by_name_and_version(
        name: str, version: str, said: object, supported: bool) -> None:
    why = refusal(name, version, json.dumps(said))
    assert (why == "") is supported
    fault = "has CDI devices switched off" if version == "1.7.24" else "does not support CDI"
    assert supported or f"{name} {version} {fault}" in why


def test_cdi_file_has_a_device_for_each_card_and_is_rewritten_only_if_changed(
        tmp_path: Path) -> None:
    """cdiVersion 0.3.0: device names begin with a letter, as CDI before 0.5.0 demands."""
    file = tmp_path / "run" / CDI_FILE
    containers = Containers(Share(Path("/run/x/sock"), Path("/state")), file.parent)
    containers.write_cdi_file(["GPU-0a", "GPU-1b"])
    options = ["ro", "nosuid", "nodev", "rbind"]
    assert json.loads(file.read_text()) == {
        "cdiVersion": "0.3.0", "kind": "nvshare.com/gpu",
        "devices": [
            {"name": name, "containerEdits": {"env": [f"NVIDIA_VISIBLE_DEVICES={seen}"]}}
            for name, seen in (("shared", "void"), ("GPU-0a", "GPU-0a"), ("GPU-1b", "GPU-1b"))],
        "containerEdits": {
            "env": ["NVSHARE_SOCKET=/run/nvshare/sock", "NVSHARE_REQUIRED=1"],
            "mounts": [
                {"containerPath": there, "hostPath": here, "options": options}
                for there, here in (
                    ("/run/nvshare", "/run/x"), ("/usr/lib/nvshare", "/state/library"),
                    ("/etc/ld.so.preload", "/state/ld.so.preload"))]}}
    inode = file.stat().st_ino
    containers.write_cdi_file(["GPU-0a", "GPU-1b"])
    assert file.stat().st_ino == inode          # a rewritten file would wake container runtimes
    containers.write_cdi_file(["GPU-1b"])
    assert "GPU-0a" not in file.read_text()
    assert [path.name for path in file.parent.iterdir()] == [CDI_FILE]
    with pytest.raises(NvshareError, match=f"cannot write to {file}/cdi"):
        Containers(Share(Path("/s"), tmp_path), file / "cdi").write_cdi_file(["GPU-0a"])


@pytest.mark.parametrize("text", [
    '{"kind": "nvidia.com/gpu", "devices": [{"name": "GPU-0a"}]}',
    "kind: nvidia.com/gpu\ndevices:\n- name: GPU-0a\n",
])
def test_container_gets_nvidias_cdi_device_where_a_spec_names_the_gpu(
        tmp_path: Path, text: str) -> None:
    containers = Containers(Share(Path("/run/x/sock"), tmp_path), tmp_path)
    assert containers.response(["GPU-0a"], by_cdi=True) == {
        "cdi_devices": [{"name": "nvshare.com/gpu=GPU-0a"}]}
    (tmp_path / "gone.json").symlink_to(tmp_path / "nowhere")
    (tmp_path / "nvidia.yaml").write_text(text)
    assert containers.response(["GPU-0a"], by_cdi=True) == {
        "cdi_devices": [{"name": "nvshare.com/gpu=shared"}, {"name": "nvidia.com/gpu=GPU-0a"}]}
    assert containers.response(["GPU-0"], by_cdi=True) == {
        "cdi_devices": [{"name": "nvshare.com/gpu=GPU-0"}]}


def test_several_gpus_without_nvidias_cdi_devices_are_passed_by_environment_variable(
        tmp_path: Path) -> None:
    """The CDI devices of several cards would overwrite each other's variable."""
    containers = Containers(Share(Path("/run/x/sock"), tmp_path), tmp_path)
    answer = containers.response(["GPU-0a", "GPU-1b"], by_cdi=True)
    assert set(answer) == {"envs", "mounts"}
    assert answer["envs"]["NVIDIA_VISIBLE_DEVICES"] == "GPU-0a,GPU-1b"
    assert answer["mounts"]


def test_allocate_by_cdi_writes_the_cdi_file_before_the_response(tmp_path: Path) -> None:
    offer = Offer([("", 1)])
    containers = Containers(Share(Path("/s"), tmp_path), tmp_path / "cdi")
    offer.update((CARD,))

    async def refresh() -> None:
        """Replaces the refresh at kubelet's call: the offer is unchanged."""

    plugin = DevicePlugin(tmp_path, offer, containers, Runtime("on", ()), refresh)
    request = DP["AllocateRequest"](container_requests=[{"devices_ids": [f"{CARD.uuid}::0"]}])
    response = asyncio.run(plugin.allocate(request, None))
    (device,) = response.container_responses[0].cdi_devices
    devices = json.loads((tmp_path / "cdi" / CDI_FILE).read_text())["devices"]
    assert device.name.partition("=")[2] in [one["name"] for one in devices]


def process(proc: Path, number: int, *command: str, status: str = "NSpid:\t7\n") -> None:
    (proc / str(number)).mkdir(parents=True)
    for name, text in {
        "comm": f"{Path(command[0]).name}\n", "status": f"Name:\tx\n{status}VmRSS:\t1 kB\n",
        "cmdline": "\0".join((*command, "")),
    }.items():
        (proc / str(number) / name).write_text(text)


@pytest.mark.parametrize(("options", "config", "found"), [
    (["--container-runtime-endpoint=unix:///run/a.sock"], None, "/run/a.sock"),
    (["--container-runtime-endpoint", "/run/a.sock", "--v=2"], None, "/run/a.sock"),
    (["--container-runtime-endpoint=/run/a.sock"], "containerRuntimeEndpoint: /b", "/run/a.sock"),
    ([], "containerRuntimeEndpoint: unix:///run/b.sock", "/run/b.sock"),
    ([], '{"a": 1, "containerRuntimeEndpoint": "unix:///run/b.sock"}', "/run/b.sock"),
    ([], "kind: KubeletConfiguration", None), ([], "[]", None), ([], "{", None), ([], "\0", None),
    ([], None, None),
])
def test_container_runtime_endpoint_is_read_from_the_running_kubelet(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], config: str | None,
        found: str | None) -> None:
    monkeypatch.setattr("nvshared.kubelet.runtime.PROCESSES", tmp_path / "proc")
    file = tmp_path / "kubelet.yaml"
    if config is not None:
        file.write_text(config)
    process(tmp_path / "proc", 5, "/usr/bin/other", "--container-runtime-endpoint=/run/other")
    process(tmp_path / "proc", 6, "/usr/bin/kubelet", "--container-runtime-endpoint=/run/inside",
            status="NSpid:\t6\t1\n")      # this kubelet runs in a container
    process(tmp_path / "proc", 7, "/usr/bin/kubelet", f"--config={file}", *options)
    assert endpoint() == (found and Path(found))


@pytest.mark.parametrize(("options", "found"), [
    (["--root-dir=/data/kubelet"], Path("/data/kubelet")),
    (["--root-dir", "/a", "-root-dir=/b"], Path("/b")), ([], None),
])
def test_root_directory_is_read_from_the_running_kubelet(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], found: Path | None
) -> None:
    monkeypatch.setattr("nvshared.kubelet.runtime.PROCESSES", tmp_path)
    process(tmp_path, 5, "/usr/bin/other", "--root-dir=/other")
    process(tmp_path, 6, "/usr/bin/kubelet", "--root-dir=/inside", status="NSpid:\t6\t1\n")
    process(tmp_path, 7, "/usr/bin/kubelet", *options)
    assert root_directory() == found


def test_what_is_kept_of_a_claim_is_what_its_terms_need() -> None:
    huge = "y" * 10_000
    other = {"opaque": {"driver": "other.example", "parameters": {"it": huge}}}
    ours = {"opaque": {"driver": DRIVER, "parameters": {"weight": 7}}, "source": huge}
    result = {"request": "gpu", "driver": DRIVER, "pool": "n", "device": "gpu-0a", "shareID": "s",
              "consumedCapacity": {"memory": "1Gi", "other": huge}, "more": huge}
    one = read({
        "metadata": {"namespace": "n", "name": "c", "uid": "u", "annotations": {"a": huge}},
        "status": {
            "devices": [{"data": huge}],
            "allocation": {"devices": {
                "config": [*[other] * 32, ours], "results": [result, result | {"driver": "o"}]}},
            "reservedFor": [{"resource": "pods", "name": "p", "uid": "v", "apiGroup": huge}]}})
    assert read(one.api_object) == one
    assert terms([one]) == {"memory-limit": 1 << 30, "weight": 7}
    assert len(json.dumps(one.api_object)) < 1000
