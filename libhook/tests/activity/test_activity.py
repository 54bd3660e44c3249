# SPDX-License-Identifier: Apache-2.0
"""Whether the library detects gaps in a program's work, and learns the length of its pauses, in a
simulated environment (activity_double.c)."""

import ctypes
from pathlib import Path

import pytest

from libhook.tests.doubles import Double, built_double

MS = 1000                               # in us, as all times here
SECOND = 1000 * MS


class Program(Double):
    """A program that has submitted nothing yet; it has a turn. Calls run(work, gap, duration, late)
    and stop(duration) take us."""

    def __init__(self, library: Path, folder: Path) -> None:
        super().__init__(library, folder)
        self.turn()

    @property
    def said(self) -> str:
        return {-1: "nothing", 0: "busy", 1: "gaps"}[self.variable("gaps", ctypes.c_int).value]

    @property
    def records(self) -> int:
        return int(self.variable("sent").value)


built = built_double("activity", ["flight/activity.c"])


@pytest.fixture
def client(built: Path, tmp_path: Path) -> Program:
    return Program(built, tmp_path)


@pytest.mark.parametrize(("work", "gap"), [
    (10 * MS, 0), (3500, 30), (3 * MS, 60), (40 * MS, MS), (2 * SECOND, MS),
])
def test_gpu_activity_without_gaps_is_reported_as_busy_once(
        client: Program, work: int, gap: int) -> None:
    client.run(work, gap, 20 * SECOND, 0)
    assert (client.said, client.records) == ("busy", 1)


@pytest.mark.parametrize(("work", "gap"), [
    (3 * MS, 17 * MS), (7 * MS, MS), (200 * MS, 20 * MS), (10, 10), (0, 0), (19 * MS, 4 * MS),
])
def test_gpu_activity_with_gaps_is_reported_as_gaps_once(
        client: Program, work: int, gap: int) -> None:
    client.run(work, gap, 20 * SECOND, 0)
    assert (client.said, client.records) == ("gaps", 1)


@pytest.mark.parametrize("late", [0, 200 * MS])
def test_gpu_activity_with_a_pause_after_busy_work_is_reported_as_gaps(
        client: Program, late: int) -> None:
    client.run(10 * MS, 0, 3 * SECOND, late)
    assert client.said == "busy"
    client.run(10 * MS, 10 * SECOND, 40 * MS + 4 * late, late)
    assert client.said == "gaps"
    client.run(10 * MS, 0, 11 * SECOND, late)
    client.run(10 * MS, 0, 4 * SECOND, late)
    assert client.said == "busy"


def test_gpu_activity_is_summed_over_short_turns_without_the_waits_between_them(
        client: Program) -> None:
    for turn in range(5):
        client.run(10 * MS, 0, 400 * MS, 0)
        assert client.said == ("busy" if turn >= 2 else "nothing")
        client.stop(5 * SECOND)
        client.turn()
    assert client.records == 1                  # one for each full second


def test_gpu_activity_of_a_turn_without_work_is_reported_as_gaps_within_30_ms(
        client: Program) -> None:
    client.run(10 * MS, 0, 2 * SECOND, 0)
    client.stop(SECOND)
    client.turn()
    client.run(0, 0, 40 * MS, 0)
    assert client.said == "gaps"
    assert client.variable("sent_at").value <= 30 * MS   # it had work for the first 10 ms


@pytest.mark.parametrize("name", ["capturing", "several"])
def test_unobservable_gpu_activity_is_reported_to_the_daemon_as_gaps(
        client: Program, name: str) -> None:
    client.run(10 * MS, 0, 2 * SECOND, 0)
    client.variable(name).value = 1
    client.run(10 * MS, 0, 100 * MS, 0)
    assert client.said == "gaps"
    client.variable(name).value = 0
    client.run(10 * MS, 0, 3 * SECOND, 0)
    assert client.said == "busy"


def test_gpu_activity_while_threads_wait_at_the_gate_is_reported_as_busy(client: Program) -> None:
    client.variable("waits").value = 1
    client.run(0, 0, 2 * SECOND, 0)
    assert client.said == "busy"


def test_gpu_activity_of_a_client_with_gaps_is_sampled_at_most_60_times_a_second(
        client: Program) -> None:
    client.run(3 * MS, 17 * MS, 100 * SECOND, 0)
    assert client.variable("questions").value < 100 * 60
    client.forget()
    client.run(10 * MS, 0, 2 * SECOND, 0)
    assert (client.said, client.records) == ("busy", 2)


COST = 500 * MS                         # the order's idle window: what a hand-over costs


def near(window: int) -> object:
    return pytest.approx(window, abs=2 * 2 * 5 * MS)     # a pause is known to two samples


def test_idle_window_of_a_new_program_is_100_ms_and_at_most_the_cost_of_a_hand_over(
        client: Program) -> None:
    client.pause_of(6 * MS)
    assert client.window(COST) == 100 * MS
    assert client.window(40 * MS) == 40 * MS


def test_idle_window_is_twice_the_longest_pause_after_which_a_program_went_on(
        client: Program) -> None:
    for pause in (20, 150, 60):
        client.pause_of(pause * MS)
    assert client.window(COST) == near(300 * MS)
    assert client.window(200 * MS) == 200 * MS


def test_idle_window_forgets_pauses_of_stretches_of_work_before_the_last_two(
        client: Program) -> None:
    client.pause_of(2 * SECOND)
    assert client.window(COST) == 100 * MS
    client.pause_of(40 * MS)
    client.pause_of(2 * SECOND)
    assert client.window(COST) == near(80 * MS)
    client.pause_of(2 * SECOND)
    assert client.window(COST) == 10 * MS


@pytest.mark.parametrize(("later", "window"), [(100, 300), (1000, 100)])
def test_idle_window_counts_a_pause_that_outlasts_the_turn_until_a_thread_waits_at_the_gate(
        client: Program, later: int, window: int) -> None:
    client.pause_beyond_turn(50 * MS, later * MS)
    assert client.window(COST) == near(window * MS)
    if later > 500:
        client.pause_beyond_turn(50 * MS, later * MS)
        assert client.window(COST) == 10 * MS


def test_idle_window_is_five_times_as_long_while_a_thread_uses_the_processor(
        client: Program) -> None:
    client.variable("computes", ctypes.c_int).value = 1
    client.pause_of(20 * MS)
    assert client.window(COST) == COST
    for _ in range(2):
        client.pause_of(2 * SECOND)
    client.pause_of(20 * MS)
    assert client.window(COST) == pytest.approx(200 * MS, abs=10 * 10 * MS)
    client.variable("computes", ctypes.c_int).value = 0
    client.pause_of(20 * MS)
    assert client.window(COST) == near(40 * MS)
