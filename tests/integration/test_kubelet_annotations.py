# SPDX-License-Identifier: Apache-2.0
"""Annotations of pods become terms of tenants, with a simulated API server and the real daemon."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvshared.control import Daemon
from nvshared.errors import ExitCode
from nvshared.kubelet.claims import CONTAINER, FRACTION, MEMORY, MIRROR, RESOURCE, STATIC
from nvshared.names import WITHOUT_GPU
from nvshared.units import GIB, MIB
from tests.integration.apiserver import NODE, ApiServer
from tests.integration.conftest import CARD, ROOT, wait_until
from tests.integration.fakehook import PATIENCE
from tests.integration.kubelet_node import Node


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    made = ApiServer(tmp_path)
    yield made
    if made.runs:
        made.stop()


class Lab:
    """A node with a daemon and an nvshare-kubelet that watches the API server."""

    def __init__(self, node: Node, api: ApiServer, *options: str) -> None:
        self.node, self.api = node, api
        node.daemon()
        self.start(*options)

    def start(self, *options: str) -> None:
        self.node.start("--kubeconfig", str(self.api.kubeconfig), "--node", NODE, *options)

    def restart(self, *options: str) -> None:
        self.node.kill_plugin()
        self.start(*options)

    def restart_daemon(self) -> None:
        """Kills the daemon, which forgets all terms, and starts another one."""
        self.node.kill_daemon()
        self.node.daemon()

    def terms(self, tenant: str) -> dict[str, int]:
        with Daemon(self.node.bus.address) as daemon:
            return {one.name: one.value for one in daemon.tenant(tenant).terms}

    def sources(self, tenant: str) -> dict[str, str]:
        with Daemon(self.node.bus.address) as daemon:
            return {one.name: one.place for one in daemon.tenant(tenant).terms}

    def name_of(self, tenant: str) -> str:
        with Daemon(self.node.bus.address) as daemon:
            return daemon.tenant(tenant).name

    def expect_name(self, tenant: str, name: str) -> None:
        wait_until(lambda: self.name_of(tenant) == name)

    def set_terms(self, tenant: str, **terms: int) -> None:
        with Daemon(self.node.bus.address) as daemon:
            daemon.set_tenant_terms(tenant, terms)

    def expect(self, tenant: str, **terms: int) -> None:
        wanted = {name.replace("_", "-"): value for name, value in terms.items()}
        wait_until(lambda: self.terms(tenant) == wanted)

    def expect_condition(self, name: str, refused: str, *words: str) -> None:
        reason = "AnnotationRefused" if refused == "True" else "NothingRefused"

        def is_there() -> bool:
            status, message, found = self.api.condition(name)
            return (status, found) == (refused, reason) and all(one in message for one in words)

        wait_until(is_there)


@pytest.fixture
def lab(node: Node, api: ApiServer) -> Lab:
    api.annotate("old", weight="300")
    return Lab(node, api)


def test_annotations_of_pods_become_terms_when_the_plugin_starts_and_at_each_change(
    lab: Lab
) -> None:
    lab.expect(lab.api.tenant("old"), weight=300)
    lab.api.annotate("new", gpu_memory_limit="4096", gpu_core_limit="60")
    new = lab.api.tenant("new")
    lab.expect(new, memory_limit=4096 * MIB, compute_limit=60)
    lab.api.annotate("new", gpu_memory_limit="4Gi", gpu_core_limit="35", weight="200")
    lab.expect(new, memory_limit=4 * GIB, compute_limit=35, weight=200)
    lab.api.annotate("new", gpu_memory_limit=None, weight=None)
    lab.expect(new, compute_limit=35)
    lab.api.annotate("new", gpu_core_request="30", host_memory_limit="1Gi", priority="background")
    lab.expect(new, compute_limit=35, compute_request=30, host_memory_limit=GIB, priority=1)
    lab.expect(lab.api.tenant("old"), weight=300)
    assert lab.sources(lab.api.tenant("old")) == {"weight": "annotation"}
    assert lab.api.events == []


def test_tenants_of_pods_keep_their_names_after_restarts_of_daemon_and_plugin(lab: Lab) -> None:
    for name in ("second", "third"):    # more pods than one response contains
        lab.api.annotate(name)
    old, third = lab.api.tenant("old"), lab.api.tenant("third")
    lab.expect_name(old, "pod:lab/old")
    lab.expect_name(third, "pod:lab/third")
    lab.set_terms("pod:lab/third", weight=7)
    assert lab.terms(third) == {"weight": 7}
    lab.restart_daemon()
    lab.expect_name(old, "pod:lab/old")
    lab.expect_name(third, "pod:lab/third")
    lab.node.kill_plugin()
    assert lab.name_of(old) == "pod:lab/old"
    lab.api.delete("old")
    lab.start()
    lab.expect_name(old, old)
    lab.expect_name(third, "pod:lab/third")


def test_node_event_gives_the_reason_while_gpus_are_not_offered(lab: Lab) -> None:
    """Kubernetes' scheduler gives a waiting pod no reason."""
    lab.expect(lab.api.tenant("old"), weight=300)
    assert lab.api.node_events == []
    lab.node.kill_daemon()
    wait_until(lambda: bool(lab.api.node_events))
    event = lab.api.node_events[0]
    assert event["reason"] == "GPUsNotShared"
    assert event["involvedObject"].items() >= {"kind": "Node", "name": NODE, "uid": NODE}.items()
    assert "no shares: " in event["message"]
    lab.node.kill_plugin()
    number = len(lab.api.node_events)
    lab.start()
    wait_until(lambda: len(lab.api.node_events) > number)


