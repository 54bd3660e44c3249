# SPDX-License-Identifier: Apache-2.0
"""The daemon's client for a process without the library, with scripted helper and driver."""

import asyncio
import os

import pytest

from nvshared.errors import NvshareError
from nvshared.lanes import here
from nvshared.machine.checkpoint import Answer, Step
from nvshared.scheduler.actions import Evict, Load, Order, Run, Stop
from nvshared.scheduler.events import (
    Event,
    Evicted,
    Joined,
    Left,
    Loaded,
    Memory,
    Moved,
    Reopened,
    Stopped,
)
from nvshared.sharing import unshared
from nvshared.sharing.gpu import GPU
from nvshared.sharing.manager import Manager
from nvshared.sharing.unshared import StandIn, Unshared
from nvshared.units import GIB
from tests.unit.scripted import DEFAULTS, FACTS, NO_RESERVE, SETTINGS, Scripted, Time, peer, script

SIZE = 10 * GIB
Says = Answer | NvshareError


def failed(name: str, code: int, state: str) -> Answer:
    return Answer(state, (Step(name, code, 0, "words"),))


async def play(monkeypatch: pytest.MonkeyPatch, orders: list[Order],
               answers: list[tuple[str, Says]], room: int = 100 * GIB) -> tuple[GPU, list[Event]]:
    """Events that the scheduler gets after these orders to a process of 10 GiB."""
    time = Time()
    script(monkeypatch)
    monkeypatch.setattr(unshared, "RETRY_AFTER", 0.0)
    monkeypatch.setattr(unshared, "free_host_memory", lambda _pid: room)
    gpu = GPU(FACTS, SETTINGS, NO_RESERVE, time.clock, time.timer)
    heard: list[Event] = []
    gpu.happens.connect(lambda _now, event: heard.append(event))

    async def ask(command: str, _pid: int, _pairs: object, tag: str) -> Answer:
        expected, answer = answers.pop(0)
        assert (command, bool(tag)) == (expected, command == "hold")
        if isinstance(answer, NvshareError):
            raise answer
        return answer

    manager = Manager(lambda: DEFAULTS, time.clock, time.timer)
    Scripted.latest.decide = lambda event: list(orders) if isinstance(event, Joined) else []
    StandIn(Unshared(manager, here, ask), gpu, peer(os.getpid()),
            Memory(allocated=SIZE, host=SIZE, resident=SIZE, room=SIZE),
            os.pidfd_open(os.getpid()), running=True).join()
    while answers:                      # noqa: ASYNC110
        await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)
    assert isinstance(heard.pop(0), Joined)
    return gpu, heard


LOCKED, RUNS, AWAY = Answer("locked"), Answer("running"), Answer("checkpointed")
EVICT, LOAD = Evict(1, 1, 9 * GIB, 0), Load(1, 2, SIZE, 0)


async def test_scheduler_orders_to_an_unshared_process_become_lock_checkpoint_restore_and_unlock(
        monkeypatch: pytest.MonkeyPatch) -> None:
    _, heard = await play(
        monkeypatch, [Stop(1), EVICT, Load(1, 2, GIB, 0), LOAD, Run(1), Run(1)],
        [("hold", LOCKED), ("park", AWAY), ("restore", LOCKED), ("wake", RUNS)])
    stopped, evicted, nothing, loaded = heard
    assert isinstance(stopped, Stopped)
    assert stopped.wants
    assert isinstance(evicted, Evicted)
    assert (evicted.bytes, evicted.memory.resident, evicted.memory.room) == (SIZE, 0, 9 * GIB)
    assert isinstance(nothing, Loaded)
    assert (nothing.bytes, nothing.memory.room) == (0, GIB)
    assert isinstance(loaded, Loaded)
    assert (loaded.bytes, loaded.memory.resident) == (SIZE, SIZE)


@pytest.mark.parametrize("unknown", [
    failed("init", 999, "none"), NvshareError("nvshare-checkpoint cannot be used"),
])
@pytest.mark.parametrize("command", ["hold", "park", "restore", "wake"])
async def test_checkpoint_command_is_repeated_while_the_state_of_the_process_is_unknown(
        monkeypatch: pytest.MonkeyPatch, unknown: Says, command: str) -> None:
    answers: list[tuple[str, Says]] = [
        ("hold", LOCKED), ("park", AWAY), ("restore", LOCKED), ("wake", RUNS)]
    at = [name for name, _ in answers].index(command)
    answers[at:at] = [(command, unknown)] * 2
    gpu, heard = await play(monkeypatch, [Stop(1), EVICT, LOAD, Run(1)], answers)
    assert [type(one) for one in heard] == [Stopped, Evicted, Loaded]
    assert list(gpu.clients) == [1]


async def test_unshared_process_that_cannot_be_locked_in_time_keeps_the_turn(
        monkeypatch: pytest.MonkeyPatch) -> None:
    _, heard = await play(monkeypatch, [Stop(1)], [("hold", failed("lock", 600, "running"))])
    assert [type(one) for one in heard] == [Reopened]


@pytest.mark.parametrize(("answers", "words"), [
    ([("hold", failed("hold", -1, "running"))], "hold: words"),
    ([("hold", failed("lock", 801, "running"))], "lock: words"),
    ([("hold", LOCKED), ("park", failed("checkpoint", 801, "running"))], "checkpoint: words"),
    ([("hold", LOCKED), ("park", failed("checkpoint", 1, "failed")), ("wake", Answer("failed"))],
     "could not"),
])
async def test_unshared_process_that_cannot_be_suspended_is_removed_and_the_reason_kept(
        monkeypatch: pytest.MonkeyPatch, answers: list[tuple[str, Says]], words: str) -> None:
    gpu, heard = await play(monkeypatch, [Stop(1), EVICT], answers)
    assert Left in map(type, heard)
    assert not gpu.clients
    assert words in gpu.unsuspendable[os.getpid()]


@pytest.mark.parametrize(("orders", "answers", "room", "kind", "resident"), [
    ([Stop(1), EVICT, LOAD],
     [("hold", LOCKED), ("park", AWAY), ("restore", failed("restore", 2, "checkpointed"))],
     100 * GIB, Loaded, 0),
    ([Stop(1), EVICT], [("hold", LOCKED)], GIB, Evicted, SIZE),     # too little free host memory
])
async def test_eviction_or_load_of_an_unshared_process_that_lacks_memory_is_reported(
        monkeypatch: pytest.MonkeyPatch, orders: list[Order], answers: list[tuple[str, Says]],
        room: int, kind: type[Moved], resident: int) -> None:
    _, heard = await play(monkeypatch, orders, answers, room)
    moved = heard[-1]
    assert isinstance(moved, kind)
    assert moved.no_memory
    assert moved.memory.resident == resident
