# SPDX-License-Identifier: Apache-2.0
"""Free host memory, and the default host budget with memory that clients hold."""

import errno
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from nvshared.machine import cgroup, host
from nvshared.machine.nvml import Sample
from nvshared.quantity import Amount
from nvshared.scheduler.events import CommitAsked, Event, Memory, MemoryChanged, Tick
from nvshared.settings.config import Config
from nvshared.settings.defaults import Defaults, derive
from nvshared.sharing.manager import Manager, SafeBudget
from nvshared.units import GIB, KIB, SECOND
from tests.unit.scripted import FACTS, OTHER, Noted, Time, joined


class Host:
    """A host's files in /proc and /sys; sizes in KiB."""

    def __init__(self, folder: Path) -> None:
        self.meminfo, self.cgroup = folder / "meminfo", folder / "cgroup"
        self.processes, self.root = folder / "proc", folder / "fs"
        self.has(total=1000, free=300, private=700)
        self.cgroup.write_text("0::/a/b\n")
        (self.root / "a" / "b").mkdir(parents=True)

    def has(self, total: int, free: int, private: int) -> None:
        self.meminfo.write_text(
            f"MemTotal: {total} kB\nMemAvailable:  {free} kB\nAnonPages: {private} kB\n"
            "HugePages_Total:       0\n")

    def process(self, pid: int, private: int, group: str = "0::/", name: str = "python") -> None:
        folder = self.processes / str(pid)
        folder.mkdir(parents=True)
        (folder / "status").write_text(
            f"Name:\t{name}\nVmRSS:\t  {private + 99} kB\nRssAnon:\t  {private} kB\n"
            "RssFile:\t      50 kB\nRssShmem:\t     49 kB\nThreads:\t1\n")
        (folder / "cgroup").write_text(f"{group}\n")

    def limit(self, folder: str, most: str, used: str, size: int, taken: int) -> None:
        (self.root / folder).mkdir(parents=True, exist_ok=True)
        (self.root / folder / most).write_text(f"{size * KIB}\n")
        (self.root / folder / used).write_text(f"{taken * KIB}\n")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Host:
    made = Host(tmp_path)
    monkeypatch.setattr(host, "MEMINFO", made.meminfo)
    monkeypatch.setattr(host, "CGROUP", made.cgroup)
    monkeypatch.setattr(cgroup, "ROOT", made.root)
    monkeypatch.setattr(cgroup, "_visible_top", lambda name: (cgroup.mount_point(name), ()))
    monkeypatch.setattr(host, "PROCESSES", made.processes)
    return made


def safe(kib: int) -> int:
    return int(0.8 * (kib * KIB))


def test_host_memory_figures_are_bounded_by_memory_limits_of_the_daemons_cgroups(
        machine: Host) -> None:
    machine.has(1000, 800, 100)
    assert (host.total(), host.free()) == (1000 * KIB, 800 * KIB)
    assert host.safe_budget() == safe(800)
    machine.limit("a", "memory.max", "memory.current", 500, 450)
    (machine.root / "a" / "b" / "memory.max").write_text("max\n")
    (machine.root / "a" / "b" / "memory.current").write_text("1\n")
    assert (host.total(), host.free()) == (500 * KIB, 50 * KIB)
    machine.cgroup.write_text("3:cpu,memory:/c\n1:name=systemd:/\n")
    machine.limit("memory/c", "memory.limit_in_bytes", "memory.usage_in_bytes", 300, 400)
    assert (host.total(), host.free()) == (300 * KIB, 0)


def test_default_host_budget_includes_claimed_host_memory_only_up_to_the_kernels_figure(
        machine: Host) -> None:
    machine.process(1, 20)
    assert host.safe_budget({1: 1 << 56}) == safe(320)
    # Process 2 has ended; pid 0 stands for a process of another pid namespace.
    assert host.safe_budget({2: 1 << 56, 0: 1 << 56}) == safe(300)


def test_default_host_budget_includes_at_most_as_much_claimed_memory_as_the_machine_uses(
        machine: Host) -> None:
    for pid in range(1, 101):           # a process and its children, which share its memory
        machine.process(pid, 400)
    assert host.safe_budget(dict.fromkeys(range(1, 101), 400 * KIB)) == safe(1000)
    machine.has(1000, 300, 500)
    assert host.safe_budget(dict.fromkeys(range(1, 101), 400 * KIB)) == safe(800)


