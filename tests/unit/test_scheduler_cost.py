# SPDX-License-Identifier: Apache-2.0
"""What a hand-over is reckoned to cost, from those that were measured."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvshared.scheduler.cost import (
    FAR,
    LATENCY,
    MEMORY,
    MOST_LATENCY,
    PACE,
    TELLING,
    USUAL_LATENCY,
    Average,
    delayed,
    paced,
)
from nvshared.units import GIB

FIGURES = st.floats(1e-6, 1e6)


def test_the_first_measurement_replaces_what_it_starts_with() -> None:
    pace = paced(PACE, 10 * GIB, 250_000)
    assert pace.value * 10 * GIB == pytest.approx(250_000)


def test_few_blocks_teach_nothing() -> None:
    assert paced(PACE, TELLING - 1, 1_000_000) == PACE
    assert paced(PACE, TELLING, 1_000_000) != PACE


def test_what_is_slower_than_any_bus_waited_for_something_else() -> None:
    assert paced(PACE, TELLING, 3600 * 1_000_000).value * TELLING < 2_000_000


def test_a_latency_without_the_drain() -> None:
    assert delayed(LATENCY, 50_300, 50_000).value < USUAL_LATENCY
    assert delayed(LATENCY, 50_000, 51_000).value < USUAL_LATENCY   # clocks are read at odd moments
    latency = LATENCY
    for _ in range(100):
        latency = delayed(latency, 3600 * 1_000_000, 0)
    assert latency.value == pytest.approx(MOST_LATENCY)


def test_what_took_no_time_at_all_until_now_is_soon_learnt_to_take_some() -> None:
    pace = PACE
    for _ in range(100):
        pace = paced(pace, 40 * GIB, 0)
    assert pace.value * 40 * GIB < 1
    for _ in range(10):
        pace = paced(pace, 40 * GIB, 1_000_000)
    assert pace.value * 40 * GIB == pytest.approx(1_000_000, rel=0.15)


@settings(deadline=None)
@given(before=st.lists(FIGURES, max_size=20), lasting=FIGURES)
def test_what_lasts_is_learnt_soon(before: list[float], lasting: float) -> None:
    average = Average(1.0, 1.0)
    for figure in before:
        average = average.after(figure)
    for _ in range(300):                # as far as it may have been
        average = average.after(lasting)
    assert average.value == pytest.approx(lasting, rel=0.01)


@settings(deadline=None)
@given(usual=FIGURES, wild=st.floats(0, 1e12))
def test_one_that_is_far_off_changes_little(usual: float, wild: float) -> None:
    average = Average(1.0, usual)
    for _ in range(MEMORY):
        average = average.after(usual)
    after = average.after(wild).value
    least, most = 1 / FAR, FAR
    assert usual * (1 + (least - 1) / MEMORY) <= after * 1.000001
    assert after <= usual * (1 + (most - 1) / MEMORY) * 1.000001


@settings(deadline=None)
@given(figures=st.lists(st.floats(1, FAR), min_size=MEMORY, max_size=200))
def test_it_stays_among_what_was_measured(figures: list[float]) -> None:
    average = Average(1000.0, 1.0)
    for figure in figures:
        average = average.after(figure)
    assert min(figures) * 0.999 <= average.value <= max(figures) * 1.001
