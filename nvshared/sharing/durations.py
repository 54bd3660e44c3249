# SPDX-License-Identifier: Apache-2.0
"""How often something took how long: counted in a few classes, as nobody keeps each."""

from bisect import bisect_left

from nvshared.units import MILLISECOND, SECOND

BOUNDS = (MILLISECOND // 10, MILLISECOND, 10 * MILLISECOND, 100 * MILLISECOND, SECOND)


class Durations:
    """Microseconds, since it was made."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)   # up to each bound, and beyond the last
        self.sum = 0

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self.counts)

    def add(self, duration: int) -> None:
        """One more."""
        self.counts[bisect_left(BOUNDS, duration)] += 1
        self.sum += duration