def test_node_labels_count_only_shared_gpus(lab: Lab) -> None:
    def expect(**values: str) -> None:
        wanted = {f"nvshare.com/gpu.{name}": value for name, value in values.items()}
        wait_until(lambda: lab.api.labels == wanted)

    product = "NVIDIA-Simulated-GPU"
    expect(shared="true", count="2", replicas="10", memory=str(CARD // MIB), product=product)
    lab.api.stop()
    lab.restart("--replicas", "4", "--replicas", "1=0")
    lab.api.start()
    lab.api.annotate("old", weight="5")
    expect(shared="true", count="1", replicas="4", memory=str(CARD // MIB), product=product)
    lab.restart("--replicas", "0")
    expect(shared="false")


def test_nvshare_kubelet_exits_when_a_thread_fails(node: Node, api: ApiServer) -> None:
    """systemd then restarts the process, and the log has the reason."""
    broken = "import nvshared.kubelet.annotations as a; a.PodTerms._apply = lambda *_: 1 / 0; "
    program, flag, text, *options = node.command("--kubeconfig", str(api.kubeconfig))
    done = subprocess.run(
        [program, flag, broken + text, *options, "--node", NODE],
        cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == ExitCode.FAILURE
    assert "nvshare-kubelet: the thread annotations ended: ZeroDivisionError: " in done.stderr


def test_invalid_annotation_is_refused_by_an_event_and_the_earlier_term_stays(lab: Lab) -> None:
    old = lab.api.tenant("old")
    lab.api.annotate("old", gpu_core_limit="50", gpu_memory_limit="512Mi")
    lab.expect(old, compute_limit=50, memory_limit=512 * MIB, weight=300)
    lab.api.annotate("old", gpu_core_request="60", weight="400")
    event = lab.api.event(0)
    assert "contradicts the compute-limit of pod:lab/old, 50 %" in event["message"]
    assert (event["reason"], event["type"]) == ("AnnotationRefused", "Warning")
    assert event["involvedObject"]["name"] == "old"
    lab.expect(old, compute_limit=50, memory_limit=512 * MIB, weight=400)    # valid values are set
    lab.expect_condition("old", "True", event["message"])
    lab.api.annotate("old", weight="500")
    lab.expect(old, compute_limit=50, memory_limit=512 * MIB, weight=500)
    assert len(lab.api.events) == 1                     # the refusal is reported once
    lab.expect_condition("old", "True", event["message"])           # stays True while it is refused
    lab.api.annotate("old", gpu_core_request=None)
    lab.expect_condition("old", "False", "")


def test_request_beyond_the_requests_of_other_pods_names_no_pod_and_holds_after_their_end(
        lab: Lab) -> None:
    for name, request in (("first", "60"), ("second", "50"), ("third", "40")):
        lab.api.annotate(name, gpu_core_request=request)
        lab.expect_name(lab.api.tenant(name), f"pod:lab/{name}")
    first, second, third = map(lab.api.tenant, ("first", "second", "third"))
    lab.expect(third, compute_request=40)
    lab.expect_condition("second", "True", "pod:lab/second cannot be 50 %", "another pod 60 %")
    assert "lab/first" not in lab.api.condition("second")[1] + lab.api.event(0)["message"]
    lab.api.delete("third")
    lab.expect(second)
    lab.api.annotate("first", gpu_core_request="50")
    lab.expect(second, compute_request=50)
    wait_until(lambda: lab.api.condition("second")[0] == "False")
    lab.expect(first, compute_request=50)


def test_request_above_the_limit_of_the_same_pod_holds_when_the_limit_is_raised(lab: Lab) -> None:
    lab.api.annotate("new", gpu_core_limit="50", gpu_core_request="60")
    new = lab.api.tenant("new")
    lab.expect_condition("new", "True", "contradicts the compute-limit of")
    lab.api.annotate("new", gpu_core_limit="80")
    lab.expect(new, compute_limit=80, compute_request=60)
    lab.expect_condition("new", "False")
    lab.api.annotate("new", gpu_core_limit="30")
    lab.expect_condition("new", "True", "contradicts")
    lab.expect(new, compute_limit=80, compute_request=60)
    lab.api.annotate("new", gpu_core_request="20")
    lab.expect(new, compute_limit=30, compute_request=20)
    lab.expect_condition("new", "False")
    assert len(lab.api.events) == 2


def test_pod_condition_is_cleared_when_a_restarted_plugin_finds_the_annotations_corrected(
    lab: Lab
) -> None:
    lab.api.annotate("old", gpu_core_limit="x", speed="9")
    wrong = ("nvshare.com/gpu-core-limit cannot be 'x'; ", "nvshare.com/speed cannot be '9'; ")
    lab.expect_condition("old", "True", *wrong)
    lab.node.kill_plugin()
    lab.api.annotate("old", gpu_core_limit="50", speed=None)
    assert lab.api.condition("old")[0] == "True"
    lab.start()
    lab.expect_condition("old", "False", "")


def test_annotations_of_other_products_limit_memory_only_with_foreign_annotations_on(
    lab: Lab
) -> None:
    limits = f"{CONTAINER}train.gpu-memory.limit", f"{CONTAINER}side.gpu-memory.limit"
    requests = f"{CONTAINER}train.gpu-memory.request", f"{CONTAINER}side.gpu-memory.request"
    lab.api.write("pod", {FRACTION: "0.25", "nvshare.com/weight": "7"})
    pod = lab.api.tenant("pod")
    lab.expect(pod, weight=7)
    lab.restart("--foreign-annotations")
    lab.expect(pod, weight=7, memory_limit=CARD // 4)
    lab.api.write("pod", {MEMORY: "300"})
    lab.expect(pod, weight=7, memory_limit=300 * MIB)
    lab.api.write("pod", {requests[0]: "100Mi", requests[1]: "8388608", limits[0]: "200Mi"})
    # the sum includes a container that has a request but no limit
    lab.expect(pod, weight=7, memory_limit=208 * MIB)
    lab.api.write("pod", {"nvshare.com/gpu-memory-limit": "64"})
    lab.expect(pod, weight=7, memory_limit=64 * MIB)
    assert lab.sources(pod)["memory-limit"] == "annotation"
    lab.api.write("pod", dict.fromkeys(
        (*requests, limits[0], FRACTION, MEMORY, "nvshare.com/gpu-memory-limit")))
    lab.expect(pod, weight=7)
    assert lab.api.events == []


def test_priority_class_sets_the_priority_of_a_pod_without_an_annotation(lab: Lab) -> None:
    lab.restart("--priority-class", "..-1=background", "--priority-class", "urgent=high")
    for name, value in (("urgent", 1), ("batch", -5), ("usual", 0)):
        lab.api.write(name, {}, priorityClassName=name, priority=value)
    lab.expect(lab.api.tenant("urgent"), priority=3)
    lab.expect(lab.api.tenant("batch"), priority=1)
    assert lab.sources(lab.api.tenant("batch")) == {"priority": "class"}
    lab.api.annotate("batch", priority="high")
    lab.expect(lab.api.tenant("batch"), priority=3)
    lab.api.annotate("batch", priority="highest")
    lab.expect_condition("batch", "True", "give background, normal, high")
    lab.expect(lab.api.tenant("batch"), priority=3)        # the former value stays
    lab.api.annotate("batch", priority=None)
    lab.expect(lab.api.tenant("batch"), priority=1)
    lab.expect(lab.api.tenant("usual"))
    batch = lab.api.tenant("batch")
    lab.api.delete("batch")
    lab.expect(batch)


def test_pod_deletion_removes_the_terms_of_that_pod_only(lab: Lab) -> None:
    old, gone, mine = lab.api.tenant("old"), "pod:gone", "user:root"
    lab.expect(old, weight=300)
    lab.set_terms(mine, weight=700)
    lab.api.annotate("plain")
    lab.set_terms(lab.api.tenant("plain"), weight=700)
    lab.api.delete("old")
    lab.expect(old)
    lab.node.kill_plugin()
    lab.set_terms(gone, weight=2)             # the pod was deleted while no plugin ran
    lab.start()
    lab.expect(gone)
    lab.expect(mine, weight=700)
    lab.expect(lab.api.tenant("plain"), weight=700)


def test_annotations_apply_after_the_api_server_restarts_or_ends_a_watch(lab: Lab) -> None:
    old = lab.api.tenant("old")
    lab.expect(old, weight=300)
    lab.api.stop()
    lab.api.annotate("old", weight="20")
    lab.api.start()
    lab.expect(old, weight=20)
    lab.api.forget()
    lab.api.annotate("old", weight="30")
    lab.expect(old, weight=30)


def test_static_pod_started_without_a_share_is_reported_by_an_event_until_the_pod_is_deleted(
    lab: Lab
) -> None:
    lab.node.kubelet.give_away(RESOURCE)            # kubelet has given out no share
    lab.api.write("static", dict.fromkeys((STATIC, MIRROR), "0a" * 16), containers=[
        {"name": "main", "resources": {"limits": {RESOURCE: "1"}}}])
    lab.api.pods["static"]["status"] = {
        "containerStatuses": [{"name": "main", "containerID": "containerd://a"}]}
    lab.api.annotate("static")                      # watches report the status
    event = lab.api.event(0)
    assert (event["reason"], event["involvedObject"]["name"]) == ("StartedWithoutGPU", "static")
    assert event["message"].startswith("main started without nvshare.com/gpu")
    reports = lab.node.state / WITHOUT_GPU          # for nvsharectl doctor
    assert len(json.loads(reports.read_text())) == 1
    lab.api.delete("static")
    wait_until(lambda: json.loads(reports.read_text()) == [])
