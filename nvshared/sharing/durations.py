# SPDX-License-Identifier: Apache-2.0
"""A histogram of durations, for metrics."""

from bisect import bisect_left

from nvshared.units import MILLISECOND, SECOND

BOUNDS = (MILLISECOND // 10, MILLISECOND, 10 * MILLISECOND, 100 * MILLISECOND, SECOND)


class Durations:
    """Counts durations in microseconds by the first of BOUNDS that is not smaller."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)   # one per bound, and one above the last bound
        self.sum = 0

    @property
    def count(self) -> int:
        """The number of durations."""
        return sum(self.counts)

    def add(self, duration: int) -> None:
        """Counts a duration."""
        self.counts[bisect_left(BOUNDS, duration)] += 1
        self.sum += duration
