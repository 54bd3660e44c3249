# SPDX-License-Identifier: Apache-2.0
"""What notebooks could expect: the model against what can be reckoned by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.colocation.expected import Times, expected


def test_who_is_alone_waits_for_nobody() -> None:
    assert expected([(1.0, 5.0), (3.0,)], 1.0, 9.0, 2) == [[1.0, 1.0], [1.0]]


def test_two_at_a_time_share_the_card() -> None:
    assert expected([(0.0,), (0.5,)], 1.0, 0.0, 2) == [[1.5], [1.5]]


def test_one_that_is_away_comes_in_first() -> None:
    # The first was filled first, so the second has its place.
    assert expected([(0.0,), ()], 1.0, 0.5, 1) == [[1.5], []]
    assert expected([(), (0.0,)], 1.0, 0.5, 1) == [[], [1.0]]


def test_only_what_is_missing_comes_in() -> None:
    assert expected([(0.0,), ()], 1.0, 0.5, 1.5) == [[1.25], []]


def test_what_comes_in_leaves_the_card_to_others_and_shares_the_bus() -> None:
    # Half a second of two, and then of three, until the last one has what is left for itself.
    took = expected([(0.0,), (0.0,), (0.0,), ()], 1.0, 0.5, 3)
    assert took == [[pytest.approx(3.0)], [pytest.approx(2.75)], [pytest.approx(2.75)], []]
    took = expected([(0.0,), (0.0,), (), ()], 1.0, 0.5, 2)
    assert took == [[3.0], [3.0], [], []]


def test_who_finds_no_place_waits_for_one() -> None:
    assert expected([(0.0,), (0.25,)], 1.0, 0.5, 1) == [[1.5], [1.25 + 1.5]]


def test_a_cell_is_submitted_when_the_one_before_has_ended() -> None:
    assert expected([(0.0, 0.5), (0.0,)], 1.0, 0.0, 2) == [[2.0, 1.0], [2.0]]


@given(
    st.lists(st.lists(st.floats(0, 20), max_size=5).map(sorted), min_size=1, max_size=6),
    st.floats(0.1, 2), st.floats(0, 1), st.floats(1, 6),
)
def test_every_cell_ends_and_none_before_its_time(
    times: Times, cell: float, way_in: float, places: float
) -> None:
    took = expected(times, cell, way_in, places)
    assert [len(cells) for cells in took] == [len(cells) for cells in times]
    last = max((when for cells in times for when in cells), default=0.0)
    total = sum(map(len, times)) * (cell + way_in)
    for cells in took:
        assert all(seconds >= cell * (1 - 1e-6) for seconds in cells)
        assert sum(cells) <= last + total + 1e-6
