# SPDX-License-Identifier: Apache-2.0
"""Drains while contexts come and go, and captures: drain.c, capture.c on drain_double.c."""

import ctypes
from pathlib import Path

import pytest

from libhook.tests.doubles import Double, built_double

built = built_double("drain", ["flight/drain.c", "flight/capture.c", "gate/contexts.c"])


@pytest.fixture
def c(built: Path, tmp_path: Path) -> Double:
    return Double(built, tmp_path, age_of_a_capture_that_begins_meanwhile=ctypes.c_uint64)


def events(c: Double) -> list[int]:
    """The number of events in each of the contexts 1 to 3."""
    return list(c.variable("events", ctypes.c_int * 8))[1:4]


def test_repeated_drain_keeps_a_single_event_per_context(c: Double) -> None:
    for number in (1, 2, 3):
        c.begins(number)
    c.drain_starts()
    assert events(c) == [1, 1, 1]
    for _ in range(10):
        c.ends(2)
        c.begins(2)
        c.drain_goes_on()
        assert events(c) == [1, 1, 1]
    c.drain_is_over()
    assert events(c) == [0, 0, 0]


@pytest.mark.parametrize("reused", [False, True], ids=["ended", "address reused"])
def test_drain_abandoned_after_a_context_ended_leaves_no_event(c: Double, reused: bool) -> None:
    """Nor does the drain destroy an event of a new context at the address of the ended context."""
    for number in (1, 2, 3):
        c.begins(number)
    c.drain_starts()
    c.ends(3)
    if reused:
        c.begins(3)
    c.drain_is_over()
    assert events(c) == [0, 0, 0]


def test_capture_that_begins_after_the_clock_was_read_has_age_zero(c: Double) -> None:
    assert c.age_of_a_capture_that_begins_meanwhile() == 0
