# SPDX-License-Identifier: Apache-2.0
"""The types of clock and timer in the daemon, in monotonic microseconds; periodic calls.

Modules that make decisions get a clock and a timer, so that tests can control the time."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

logger = logging.getLogger(__name__)

Clock = Callable[[], int]               # microseconds since an arbitrary time of this boot


class Timer(Protocol):
    def __call__(self, when: int, callback: Callable[[], None], /) -> Callable[[], None]:
        """Calls `callback` once, at or after `when`. Returns a function that disarms the timer."""


def monotonic() -> int:
    """Returns CLOCK_MONOTONIC in us. The wall clock can be set, which would change quanta."""
    return time.monotonic_ns() // 1000


def until_next(seconds: float) -> float:
    """Returns the seconds until the event loop's time is a multiple of `seconds` again.

    Tasks that wait that long wake up together, and the daemon wakes up once for all of them."""
    return seconds and seconds - asyncio.get_running_loop().time() % seconds


async def repeat(seconds: float, act: Callable[[], Awaitable[None]],
                 wanted: asyncio.Event | None = None) -> None:
    """Awaits act() at each multiple of `seconds` while `wanted`, if given, is set; never returns.

    An exception of act() must not end the later calls. Logs the first of several in a row."""
    level = logging.ERROR
    while True:
        await asyncio.sleep(until_next(seconds))
        if wanted is not None:
            await wanted.wait()
        try:
            await act()
            level = logging.ERROR
        except Exception:
            logger.log(level, "unexpected exception; repeated each %g s", seconds, exc_info=True)
            level = logging.DEBUG
