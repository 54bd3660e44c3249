# SPDX-License-Identifier: Apache-2.0
"""The history of usage by tenant: turns, waits, hand-overs, bytes moved, memory and time.

    a client leaves, or a minute is over ─► collector.py ─► keeper.py ─► store.py
                                            usage since     a thread     sqlite3
                                            the last one

Once a minute the event loop sums up the schedulers' counts. It never waits for the disk.
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

FRESH = SECOND                          # for this long after a collection no new one is made


class History:
    """The usage of all GPUs, in one file."""

    def __init__(self, folder: Path, size: int, clock: Clock, timer: Timer, wall: Wall) -> None:
        """`size`: bytes that the file may have at most."""
        self._clock = clock
        self._keeper = Keeper(folder, size)
        self._collector = Collector(
            clock, timer, wall, self._keeper.keep, lambda: self._keeper.is_behind)
        self._asked = clock() - FRESH

    def follow(self, gpu: GPU) -> None:
        """Records the usage of this GPU from now on."""
        self._collector.follow(gpu)

    async def ask(self, asked: Asked, shape: Callable[[Found], Shaped]) -> Shaped:
        """Looks up the usage until now. Returns the result of `shape`, which another thread calls.

        Raises InvalidArgs, NoHistory.
        """
        if self._clock() - self._asked >= FRESH:
            self._asked = self._clock()
            collected = asyncio.Event()
            self._collector.collect(collected.set)
            await collected.wait()
        return await self._keeper.ask(asked, shape)

    def close(self) -> None:
        """Writes the usage that is not written yet, and closes the file."""
        self._collector.flush()
        self._keeper.close()
