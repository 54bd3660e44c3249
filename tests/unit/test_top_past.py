# SPDX-License-Identifier: Apache-2.0
"""Samples of the last minutes, and their graphs."""


import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvshared.control.snapshot import Snapshot
from nvshared.tui.canvas import LEVELS, graph
from nvshared.tui.state import SPAN, Past, Rates
from nvshared.units import GIB
from tests.unit.test_dashboard import CARD, SHARED

ON_CARD = SHARED.of(CARD)


def at(turns: int, gib_in: int = 0, use: float | None = 0.5, waiting: int = 0) -> Snapshot:
    card = CARD._replace(
        turns=turns, bytes_in=gib_in * GIB, bytes_out=0, utilization=use, queue_length=waiting)
    return SHARED._replace(gpus=(card,))


def past(*samples: tuple[float, Snapshot]) -> Past:
    found = Past()
    for moment, snapshot in samples:
        found = found.after(snapshot, moment)
    return found


def test_top_rates_are_computed_from_the_last_seconds_only() -> None:
    assert past().rates(0) is None
    assert past((1, at(7))).rates(0) is None
    assert past((1, at(7)), (3, at(11, 6))).rates(0) == Rates(2, 3 * GIB, 0)
    assert past((1, at(7)), (3, at(11, 6))).rates(1) is None
    long = past((0, at(0)), *((100 + n, at(n, n)) for n in range(40)))
    assert long.rates(0) == Rates(1, GIB, 0)


def test_top_rates_start_from_zero_after_a_daemon_restart() -> None:
    restarted = past((1, at(50, 50)), (2, at(0)), (3, at(3, 3)))
    assert restarted.rates(0) == Rates(3, 3 * GIB, 0)
    assert past((1, at(50)), (2, at(0))).rates(0) is None
    assert restarted.series(0, "bytes_in", 300)[-3:] == [None, None, 3 * GIB]


def test_top_graph_shows_the_mean_of_each_interval_within_its_span() -> None:
    found = past(*((n, at(n, 2 * n, use=n / 10, waiting=n)) for n in range(11)))
    assert found.series(0, "waiting", 300)[-10:] == list(range(1, 11))
    assert found.series(0, "bytes_in", 300)[-10:] == [2 * GIB] * 10
    assert found.series(0, "bytes_out", 300)[-10:] == [0] * 10
    assert found.series(0, "use", 300)[:-10] == [None] * 290
    assert found.series(0, "waiting", 60)[-3:] == [2.5, 7, 10]
    assert found.series(0, "resident", 300)[-1] == sum(one.resident + one.pinned for one in ON_CARD)
    assert found.series(0, "swapped", 300)[-1] == sum(one.swapped for one in ON_CARD)
    assert found.series(0, "use", 0) == []
    assert found.series(3, "use", 5) == [None] * 5
    assert past((0, at(0, use=None)), (1, at(1, use=None))).series(0, "use", 5) == [None] * 5
    long = past(*((n, at(n)) for n in range(0, 1000, 5)))
    assert long.samples[0].moment >= 995 - SPAN - 5


def test_top_graph_is_drawn_in_block_characters() -> None:
    assert graph([None, 0, 0.001, 0.5, 1, 2], 1) == [" ▁▂▄██"]
    assert graph([0, 0.5, 0.75, 1], 1, 2) == ["  ▄█", "▁███"]
    assert graph([], 1, 3) == ["", "", ""]
    assert graph([3], 0) == ["▁"]


@given(st.lists(st.none() | st.floats(0, 1e12), max_size=30), st.floats(0, 1e12), st.integers(1, 4))
def test_top_graph_of_any_values_has_the_requested_size(values: list[float | None], most: float,
                                                        height: int) -> None:
    lines = graph(values, most, height)
    assert [len(line) for line in lines] == [len(values)] * height
    assert set("".join(lines)) <= set(LEVELS)
    for column, value in zip(zip(*lines, strict=True), values, strict=True):
        assert (column == (" ",) * height) is (value is None)


@pytest.mark.parametrize("moment", [0.0, 0.3, 7.7, 1e6])
def test_top_graph_changes_only_the_latest_interval_as_time_passes(moment: float) -> None:
    """Only the latest part may differ a moment later."""
    looks = [(moment + n, at(n, n % 7)) for n in range(100)]
    before, after = (past(*some).series(0, "bytes_in", 30) for some in (looks, looks[:-1]))
    assert before[-10:-1] in ([*after[-10:-1]], [*after[-9:-1], after[-1]])
