# SPDX-License-Identifier: Apache-2.0
"""Worker threads: a blocked call delays only calls with its key."""

import asyncio
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from time import monotonic as now

import pytest

from nvshared.clock import repeat, until_next
from nvshared.lanes import AGAIN, Lanes
from tests.unit.scripted import Time

PATIENCE = 1000
LONG = 20.0                             # seconds that a busy machine may take


class Loop:
    def __init__(self) -> None:
        self.posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.answers: list[object] = []

    def until(self, number: int) -> list[object]:
        end = now() + LONG
        while len(self.answers) < number:
            self.posted.get(timeout=max(0.0, end - now()))()
        return self.answers


@pytest.fixture
def loop() -> Loop:
    return Loop()


def lanes(loop: Loop, time: Time, threads: int = 4) -> Lanes:
    return Lanes("test", threads, loop.posted.put, time.clock, time.timer)


def test_blocked_call_delays_only_calls_with_the_same_key_and_worker_threads_log_failed_calls(
        loop: Loop, time: Time, caplog: pytest.LogCaptureFixture) -> None:
    made, gate = lanes(loop, time), threading.Event()
    try:
        made.run("a", gate.wait, loop.answers.append)
        made.run("a", lambda: "behind it", loop.answers.append)
        made.run("b", lambda: "other", loop.answers.append)
        assert loop.until(1) == ["other"]
    finally:
        gate.set()
    assert loop.until(3) == ["other", True, "behind it"]
    made.run("a", lambda: 1 // 0, loop.answers.append)
    made.run("a", lambda: "next", loop.answers.append)
    assert loop.until(5)[3:] == [None, "next"]
    assert "ZeroDivisionError" in caplog.text
    with pytest.raises(Empty):
        loop.posted.get_nowait()


def test_worker_threads_answer_none_for_a_call_beyond_the_timeout(loop: Loop, time: Time) -> None:
    made, gate, called = lanes(loop, time), threading.Event(), list[str]()
    try:
        made.run("a", gate.wait, loop.answers.append, PATIENCE)
        made.run("a", lambda: called.append("late"), loop.answers.append, PATIENCE)
        time.pass_by(PATIENCE)
        assert loop.answers == [None, None]
    finally:
        gate.set()
    made.run("a", lambda: "next", loop.answers.append, PATIENCE)
    assert loop.until(3) == [None, None, "next"]
    assert called == []                 # the call's timeout ended before the thread was free
    time.pass_by(PATIENCE)
    assert len(loop.answers) == 3


def test_worker_threads_keep_no_calls_beyond_the_timeout_behind_a_blocked_call(
        loop: Loop, time: Time) -> None:
    made, gate = lanes(loop, time), threading.Event()
    try:
        made.run("a", gate.wait, loop.answers.append, PATIENCE)
        for _ in range(100):
            made.run("a", lambda: "late", loop.answers.append, PATIENCE)
            time.pass_by(PATIENCE)
        assert loop.answers == [None] * 101
        assert [len(lane) for lane in made._lanes.values()] == [1]
        made.run("a", lambda: "next", loop.answers.append)
    finally:
        gate.set()
    assert loop.until(102)[-1] == "next"


def test_worker_threads_are_bounded_in_number(loop: Loop, time: Time) -> None:
    made, gate = Lanes("bounded", 3, loop.posted.put, time.clock, time.timer), threading.Event()

    def running() -> int:
        return sum(one.name == "bounded" for one in threading.enumerate())

    for key in range(20):
        made.run(key, gate.wait, loop.answers.append)
    assert running() == 3
    gate.set()
    assert loop.until(20) == [True] * 20


def test_pending_call_is_made_once_a_worker_thread_can_be_started(
        loop: Loop, time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    made = lanes(loop, time)
    monkeypatch.setattr(threading.Thread, "start", fail)
    made.run(0, lambda: "late", loop.answers.append)
    monkeypatch.setattr(threading.Thread, "start", start)
    time.pass_by(AGAIN)
    assert loop.until(1) == ["late"]


async def test_periods_end_at_common_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    for moment in (7.25, 7.875, 6.0):
        monkeypatch.setattr(loop, "time", lambda moment=moment: moment)
        assert moment + until_next(2.0) == 8.0
        assert moment + until_next(10.0) == 10.0
    assert until_next(0) == 0


async def test_repeat_logs_only_the_first_of_three_exceptions_and_continues(
        caplog: pytest.LogCaptureFixture) -> None:
    fourth_call = asyncio.Event()
    calls = 0

    async def act() -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            fourth_call.set()
        else:
            raise ZeroDivisionError

    running = asyncio.create_task(repeat(0, act))
    async with asyncio.timeout(60):
        await fourth_call.wait()
    running.cancel()
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 1
    assert "ZeroDivisionError" in caplog.text
