# SPDX-License-Identifier: Apache-2.0
"""Whether the library detects gaps in a program's work, in a simulated environment
(activity_double.c)."""

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest

from libhook.tests.doubles import built_double, load_fresh

MS = 1000                               # in us, as all times here
SECOND = 1000 * MS


class Program:
    """A program that has submitted nothing yet; it has a turn."""

    def __init__(self, library: Path, folder: Path) -> None:
        self.c = load_fresh(library, folder)
        self.c.turn()

    def run(self, work: int, gap: int, duration: int, late: int = 0) -> None:
        """The program works and pauses alternately; all times in us."""
        self.c.run(*map(ctypes.c_uint64, (work, gap, duration, late)))

    def stop(self, duration: int) -> None:
        self.c.stop(ctypes.c_uint64(duration))

    def set(self, name: str, value: int) -> None:
        ctypes.c_int.in_dll(self.c, name).value = value

    @property
    def said(self) -> str:
        return {-1: "nothing", 0: "busy", 1: "gaps"}[ctypes.c_int.in_dll(self.c, "gaps").value]

    @property
    def records(self) -> int:
        return ctypes.c_uint.in_dll(self.c, "sent").value

    @property
    def when(self) -> int:
        """The time of the last report, in us since the begin of the turn."""
        return ctypes.c_uint64.in_dll(self.c, "sent_at").value

    @property
    def questions(self) -> int:
        return ctypes.c_uint64.in_dll(self.c, "questions").value


built = built_double("activity", ["flight/activity.c"])


@pytest.fixture(name="program")
def new_program(built: Path, tmp_path: Path) -> Callable[[], Program]:
    return lambda: Program(built, tmp_path)


@pytest.mark.parametrize(("work", "gap"), [
    (10 * MS, 0), (3500, 30), (3 * MS, 60), (40 * MS, MS), (2 * SECOND, MS),
])
def test_gpu_activity_without_gaps_is_reported_as_busy_once(
        program: Callable[[], Program], work: int, gap: int) -> None:
    client = program()
    client.run(work, gap, 20 * SECOND)
    assert (client.said, client.records) == ("busy", 1)


@pytest.mark.parametrize(("work", "gap"), [
    (3 * MS, 17 * MS), (7 * MS, MS), (200 * MS, 20 * MS), (10, 10), (0, 0), (19 * MS, 4 * MS),
])
def test_gpu_activity_with_gaps_is_reported_as_gaps_once(
    program: Callable[[], Program], work: int, gap: int
) -> None:
    client = program()
    client.run(work, gap, 20 * SECOND)
    assert (client.said, client.records) == ("gaps", 1)


@pytest.mark.parametrize("late", [0, 200 * MS])
def test_gpu_activity_with_a_pause_after_busy_work_is_reported_as_gaps(
    program: Callable[[], Program], late: int
) -> None:
    client = program()
    client.run(10 * MS, 0, 3 * SECOND, late)
    assert client.said == "busy"
    client.run(10 * MS, 10 * SECOND, 40 * MS + 4 * late, late)
    assert client.said == "gaps"
    client.run(10 * MS, 0, 11 * SECOND, late)
    client.run(10 * MS, 0, 4 * SECOND, late)
    assert client.said == "busy"


def test_gpu_activity_is_summed_over_short_turns_without_the_waits_between_them(
    program: Callable[[], Program]
) -> None:
    client = program()
    for turn in range(5):
        client.run(10 * MS, 0, 400 * MS)
        assert client.said == ("busy" if turn >= 2 else "nothing")
        client.stop(5 * SECOND)
        client.c.turn()
    assert client.records == 1                  # one for each full second


def test_gpu_activity_of_a_turn_without_work_is_reported_as_gaps_within_30_ms(
    program: Callable[[], Program]
) -> None:
    client = program()
    client.run(10 * MS, 0, 2 * SECOND)
    client.stop(SECOND)
    client.c.turn()
    client.run(0, 0, 40 * MS)
    assert client.said == "gaps"
    assert client.when <= 30 * MS               # it had work for the first 10 ms


@pytest.mark.parametrize("name", ["capturing", "several"])
def test_unobservable_gpu_activity_is_reported_to_the_daemon_as_gaps(
    program: Callable[[], Program], name: str
) -> None:
    client = program()
    client.run(10 * MS, 0, 2 * SECOND)
    client.set(name, 1)
    client.run(10 * MS, 0, 100 * MS)
    assert client.said == "gaps"
    client.set(name, 0)
    client.run(10 * MS, 0, 3 * SECOND)
    assert client.said == "busy"


def test_gpu_activity_while_threads_wait_at_the_gate_is_reported_as_busy(
    program: Callable[[], Program]
) -> None:
    client = program()
    client.set("waits", 1)
    client.run(0, 0, 2 * SECOND)
    assert client.said == "busy"


def test_gpu_activity_of_a_client_with_gaps_is_sampled_at_most_60_times_a_second(
    program: Callable[[], Program]
) -> None:
    client = program()
    client.run(3 * MS, 17 * MS, 100 * SECOND)
    assert client.questions < 100 * 60          # at most 60 a second
    client.c.forget()
    client.run(10 * MS, 0, 2 * SECOND)
    assert (client.said, client.records) == ("busy", 2)
