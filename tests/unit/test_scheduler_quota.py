# SPDX-License-Identifier: Apache-2.0
"""The accounts of limited clients: windows, what is owed, what is claimed."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from nvshared.scheduler import quota
from nvshared.scheduler.settings import Accounting, Quota

WINDOW = 2_000_000
ACCOUNTING = Accounting(WINDOW, carryover=25)
PERCENTS = st.integers(1, 99)
CARRYOVERS = st.sampled_from([1, 25, 60, 100])


def half(start: int = 0) -> Quota:
    return quota.begin(50, WINDOW, start, 0)


def test_half_of_each_window_may_be_used() -> None:
    one = half()
    assert one.left(0) == WINDOW // 2
    assert one.left(WINDOW // 2) == 0
    assert quota.roll(one, ACCOUNTING, WINDOW - 1, 0, waits=False, holds=True) == one
    after = quota.roll(one, ACCOUNTING, WINDOW, WINDOW // 2, waits=False, holds=True)
    assert after.left(WINDOW // 2) == WINDOW // 2


def test_what_was_not_used_is_gone() -> None:
    for holds in (False, True):
        after = quota.roll(half(), ACCOUNTING, WINDOW, 100, waits=False, holds=holds)
        assert after.left(100) == WINDOW // 2


def test_who_waited_for_others_has_lost_nothing() -> None:
    waited = quota.roll(half(), ACCOUNTING, 15 * WINDOW, 0, waits=True, holds=False)
    assert waited.left(0) == 16 * WINDOW // 2
    used = 12 * WINDOW
    later = quota.roll(waited, ACCOUNTING, 27 * WINDOW, used, waits=False, holds=True)
    assert later.left(used) == 28 * WINDOW // 2 - used
    idle = quota.roll(later, ACCOUNTING, 28 * WINDOW, used, waits=False, holds=False)
    assert idle.left(used) == WINDOW // 2


def test_a_part_of_what_is_owed_is_taken_off_each_window() -> None:
    used = WINDOW // 2 + 400_000
    one = quota.roll(half(), ACCOUNTING, WINDOW, used, waits=False, holds=True)
    assert (one.left(used), one.owed) == (WINDOW // 2 - 100_000, 300_000)
    two = quota.roll(one, ACCOUNTING, 2 * WINDOW, used, waits=False, holds=False)
    assert (two.left(used), two.owed) == (WINDOW // 2 - 75_000, 225_000)


def test_nothing_is_owed_where_nothing_is_carried_over() -> None:
    forgiving = replace(ACCOUNTING, carryover=0)
    one = quota.roll(half(), forgiving, WINDOW, WINDOW, waits=False, holds=True)
    assert (one.left(WINDOW), one.owed) == (WINDOW // 2, 0)


def test_a_clock_that_is_looked_at_late_changes_nothing_for_who_ran() -> None:
    late = quota.roll(half(), ACCOUNTING, 5 * WINDOW, 5 * WINDOW, waits=False, holds=True)
    often = half()
    for number in range(1, 6):
        now = number * WINDOW
        often = quota.roll(often, ACCOUNTING, now, now, waits=False, holds=True)
    assert late == often


def test_years_of_idleness_are_passed_at_once() -> None:
    year = 365 * 86400 * 1_000_000
    one = replace(half(), owed=3_000_000)
    after = quota.roll(one, ACCOUNTING, 10 * year + 5, 0, waits=False, holds=False)
    assert (after.left(0), after.owed) == (WINDOW // 2, 0)
    assert 0 <= 10 * year + 5 - after.start < WINDOW


def test_small_shares_are_worth_a_turn_too() -> None:
    assert half().least(ACCOUNTING) == ACCOUNTING.grain
    assert quota.begin(1, WINDOW, 0, 0).least(ACCOUNTING) == WINDOW // 100


@settings(deadline=None)
@given(
    percent=PERCENTS,
    carryover=CARRYOVERS,
    kernels=st.lists(st.integers(1, 4_000_000), min_size=1, max_size=8),
)
def test_greedy_kernels_have_their_share_and_no_more(
    percent: int, carryover: int, kernels: list[int]
) -> None:
    """It starts one whenever it may; each runs to its end, whatever is left."""
    accounting = replace(ACCOUNTING, carryover=carryover)
    one = quota.begin(percent, WINDOW, 0, 0)
    now = used = 0
    for turn in range(60):
        kernel = kernels[turn % len(kernels)]
        while one.left(used) < one.least(accounting):
            now = one.ends
            one = quota.roll(one, accounting, now, used, waits=False, holds=False)
        now += kernel
        used += kernel
        one = quota.roll(one, accounting, now, used, waits=False, holds=True)
    windows = now // WINDOW + 1
    share = WINDOW * percent // 100
    # Beyond its share it may have had one kernel, and what it still owes.
    assert used <= windows * share + max(kernels) + (share + max(kernels)) * 100 // carryover
