# SPDX-License-Identifier: Apache-2.0
"""Time, as everything in the daemon is given it: microseconds that never step back.

Nothing below the composition root reads a clock or sets a timer itself; both
are handed in, so that tests own the time and nothing depends on asyncio.
"""

import time
from collections.abc import Callable
from typing import Protocol

Clock = Callable[[], int]               # microseconds since some moment of this boot


class Timer(Protocol):
    """Calls a function once, at or after a moment of the clock."""

    def __call__(self, when: int, callback: Callable[[], None], /) -> Callable[[], None]:
        """Arms the timer. Returns a function that disarms it, harmless once it has fired."""


def monotonic() -> int:
    """Microseconds of CLOCK_MONOTONIC: the wall clock may be set, a quantum may not stretch."""
    return time.monotonic_ns() // 1000
