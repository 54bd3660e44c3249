# SPDX-License-Identifier: Apache-2.0
"""Parking of clients: conditions, logged failures, and bounds on calls of the helper."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Hashable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from nvshared.errors import NvshareError
from nvshared.machine.checkpoint import Answer, Step
from nvshared.machine.nvml import Process, Sample
from nvshared.machine.tenant import Kind, Tenant
from nvshared.scheduler.events import Event, Memory, TermsChanged
from nvshared.sharing import moving
from nvshared.sharing.gpu import GPU, Client
from nvshared.sharing.manager import Manager
from nvshared.units import GIB
from tests.unit.scripted import (
    DEFAULTS,
    FACTS,
    NO_RESERVE,
    OTHER,
    SETTINGS,
    Noted,
    Time,
    joined,
    peer,
)

LOST = OTHER.uuid[:-1] + "3"


def shows(*clients: Client, size: int = 0, used: int = 0) -> Sample:
    """A sample of NVML: `used` bytes of the card, `size` bytes of each client."""
    return Sample(used, processes=tuple(Process(one.peer.pid, size) for one in clients))


@asynccontextmanager
async def parking(*answers: Answer | NvshareError, memory: Memory | None = None,
                  budget: int = 200 * GIB) -> AsyncIterator[tuple[Time, Client, moving.Moving]]:
    """A client, and the answers of nvshare-checkpoint; the last answer is repeated."""
    left = list(answers) or [Answer("running")]

    async def ask(*_: object) -> Answer:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, NvshareError):
            raise answer
        return answer

    time = Time()
    manager = Manager(lambda: DEFAULTS, time.clock, time.timer)
    manager.budget.resize(budget)
    gpu = manager.add(FACTS, Sample(), gather=False)
    client = joined(gpu, 1, Noted(), memory)
    gpu.sample = shows(client)
    manager.moving._ask = ask
    yield time, client, manager.moving


@pytest.mark.parametrize("by_hook", [False, True], ids=["the driver", "the hook"])
async def test_idle_client_is_parked_again_only_after_a_pause_when_a_park_failed(
        monkeypatch: pytest.MonkeyPatch, by_hook: bool) -> None:
    async def refuse(_: Noted, context: int, *, ahead: bool) -> None:
        raise NvshareError("its threads do not rest")

    answers = [Answer("running"), Answer("running", (Step("lock", 600, 0, "not ready"),))]
    if by_hook:
        monkeypatch.setattr(Noted, "park", refuse)
    async with parking(*answers) as (time, client, one):
        one.use(0)
        with pytest.raises(NvshareError, match="do not rest" if by_hook else "not ready"):
            await one.park(client, ahead=True)
        assert not client.parking.impossible
        assert not one._is_idle_for_long(client)
        time.pass_by(moving.PARK_RETRY_AFTER)
        assert one._is_idle_for_long(client)


def second_card(time: Time, like: GPU, **facts: Any) -> GPU:
    """Another card of the same machine; `facts`: its differences from the first card."""
    changed: dict[str, Any] = {"index": 1, "uuid": OTHER.uuid} | facts
    card = GPU(replace(FACTS, **changed), SETTINGS, NO_RESERVE, time.clock, time.timer)
    card.sample = Sample(memory_used=0)
    card.capacity.sampled(0, 0)
    card.apply_capacity()
    return card


async def test_park_fails_once_the_card_is_lost_during_the_eviction() -> None:
    async with parking(memory=Memory(allocated=GIB, resident=GIB, room=GIB)) as (_, client, one):
        park = asyncio.create_task(one.park(client))
        while not client.parking.suspended:  # noqa: ASYNC110
            await asyncio.sleep(0)
        client.gpu.lose("it fell off the bus")
        with pytest.raises(NvshareError, match="gpu0 is lost"):
            await park
        assert (client.parking.state, client.parking.suspended) == ("", False)


@pytest.mark.parametrize("step", ["sample", "host memory"])
async def test_park_fails_when_the_client_ends_during_the_park(
        monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    async with parking() as (_, client, one):
        async def end_before_sample(_pid: int | None) -> int:
            client.gpu.leave(client)
            return 0

        def end_before_result(_pid: int) -> int:
            client.gpu.leave(client)
            return GIB

        async def fail(*_: object, **__: object) -> None:
            pytest.fail("the hook of an ended client is asked")

        monkeypatch.setattr(Noted, "park", fail)
        if step == "sample":
            client.gpu.measure = end_before_sample
        else:
            monkeypatch.setattr(moving, "free_host_memory", end_before_result)
        with pytest.raises(NvshareError, match="has ended"):
            await one.park(client)


@pytest.mark.parametrize(("fails", "state"), [
    ("_host_memory", ""), ("_restore", moving.PARKED)], ids=["park", "move"])
async def test_program_continues_or_stays_parked_after_an_exception_in_the_daemon(
        monkeypatch: pytest.MonkeyPatch, fails: str, state: str) -> None:
    async with parking(Answer("running"), Answer("checkpointed")) as (time, client, one):
        monkeypatch.setattr(one, fails, mock.Mock(side_effect=ZeroDivisionError))
        with pytest.raises(ZeroDivisionError):
            await (one.move(client, second_card(time, client.gpu)) if state else one.park(client))
        assert client.parking.state == state
        assert state or not client.parking.suspended


async def test_wake_of_a_parked_client_is_repeated_after_an_exception_in_the_daemon(
        monkeypatch: pytest.MonkeyPatch) -> None:
    fail_once = mock.AsyncMock(side_effect=[ZeroDivisionError, None])
    monkeypatch.setattr(moving, "RETRY_AFTER", 0)
    running = Answer("running")
    async with parking(running, Answer("checkpointed"), running) as (_, client, one):
        await one.park(client)
        monkeypatch.setattr(one, "_resume", fail_once)
        one.wake(client)
        await asyncio.wait(one._tasks)
        assert fail_once.await_count == 2


@pytest.mark.parametrize("refusals", [3, 1000])
async def test_restore_that_the_driver_refuses_is_repeated_ever_more_rarely_and_then_no_more(
        monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, refusals: int) -> None:
    pauses: list[float] = []
    whole, wakes = asyncio.sleep, 0

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await whole(0)

    async def ask(command: str, *_: object) -> Answer:
        nonlocal wakes
        wakes += command == "wake"
        if command != "wake":
            return Answer({"state": "running", "park": "checkpointed"}[command])
        if wakes > refusals:
            return Answer("running", (Step("restore", 0, 1, "no error"),))
        return Answer("checkpointed", (Step("restore", 999, 1, "unknown error"),))

    async with parking() as (_, client, one):
        one._ask = ask
        await one.park(client)
        monkeypatch.setattr(asyncio, "sleep", sleep)
        one.wake(client)
        while one._tasks:
            await whole(0)
        assert pauses[:3] == [2, 4, 8]
        assert max(pauses) <= moving.RETRY_AFTER_MOST
        if refusals == 3:
            assert (wakes, client.parking.state, client.parking.refusals) == (4, "", 0)
        else:
            assert (wakes, client.parking.state) == (moving.REFUSALS_MOST, moving.LOST)
            assert client.parking.impossible.endswith("restore: unknown error (999)")
            assert "is lost: the driver did not restore it" in caplog.text


async def test_process_that_the_driver_does_not_unlock_is_asked_about_ever_more_rarely(
        monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    whole, asked = asyncio.sleep, 0

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await whole(0)

    async def ask(command: str, *_: object) -> Answer:
        nonlocal asked
        asked += 1
        return Answer("running" if asked > 40 else "locked")

    monkeypatch.setattr(moving, "LOCKED_FOR", -1)
    async with parking() as (_, client, one):
        one._ask = ask
        monkeypatch.setattr(asyncio, "sleep", sleep)
        one.take_over(client, 0)
        while one._tasks:
            await whole(0)
        assert pauses[:3] == [2, 4, 8]
        assert pauses[-1] == moving.RETRY_AFTER_MOST
        assert client.parking.state == ""


async def test_move_during_the_pause_of_a_failed_wake_restores_the_program_once(
        monkeypatch: pytest.MonkeyPatch) -> None:
    pause_over, restored, wakes = asyncio.Event(), asyncio.Event(), 0
    answers = {"park": "checkpointed", "state": "running", "wake": "checkpointed"}
    whole = asyncio.sleep

    async def sleep(seconds: float) -> None:
        if seconds == moving.RETRY_AFTER:
            await pause_over.wait()
        await whole(0)

    async def ask(command: str, *_: object) -> Answer:
        nonlocal wakes
        wakes += command == "wake"
        if wakes > 1:
            await restored.wait()
        return Answer(answers[command])

    monkeypatch.setattr(asyncio, "sleep", sleep)
    async with parking() as (time, client, one):
        one._ask = ask
        await one.park(client)
        one.wake(client)
        while client.parking.state != moving.PARKED:
            await whole(0)
        move = asyncio.create_task(one.move(client, second_card(time, client.gpu)))
        while wakes < 2:
            await whole(0)
        pause_over.set()
        while len(one._tasks) > 1 and wakes < 3:
            await whole(0)              # until the task of wake() has ended or has begun a restore
        answers["wake"] = "running"
        restored.set()
        await move
        assert (wakes, client.parking.state) == (2, "")


@pytest.mark.parametrize(("free", "budget", "reason"), [
    (3 * GIB, 200 * GIB, ""), (2 * GIB, 200 * GIB, "its control group or the host"),
    (3 * GIB, 2 * GIB, "the host budget"),
])
async def test_client_is_parked_only_if_the_host_has_memory_for_the_clients_context(
        monkeypatch: pytest.MonkeyPatch, free: int, budget: int, reason: str) -> None:
    monkeypatch.setattr(moving, "free_host_memory", lambda _pid: free)
    answers = Answer("running"), Answer("checkpointed")
    async with parking(*answers, budget=budget) as (_, client, one):
        client.gpu.sample = shows(client, size=3 * GIB)
        if reason:
            with pytest.raises(NvshareError, match=f"{reason} has too little left for its 3072"):
                await one.park(client)
            assert not client.parking.impossible
        else:
            await one.park(client)
        assert client.parking.context == (0 if reason else 3 * GIB)


async def test_clients_parked_at_the_same_time_share_the_free_host_memory(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "free_host_memory", lambda _pid: 4 * GIB)
    reads: list[Callable[[], None]] = []
    both_read = asyncio.Event()

    def run(_key: Hashable, function: Callable[[], Any], answer: Callable[[Any], None],
            _patience: int | None = None) -> None:
        reads.append(lambda: answer(function()))
        if len(reads) > 1:
            both_read.set()

    async with parking() as (_, client, one):
        one._run = run

        async def checkpoint() -> None:
            async with one._host_memory(client, 3 * GIB):
                await asyncio.sleep(0.01)

        both = [asyncio.create_task(checkpoint()) for _ in range(2)]
        await both_read.wait()
        for read in reads:
            read()
        results = await asyncio.gather(*both, return_exceptions=True)
    assert [type(result) for result in results] == [type(None), NvshareError]


async def test_repeated_checkpoint_helper_failure_is_logged_once_until_a_success(
        monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(moving, "RETRY_AFTER", 0)

    def errors() -> list[str]:
        return [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]

    broken = Answer("none", (Step("init", 999, 0, "unknown error"),))
    async with parking(*[broken] * 3, Answer("running"), broken) as (_, client, one):
        for _ in range(3):
            with pytest.raises(NvshareError, match="unknown error"):
                await one.park(client)
        assert errors() == [
            "python[4001]: nvshare-checkpoint state failed: init: unknown error (999)"]
        await one._try(client, "wake")
        await one._try(client, "state")
        assert len(errors()) == 2


async def test_idle_client_is_parked_while_another_client_is_being_evicted(
        monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(command: str, *_: object) -> Answer:
        return Answer("running" if command == "state" else "checkpointed")

    monkeypatch.setattr(moving, "IDLE_CHECK_EVERY", 0)
    async with parking() as (_, slow, one):
        one.use(0)
        one._ask = ask
        monkeypatch.setattr(slow.gpu.scheduler, "rests", lambda id: id != slow.id)
        others = [joined(slow.gpu, number, Noted()) for number in (2, 3, 4)]
        slow.gpu.sample = shows(slow, *others)
        watch = asyncio.create_task(one.watch())
        while any(client.parking.state != moving.PARKED for client in others):    # noqa: ASYNC110
            await asyncio.sleep(0)
        assert slow.parking.state == moving.PARKING
        watch.cancel()


@pytest.mark.parametrize(("other", "reason"), [
    ({"name": "Other card"}, "GPUs of the same kind only"),
    ({"memory_total": 80 * GIB}, "GPUs of the same kind only"),
    ({"mig": True}, "GPUs of the same kind only"),
    ({}, "is lost"), (None, "is on GPU 0 already"),
])
async def test_move_to_the_same_card_a_lost_card_or_another_model_is_refused_with_the_reason(
        other: dict[str, Any] | None, reason: str) -> None:
    async with parking() as (time, client, one):
        target = client.gpu if other is None else second_card(time, client.gpu, **other)
        if reason == "is lost":
            target.lose("it fell off the bus")
        with pytest.raises(NvshareError, match=reason):
            await one.move(client, target)
        assert client.parking.state == ""


@pytest.mark.parametrize(("answer", "reason"), [
    (Answer("none"), "as under MPS"), (Answer("locked"), "for the driver its process is locked"),
])
async def test_process_that_the_driver_cannot_checkpoint_is_not_evicted(
        answer: Answer, reason: str) -> None:
    async with parking(answer) as (_, client, one):
        events: list[Event] = []
        client.gpu.happens.connect(lambda _, event: events.append(event))
        with pytest.raises(NvshareError, match=reason):
            await one.park(client)
        assert not any(isinstance(one, TermsChanged) and one.terms.suspended for one in events)


FAILED = Answer("failed", (Step("restore", 719, 0, "launch failure"),))


@pytest.mark.parametrize("earlier", [False, True], ids=["own park", "park by an earlier daemon"])
async def test_program_resumes_and_gets_the_driver_error_when_a_restore_fails_permanently(
        monkeypatch: pytest.MonkeyPatch, earlier: bool) -> None:
    resumed: list[GPU] = []
    monkeypatch.setattr(Noted, "resume_on", lambda _, gpu: resumed.append(gpu))
    answers = [FAILED] if earlier else [Answer("running"), Answer("checkpointed"), FAILED]
    async with parking(*answers) as (_, client, one):
        if earlier:
            one.take_over(client, 0)
        else:
            await one.park(client)
            one.wake(client)
        await asyncio.wait(one._tasks)
        assert (resumed, client.parking.state) == ([client.gpu], "")


class MovableHook(Noted):
    def __init__(self, client: Client) -> None:
        super().__init__()
        self.client = client

    def resume_on(self, gpu: GPU) -> None:
        client = self.client
        if gpu is not client.gpu:
            memory = client.memory
            client.gpu.leave(client)
            asyncio.get_running_loop().call_later(
                0.05, lambda: joined(gpu, client.id + 10, None, memory, client.peer))


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Manager:
    """Two clients on the first of two cards and one on the second, where one more is allowed."""
    states: dict[int, str] = {}

    async def ask(command: str, pid: int, *_: object) -> Answer:
        after = {"park": "checkpointed", "wake": "running"}
        states[pid] = after.get(command, states.get(pid, "running"))
        return Answer(states[pid], (Step("restore", 0, 0, ""),) if command == "wake" else ())

    time = Time()
    manager = Manager(lambda: DEFAULTS, time.clock, time.timer)
    monkeypatch.setattr(manager.moving, "_ask", ask)
    manager.tenancy.set_terms("user:1000", {"memory-limit": 5 * GIB})
    for number, facts in enumerate((FACTS, replace(FACTS, index=1, uuid=OTHER.uuid))):
        gpu = manager.add(facts, Sample(), gather=False)
        for pid in range(2 - number):
            client = joined(gpu, 2 * pid + number, None, Memory(allocated=2 * GIB, host=2 * GIB))
            client.link = MovableHook(client)
        gpu.sample = shows(*gpu.clients.values())
    return manager


async def test_drain_of_a_card_moves_only_clients_that_the_tenants_memory_limit_admits(
        limited: Manager) -> None:
    first, second = limited.gpus
    await limited.moving.drain(first)
    assert [client.parking.state for client in first.clients.values()] == [moving.PARKED]
    assert len(second.clients) == 2


@pytest.mark.parametrize("placed", [
    {"is_contained": True}, {"tenants": (Tenant(Kind.USER, "1000"), Tenant(Kind.JOB, "7"))}],
    ids=["container", "job"])
async def test_drain_of_a_card_parks_programs_that_may_see_no_other_card(
        limited: Manager, placed: dict[str, Any]) -> None:
    first, second = limited.gpus
    for client in (*first.clients.values(), *second.clients.values()):
        client.peer = replace(client.peer, **placed)
    limited.tenancy.set_terms("user:1000", {"memory-limit": 0})
    await limited.moving.drain(first)
    assert {client.parking.state for client in first.clients.values()} == {moving.PARKED}
    assert len(second.clients) == 1


async def test_restore_on_another_card_beside_a_lost_one_orders_only_the_two_cards_swapped(
        limited: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver no longer lists such a card, and may refuse its UUID."""
    first, second = limited.gpus
    limited.add(replace(FACTS, index=2, uuid=LOST), Sample(), gather=False).lose("it fell off")
    named: set[str] = set()
    ask = limited.moving._ask

    async def note(
        command: str, pid: int, pairs: Iterable[tuple[str, str]] = (), *more: Any
    ) -> Answer:
        named.update(uuid for pair in pairs for uuid in pair)
        return await ask(command, pid, pairs, *more)

    monkeypatch.setattr(limited.moving, "_ask", note)
    await limited.moving.move(next(iter(first.clients.values())), second)
    assert named == {first.facts.uuid, second.facts.uuid}


