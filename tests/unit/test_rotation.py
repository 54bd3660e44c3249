# SPDX-License-Identifier: Apache-2.0
"""Class Rotation divides the time of the event loop among the users that send records."""

import asyncio
from collections.abc import Callable

import pytest

from nvshared.hook.connection import WORK_SLICE, Rotation


class Loop(asyncio.SelectorEventLoop):
    """An event loop with a clock that only the test's work moves."""

    now = 1000.0

    def time(self) -> float:
        return self.now


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def done(loop: Loop) -> list[str]:
    return []


def work(loop: Loop, done: list[str], name: str, seconds: float) -> Callable[[], None]:
    def do() -> None:
        done.append(name)
        loop.now += seconds

    return do


def passes(loop: Loop, done: list[str]) -> list[list[str]]:
    found: list[list[str]] = []
    while True:
        before = len(done)
        loop.call_soon(loop.stop)
        loop.run_forever()
        if len(done) == before:
            loop.close()
            return found
        found.append(done[before:])


@pytest.mark.parametrize(("part", "pause"), [(0.05, 0), (0.6, 0.6)])
def test_rotation_of_users_runs_work_within_the_time_slice_immediately_and_renews_the_slice(
        loop: Loop, done: list[str], part: float, pause: float) -> None:
    rotation = Rotation(loop)
    for number in range(10):
        assert rotation.offer(number % 2, work(loop, done, str(number), WORK_SLICE * part))
        loop.now += WORK_SLICE * pause
    assert done == [str(number) for number in range(10)]
    assert passes(loop, done) == []


def test_rotation_of_users_alternates_once_the_time_slice_is_used(
        loop: Loop, done: list[str]) -> None:
    rotation = Rotation(loop)
    assert rotation.offer(1, work(loop, done, "at once", 2 * WORK_SLICE))
    for number in range(6):
        assert not rotation.offer(1, work(loop, done, f"loud {number}", WORK_SLICE * 0.6))
    assert not rotation.offer(2, work(loop, done, "low 0", WORK_SLICE * 0.6))
    assert not rotation.offer(2, work(loop, done, "low 1", WORK_SLICE * 0.6))
    assert done == ["at once"]
    assert passes(loop, done) == [
        ["loud 0", "low 0"], ["loud 1", "low 1"], ["loud 2", "loud 3"], ["loud 4", "loud 5"]]


def test_rotation_of_users_serves_the_next_user_after_work_raises(
        loop: Loop, done: list[str]) -> None:
    failures: list[str] = []
    loop.set_exception_handler(lambda _, context: failures.append(str(context["exception"])))
    rotation = Rotation(loop)
    rotation.offer(0, work(loop, done, "at once", 2 * WORK_SLICE))

    def fail() -> None:
        raise ValueError("it failed")

    rotation.offer(1, fail)
    rotation.offer(2, work(loop, done, "next", WORK_SLICE))
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert failures == ["it failed"]
    assert passes(loop, done) == [["next"]]


def test_rotation_of_users_drops_waiting_work_when_closed(loop: Loop, done: list[str]) -> None:
    rotation = Rotation(loop)
    rotation.offer(0, work(loop, done, "at once", 2 * WORK_SLICE))
    rotation.offer(1, work(loop, done, "late", WORK_SLICE))
    rotation.close()
    assert passes(loop, done) == []
