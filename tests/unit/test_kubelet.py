# SPDX-License-Identifier: Apache-2.0
"""nvshare-kubelet: messages, shares, conflicts with other plugins, options, terms of pods."""

import asyncio
import base64
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvshared.errors import InvalidArgs, NvshareError
from nvshared.kubelet import annotations, pods
from nvshared.kubelet.annotations import PodTerms, priority, requested_terms
from nvshared.kubelet.api import APIServer, server
from nvshared.kubelet.card import (
    CHECKPOINT,
    NodeGPU,
    Offer,
    Reading,
    card_of,
    checkpoint,
    conflict,
    of_daemon,
    preferred,
    retry_until_reply,
)
from nvshared.kubelet.claims import (
    CONTAINER,
    DRIVER,
    FRACTION,
    MEMORY,
    MIRROR,
    PARAMETERS,
    PREFIX,
    REFUSED_CONDITION,
    RESOURCE,
    STATIC,
    Claim,
    Pod,
    Prepared,
    clipped,
    parameters,
    pod,
    read,
)
from nvshared.kubelet.options import SETTINGS_LABEL, parse, priority_classes, replicas
from nvshared.kubelet.pods import StaticPods
from nvshared.kubelet.rpc import CRI, DP, DRA, REG
from nvshared.kubelet.settings import KEPT, NodeSettings
from nvshared.kubelet.slices import device_entry
from nvshared.units import GIB

CARD = NodeGPU("GPU-0a", 0, "00000000:17:00.0")
OTHER = NodeGPU("GPU-1b", 1, "00000000:65:00.0")
LONG = "513a7c0e-9d42-4b86-a15f-6e7673686100"
ANOTHER = "513a7c0e-9d42-4b86-a15f-6e7673686101"
HERE = NodeGPU(f"GPU-{LONG}", 0, "00000000:17:00.0")
META = {"namespace": "n", "name": "p", "uid": "u"}

# Messages of each shape, byte by byte: field number * 8 + wire type, length, content.
WIRE = [
    (REG, "RegistrationStatus", {"plugin_registered": True, "error": "e"}, b"\x08\x01\x12\x01e"),
    (DP, "AllocateResponse", {"container_responses": [{
        "envs": {"k": "v"},
        "mounts": [{"container_path": "c", "host_path": "h", "read_only": True}],
        "devices": [{"container_path": "c", "host_path": "h", "permissions": "p"}],
        "cdi_devices": [{"name": "n"}],
    }]}, b"\x0a\x22\x0a\x06\x0a\x01k\x12\x01v\x12\x08\x0a\x01c\x12\x01h\x18\x01"
         b"\x1a\x09\x0a\x01c\x12\x01h\x1a\x01p\x2a\x03\x0a\x01n"),
    (DRA, "NodePrepareResourceResponse", {"devices": [{
        "request_names": ["r"], "pool_name": "p", "device_name": "d", "cdi_device_ids": ["c"],
        "share_id": "s"}], "error": "e"},
     b"\x0a\x0f\x0a\x01r\x12\x01p\x1a\x01d\x22\x01c\x2a\x01s\x12\x01e"),
    (DRA, "NodeWatchResourcesResponse", {"devices": [{
        "device": {"pool_name": "p", "device_name": "d"}, "health": 2, "last_updated_time": 3,
        "message": "m"}]}, b"\x0a\x0f\x0a\x06\x0a\x01p\x12\x01d\x10\x02\x18\x03\x2a\x01m"),
    (CRI, "StatusResponse", {"info": {"k": "v"}}, b"\x12\x06\x0a\x01k\x12\x01v"),
]


@pytest.mark.parametrize(("classes", "name", "fields", "wire"), WIRE, ids=lambda one: (
    one if isinstance(one, str) else ""))
def test_kubelet_messages_have_the_encoding_of_kubernetes(
        classes: dict[str, Any], name: str, fields: dict[str, object], wire: bytes) -> None:
    assert classes[name](**fields).SerializeToString(deterministic=True) == wire


SHARES = st.lists(
    st.builds(lambda card, number: f"GPU-{card}::{number}", st.integers(0, 4), st.integers(0, 12)),
    unique=True, min_size=1,
)


