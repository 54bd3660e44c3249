# SPDX-License-Identifier: Apache-2.0
"""Classes Manager and GPU: settings, events, orders and signals."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from nvshared.errors import ConfigError, InvalidArgs
from nvshared.machine.nvml import Process, Sample
from nvshared.scheduler.actions import Action, Load, Order, Run, Stop, TurnStarted
from nvshared.scheduler.events import (
    AntiThrash,
    Event,
    Evidence,
    Joined,
    Left,
    Memory,
    MemoryChanged,
    Seen,
    Stopped,
    Terms,
    Tick,
)
from nvshared.settings.state import StateFile
from nvshared.sharing.client_terms import ClientTerms
from nvshared.sharing.gpu import GPU, Client, EarlierTimes
from nvshared.sharing.inflight_page import InflightPage
from nvshared.sharing.manager import Manager
from nvshared.terms import TERMS
from nvshared.units import GIB, MIB, SECOND
from tests.unit.scripted import (
    DEFAULTS,
    FACTS,
    NO_RESERVE,
    OTHER,
    SETTINGS,
    Noted,
    Scripted,
    Time,
    joined,
    peer,
    script,
)


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Manager:
    script(monkeypatch)
    time = Time()
    made = Manager(lambda: DEFAULTS, time.clock, time.timer, StateFile(tmp_path))
    made.add(OTHER, Sample(memory_used=0), gather=False)
    made.add(FACTS, Sample(memory_used=0), gather=False)
    return made


@pytest.mark.parametrize("name", [
    "1", OTHER.uuid, OTHER.uuid.upper(), OTHER.uuid[4:], "00000000:65:00.0", "0000:65:00.0",
    "65:00.0",
])
def test_gpu_is_found_by_index_uuid_and_pci_address(manager: Manager, name: str) -> None:
    assert manager.gpu(name).facts is OTHER


def test_settings_of_gpus_of_another_machine_are_named_in_the_journal(
        manager: Manager, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def moved() -> Manager:
        time = Time()
        made = Manager(lambda: DEFAULTS, time.clock, time.timer, StateFile(tmp_path))
        made.add(FACTS, Sample(), gather=False)
        made.log_unused_settings()
        return made

    manager.set_tq(5 * SECOND, manager.gpu(OTHER.uuid)).result()
    manager.set_tq(6 * SECOND, manager.gpu(FACTS.uuid)).result()
    assert quanta(moved()) == [30, 6]
    (line,) = caplog.messages
    assert f"are not in force: {OTHER.uuid}; make them for its GPUs" in line


def quanta(manager: Manager) -> list[int]:
    return [-(-tq // SECOND) for tq in (manager.tq, *(gpu.tq for gpu in manager.gpus))]


def test_settings_of_a_gpu_or_of_all_gpus_apply_at_once_and_after_a_restart(
        manager: Manager, tmp_path: Path) -> None:
    def restarted() -> Manager:
        time = Time()
        made = Manager(lambda: DEFAULTS, time.clock, time.timer, StateFile(tmp_path))
        for facts in (OTHER, FACTS):
            made.add(facts, Sample(), gather=True)
        return made

    heard: list[None] = []
    manager.changed.connect(lambda: heard.append(None))
    manager.set_tq(5 * SECOND, manager.gpus[1]).result()
    assert quanta(manager) == quanta(restarted()) == [30, 30, 5]
    manager.set_anti_thrash("on", manager.gpus[1])
    manager.set_tq(7 * SECOND).result()
    for one in (manager, restarted()):
        assert quanta(one) == [7, 7, 7]
        assert one.gpus[1].settings.anti_thrash is AntiThrash.ON
        assert one.settings.anti_thrash is AntiThrash.AUTO
    manager.set_anti_thrash("off")
    assert {gpu.settings.anti_thrash for gpu in manager.gpus} == {AntiThrash.OFF}
    manager.set_policy("deadline", manager.gpus[1]).result()
    for one in (manager, restarted()):
        assert [gpu.settings.policy for gpu in one.gpus] == ["fair", "deadline"]
    manager.set_tq(None).result()
    assert restarted().gpus[0].settings.tq is None
    manager.reset_settings().result()
    assert quanta(manager) == quanta(restarted()) == [30, 30, 30]
    assert len(heard) == 7


@pytest.mark.parametrize("usec", [0, -SECOND, 999, SECOND << 32, 0xFFFF_FFFF * SECOND + 1])
def test_set_tq_below_a_millisecond_or_above_a_day_is_refused(manager: Manager, usec: int) -> None:
    manager.set_tq(500_000, manager.gpus[1])
    with pytest.raises(InvalidArgs) as caught:
        manager.set_tq(usec)
    assert str(caught.value) == (
        f"the quantum cannot be {usec / SECOND:.10g} seconds; give 0.001 to 86400")
    assert [gpu.tq for gpu in manager.gpus] == [30_000_000, 500_000]


def test_reload_applies_all_settings_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch)
    time = Time()
    now = [DEFAULTS]

    def read() -> object:
        if not now:
            raise ConfigError("/etc/nvshare/nvshared.conf:3: wrong")
        return now[0]

    manager = Manager(read, time.clock, time.timer)     # type: ignore[arg-type]
    manager.add(FACTS, Sample(), gather=False)
    now[0] = replace(DEFAULTS, settings=replace(SETTINGS, tq=9_000_000))
    manager.reload()
    assert quanta(manager) == [9, 9]
    now[0] = replace(DEFAULTS, settings=replace(SETTINGS, tq=None))
    manager.reload()
    assert manager.gpus[0].settings.tq is None
    assert quanta(manager) == [30, 2]
    now.clear()
    with pytest.raises(ConfigError):
        manager.reload()
    assert quanta(manager) == [30, 2]


def test_card_memory_used_at_the_daemons_start_is_subtracted_unless_clients_will_reconnect(
        manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time()
    used = Sample(memory_used=10 * GIB)
    fresh = Manager(lambda: DEFAULTS, time.clock, time.timer)
    assert fresh.add(FACTS, used, gather=False).capacity.bytes == 54 * GIB
    assert Scripted.latest.settings.gather == 0
    assert fresh.add(OTHER, used, gather=True).capacity.bytes == 32 * GIB
    assert Scripted.latest.settings.gather == SETTINGS.gather


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, time: Time) -> GPU:
    script(monkeypatch)
    return GPU(FACTS, SETTINGS, NO_RESERVE, time.clock, time.timer)


def test_client_moved_to_another_gpu_keeps_terms_and_totals_of_held_and_waited_time(
        gpu: GPU) -> None:
    before = joined(gpu, 1, Noted())
    before.set_terms(before.terms.having(TERMS["weight"], 7, by_owner=False))
    before.remember(EarlierTimes(5, 3), before.terms)
    before.parking.moves = 2
    gpu.leave(before)
    moved = Client(2, gpu, peer(4001), Noted())
    gpu.join(moved, Memory(), running=False, wants=False, commit=0, before=before)
    assert (moved.terms, moved.past.held, moved.past.waited, moved.parking.moves) == (
        before.terms, 5, 3, 2)
    assert [one.own for one in Scripted.latest.events if isinstance(one, Joined)] == [
        Terms(), Terms(weight=7)]


@pytest.mark.parametrize("running", [True, False])
def test_client_suspended_at_its_join_gets_no_turn_before_resume(
        time: Time, running: bool) -> None:
    gpu, link = GPU(FACTS, SETTINGS, NO_RESERVE, time.clock, time.timer), Noted()
    client = Client(1, gpu, peer(4001), link, ClientTerms(Terms(suspended=True)))
    gpu.join(client, Memory(GIB), running=running, wants=not running, commit=GIB)
    assert any(isinstance(one, Stop) for one in link.orders) is running
    if running:
        gpu.tell(Stopped(1, client.memory, wants=True))
    assert not any(isinstance(one, Load | Run) for one in link.orders)
    client.set_terms(ClientTerms())
    assert isinstance(link.orders[-1], Load)


def test_gpu_has_a_single_timer_for_several_scheduler_deadlines(gpu: GPU, time: Time) -> None:
    joined(gpu, 1, Noted())
    for wait in (50, 20, 30):           # us
        Scripted.latest.due = time.now + wait
        gpu.tell(Tick())
    assert [at - time.now for at, _ in time.timers] == [30]


def test_client_is_removed_after_all_orders_when_the_connection_breaks_during_an_order(
        gpu: GPU) -> None:
    class Breaking(Noted):
        def order(self, order: Order) -> None:
            super().order(order)
            if isinstance(order, Run):
                gpu.leave(broken)

    other = Noted()
    broken = joined(gpu, 1, Breaking())
    joined(gpu, 2, other)
    scheduler = Scripted.latest
    scheduler.decide = lambda event: [Run(1), Run(2)] if isinstance(event, MemoryChanged) else []
    gpu.tell(MemoryChanged(1, Memory(), wants=True))
    assert scheduler.events[-1] == Left(1)
    assert other.orders[-1] == Run(2)
    assert list(gpu.clients) == [2]


def test_gpu_sends_the_orders_of_an_event_before_emitting_signals(
        gpu: GPU, caplog: pytest.LogCaptureFixture) -> None:
    link = Noted()
    joined(gpu, 1, link)
    ordered: list[bool] = []

    def heard(*_: object) -> None:
        ordered.append(link.orders[-1] == Run(1))

    def fail(*_: object) -> None:
        raise RuntimeError("the bus is gone")

    gpu.reported.connect(fail)
    gpu.happened.connect(heard)
    gpu.decided.connect(heard)
    gpu.reported.connect(heard)
    gpu.changed.connect(heard)
    Scripted.latest.decide = lambda _: [TurnStarted(1), Run(1)]
    gpu.tell(MemoryChanged(1, Memory(), wants=True))
    assert ordered == [True] * 4
    assert "the bus is gone" in caplog.text
    gpu.changed.connect(lambda: ordered.clear())
    Scripted.latest.decide = lambda _: []
    gpu.decides()
    assert ordered


def test_scheduler_that_fails_is_reported_and_gets_no_more_events(
        gpu: GPU, caplog: pytest.LogCaptureFixture) -> None:
    client = joined(gpu, 1, Noted())
    failures: list[bool] = []
    gpu.failed.connect(lambda: failures.append(True))

    def fail(_: Event) -> list[Action]:
        raise RuntimeError("an impossible state")

    Scripted.latest.decide = fail
    gpu.tell(MemoryChanged(1, Memory(), wants=True))
    gpu.tell(Tick())
    gpu.leave(client)
    assert isinstance(Scripted.latest.events[-1], MemoryChanged)
    assert "the scheduler of gpu0 failed at MemoryChanged(client=1" in caplog.text
    assert "an impossible state" in caplog.text
    assert failures == [True]


def test_inflight_page_that_cannot_be_sized_leaves_no_descriptor_open(
        monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "ftruncate", fail)
    before = os.listdir("/proc/self/fd")                # noqa: PTH208
    with pytest.raises(OSError, match="No space"):
        InflightPage().writable()
    assert os.listdir("/proc/self/fd") == before        # noqa: PTH208


@pytest.mark.parametrize(("listed", "expected"), [
    ([Process(7, GIB, GIB)], [Evidence()] * 3),         # possibly pids of another namespace
    ([Process(8, GIB, MIB)], [Evidence(GIB, MIB), Evidence(0, 0), Evidence(0, 0)]),
    ([Process(8, None, GIB)], [Evidence(None, GIB, True), Evidence(None, 0, True), Evidence(0, 0)]),
    ([Process(8, 5 * GIB, 3 * GIB)],
     [Evidence(5 * GIB, 3 * GIB), Evidence(GIB, GIB), Evidence(0, 0)]),
])
def test_measured_memory_of_a_process_is_divided_among_the_clients_of_the_process(
        gpu: GPU, listed: list[Process], expected: list[Evidence]) -> None:
    for id, pid in ((1, 8), (2, 8), (3, 9)):
        memory = Memory(resident=3 * GIB, pinned=GIB, host=2 * GIB)
        joined(gpu, id, memory=memory, process=peer(pid))
    gpu.evaluate_processes(Sample(processes=tuple(listed)), {})
    seen = Scripted.latest.events[-1]
    assert isinstance(seen, Seen)
    assert [seen.evidence[id] for id in (1, 2, 3)] == expected
    if expected[0] != Evidence():
        # NVML has named clients before, so clients it no longer names have no memory.
        gpu.evaluate_processes(Sample(processes=()), {})
        seen = Scripted.latest.events[-1]
        assert isinstance(seen, Seen)
        assert set(seen.evidence.values()) == {Evidence(0, 0)}
