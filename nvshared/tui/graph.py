# SPDX-License-Identifier: Apache-2.0
"""A small graph of characters: a column for each value, readable without colour."""

from collections.abc import Sequence

LEVELS = " ▁▂▃▄▅▆▇█"
FULL = len(LEVELS) - 1                  # parts of a character


def graph(values: Sequence[float | None], most: float, height: int = 1) -> list[str]:
    """Lines from the top down. `most` fills the height.

    Zero is the lowest line, so that it differs from what is not known, which stays blank; and of
    what is more than zero something is seen.
    """
    levels = [_level(value, most, height * FULL) for value in values]
    return [
        "".join(LEVELS[min(FULL, max(0, level - FULL * row))] for level in levels)
        for row in reversed(range(height))
    ]


def _level(value: float | None, most: float, full: int) -> int:
    if value is None:
        return 0
    if value <= 0 or most <= 0:
        return 1
    return full if value >= most else max(2, round(full * value / most))
