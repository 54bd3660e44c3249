# SPDX-License-Identifier: Apache-2.0
"""The types of clock and timer in the daemon, in monotonic microseconds.

Modules that make decisions get a clock and a timer, so that tests can control the time."""

import time
from collections.abc import Callable
from typing import Protocol

Clock = Callable[[], int]               # microseconds since an arbitrary time of this boot


class Timer(Protocol):
    def __call__(self, when: int, callback: Callable[[], None], /) -> Callable[[], None]:
        """Calls `callback` once, at or after `when`. Returns a function that disarms the timer."""


def monotonic() -> int:
    """Returns CLOCK_MONOTONIC in us. The wall clock can be set, which would change quanta."""
    return time.monotonic_ns() // 1000