@given(available=SHARES, data=st.data())
def test_preferred_shares_are_spread_over_cards(available: list[str], data: st.DataObject) -> None:
    size = data.draw(st.integers(1, len(available)))
    must = data.draw(st.lists(st.sampled_from(available), unique=True, max_size=size))
    chosen = preferred(available, must, size)
    assert len(chosen) == len(set(chosen)) == size
    assert set(must) <= set(chosen) <= set(available)
    here, free = Counter(map(card_of, chosen)), Counter(map(card_of, available))
    had = Counter(map(card_of, must))
    for card in here:                   # a card with free shares has at most one chosen share less
        for other in free:
            if here[card] > had[card] and here[other] < free[other]:
                assert here[card] <= here[other] + 1
    if size == 1 and not must:
        assert free[card_of(chosen[0])] == max(free.values())


def test_offered_shares_of_each_card_follow_the_replicas_options() -> None:
    offer = Offer(replicas(["2", "0000:65:00.0=7", "65:00.0=1", "1=3", "5=9"]))
    assert "not answered" in offer.describe()
    offer.update((CARD, OTHER))
    assert list(offer.shares()) == ["GPU-0a::0", "GPU-0a::1", "GPU-1b::0", "GPU-1b::1", "GPU-1b::2"]
    assert "no GPU goes by '5', which --replicas names" in offer.describe()


def test_offered_shares_of_unshareable_cards_are_unhealthy() -> None:
    offer = Offer([("", 2)])
    with pytest.raises(NvshareError, match="has not answered yet"):
        offer.check(["GPU-0a::0"])
    assert offer.update((NodeGPU("GPU-0a", 0, "", "it is divided"), OTHER))
    assert offer.shares() == {
        "GPU-0a::0": False, "GPU-0a::1": False, "GPU-1b::0": True, "GPU-1b::1": True}
    with pytest.raises(NvshareError, match="it is divided"):
        offer.check(["GPU-1b::0", "GPU-0a::0"])
    assert offer.update(NvshareError("gone"))
    assert not offer.update(NvshareError("gone"))
    assert not any(offer.shares().values())


@pytest.mark.parametrize(("changed", "problem"), [
    ({}, ""),
    ({"Faults": [("gpu-exclusive", "critical", "GPU 0 lets one process", "", True, {})]},
     "GPU-0a cannot be shared: GPU 0 lets one process"),
    ({"Faults": [("gpu-unshared", "warning", "programs use it", "", False, {})]}, ""),
])
def test_card_is_offered_with_the_problem_that_the_daemon_reports(
        changed: dict[str, Any], problem: str) -> None:
    gpu = {"UUID": "GPU-0a", "Index": 0, "Faults": [], "PCIBusID": "", "Name": "",
           "MemoryTotal": 0, **changed}
    assert of_daemon(gpu, {}).problem.startswith(problem)
    assert bool(problem) == bool(of_daemon(gpu, {}).problem)


def test_nvshare_kubelet_repeats_a_call_while_nvshared_restarts() -> None:
    away: Reading = (NvshareError("nvshared is not running"), "")
    answers: Iterator[Reading] = iter([away, away, ((HERE,), ":1.7"), away])
    assert asyncio.run(retry_until_reply(lambda: next(answers), 3600, 0)) == ((HERE,), ":1.7")
    assert asyncio.run(retry_until_reply(lambda: next(answers), 0, 0)) == away


