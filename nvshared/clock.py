# SPDX-License-Identifier: Apache-2.0
"""The types of clock and timer in the daemon, in monotonic microseconds.

Modules that make decisions do not read the system's clock or set timers of the event loop.
daemon.py passes a clock and a timer to them, so that tests can control the time.
"""

import time
from collections.abc import Callable
from typing import Protocol

Clock = Callable[[], int]               # microseconds since an arbitrary time of this boot


class Timer(Protocol):
    """Calls a function once, at or after a time of the clock."""

    def __call__(self, when: int, callback: Callable[[], None], /) -> Callable[[], None]:
        """Arms the timer. Returns a function that disarms it; a no-op once it has fired."""


def monotonic() -> int:
    """Returns CLOCK_MONOTONIC in us. The wall clock can be set, which would change quanta."""
    return time.monotonic_ns() // 1000
