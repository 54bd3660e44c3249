# SPDX-License-Identifier: Apache-2.0
"""How much work pace.c lets a program have in flight while others wait, in a simulated environment
(pace_double.c).

The program submits whenever the gate lets it. GPU, clock and the steps of the service thread are
simulated, so no result depends on the machine.
"""

import ctypes
from collections.abc import Sequence
from pathlib import Path

import pytest

from libhook.tests.doubles import Double, built_double

MS = 1000                               # in us, as all times here
TARGET = 50 * MS
CALL = 5                                # us of a launch; as in pace_double.c


class Card(Double):
    """A program on a GPU without work."""

    def run(self, lengths: Sequence[int], duration: int, others_wait: bool = True,
            needs: int = 0) -> None:
        """The program submits work of these lengths (us) in turn for `duration` us, whenever the
        gate lets it."""
        passed = (ctypes.c_uint64 * len(lengths))(*lengths)
        self.call("run", ctypes.addressof(passed), len(lengths), duration, others_wait, needs)

    def figure(self, name: str) -> int:
        """The value of a counter, which then starts again at 0."""
        counter = self.variable(name, ctypes.c_uint64)
        value, counter.value = counter.value, 0
        return int(value)

    def learns(self, *lengths: int) -> None:
        """As run(), long enough for the limit to settle."""
        self.run(lengths, 3_000 * MS)
        for name in ("idle", "longest_drain", "submissions"):
            self.figure(name)


built = built_double("pace", ["flight/pace.c"])


@pytest.fixture
def paced(built: Path, tmp_path: Path) -> Card:
    return Card(built, tmp_path, look=ctypes.c_bool)


@pytest.mark.parametrize("length", [10, 20, 200, 3 * MS, 30 * MS, 200 * MS])
def test_pace_with_kernels_of_equal_length_bounds_the_drain_and_keeps_the_card_busy(
        paced: Card, length: int) -> None:
    paced.learns(length)
    paced.run([length], 5_000 * MS)
    assert paced.figure("longest_drain") <= max(1.5 * TARGET, 2 * length)
    assert paced.figure("idle") == 0


@pytest.mark.parametrize("length", [1, 4, 7])
def test_pace_with_small_kernels_records_a_cuda_event_for_at_most_1_percent_of_launches(
        paced: Card, length: int) -> None:
    """The program launches about as fast as the GPU works, so it never gets far ahead."""
    paced.learns(length)
    paced.figure("markers")
    paced.run([length], 1_000 * MS)
    assert paced.figure("markers") <= paced.figure("submissions") // 100


def test_pace_that_begins_within_a_turn_waits_for_earlier_work(paced: Card) -> None:
    paced.run([5 * MS], 20 * MS, others_wait=False)
    assert paced.figure("longest_drain") > 19_000 * MS     # no limit while no client waits
    paced.run([5 * MS], 21_000 * MS)
    paced.learns(5 * MS)
    paced.run([5 * MS], 3_000 * MS)
    assert paced.figure("longest_drain") <= 1.5 * TARGET
    assert paced.figure("idle") == 0


def test_pace_of_a_new_turn_starts_with_the_kernel_length_of_the_turn_before(paced: Card) -> None:
    paced.learns(20 * MS)
    paced.look(False)
    paced.capture(False)
    paced.skip(1_000 * MS)
    paced.run([20 * MS], 1_000 * MS)
    assert paced.figure("longest_drain") <= 1.5 * TARGET


def test_pace_lets_launches_through_when_work_in_flight_waits_for_later_launches(
        paced: Card) -> None:
    paced.learns(100 * MS)                         # lowers the limit to two launches in flight
    paced.run([100 * MS], 10_000 * MS, needs=5)
    assert paced.figure("submissions") > 10


@pytest.mark.parametrize("pause", [0, 16 * MS])
def test_pace_of_a_client_ordered_to_launch_slowly_keeps_a_single_kernel_in_flight(
        paced: Card, pause: int) -> None:
    paced.learns(1 * MS)
    paced.look(False)                    # the client's turn has ended
    paced.step(True, pause)
    paced.run([1 * MS], 3_000 * MS)        # work submitted before ends
    paced.figure("submissions")
    paced.figure("most_in_steps")
    paced.run([1 * MS], 1_000 * MS)
    assert paced.figure("most_in_steps") <= 1 * MS
    assert 1_000 // (pause // MS + 6) <= paced.figure("submissions") <= 1_000 // (pause // MS + 1)


def test_pace_does_not_limit_calls_during_a_capture(paced: Card) -> None:
    paced.learns(100 * MS)
    paced.capture(True)
    paced.run([0], 10 * MS)
    assert paced.figure("submissions") == 10 * MS // CALL
    paced.capture(False)
    paced.learns(30 * MS)
    paced.run([30 * MS], 3_000 * MS)
    assert paced.figure("longest_drain") <= 1.5 * TARGET


def test_pace_requires_frequent_polls_only_while_work_is_in_flight(paced: Card) -> None:
    paced.run([3 * MS], 100 * MS)
    assert paced.look(True)
    paced.skip(1_000 * MS)
    assert not paced.look(True)
    paced.run([3 * MS], 10 * MS)
    assert paced.look(True)
    assert not paced.look(False)


def in_background(card: Card, lengths: Sequence[int]) -> None:
    """Lets pace.c measure these lengths (us) in the background."""
    card.background(True)
    card.run(lengths, 1_000 * MS)
    card.figure("longest_drain")
    card.figure("idle")


@pytest.mark.parametrize(("lengths", "most"), [
    ([100], 300), ([125] * 8 + [250] * 16, 250), ([10] * 50 + [300] * 5, 600), ([MS], MS),
])
def test_pace_of_a_background_client_keeps_little_work_in_flight_and_the_card_busy(
        paced: Card, lengths: list[int], most: int) -> None:
    """The second case is like a training; in the third, each step has small kernels and then large
    kernels."""
    in_background(paced, lengths)
    paced.run(lengths, 3_000 * MS)
    assert paced.figure("longest_drain") <= most + CALL
    assert paced.figure("idle") <= 360 * MS
    paced.background(False)
    paced.learns(*lengths)
    paced.run(lengths, 3_000 * MS)
    assert paced.figure("longest_drain") > TARGET // 2     # the same as for other clients


def test_pace_of_a_background_client_ignores_kernel_lengths_measured_during_urgent_work(
        paced: Card) -> None:
    """Every 20 ms an urgent program uses the GPU for 3 ms, during which this program's work stands
    still."""
    in_background(paced, [60])
    for _ in range(50):
        paced.others_work(True)
        paced.run([3 * MS], MS)            # simulates work that is delayed by the urgent program
        paced.others_work(False)
        paced.run([60], 16 * MS)
    paced.figure("idle")
    paced.others_work(True)
    paced.run([3 * MS], MS)
    paced.others_work(False)
    paced.run([60], 3 * MS)                # until the delayed 3 ms have ended
    paced.figure("idle")
    paced.run([60], 10 * MS)
    assert paced.figure("idle") <= MS