@pytest.mark.parametrize(("resource", "device", "said"), [
    # The name has the UUID, PCI address or minor number of the card.
    ("nvidia.com/gpu", f"GPU-{LONG}", "is"),
    ("nvidia.com/gpu", f"GPU-{LONG}-7", "is"),                      # HAMi
    ("volcano.sh/vgpu-number", f"gpu-{LONG}-_-12", "is"),
    ("k8s.amazonaws.com/vgpu", f"GPU-{LONG}-vgpu-1", "is"),
    ("nvidia.com/mig-1g.10gb", f"MIG-GPU-{LONG}/7/0", "is"),
    ("example.com/anything", LONG.upper(), "is"),
    ("nvidia.com/gpu", "nvidia3", "is"),                            # GKE
    ("nvidia.com/gpu", "/dev/nvidia3", "is"),
    ("nvidia.com/GA100_A100", "0000:17:00.0", "is"),                # KubeVirt
    # The name belongs to another card.
    ("nvidia.com/gpu", f"GPU-{ANOTHER}", ""),
    ("nvidia.com/mig-1g.10gb", f"MIG-{ANOTHER}", ""),
    ("nvidia.com/gpu", "nvidia30", ""),
    ("nvidia.com/gpu", "nvidia0/vgpu3", ""),
    # The resource is no GPU of NVIDIA.
    ("rdma/hca", "0", ""),
    ("devices.kubevirt.io/kvm", "kvm12", ""),
    # The resource is a GPU; the name does not tell which card.
    ("nvidia.com/gpu", "0", "may be"),
    ("tencent.com/vcuda-core", "tencent.com/vcuda-core-0", "may be"),
    ("nvidia.com/gpu", ANOTHER, "may be"),
])
def test_card_allocated_by_another_plugin_is_recognised_by_the_plugins_device_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resource: str, device: str, said: str
) -> None:
    monkeypatch.setattr("nvshared.kubelet.card.PROC_DRIVER", tmp_path)
    unknown = conflict(HERE, {"nvidia7": "nvidia.com/gpu"})     # the card's minor number is unknown
    assert "may be handed out as nvidia.com/gpu already: the name 'nvidia7' does not" in unknown
    (tmp_path / "0000:17:00.0").mkdir()
    (tmp_path / "0000:17:00.0/information").write_bytes(
        b"Model: \t\t NVIDIA \xff\nDevice Minor: \t 3\nGPU Excluded:\t No\n")
    found = conflict(HERE, {"nic": "example.com/nic", device: resource})
    start = f"{HERE.uuid} {said} handed out as {resource} already"
    assert found.startswith(start) if said else found == ""


@pytest.mark.parametrize(("option", "wrong"), [
    *((replicas, text) for text in ("", "x", "-1", "1001", "=3", "0=", "0=x", "٣")),
    *((priority_classes, text) for text in (
        "", "high", "=high", "batch", "batch=low", "batch=", "Batch=high", "1...2=high",
        "a..b=high", "batch=3", "..x=high")),
])
def test_option_of_nvshare_kubelet_with_a_wrong_value_is_refused(
        option: Callable[[list[str]], object], wrong: str) -> None:
    with pytest.raises(InvalidArgs, match=r"--(replicas|priority-class) cannot be"):
        option([wrong])


def test_priority_class_gets_the_priority_of_the_last_matching_option() -> None:
    given = priority_classes([
        "0..=normal", "1000..1999=high", "batch=background", "-5..-1=background"])
    found = [priority(given, *one) for one in (
        ("any", 0), ("any", 999), ("any", 1000), ("any", 1999), ("any", 2000), ("batch", 1500),
        ("low", -1), ("low", -6), ("", 7))]
    assert found == [2, 2, 3, 3, 2, 1, 1, 0, 2]


PEM = "-----BEGIN CERTIFICATE-----\nY2VydA==\n-----END CERTIFICATE-----"
KUBEADM: dict[str, Any] = {
    "current-context": "x",
    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    "clusters": [{"name": "c", "cluster": {
        "server": "https://10.0.0.1:6443", "certificate-authority": "not.used",
        "certificate-authority-data": base64.b64encode(
            f"# Zertifikat für Prüfung\n{PEM}\n# ü\n{PEM}\n".encode()).decode()}}],
    "users": [{"name": "u", "user": {"client-certificate": "own.crt", "client-key": "own.key"}}],
}


