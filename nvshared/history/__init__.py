# SPDX-License-Identifier: Apache-2.0
"""What tenants used of the cards, kept: turns, waits, hand-overs, bytes moved, memory and time.

    a client leaves, or a minute is over ─► collector.py ─► keeper.py ─► store.py
                                            what was used   a thread     sqlite3
                                            since then

The event loop sums up what the schedulers count, once a minute, and never waits for the disk.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from nvshared.clock import Clock, Timer
from nvshared.history.collector import Collector, Wall
from nvshared.history.keeper import Keeper
from nvshared.history.store import OTHERS, Asked, Found, Row
from nvshared.sharing.gpu import GPU
from nvshared.units import SECOND

__all__ = ["OTHERS", "Asked", "Found", "History", "Row", "Wall"]

Shaped = TypeVar("Shaped")

FRESH = SECOND                          # for which what was collected last is as good as new


class History:
    """Of all cards, in one file."""

    def __init__(self, folder: Path, size: int, clock: Clock, timer: Timer, wall: Wall) -> None:
        """`size`: bytes that the file may have at most."""
        self._clock = clock
        self._keeper = Keeper(folder, size)
        self._collector = Collector(
            clock, timer, wall, self._keeper.keep, lambda: self._keeper.is_behind)
        self._asked = clock() - FRESH

    def follow(self, gpu: GPU) -> None:
        """Keeps what is used of a card."""
        self._collector.follow(gpu)

    async def ask(self, asked: Asked, shape: Callable[[Found], Shaped]) -> Shaped:
        """What `shape` makes, in another thread, of what was used until now.

        Raises InvalidArgs, NoHistory.
        """
        if self._clock() - self._asked >= FRESH:
            self._asked = self._clock()
            collected = asyncio.Event()
            self._collector.collect(collected.set)
            await collected.wait()
        return await self._keeper.ask(asked, shape)

    def close(self) -> None:
        """Writes what was not written yet."""
        self._collector.flush()
        self._keeper.close()
