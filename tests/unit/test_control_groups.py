# SPDX-License-Identifier: Apache-2.0
"""Memory limits of control groups: as the kernel's files give them, and as bounds of commit."""

import asyncio
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvshared.lanes import here
from nvshared.machine import cgroup, host
from nvshared.machine.cgroup import chain
from nvshared.machine.nvml import Sample
from nvshared.machine.tenant import DEPTH, OTHERS
from nvshared.report import journal
from nvshared.report.log import Limited
from nvshared.scheduler.actions import Limits
from nvshared.scheduler.events import CommitAsked, Memory, MemoryChanged
from nvshared.sharing.control_groups import ControlGroups
from nvshared.sharing.gpu import Client
from nvshared.sharing.manager import Manager
from nvshared.units import GIB, KIB, MIB, SECOND
from tests.unit.scripted import DEFAULTS, FACTS, OTHER, Noted, Time, joined, peer

RESERVE = 512 * MIB                     # bytes of a limit of 8 GiB that are not promised
CARD = FACTS.memory_total


class Machine:
    """A daemon with two cards, and /proc and /sys files that the test writes."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.processes = folder / "fs", folder / "proc"
        monkeypatch.setattr(cgroup, "ROOT", self.root)
        monkeypatch.setattr(cgroup, "_visible_top", lambda name: (cgroup.mount_point(name), ()))
        monkeypatch.setattr(host, "PROCESSES", self.processes)
        monkeypatch.setattr(host, "CGROUP", folder / "cgroup")
        (folder / "cgroup").write_text("0::/all/daemon\n")
        self.time = Time()
        self.manager = Manager(lambda: DEFAULTS, self.time.clock, self.time.timer)
        ControlGroups(self.manager, self.time.clock, self.time.timer, here)
        limited = Limited(logging.getLogger("nvshared.test"), self.time.clock, self.time.timer)
        for facts in (OTHER, FACTS):
            gpu = self.manager.add(facts, Sample(memory_used=0), gather=False)
            journal.follow(gpu, limited, asyncio.Event())
        self.links: dict[int, Noted] = {}
        self.asked = 0

    def group(self, name: str, limit: int | str, used: int = 0) -> None:
        folder = self.root / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{used}\n")

    def process(self, pid: int, group: str, private: int = 0) -> None:
        folder = self.processes / str(pid)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup").write_text(f"0::/{group}\n")
        (folder / "status").write_text(f"Name:\tx\nRssAnon:\t{private // KIB} kB\n")

    def comes(self, number: int, memory: Memory | None = None, card: int = 0) -> Client:
        self.links[number] = Noted()
        has = memory or Memory()
        self.manager.read_limits(peer(4000 + number), has.host + has.beyond, lambda: None)
        return joined(self.manager.gpus[card], number, self.links[number], memory)

    def ask(self, client: Client, size: int) -> Limits:
        self.asked += 1
        self.time.pass_by(SECOND // 10)
        self.manager.read_limits(client.peer, 0, lambda: None)
        client.gpu.tell(CommitAsked(client.id, client.memory, self.asked, size))
        answer, = (
            order for order in self.links[client.id].orders
            if isinstance(order, Limits) and order.number == self.asked)
        return answer

    def most(self, client: Client) -> int:
        return [one.most for one in self.links[client.id].orders if isinstance(one, Limits)][-1]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def less_margin(size: int) -> int:
    """Bytes of a limit that are promised in a group with one process."""
    return size - max(size // 16, 128 * MIB)


def test_control_group_memory_limit_bounds_the_commit_of_a_program_in_the_group(
        machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    machine.group("pod", 8 * GIB, 2 * GIB)
    machine.group("pod/box", "max", GIB)
    machine.process(4001, "pod/box")
    client = machine.comes(1)
    can = less_margin(6 * GIB - RESERVE)
    assert machine.most(client) == can
    assert machine.ask(client, can).commit == can
    why = machine.ask(client, can + 1).reason
    assert why == ("what leaves the card must fit into host memory, and "
                   f"{machine.root}/pod/memory.max is 8GiB")
    line, = (one for one in caplog.messages if "out of memory" in one)
    assert line.endswith(f"{client} is out of memory, because {why}")
    machine.process(4002, "")
    assert machine.most(machine.comes(2)) == CARD


def test_control_group_memory_limit_is_read_again_at_each_commit_request(machine: Machine) -> None:
    machine.group("box", 4 * GIB)
    machine.process(4001, "box")
    client = machine.comes(1)
    assert machine.ask(client, 6 * GIB).reason
    machine.group("box", 8 * GIB)
    assert machine.ask(client, 6 * GIB).commit >= 6 * GIB
    machine.group("box", 8 * GIB, 5 * GIB)  # memory of other processes in the group has grown
    assert machine.ask(client, 6 * GIB + 1).reason
    machine.group("box", "max")
    assert machine.ask(client, 7 * GIB).commit >= 7 * GIB
    machine.group("other", GIB)
    machine.process(4001, "other")                      # the process has moved to another group
    why = machine.ask(client, 7 * GIB + 1).reason
    assert why.endswith(f" and {machine.root}/other/memory.max is 1GiB")
    assert [one.name for one in machine.manager.domains] == [str(machine.root / "other")]


def test_control_group_memory_limit_bounds_the_sum_over_programs_on_all_cards(
        machine: Machine) -> None:
    machine.group("box", 8 * GIB)
    for pid in (4001, 4002):
        machine.process(pid, "box")
    first, second = machine.comes(1), machine.comes(2, card=1)
    assert machine.ask(first, 5 * GIB).commit >= 5 * GIB
    assert machine.ask(second, 3 * GIB).reason
    machine.process(4003, "box")
    first.gpu.leave(first)
    assert machine.ask(second, 3 * GIB).commit >= 3 * GIB


def test_control_group_memory_limit_counts_swapped_memory_of_a_client_as_available(
        machine: Machine) -> None:
    machine.group("box", 8 * GIB, 5 * GIB)
    machine.process(4001, "box", 4 * GIB)
    away = Memory(allocated=4 * GIB, host=4 * GIB)
    client = machine.comes(1, away)
    can = less_margin(7 * GIB - RESERVE)
    assert machine.ask(client, can).commit >= can
    assert machine.ask(client, can + 1).reason
    # Host memory beyond the kernel's figure for the process does not raise the commit.
    client.gpu.tell(MemoryChanged(client.id, Memory(allocated=4 * GIB, host=60 * GIB)))
    assert machine.ask(client, can + 1).reason


def test_swapped_memory_is_loaded_when_other_memory_in_the_control_group_grows(
        machine: Machine) -> None:
    machine.group("box", 8 * GIB, 4 * GIB)
    machine.process(4001, "box", 4 * GIB)
    client = machine.comes(1, Memory(allocated=4 * GIB, host=4 * GIB))
    assert client.view.state == "idle"
    machine.group("box", 8 * GIB, 8 * GIB)
    machine.time.pass_by(2 * SECOND)
    assert client.view.state == "loading"               # no client has sent a report
    assert any(type(order).__name__ == "Load" for order in machine.links[1].orders)


def test_cgroup_memory_limit_that_includes_the_daemon_bounds_the_host_budget_but_no_commit(
        machine: Machine) -> None:
    machine.group("all", 8 * GIB)
    machine.process(4001, "all/box")
    client = machine.comes(1)
    assert machine.most(client) == CARD
    machine.process(4002, "../../elsewhere")        # the daemon cannot read this group
    assert [machine.most(machine.comes(number)) for number in (2, 3)] == [CARD] * 2
    box, = machine.manager.domains
    assert (box.whole, box.limit) == (True, 8 * GIB - RESERVE)


HUGE = 9223372036854771712              # cgroup v1 shows this size where there is no limit
FILES = "inactive_anon 1\nactive_anon 2\ninactive_file {0}\nactive_file {1}\nunevictable 0\n"


def write(folder: Path, **files: str | int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"memory.{name}").write_text(f"{text}\n")


def limits(text: str, root: Path) -> list[tuple[str, int, int]]:
    """For each limit of groups below `root`: its file, its size and the free memory, in MiB."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cgroup, "ROOT", root)
        patch.setattr(cgroup, "_visible_top", lambda name: (cgroup.mount_point(name), ()))
        found = [limit for group in chain(text) if (limit := group.limit()) is not None]
    return [(str(one.file.relative_to(root)), one.size // MIB, one.free // MIB) for one in found]


def test_cgroup_memory_limits_are_the_tightest_of_each_group_up_to_the_root(tmp_path: Path) -> None:
    write(tmp_path / "a" / "b" / "c", max="max", high="max", current=MIB)
    write(tmp_path / "a" / "b", max=500 * MIB, high=400 * MIB, current=100 * MIB)
    write(tmp_path / "a", max=700 * MIB, high="max", current=100 * MIB)
    # In a container, the top folder is a control group with limits.
    write(tmp_path, max=900 * MIB, current=300 * MIB)
    assert limits("0::/a/b/c\n", tmp_path) == [
        ("a/b/memory.high", 400, 300), ("a/memory.max", 700, 600), ("memory.max", 900, 600)]
    assert limits("0::/a\n", tmp_path) == [("a/memory.max", 700, 600), ("memory.max", 900, 600)]


def test_cgroup_memory_limits_count_cached_files_as_free_memory(tmp_path: Path) -> None:
    write(tmp_path / "a", max=500 * MIB, current=490 * MIB, stat=FILES.format(300 * MIB, 50 * MIB))
    assert limits("0::/a\n", tmp_path) == [("a/memory.max", 500, 360)]
    write(tmp_path / "a", current=10 * MIB)     # the kernel updates `stat` later
    assert limits("0::/a\n", tmp_path) == [("a/memory.max", 500, 500)]
    write(tmp_path / "a", current=900 * MIB)
    assert limits("0::/a\n", tmp_path) == [("a/memory.max", 500, 0)]


def test_cgroup_v1_memory_and_swap_limits_both_apply(tmp_path: Path) -> None:
    folder = tmp_path / "memory" / "docker" / "x"
    none = {"limit_in_bytes": HUGE, "usage_in_bytes": 0}
    write(folder, **none)
    write(tmp_path / "memory" / "docker", limit_in_bytes=400 * MIB, usage_in_bytes=100 * MIB)
    write(tmp_path / "memory", **none)
    text = "9:name=systemd:/\n4:cpu,memory:/docker/x\n3:cpuset:/\n0::/other\n"
    assert limits(text, tmp_path) == [("memory/docker/memory.limit_in_bytes", 400, 300)]
    version_1: dict[str, str | int] = {
        "limit_in_bytes": 350 * MIB, "usage_in_bytes": 150 * MIB,
        "memsw.limit_in_bytes": 400 * MIB, "memsw.usage_in_bytes": 390 * MIB,   # memory and swap
        "stat": f"inactive_file 1\ntotal_inactive_file {40 * MIB}\ntotal_active_file {10 * MIB}\n"}
    write(folder, **version_1)
    assert limits(text, tmp_path) == [
        ("memory/docker/x/memory.memsw.limit_in_bytes", 400, 60),
        ("memory/docker/memory.limit_in_bytes", 400, 300)]


def test_cgroup_v2_memory_limits_are_read_on_a_machine_that_also_mounts_v1(tmp_path: Path) -> None:
    write(tmp_path / "unified" / "a", max=400 * MIB, current=100 * MIB)
    (tmp_path / "unified" / "cgroup.controllers").write_text("memory\n")
    assert limits("4:cpu:/b\n0::/a\n", tmp_path) == [("unified/a/memory.max", 400, 300)]


@pytest.mark.parametrize("text", [
    "", "0::/a/gone\n", "0::/../outside\n", "0::/a/../b\n", "nonsense\n", "0:\n", "4:memory:/a\n",
])
def test_cgroup_memory_limits_without_readable_usage_are_ignored(tmp_path: Path, text: str) -> None:
    write(tmp_path / "a", high="nonsense", max=400 * MIB)       # without memory.current
    write(tmp_path / "b", max=400 * MIB, current=0)
    assert limits(text, tmp_path) == []


class Inside:
    """A daemon in a control group namespace; the host's groups may be mounted at another folder."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.host, self.mountinfo = folder / "ho st", folder / "mountinfo"
        self.own = self.host / "kubepods" / "besteffort" / "pod1" / "box"
        write(self.own, max=100 * MIB, current=MIB)
        patch.setattr(cgroup, "MOUNTINFO", self.mountinfo)
        self.mounts({"/": self.own, "/../../../..": self.host})

    def mounts(self, places: dict[str, Path]) -> None:
        self.mountinfo.write_text("22 1 0:21 / /proc rw shared:5 - proc proc rw\n" + "".join(
            f"{number} 22 0:26 {root} {str(point).replace(' ', chr(92) + '040')} ro,nosuid "
            "shared:9 master:4 - cgroup2 cgroup rw,nsdelegate\n"
            for number, (root, point) in enumerate(places.items(), 30)))
        cgroup._visible_top.cache_clear()


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Inside]:
    yield Inside(tmp_path, monkeypatch)
    cgroup._visible_top.cache_clear()


def test_cgroup_chain_in_a_namespace_includes_host_cgroups_if_the_host_mount_is_visible(
        inside: Inside) -> None:
    write(inside.host / "kubepods" / "besteffort" / "pod1", max=90 * MIB, current=MIB)
    write(inside.host / "kubepods" / "burstable" / "pod2", max=80 * MIB, current=MIB)
    write(inside.host / "kubepods", max=500 * MIB, current=MIB)

    def found(text: str) -> list[int]:
        return [limit.size // MIB for group in chain(text) if (limit := group.limit()) is not None]

    assert found("0::/\n") == [100, 90, 500]
    assert found("0::/child\n") == [100, 90, 500]
    assert found("0::/../../../burstable/pod2/box\n") == [80, 500]
    assert found("0::/../../../../system.slice/x.service\n") == []
    assert found("0::/../../../../../x\n") == []     # the kernel never shows such a path
    assert not cgroup.has_hidden_ancestors("0::/\n")


@pytest.mark.parametrize("places", [["/"], ["/../../../.."], ["/../.."], []])
def test_cgroup_chain_is_empty_for_a_cgroup_outside_the_visible_mounts(
        inside: Inside, places: list[str]) -> None:
    elsewhere = inside.mountinfo.parent / "elsewhere"
    elsewhere.mkdir()
    inside.mounts({mount: inside.own if mount == "/" else elsewhere for mount in places})
    assert chain("0::/../../burstable/pod2\n") == ()
    assert cgroup.owner("", "/../../burstable/pod2") is None


def test_cgroup_chain_is_empty_if_the_cgroup_mount_begins_above_the_cgroup_namespace(
        inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "ROOT", inside.host)
    inside.mounts({"/../../../..": inside.host})
    assert chain("0::/kubepods\n") == ()       # /kubepods of the namespace is no group of the host
    assert cgroup.has_hidden_ancestors("0::/\n")
    inside.mounts({"/../../../..": inside.host, "/": inside.own})
    assert chain("0::/\n")[0].folder == inside.own
    assert not cgroup.has_hidden_ancestors("0::/\n")


def test_owner_of_a_cgroup_outside_the_namespace_is_the_owner_of_the_folder(inside: Inside) -> None:
    folder = inside.host / "lab" / "alice"
    folder.mkdir(parents=True)
    assert cgroup.owner("", "/../../../../lab/alice") == os.getuid()
    if os.getuid() == 0:
        os.chown(folder, 1000, 1000)
        assert cgroup.owner("", "/../../../../lab/alice") == 1000
    folder.chmod(0o777)
    assert cgroup.owner("", "/../../../../lab/alice") == OTHERS
    assert cgroup.owner("", "/../../../../lab/bob") is None
    assert cgroup.owner("4", "/lab/alice") is None


def test_cgroup_chain_omits_cgroups_nested_deeper_than_the_maximum(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "ROOT", tmp_path)
    monkeypatch.setattr(cgroup, "_visible_top", lambda name: (cgroup.mount_point(name), ()))
    found = chain("0::" + "/a" * 1900)
    assert len(found) == DEPTH + 1
    assert found[-1].folder == tmp_path
    assert found[0].folder == tmp_path.joinpath(*["a"] * DEPTH)


def test_domain_of_a_control_group_is_forgotten_when_its_last_program_has_ended(
        machine: Machine) -> None:
    machine.process(4000, "")
    stays = machine.comes(0)
    for number in range(1, 4):
        machine.group(f"box{number}", 8 * GIB)
        machine.process(4000 + number, f"box{number}")
        client = machine.comes(number)
        machine.time.pass_by(5 * SECOND)
        client.gpu.leave(client)
        machine.time.pass_by(5 * SECOND)
        stays.gpu.tell(MemoryChanged(stays.id, Memory()))
        assert not [*machine.manager.domains]