def test_api_server_address_is_read_from_the_kubeconfig_of_kubelet(tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    for name in ("own.crt", "own.key", "both.pem", "token"):
        (tmp_path / name).write_text(f"{name}\n")
    (tmp_path / "ca.crt").write_text(f"# ü\n{PEM}\n")
    file = tmp_path / "kubelet.conf"
    file.write_text(json.dumps(KUBEADM))
    assert server(file) == APIServer(
        "https://10.0.0.1:6443", f"{PEM}\n{PEM}", b"own.crt\n\nown.key\n")
    file.write_text(json.dumps(KUBEADM | {
        "clusters": [{"name": "c", "cluster": {
            "server": "https://a", "certificate-authority": "ca.crt", "tls-server-name": "b",
            "insecure-skip-tls-verify": True}}],
        "users": [{"name": "u", "user": {"tokenFile": "token", "token": "older"}}]}))
    assert server(file) == APIServer("https://a", PEM, token="token", name="b", is_verified=False)
    for user, certificate in (
        ({"client-certificate-data": "Yw==", "client-key-data": "aw=="}, b"c\nk"),
        ({"client-certificate": "both.pem", "client-key": "both.pem"}, b"both.pem\n"),
    ):
        file.write_text(json.dumps(KUBEADM | {"users": [{"name": "u", "user": user}]}))
        assert server(file).certificate == certificate


@pytest.mark.parametrize(("changed", "said"), [
    ({"users": [{"name": "u", "user": {"exec": {"command": "aws"}}}]}, "names neither a token nor"),
    ({"users": [{"name": "u", "user": None}]}, "is no usable kubeconfig"),
    ({"clusters": [{"name": "c", "cluster": {
        "server": "https://a", "certificate-authority-data": "bm9uZQ=="}}]},
     "is no usable kubeconfig: ValueError: there is no certificate in"),
    ({"clusters": [{"name": "c", "cluster": {}}], "users": [{"name": "u", "user": {"token": "t"}}]},
     "is no usable kubeconfig: KeyError: 'server'"),
    ({"users": [{"name": "u", "user": {"client-key": "no"}}]}, "cannot read .*/no: No such file"),
])
def test_unusable_kubeconfig_is_refused_with_path_and_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], said: str
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    for name in ("own.crt", "own.key"):
        (tmp_path / name).write_text(name)
    file = tmp_path / "kubelet.conf"
    file.write_text(json.dumps(KUBEADM | changed))
    with pytest.raises(NvshareError, match=said if said.startswith("cannot") else f"{file} {said}"):
        server(file)


def test_static_pod_has_the_tenant_of_the_uid_in_the_cgroup_name() -> None:
    notes = dict.fromkeys((STATIC, MIRROR), "0a" * 16) | {"nvshare.com/weight": "2"}
    static = pod({"metadata": META | {"annotations": notes}})
    assert static.tenant == f"pod:{'0a' * 16}"
    assert static.annotations == {"nvshare.com/weight": "2"}


@pytest.mark.parametrize("notes", [
    {}, {STATIC: "0a" * 16},
    dict.fromkeys((STATIC, MIRROR), "00000000-0000-4000-8000-000000000000"),
])
def test_pod_with_a_foreign_uid_in_annotations_keeps_the_tenant_of_the_pods_uid(
        notes: dict[str, str]) -> None:
    assert pod({"metadata": META | {"annotations": notes}}).tenant == "pod:u"


def test_containers_of_a_pod_are_identified_by_container_id() -> None:
    status = {
        "initContainerStatuses": [{"name": "before", "containerID": "cri-o://01"}],
        "containerStatuses": [{"name": "main", "containerID": "containerd://02"}],
        "ephemeralContainerStatuses": [{"name": "look", "containerID": ""}, {"name": "later"}]}
    assert pod({"metadata": META, "status": status}).containers == {"01": "before", "02": "main"}


@pytest.mark.parametrize("kind", ["container", "initContainer"])
def test_shares_requested_by_any_kind_of_container_count_for_the_pod(kind: str) -> None:
    limits = {"a": {RESOURCE: "1"}, "b": {RESOURCE: "0"}, "c": None}
    listed = [{"name": name, "restartPolicy": "Always", "resources": {"limits": one}}
              for name, one in limits.items()]
    assert pod({"metadata": META, "spec": {f"{kind}s": listed}}).requesting == {"a"}


