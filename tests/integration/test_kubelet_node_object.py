# SPDX-License-Identifier: Apache-2.0
"""What nvshare-kubelet writes of its node, what it reads there, and how it leaves."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from nvshared.kubelet import node as node_module
from nvshared.kubelet.card import NodeGPU, Offer, card_of
from nvshared.kubelet.claims import RESOURCE
from nvshared.kubelet.node import LEAVING_TAINT, PROBLEM_CONDITION, NodeObject
from nvshared.units import GIB
from tests.integration.apiserver import ApiServer
from tests.integration.conftest import wait_until
from tests.integration.fakehook import PATIENCE
from tests.integration.kubelet_node import Node as Machine
from tests.integration.kubelet_node import small_disk
from tests.integration.test_kubelet_annotations import Lab
from tests.integration.test_lacks import fill, needs_root

PODS_TAINT = {"key": "other", "effect": "NoSchedule"}


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    made = ApiServer(tmp_path)
    yield made
    if made.runs:
        made.stop()


@pytest.fixture
def lab(node: Machine, api: ApiServer) -> Lab:
    return Lab(node, api)


def has_labels(api: ApiServer, wanted: Mapping[str, str]) -> bool:
    return api.labels.items() >= wanted.items()


def condition(api: ApiServer) -> tuple[str, str]:
    found = [one for one in api.status.get("conditions", ()) if one["type"] == PROBLEM_CONDITION]
    return (found[0]["status"], found[0]["message"]) if found else ("", "")


@contextmanager
def reporting(lab: Lab) -> Iterator[None]:
    """Kubelet tells the API server how many shares the node has."""
    ended = threading.Event()

    def report() -> None:
        while not ended.wait(0.05):
            lab.api.status["allocatable"] = {RESOURCE: str(lab.node.kubelet.allocatable())}

    thread = threading.Thread(target=report)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def why_not_ready(lab: Lab) -> str:
    """What --ready says, as a probe of kubelet calls it; "": ready."""
    status, said = lab.node.fails("--ready")
    assert bool(status) == bool(said)
    return said


def test_labels_and_condition_are_written_again_when_the_node_is_registered_anew(
        api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_module, "PERIOD", 0.02)
    offer = Offer([("", 10)])
    offer.update((NodeGPU("GPU-0a", 0, "", "", "H100", 80 * GIB),))
    api.labels["mine"] = "kept"
    one = NodeObject(api.kubeconfig, "thisnode")
    one.publish(offer)
    for _ in range(2):
        wait_until(lambda: len(api.labels) == 6 and condition(api)[0] == "False")
        api.labels = {"mine": "kept"}
        api.status = {}
    wait_until(lambda: api.labels == {
        "mine": "kept", f"{RESOURCE}.shared": "true", f"{RESOURCE}.count": "1",
        f"{RESOURCE}.replicas": "10", f"{RESOURCE}.memory": "81920", f"{RESOURCE}.product": "H100"})
    versions = api.node_versions
    before = one.read_at
    wait_until(lambda: one.read_at > before and condition(api)[0] == "False")
    assert api.node_versions <= versions + 1        # nothing is written while nothing differs


def test_node_labels_and_condition_follow_the_health_of_the_gpus(lab: Lab) -> None:
    errors = Path(lab.node.site.environment["NVSHARE_SIM_DIR"]) / "xid"
    wait_until(lambda: lab.api.labels.get(f"{RESOURCE}.count") == "2")
    wait_until(lambda: condition(lab.api)[0] == "False")
    for index, labels in ((1, {"shared": "true", "count": "1"}), (0, {"shared": "false"})):
        errors.write_text(f"{index} 79")
        wanted = {f"{RESOURCE}.{key}": value for key, value in labels.items()}
        wait_until(partial(has_labels, lab.api, wanted))
        wait_until(lambda: condition(lab.api)[0] == "True" and "Xid 79" in condition(lab.api)[1])
    assert lab.api.labels == {f"{RESOURCE}.shared": "false"}
    wait_until(lambda: condition(lab.api)[1].count("Xid 79") == 2)
    lab.node.kill_daemon()              # labels are of the GPUs; the condition has the reason
    wait_until(lambda: "nvshared is not running" in condition(lab.api)[1])
    lab.node.daemon()
    wait_until(lambda: lab.api.labels.get(f"{RESOURCE}.count") == "2")
    wait_until(lambda: condition(lab.api)[0] == "False")
    assert all(one.startswith("nvshare-kubelet/") for one in lab.api.agents)


def test_nvshare_kubelet_is_ready_when_the_node_shows_its_shares(lab: Lab) -> None:
    lab.node.allocatable(20)
    wait_until(lambda: "node shows 0 shares as allocatable, and there are 20" in why_not_ready(lab))
    with reporting(lab):
        wait_until(lambda: why_not_ready(lab) == "")
        lab.node.kubelet.stop()
        wait_until(lambda: f"kubelet has not registered {RESOURCE}" in why_not_ready(lab))
        lab.node.kubelet.start()
        wait_until(lambda: why_not_ready(lab) == "")
        lab.node.kill_daemon()
        wait_until(lambda: "nvshared is not running" in why_not_ready(lab))
        lab.node.daemon()
        wait_until(lambda: why_not_ready(lab) == "")
    lab.node.kill_plugin()
    assert "nvshare-kubelet is not running" in why_not_ready(lab)


def test_nvshare_kubelet_that_has_another_nodes_name_is_not_ready_and_says_so(
        node: Machine, api: ApiServer) -> None:
    lab = Lab(node, api, "--node", "renamed")
    wait_until(lambda: "you are another node (is 'renamed' this node's name in Kubernetes? --node "
               "gives it)" in why_not_ready(lab))
    assert api.labels == {}


def test_terminated_plugin_serves_until_no_pod_can_be_bound_and_leaves_no_taint(lab: Lab) -> None:
    """The daemon ends as well, as it does in the pod of one DaemonSet."""
    lab.api.taints = [PODS_TAINT]
    (plugin,) = lab.node.plugins
    with reporting(lab):
        wait_until(lambda: why_not_ready(lab) == "")
        share = next(iter(lab.node.kubelet.devices()))
        # bound to the node, and kubelet has not admitted it yet
        lab.api.write("late", {}, containers=[
            {"name": "it", "resources": {"limits": {RESOURCE: "1"}}}])
        lab.expect_name(lab.api.tenant("late"), "pod:lab/late")
        plugin.terminate()
        wait_until(lambda: LEAVING_TAINT in lab.api.taints)
        lab.node.kill_daemon()
        (answer,) = lab.node.kubelet.allocate([share])
        assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == card_of(share)
    lab.api.pods["late"]["status"] = {"startTime": "2026-01-01T00:00:00Z"}
    lab.api.annotate("late")
    lab.node.kubelet.wait(lambda: not lab.node.kubelet.devices())
    assert lab.api.taints == [PODS_TAINT, LEAVING_TAINT]        # the node still shows 20
    assert plugin.poll() is None
    lab.api.status["allocatable"] = {RESOURCE: "0"}
    assert plugin.wait(PATIENCE) == 0
    assert lab.api.taints == [PODS_TAINT]


def test_plugin_without_the_right_to_taint_leaves_at_once(lab: Lab) -> None:
    lab.node.allocatable(20)
    lab.api.rights.discard(("", "nodes", "patch"))
    (plugin,) = lab.node.plugins
    plugin.terminate()
    assert plugin.wait(PATIENCE) == 0
    lab.node.kubelet.wait(lambda: not lab.node.kubelet.devices())
    assert not list((lab.node.kubelet.folder / "plugins_registry").iterdir())
    said = lab.node.log.read_text()
    assert "unless it is cordoned" in said
    assert "Traceback" not in said      # of gRPC, for a stream that it ends
    assert lab.api.taints == []


def test_taint_of_a_plugin_that_was_killed_while_leaving_is_removed_by_the_next(
        node: Machine, api: ApiServer) -> None:
    api.taints = [LEAVING_TAINT, PODS_TAINT]
    Lab(node, api)
    wait_until(lambda: api.taints == [PODS_TAINT])


def test_settings_of_the_file_that_the_nodes_label_names_hold_at_once(
        node: Machine, api: ApiServer, tmp_path: Path) -> None:
    folder = tmp_path / "settings"
    folder.mkdir()
    (folder / "default").write_text("# of all other nodes\n--replicas 3\n")
    (folder / "big").write_text("--replicas 5 --foreign-annotations --priority-class urgent=high\n")
    (folder / "wrong").write_text("--dra\n")
    api.write("pod", {"gpu-memory": "300"}, priorityClassName="urgent")
    options = ("--replicas", "7", "--settings", str(folder))
    lab = Lab(node, api, *options)
    node.allocatable(6)
    api.labels["nvshare.com/config"] = "big"
    lab.restart(*options)               # a start reads the label at once
    node.allocatable(10)
    lab.expect(api.tenant("pod"), memory_limit=300 << 20, priority=3)
    (folder / "big").write_text("--replicas 2\n")
    node.allocatable(4)
    lab.expect(api.tenant("pod"))
    api.labels["nvshare.com/config"] = "wrong"
    lab.restart(*options)
    wait_until(lambda: "cannot have --dra" in node.log.read_text())
    node.allocatable(4)                 # as before
    api.stop()
    lab.restart(*options)               # without the API server, too
    node.allocatable(4)


def test_nvshare_kubelet_offers_nothing_before_it_knows_its_settings(
        node: Machine, api: ApiServer, tmp_path: Path) -> None:
    (tmp_path / "two").write_text("--replicas 2")
    api.labels["nvshare.com/config"] = "none"
    Lab(node, api, "--settings", str(tmp_path))
    wait_until(lambda: "nvshare.com/config of the node cannot be 'none'" in node.log.read_text())
    assert node.kubelet.devices() == {}
    assert "the node's settings are not known yet" in node.fails("--ready")[1]
    (tmp_path / "none").write_text("")
    node.allocatable(20)


@pytest.mark.long
@needs_root
def test_plugin_on_a_full_disk_goes_on_and_starts_and_takes_the_nodes_settings(
        node: Machine, api: ApiServer, tmp_path: Path) -> None:
    (folder := tmp_path / "settings").mkdir()
    (folder / "default").write_text("--replicas 3\n")
    with small_disk(node) as disk:
        lab = Lab(node, api, "--settings", str(folder))
        with reporting(lab):
            wait_until(lambda: why_not_ready(lab) == "")
            ballast = fill(disk)
            (folder / "default").write_text("--replicas 4\n")
            node.allocatable(8)
            wait_until(lambda: why_not_ready(lab) == "")
            lab.restart_daemon()
            lab.restart("--settings", str(folder))
            node.allocatable(8)
            wait_until(lambda: why_not_ready(lab) == "")
        assert "settings hold, and are not kept for the next start" in node.log.read_text()
        ballast.unlink()
        wait_until(lambda: (disk / "settings").read_text() == "--replicas 4\n")
        api.stop()
        lab.restart("--settings", str(folder))
        node.allocatable(8)
