# SPDX-License-Identifier: Apache-2.0
"""How far a program gets ahead of the card while others wait, in figures alone: pace_double.c.

A program submits whenever it may. The card, the clock and the service thread's
looks are simulated, so that nothing depends on the machine.
"""

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libhook.tests.doubles import LIBRARY, compile_double, load_fresh

MS = 1000                               # times are microseconds
TARGET = 50 * MS
CALL = 5                                # what a call takes the program: pace_double.c


class Card:
    """A program on a card that has done nothing yet."""

    def __init__(self, library: Path, folder: Path) -> None:
        self.c = load_fresh(library, folder)
        self.c.look.restype = ctypes.c_bool

    def run(self, lengths: Sequence[int], duration: int, others_wait: bool = True,
            needs: int = 0) -> None:
        """The program submits what takes so long, in turns, whenever it may."""
        passed = (ctypes.c_uint64 * len(lengths))(*lengths)
        self.c.run(passed, ctypes.c_uint64(len(lengths)), ctypes.c_uint64(duration), others_wait,
                   ctypes.c_uint64(needs))

    def figure(self, name: str) -> int:
        """What has been counted since the last time, and starts again."""
        counter = ctypes.c_uint64.in_dll(self.c, name)
        value, counter.value = counter.value, 0
        return value

    def learns(self, *lengths: int) -> None:
        """As `run`, for so long that the first moments don't count."""
        self.run(lengths, 3_000 * MS)
        for name in ("idle", "longest_drain", "submissions"):
            self.figure(name)


@pytest.fixture(scope="module", name="built")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("pace") / "pace.so"
    return compile_double("pace", ["flight/pace.c"], library, LIBRARY)


@pytest.fixture(name="card")
def new_card(built: Path, tmp_path: Path) -> Callable[[], Card]:
    return lambda: Card(built, tmp_path)


@pytest.mark.parametrize("length", [10, 20, 200, 3 * MS, 30 * MS, 200 * MS])
def test_pace_with_kernels_of_equal_length_bounds_the_drain_and_keeps_the_card_busy(
        card: Callable[[], Card], length: int) -> None:
    it = card()
    it.learns(length)
    it.run([length], 5_000 * MS)
    assert it.figure("longest_drain") <= max(1.5 * TARGET, 2 * length)
    assert it.figure("idle") == 0


@pytest.mark.parametrize("length", [1, 4, 7])
def test_pace_with_small_kernels_records_few_markers(card: Callable[[], Card], length: int) -> None:
    """A program that launches about as fast as the card works, so that it is never far ahead."""
    it = card()
    it.learns(length)
    it.figure("markers")
    it.run([length], 1_000 * MS)
    assert it.figure("markers") <= it.figure("submissions") // 100


def test_pace_that_begins_within_a_turn_waits_for_earlier_work(
    card: Callable[[], Card]
) -> None:
    it = card()
    it.run([5 * MS], 20 * MS, others_wait=False)
    assert it.figure("longest_drain") > 19_000 * MS     # nobody is held back whom nobody waits for
    it.run([5 * MS], 21_000 * MS)
    it.learns(5 * MS)
    it.run([5 * MS], 3_000 * MS)
    assert it.figure("longest_drain") <= 1.5 * TARGET
    assert it.figure("idle") == 0


# A step of a training, say: many small kernels and some large ones, in any order.
steps = st.lists(st.sampled_from([10, 30, 100, 500, 2 * MS, 8 * MS]), min_size=1, max_size=400)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(step=steps)
def test_pace_with_any_mixture_of_kernels_bounds_the_drain_and_keeps_the_card_busy(
        built: Path, tmp_path_factory: pytest.TempPathFactory, step: list[int]) -> None:
    it = Card(built, tmp_path_factory.mktemp("mixture"))
    it.learns(*step)
    it.run(step, 3_000 * MS)
    assert it.figure("longest_drain") <= 4 * TARGET
    assert it.figure("idle") <= 30 * MS         # one percent


def test_pace_in_the_next_turn_starts_with_the_measured_kernel_length(
    card: Callable[[], Card]
) -> None:
    it = card()
    it.learns(20 * MS)
    it.c.look(False)
    it.c.capture(False)
    it.c.skip(ctypes.c_uint64(1_000 * MS))
    it.run([20 * MS], 1_000 * MS)
    assert it.figure("longest_drain") <= 1.5 * TARGET


