# SPDX-License-Identifier: Apache-2.0
"""Tells a figure that grows from one that goes up and down.

Only the second half of a run counts: what is taken once and kept, as caches
are, has been taken by then. The slope is the one of Theil and Sen, the median
of the slopes between all pairs of samples: single outliers do not move it
(https://en.wikipedia.org/wiki/Theil-Sen_estimator). A figure grows if what the
slope adds over the half is more than

* a floor in the figure's own unit, below which nobody would notice, and
* twice the spread around the line (the median absolute deviation, scaled to a
  standard deviation): else it may be chance.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

SPREADS = 2.0
NORMAL = 1.4826                         # a standard deviation by the median absolute deviation
MOST_SAMPLES = 240                      # of a half; more only take time


@dataclass(frozen=True, slots=True)
class Growth:
    """What became of one figure, in its own unit."""

    first: float                        # medians of the second half's first and last fifth
    last: float
    most: float                         # of the whole run
    added: float                        # by the slope, over the second half
    spread: float                       # around the line
    grows: bool


def growth(samples: Sequence[tuple[float, float]], floor: float) -> Growth:
    """Of (seconds, figure) pairs in the order of time; ten of them at least.

    Raises ValueError if there are fewer.
    """
    if len(samples) < 10:
        raise ValueError(f"{len(samples)} samples say nothing about growth; take 10 or more")
    half = list(samples[len(samples) // 2:])
    step = -(-len(half) // MOST_SAMPLES)
    thinned = half[::step]
    slope = median((b - a) / (later - earlier)
                   for (earlier, a), (later, b) in combinations(thinned, 2))
    level = median(value - slope * at for at, value in half)
    spread = NORMAL * median(abs(value - level - slope * at) for at, value in half)
    added = slope * (half[-1][0] - half[0][0])
    fifth = max(1, len(half) // 5)
    return Growth(
        first=median(value for _, value in half[:fifth]),
        last=median(value for _, value in half[-fifth:]),
        most=max(value for _, value in samples),
        added=added, spread=spread, grows=added > max(floor, SPREADS * spread),
    )