def test_what_is_kept_of_a_pods_annotations_is_bounded_and_valid_ones_are_kept_first() -> None:
    huge = "y" * 250_000
    notes = {f"{PREFIX}a{number}": huge for number in range(3000)} | {
        f"{PREFIX}weight": "7", f"{PREFIX}priority": huge, "other.example/x": huge,
        f"{CONTAINER}it.gpu-memory.limit": "4Gi", f"{CONTAINER}x": huge, FRACTION: "0.5"}
    ours, every = (pod({"metadata": META | {"annotations": notes}}, foreign=foreign)
                   for foreign in (False, True))
    for one in (ours, every):
        assert sum(len(key) + len(text.encode()) for key, text in one.annotations.items()) <= 4096
        assert one.annotations[f"{PREFIX}weight"] == "7"
        assert one.annotations[f"{PREFIX}priority"] == f"{'y' * 64}…"
        assert f"{CONTAINER}x" not in one.annotations
        assert "other.example/x" not in one.annotations
        assert one.unread > 2900
    assert FRACTION not in ours.annotations
    assert every.annotations[FRACTION] == "0.5"
    assert every.annotations[f"{CONTAINER}it.gpu-memory.limit"] == "4Gi"


def test_what_is_kept_of_a_pods_containers_claims_and_status_is_bounded() -> None:
    many = [f"c{number}" for number in range(5000)]
    limits = {"limits": {RESOURCE: "1"}}
    one = pod({
        "metadata": META,
        "spec": {
            "containers": [{"name": name, "resources": limits} for name in many],
            "resourceClaims": [{"name": name, "resourceClaimName": name} for name in many]},
        "status": {
            "containerStatuses": [{"name": name, "containerID": f"c://{name}"} for name in many],
            "conditions": [
                {"type": REFUSED_CONDITION, "status": "True", "message": "m" * 30_000}]}})
    assert max(len(one.containers), len(one.requesting), len(one.claims)) == 128
    assert len(one.refused) < 10_000


def test_annotations_beyond_the_bound_are_refused_in_the_pods_condition() -> None:
    marked: SimpleQueue[str] = SimpleQueue()
    terms = PodTerms("unix:path=/nonexistent", lambda *_: None, lambda _, why: marked.put(why))
    wrong = {f"{PREFIX}{'a' * 40}{number}": "x" for number in range(300)}
    terms.handle("LISTED", [pod({"metadata": META | {"annotations": wrong}})])
    assert "further annotations are not read: all that set limits" in marked.get(timeout=60)


@pytest.mark.parametrize(("key", "wrong"), [
    ("gpu-core-limit", "101"), ("gpu-core-request", "0"), ("weight", "1001"), ("weight", "x"),
    ("priority", "urgent"), ("gpu-memory-limit", "x"), ("host-memory-limit", "0"),
    ("speed", "9"),
])
def test_wrong_value_is_refused_with_the_same_words_by_annotation_claim_and_policy(
        key: str, wrong: str) -> None:
    _, parse = requested_terms({PREFIX + key: wrong}, None).popitem()[1][1:]
    with pytest.raises(ValueError, match=r"\w") as refused:
        parse(wrong)
    words = str(refused.value).partition("; there are")[0]
    policies = Path(__file__).parents[2] / "packaging" / "kubernetes"
    assert words in (policies / "annotations" / "policy.yaml").read_text()
    if key in PARAMETERS:
        assert words in (policies / "claims" / "policy.yaml").read_text()
        with pytest.raises(ValueError, match=words):
            parameters({key: wrong})


@pytest.mark.parametrize(("text", "numa"), [("1\n", 1), ("-1\n", -1), ("", -1), (None, -1)])
def test_shares_have_the_numa_node_of_their_card(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, numa: int) -> None:
    monkeypatch.setattr("nvshared.kubelet.card.PCI_DEVICES", tmp_path)
    (tmp_path / "0000:17:00.0").mkdir()
    if text is not None:
        (tmp_path / "0000:17:00.0/numa_node").write_text(text)
    gpu = {"UUID": "GPU-0a", "Index": 0, "Faults": [],
           "PCIBusID": "00000000:17:00.0", "Name": "", "MemoryTotal": 0}
    offer = Offer([("", 1)])
    offer.update((of_daemon(gpu, {}),))
    topology = offer.topology("GPU-0a::0")
    assert topology == (None if numa < 0 else {"nodes": [{"ID": 1}]})
    wire = DP["Device"](ID="i", topology=topology).SerializeToString()
    assert wire == b"\x0a\x01i" + (b"\x1a\x04\x0a\x02\x08\x01" if numa == 1 else b"")
    device = device_entry(of_daemon(gpu, {}), 1, is_tainted=False)
    assert device["attributes"].get("numaNode") == (None if numa < 0 else {"int": 1})