def test_pace_admits_work_that_work_in_flight_waits_for(card: Callable[[], Card]) -> None:
    it = card()
    it.learns(100 * MS)                         # two at a time now
    it.run([100 * MS], 10_000 * MS, needs=5)
    assert it.figure("submissions") > 10


@pytest.mark.parametrize("pause", [0, 16 * MS])
def test_pace_of_a_stepping_client_keeps_a_single_kernel_in_flight(
    card: Callable[[], Card], pause: int
) -> None:
    it = card()
    it.learns(1 * MS)
    it.c.look(False)                    # its turn has ended
    it.c.step(True, ctypes.c_uint64(pause))
    it.run([1 * MS], 3_000 * MS)        # it works off what was submitted
    it.figure("submissions")
    it.figure("most_in_steps")
    it.run([1 * MS], 1_000 * MS)
    assert it.figure("most_in_steps") <= 1 * MS
    assert 1_000 // (pause // MS + 6) <= it.figure("submissions") <= 1_000 // (pause // MS + 1)


def test_pace_does_not_limit_calls_during_a_capture(card: Callable[[], Card]) -> None:
    it = card()
    it.learns(100 * MS)
    it.c.capture(True)
    it.run([0], 10 * MS)
    assert it.figure("submissions") == 10 * MS // CALL
    it.c.capture(False)
    it.learns(30 * MS)
    it.run([30 * MS], 3_000 * MS)
    assert it.figure("longest_drain") <= 1.5 * TARGET


def test_pace_requires_frequent_polls_only_while_work_is_in_flight(
        card: Callable[[], Card]) -> None:
    it = card()
    it.run([3 * MS], 100 * MS)
    assert it.c.look(True)
    it.c.skip(ctypes.c_uint64(1_000 * MS))
    assert not it.c.look(True)
    it.run([3 * MS], 10 * MS)
    assert it.c.look(True)
    assert not it.c.look(False)


def in_background(card: Card, lengths: Sequence[int]) -> None:
    """It has learned how long these take."""
    card.c.background(True)
    card.run(lengths, 1_000 * MS)
    card.figure("longest_drain")
    card.figure("idle")


@pytest.mark.parametrize(("lengths", "most"), [
    ([100], 300), ([125] * 8 + [250] * 16, 250), ([10] * 50 + [300] * 5, 600), ([MS], MS),
])
def test_pace_in_the_background_keeps_little_in_flight_and_the_card_busy(
        card: Callable[[], Card], lengths: list[int], most: int) -> None:
    """The second as in a training; in the third each step has small kernels and then large ones."""
    it = card()
    in_background(it, lengths)
    it.run(lengths, 3_000 * MS)
    assert it.figure("longest_drain") <= most + CALL
    assert it.figure("idle") <= 360 * MS
    it.c.background(False)
    it.learns(*lengths)
    it.run(lengths, 3_000 * MS)
    assert it.figure("longest_drain") > TARGET // 2     # as before


def test_pace_in_the_background_records_few_markers_for_small_kernels(
    card: Callable[[], Card]
) -> None:
    """The program waits for each few hundred. The last few, of which a look comes late, and those
    before somebody else has the card, tell little of how long one takes."""
    it = card()
    it.c.synchronise(ctypes.c_uint64(500))
    in_background(it, [7])
    for name in ("markers", "submissions"):
        it.figure(name)
    for _ in range(100):
        it.c.others_work(True)
        for _ in range(50):
            it.c.look(True)
            it.c.skip(ctypes.c_uint64(60))
        it.c.others_work(False)
        it.run([7], 17 * MS)
    assert it.figure("markers") <= it.figure("submissions") // 10
    assert it.figure("longest_drain") <= MS // 2


def test_pace_in_the_background_ignores_kernel_lengths_measured_beside_urgent_work(
        card: Callable[[], Card]) -> None:
    """Each 20 ms somebody else has the card for 3 ms, in which nothing of this one goes on."""
    it = card()
    in_background(it, [60])
    for _ in range(50):
        it.c.others_work(True)
        it.run([3 * MS], MS)            # as if what it had in flight took so much longer
        it.c.others_work(False)
        it.run([60], 16 * MS)
    it.figure("idle")
    it.c.others_work(True)
    it.run([3 * MS], MS)
    it.c.others_work(False)
    it.run([60], 3 * MS)                # until that is over
    it.figure("idle")
    it.run([60], 10 * MS)
    assert it.figure("idle") <= MS