@pytest.mark.parametrize("name", ["9 kB", "\vRssAnon:9 kB", "kB kB", "\u00b2 kB", "RssAnon: 9 kB"])
def test_default_host_budget_does_not_depend_on_process_names(machine: Host, name: str) -> None:
    machine.process(1, 20, name=name)
    assert host.safe_budget({1: 1 << 56}) == safe(320)


@pytest.mark.parametrize(("group", "counts"), [
    ("0::/a", True), ("0::/a/x", True), ("0::/", False), ("0::/ab", False), ("0::/a/../b", False),
    ("3:memory:/a", False),
])
def test_default_host_budget_in_a_container_includes_only_memory_of_processes_there(
        machine: Host, group: str, counts: bool) -> None:
    machine.limit("a", "memory.max", "memory.current", 500, 450)
    machine.process(1, 400, group)
    assert host.safe_budget({1: 300 * KIB}) == safe(350 if counts else 50)
    machine.process(2, 400, group)      # the result stays within the limit of the container
    assert host.safe_budget({1: 400 * KIB, 2: 400 * KIB}) == safe(500 if counts else 50)


def test_default_host_budget_counts_memory_allocated_during_the_computation_once(
        machine: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.process(1, 200)
    private = host.private

    def grows(pid: int) -> int:
        machine.has(1000, 200, 800)     # the process has allocated 100 of the free KiB
        return private(pid) + 100 * KIB

    monkeypatch.setattr(host, "private", grows)
    assert host.safe_budget({1: 1 << 56}) == safe(500)

    def shrinks(pid: int) -> int:
        machine.has(1000, 300, 700)
        return private(pid) + 100 * KIB

    machine.has(1000, 200, 800)
    monkeypatch.setattr(host, "private", shrinks)
    assert host.safe_budget({1: 1 << 56}) == safe(500)


@pytest.mark.parametrize("end", ["\r", "\v", "\x1c", "\x85", "\u2028", "\udcff\udcfe"])
def test_cgroup_path_with_line_breaks_or_invalid_utf_8_is_read_as_a_single_path(
        machine: Host, end: str) -> None:
    path = f"/a/x{end}0::/b"
    machine.process(1, 20)
    (machine.processes / "1" / "cgroup").write_bytes(os.fsencode(f"0::{path}\n"))
    assert cgroup.memberships(host.process(1, "cgroup")) == [("", path)]
    assert not any(
        group.folder == machine.root / "b"
        for group in cgroup.chain(host.process(1, "cgroup")))


FREE = 20 * GIB
HELD = 60 * GIB
AT_START = int(0.8 * FREE)
WITH_HELD = int(0.8 * (FREE + HELD))
SWAPPED = Memory(allocated=HELD, host=HELD)


class Site:
    """A daemon with one or two cards on a host with `free` bytes of free memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cards: int, config: Config) -> None:
        self.free = FREE
        self.time = Time()
        self.looks: list[dict[int, int]] = []
        monkeypatch.setattr(host, "total", lambda: 256 * GIB)
        monkeypatch.setattr(host, "safe_budget", self._safe)
        facts = [FACTS, OTHER][:cards]
        self.config = config
        safe = SafeBudget(self.time.clock, self.time.timer)

        def read() -> Defaults:
            return derive(self.config, facts, safe.bytes)

        self.manager = Manager(read, self.time.clock, self.time.timer)
        safe.follow(self.manager)
        for one in facts:
            self.manager.add(one, Sample(memory_used=0), gather=True)

    def _safe(self, held: Mapping[int, int] | None = None) -> int:
        self.looks.append(dict(held or {}))
        return int(0.8 * (self.free + sum((held or {}).values())))

    def comes(self, number: int, memory: Memory, card: int = 0) -> Noted:
        link = Noted()
        joined(self.manager.gpus[card], number, link, memory)
        return link

    def gathers(self) -> None:
        self.time.pass_by(SECOND)

    @property
    def whole(self) -> int:
        return sum(gpu.snapshot().budgets["host"].size for gpu in self.manager.gpus)


@pytest.fixture(params=[1, 2])
def site(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Site:
    return Site(monkeypatch, request.param, Config())


def test_default_host_budget_includes_host_memory_held_by_clients_of_an_earlier_daemon(
        site: Site) -> None:
    assert site.whole == AT_START
    link = site.comes(1, SWAPPED)
    assert site.whole == AT_START
    site.manager.gpus[0].tell(CommitAsked(1, SWAPPED, 1, HELD + GIB))
    site.gathers()
    site.manager.reload()
    assert WITH_HELD - 1 <= site.whole <= WITH_HELD
    assert site.looks == [{}, {4001: HELD}]
    # The request is decided with the larger budget.
    (answer,) = [order for order in link.orders if getattr(order, "number", 0) == 1]
    assert answer.commit >= HELD + GIB  # type: ignore[union-attr]


def test_default_host_budget_ignores_host_memory_taken_by_clients_after_the_recomputation(
        site: Site) -> None:
    site.comes(1, SWAPPED)
    site.gathers()
    whole = site.whole
    site.manager.gpus[0].tell(MemoryChanged(1, Memory(allocated=HELD, host=2 * HELD)))
    site.comes(2, Memory())
    site.time.pass_by(120 * SECOND)
    site.comes(3, SWAPPED)
    site.time.pass_by(120 * SECOND)
    assert site.whole == whole
    assert len(site.looks) == 2


def test_default_host_budget_counts_a_process_on_two_cards_once(
        monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(monkeypatch, 2, Config())
    for card in (0, 1):
        client = site.comes(1 + card, Memory(host=GIB, beyond=2 * GIB), card)
        assert client.orders
    site.comes(3, Memory())
    site.gathers()
    assert site.looks[-1] == {4001: 3 * GIB, 4002: 3 * GIB}


def test_default_host_budget_is_recomputed_for_late_clients_once_per_interval(site: Site) -> None:
    site.gathers()
    assert site.whole == AT_START
    site.time.pass_by(10 * SECOND)
    site.comes(1, SWAPPED)
    assert WITH_HELD - 1 <= site.whole <= WITH_HELD
    for number in range(2, 10):
        site.comes(number, Memory(allocated=GIB, host=GIB))
    assert len(site.looks) == 2
    site.time.pass_by(SECOND)
    assert len(site.looks) == 3
    assert site.whole >= int(0.8 * (FREE + HELD + 8 * GIB)) - 1


def test_default_host_budget_does_not_replace_a_configured_size(
        monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(monkeypatch, 1, Config(swap_budget=Amount(30 * GIB)))
    sizes: list[int] = []

    def note(_: int, event: Event) -> None:
        if isinstance(event, Tick):
            sizes.append(site.manager.budget.shared.size)

    site.manager.gpus[0].happened.connect(note)
    site.comes(1, SWAPPED)
    site.gathers()
    assert site.whole == 30 * GIB
    site.config = Config()              # the default: swap-budget = auto
    site.manager.reload()
    assert site.whole == WITH_HELD
    assert list(dict.fromkeys(sizes)) == [30 * GIB, WITH_HELD]


# Its first thread ends, another one goes on until the input is closed.
LEADERLESS = """
import ctypes, sys, threading
def wait():
    print("ready", flush=True)
    sys.stdin.read()
threading.Thread(target=wait).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_process_has_ended_only_when_its_last_thread_has_and_never_for_an_unreadable_proc(
        monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", LEADERLESS], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        pid, began = process.pid, host.started(process.pid)
        while host.process(pid, "stat").rpartition(")")[2].split()[0] != "Z":
            pass
        assert not host.has_ended(pid, began)
        assert host.has_ended(pid, 5)           # another process had this number
        with monkeypatch.context() as patch:
            patch.setattr(host, "kernel_text", refuse)
            assert not host.has_ended(pid, began)
        process.stdin.close()
        while not host.has_ended(pid, began):   # then it is a zombie
            pass
    assert host.has_ended(pid, began)
    assert not host.has_ended(pid, None)        # it could never be seen


def refuse(_path: Path) -> str:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