def test_checkpoint_of_a_kubelet_with_another_root_dir_is_read_where_kubelet_writes_it(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fixed, root = tmp_path / "fixed", tmp_path / "root"
    monkeypatch.setattr("nvshared.kubelet.card.FIXED", fixed)
    root.mkdir()
    assert checkpoint(root) == []       # kubelet has never started
    for folder, device in ((fixed, "a"), (root, "b")):
        (folder / CHECKPOINT).parent.mkdir(parents=True)
        (folder / CHECKPOINT).write_text(json.dumps({"Data": {
            "PodDeviceEntries": None, "RegisteredDevices": {"nvidia.com/gpu": [device]}}}))
        assert [one.devices for one in checkpoint(root)] == [[device]]


@pytest.mark.parametrize(("content", "is_reported"), [
    ("", True), ({"ResourceName": RESOURCE}, False),
    ({"ResourceName": "other", "DeviceIDs": ["a"]}, True),      # a list, as before kubelet 1.20
    ("broken", False),                  # the checkpoint reader reports an unreadable file
])
def test_static_pod_with_a_sidecar_that_started_without_a_share_is_reported(
        tmp_path: Path, content: Any, is_reported: bool) -> None:
    static = pod({
        "metadata": META | {"annotations": dict.fromkeys((STATIC, MIRROR), "0a" * 16)},
        "spec": {"containers": [{"name": "main"}], "initContainers": [
            {"name": "beside", "restartPolicy": "Always", "resources": {"limits": {RESOURCE: 1}}}]},
        "status": {"initContainerStatuses": [{"name": "beside", "containerID": "cri-o://01"}]}})
    (tmp_path / CHECKPOINT).parent.mkdir()
    if content:
        holder = {"PodUID": "0a" * 16, "ContainerName": "beside", "DeviceIDs": {}}
        entries = content if content == "broken" else [holder | content]
        (tmp_path / CHECKPOINT).write_text(json.dumps({
            "Data": {"PodDeviceEntries": entries, "RegisteredDevices": None}}))
    found = StaticPods(tmp_path, tmp_path).handle("ADDED", static)
    assert [one for one, _ in found] == [static] * is_reported
    assert all(why.startswith(f"beside started without {RESOURCE}") for _, why in found)


@pytest.mark.parametrize("text", ["short", "x" * 200_000, "ä" * 200_000, "\x1b[31m\n" * 30_000])
def test_messages_about_wrong_pod_annotations_are_bounded_in_number_and_length(text: str) -> None:
    """The API server takes 1,024 bytes in an event, and 32,768 in a condition."""
    said: list[str] = []
    marked: list[str] = []
    ended = threading.Event()

    def mark(_: Pod, why: str) -> None:     # called when the API server has refused the event
        marked.append(why)
        ended.set()

    terms = PodTerms("unix:path=/nonexistent", lambda _, why: said.append(why), mark)
    wrong = {f"{PREFIX}k{number}": text for number in range(1000)}
    one = pod({"metadata": META | {"annotations": wrong | {f"{PREFIX}weight": text}}})
    terms.handle("LISTED", [one])
    assert ended.wait(60)
    for number in range(5):             # events of other pods cause no further write
        ended.clear()
        terms.handle("ADDED", pod({"metadata": META | {"uid": f"o{number}", "name": "other"}}))
    terms.handle("MODIFIED", one)
    assert ended.wait(60)
    assert len(marked) == 2
    assert len(said) == 1
    assert max(len(why.encode()) for why in marked) <= 4096
    assert f"{PREFIX}k0 cannot be " in said[0]
    assert "\x1b" not in said[0] + marked[0]
    assert text == "short" or text not in said[0]


class RecordedDaemon:
    """Replaces the connection to nvshared: records terms, and refuses those in `refused`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: SimpleQueue[tuple[str, dict[str, int], str]] = SimpleQueue()
        self.refused: list[dict[str, int]] = []     # terms to refuse, each once
        self.pods: list[list[tuple[object, ...]]] = []
        self.refused_pods = 0           # how many further calls of set_pods() to refuse
        self.replies = threading.Event()
        self.replies.set()
        monkeypatch.setattr(annotations, "Daemon", lambda *_: nullcontext(self))

    def set_pods(self, pods: Iterable[tuple[object, ...]]) -> None:
        assert self.replies.wait(60)
        self.pods.append(list(pods))
        if self.refused_pods:
            self.refused_pods -= 1
            raise InvalidArgs("the arguments of SetPods cannot be read: it is too long")

    def set_tenant_terms(self, tenant: str, terms: dict[str, int], source: str) -> None:
        self.sent.put((tenant, terms, source))
        if terms in self.refused:
            self.refused.remove(terms)
            raise InvalidArgs(f"{tenant} cannot have that")

    def tenants(self) -> list[object]:
        return []


def annotated(name: str, priority_class: str = "", **values: str) -> Pod:
    meta = {"namespace": "lab", "name": name, "uid": name, "annotations": {
        PREFIX + key.replace("_", "-"): text for key, text in values.items()}}
    return pod({"metadata": meta, "spec": {"priorityClassName": priority_class}})


def test_claim_prepared_before_the_start_of_nvshare_kubelet_overrides_no_stricter_annotation(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """kubelet prepares another claim before nvshare-kubelet has listed the pods."""
    def claim(name: str) -> Claim:
        return read({
            "metadata": {"namespace": "lab", "name": name, "uid": name, "ownerReferences": [
                {"kind": "Pod"}]},
            "status": {
                "allocation": {"devices": {"results": [{
                    "driver": DRIVER, "pool": "node", "device": "gpu-0a", "request": "gpu",
                    "consumedCapacity": {"memory": "12Gi"}}]}},
                "reservedFor": [{"resource": "pods", "name": name, "uid": name}]}})

    daemon = RecordedDaemon(monkeypatch)
    watched: SimpleQueue[Any] = SimpleQueue()
    monkeypatch.setattr(pods, "watch", lambda *arguments: watched.put(arguments[-1]))
    prepared = Prepared(tmp_path)
    prepared.change("early", claim("early"))
    node = pods.Pods("", tmp_path, "node", prepared, StaticPods(tmp_path, tmp_path), (), None)
    node.nvshared_is_back()         # called at each start of nvshared
    node.claim(claim("late"))
    assert daemon.sent.get(timeout=60) == ("pod:late", {"memory-limit": 12 * GIB}, "claim")
    watched.get(timeout=60)(
        "LISTED", [annotated("early", gpu_memory_limit="4Gi"), annotated("late")])
    assert daemon.sent.get(timeout=60) == ("pod:early", {"memory-limit": 4 * GIB}, "annotation")


def test_refused_reset_of_a_pods_term_is_reported_and_repeated_when_the_pod_is_deleted(
        monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = RecordedDaemon(monkeypatch)
    daemon.refused = [{"weight": 0}, {"weight": 0}]
    refusal = "weight cannot be reset: pod lab/a cannot have that"
    conditions: SimpleQueue[str] = SimpleQueue()
    terms = PodTerms("", lambda *_: None, lambda _, why: conditions.put(why))
    terms.handle("LISTED", [annotated("a", weight="7")])
    assert daemon.sent.get(timeout=60) == ("pod:a", {"weight": 7}, "annotation")
    for weight in ("", "7", ""):
        terms.handle("MODIFIED", annotated("a", **({"weight": weight} if weight else {})))
        sent = ({"weight": 7}, "annotation") if weight else ({"weight": 0}, "class")
        assert daemon.sent.get(timeout=60) == ("pod:a", *sent)
        assert weight or conditions.get(timeout=60) == refusal
    terms.handle("DELETED", annotated("a"))
    assert daemon.sent.get(timeout=60) == ("pod:a", {"weight": 0}, "class")


@pytest.mark.parametrize("refusals", [1, 2])
def test_terms_of_pods_are_sent_although_nvshared_refuses_the_names_of_pods(
        monkeypatch: pytest.MonkeyPatch, refusals: int) -> None:
    daemon = RecordedDaemon(monkeypatch)
    daemon.refused_pods = refusals
    terms = PodTerms("", lambda *_: None, lambda *_: None)
    one = replace(annotated("a", weight="7"), containers={"9f1c": "main"})
    terms.handle("LISTED", [one])
    assert daemon.sent.get(timeout=60) == ("pod:a", {"weight": 7}, "annotation")
    assert terms.claim({annotated("b"): {"weight": 7}}).result(60) is None
    assert daemon.pods[:2] == [
        [("a", "lab", "a", {"9f1c": "main"})], [("a", "lab", "a", {})]]


def test_refused_priority_class_is_reported_for_the_pod_and_fails_no_claim(
        monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = RecordedDaemon(monkeypatch)
    daemon.refused = [{"priority": 3}]
    conditions: SimpleQueue[str] = SimpleQueue()
    terms = PodTerms(
        "", lambda *_: None, lambda _, why: conditions.put(why),
        classes=priority_classes(["urgent=high"]))
    daemon.replies.clear()
    terms.handle("LISTED", [])      # the thread waits in set_pods(), then sends both terms together
    terms.handle("ADDED", annotated("a", "urgent"))
    known = terms.claim({annotated("b"): {"weight": 7}})
    daemon.replies.set()
    assert known.result(60) is None
    assert conditions.get(timeout=60) == "priority cannot be 3: pod lab/a cannot have that"


def test_clipped_text_is_limited_in_bytes_and_ends_at_a_whole_character() -> None:
    assert [clipped("short", 5), clipped("longer", 5), clipped("ääää", 6)] == ["short", "lo…", "ä…"]


@pytest.mark.parametrize(("key", "text", "reason"), [
    *((f"{PREFIX}gpu-memory-limit", text, "give a number of MiB, or a size such as 4Gi")
      for text in ("999999999999999Ti", "0", "0.0Gi", "much", "-1")),     # D-Bus holds 64 bits
    (FRACTION, "1.5", "give a number between 0 and 1"), (FRACTION, "0.0", "give a number between"),
    (MEMORY, "4Gi", "give a whole number of MiB"),
    (f"{CONTAINER}it.gpu-memory.limit", "much", "give a size of at least 1Mi"),
    (f"{CONTAINER}it.gpu-memory.request", "4", "give a size of at least 1Mi, such as 4Gi"),
])
def test_memory_limit_annotation_without_a_usable_size_is_refused(
        key: str, text: str, reason: str) -> None:
    requested = requested_terms({key: text}, lambda: 1 << 30)["memory-limit"]
    assert requested[:2] == (key, text)
    with pytest.raises(ValueError, match=reason):
        requested.parse(text)


def test_settings_of_a_node_hold_when_kubelets_folder_was_found_and_not_given(
        tmp_path: Path) -> None:
    (folder := tmp_path / "of nodes").mkdir()
    (folder / "default").write_text("--replicas 3\n")
    arguments = ["--state", str(tmp_path), "--settings", str(folder)]
    options = parse(arguments)
    options.kubelet = tmp_path          # as the main program finds it
    settings = NodeSettings(arguments, options)
    changed = settings.changed({})
    assert changed is not None
    assert changed.replicas == parse(["--replicas", "3"]).replicas


def test_settings_of_a_node_that_are_no_text_are_refused_and_end_nothing(
        tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder := tmp_path / "of nodes").mkdir()
    arguments = ["--state", str(tmp_path), "--settings", str(folder)]
    (folder / "other").write_bytes(b"--replicas 3\xff")
    (tmp_path / KEPT).write_bytes(b"--replicas 3\xff")
    settings = NodeSettings(arguments, parse(arguments))
    assert settings.last() is None
    assert settings.changed({SETTINGS_LABEL: "other"}) is None
    assert f"{folder / 'other'} is not text" in caplog.text
    changed = settings.changed({})
    assert changed is not None
    assert changed.replicas == parse(arguments).replicas