async def test_park_whose_caller_leaves_while_another_park_runs_ends_and_the_other_goes_on(
        monkeypatch: pytest.MonkeyPatch) -> None:
    obeyed = asyncio.Event()

    async def obey_later(_: Noted, context: int, *, ahead: bool) -> None:
        await obeyed.wait()

    monkeypatch.setattr(Noted, "park", obey_later)
    async with parking(Answer("running"), Answer("checkpointed")) as (_, client, one):
        first = asyncio.create_task(one.park(client))
        while client.parking.state != moving.PARKING:     # noqa: ASYNC110
            await asyncio.sleep(0)
        later = [asyncio.create_task(one.park(client)) for _ in range(50)]
        while len(one._watched.get(client, ())) < 50:   # noqa: ASYNC110
            await asyncio.sleep(0)
        for call in (*later, first):
            call.cancel()
        await asyncio.wait([*later, first])
        assert not one._watched
        obeyed.set()
        await asyncio.wait(one._tasks)
        assert client.parking.state == moving.PARKED


async def test_idle_clients_of_a_user_are_parked_although_another_users_clients_do_not_answer(
        monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(_: Noted, context: int, *, ahead: bool) -> None:
        await asyncio.Event().wait()

    class SilentHook(Noted):
        park = never

    async def ask(command: str, *_: object) -> Answer:
        return Answer("running" if command == "state" else "checkpointed")

    monkeypatch.setattr(moving, "IDLE_CHECK_EVERY", 0)
    async with parking() as (_, first, one):
        one.use(0)
        one._ask = ask
        first.link = SilentHook()
        others = [joined(first.gpu, number, process=peer(
            4000 + number, 1000 if number < 20 else 1001)) for number in range(2, 24)]
        for client in others:
            if client.peer.uid == 1000:
                client.link = SilentHook()
        first.gpu.sample = shows(first, *others)
        watch = asyncio.create_task(one.watch())
        mine = [client for client in others if client.peer.uid == 1001]
        while any(client.parking.state != moving.PARKED for client in mine):      # noqa: ASYNC110
            await asyncio.sleep(0)
        silent = [client for client in (first, *others) if client.parking.state == moving.PARKING]
        assert len(silent) == moving.PARKS_AT_ONCE
        watch.cancel()
        for task in one._tasks:
            task.cancel()


async def test_drain_of_a_card_parks_a_users_clients_although_another_users_do_not_answer(
) -> None:
    class SilentHook(Noted):
        async def park(self, context: int, *, ahead: bool) -> None:
            await asyncio.Event().wait()

    async def ask(command: str, *_: object) -> Answer:
        return Answer("running" if command == "state" else "checkpointed")

    async with parking() as (_, first, one):
        one._ask = ask
        first.link = SilentHook()
        other = joined(first.gpu, 2, process=peer(4002, first.peer.uid + 1))
        first.gpu.sample = shows(first, other)
        drain = asyncio.create_task(one.drain(first.gpu))
        for _ in range(1000):
            await asyncio.sleep(0)
        assert other.parking.state == moving.PARKED
        drain.cancel()
        for task in one._tasks:
            task.cancel()


async def test_drain_of_a_card_has_no_two_users_choose_the_same_room(
        monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time()
    manager = Manager(lambda: DEFAULTS, time.clock, time.timer)
    uuids = FACTS.uuid, OTHER.uuid, OTHER.uuid[:-1] + "3"
    first, *others = [manager.add(replace(FACTS, index=number, uuid=uuid), Sample(), gather=False)
                      for number, uuid in enumerate(uuids)]
    clients = [joined(first, number, None, Memory(allocated=GIB), process=peer(4000 + number, uid))
               for number, uid in enumerate((1000, 1001), start=1)]
    chosen: list[GPU] = []

    async def move(_: Client, target: GPU) -> None:
        chosen.append(target)
        while len(chosen) < len(clients):       # noqa: ASYNC110
            await asyncio.sleep(0)

    monkeypatch.setattr(manager.moving, "move", move)
    await manager.moving.drain(first)
    assert sorted(one.facts.index for one in chosen) == [one.facts.index for one in others]


async def test_client_is_neither_parked_nor_restored_while_nvml_is_silent(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "RETRY_AFTER", 0)
    ordered: list[str] = []

    async def ask(command: str, *_: object) -> Answer:
        ordered.append(command)
        return Answer({"state": "running", "park": "checkpointed", "wake": "running"}[command])

    async with parking() as (_, client, one):
        one._ask, seen = ask, client.gpu.sample
        client.gpu.sample = Sample()
        with pytest.raises(NvshareError, match="NVML does not say how much of the GPU"):
            await one.park(client)
        client.gpu.sample = seen
        await one.park(client)
        client.gpu.sample = Sample()
        one.wake(client)
        while client.parking.state != moving.PARKED:      # noqa: ASYNC110
            await asyncio.sleep(0)
        assert "wake" not in ordered
        client.gpu.sample = seen
        await asyncio.wait(one._tasks)
        assert (ordered[-1], client.parking.state) == ("wake", "")


async def test_room_for_a_context_is_taken_from_what_clients_may_fill_until_the_restore_has_ended(
) -> None:
    async with parking(Answer("running"), Answer("checkpointed")) as (_, client, one):
        gpu = client.gpu
        gpu.sample = shows(client, size=GIB)
        await one.park(client)
        gpu.capacity.sampled(0, 0)
        gpu.sample = shows(used=0)
        before = gpu.capacity.bytes
        during: list[int] = []

        async def ask(*words: Any) -> Answer:
            lacks = words[3]
            assert not await lacks()
            gpu.sample = shows(used=FACTS.memory_total - GIB)
            during.append(gpu.settings.capacity)
            assert "has 1024 MiB for it" in await lacks()
            return Answer("running", (Step("restore", 0, 0, ""),))

        one._ask = ask
        one.wake(client)
        await asyncio.wait(one._tasks)
        margin = gpu.capacity.restore_margin
        assert during == [before - GIB - margin]
        assert gpu.capacity.bytes == before - GIB       # until the samples show the context
        gpu.capacity.sampled(GIB, 0)
        gpu.capacity.sampled(GIB, 0)
        assert gpu.capacity.bytes == before - GIB


async def test_false_claim_to_be_parked_reserves_neither_host_memory_nor_room_on_the_card(
) -> None:
    async with parking(Answer("none")) as (_, client, one):
        client.private = 8 * GIB
        one.take_over(client, 100 * GIB)
        assert one._budget.contexts == 8 * GIB
        await asyncio.wait(one._tasks)
        found = client.parking
        assert (found.state, one._budget.contexts, found.context_size) == (moving.PARKED, 0, 0)


async def test_places_of_a_user_are_bounded_given_in_order_and_forgotten() -> None:
    places, order = moving.Places(2), list[int]()

    async def work(number: int, user: str, end: asyncio.Event) -> None:
        async with places.of(user):
            order.append(number)
            await end.wait()

    ends = [asyncio.Event() for _ in range(6)]
    tasks = [asyncio.create_task(work(number, "a" if number < 5 else "b", end))
             for number, end in enumerate(ends)]
    for _ in range(5):
        await asyncio.sleep(0)
    assert order == [0, 1, 5]           # another user has places of its own
    tasks[2].cancel()                   # leaves the queue
    for end in ends:
        end.set()
    await asyncio.wait(tasks)
    assert order == [0, 1, 5, 3, 4]
    tasks.clear()                       # the cancelled one refers to its place
    assert not places._of
