# SPDX-License-Identifier: Apache-2.0
"""Limits and usage of control groups bound the commit of the programs in these groups."""

import asyncio
import logging
from pathlib import Path

import pytest

from nvshared.lanes import here
from nvshared.machine import cgroup, host
from nvshared.machine.nvml import Sample
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


def test_control_group_memory_limit_bounds_programs_on_all_cards_together(
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
