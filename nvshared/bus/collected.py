# SPDX-License-Identifier: Apache-2.0
"""Long lists that any user may ask for: collected piece by piece, once for all waiting calls."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, TypeVar

from nvshared.dbus import array

SHARE = 5                               # the pieces take up to 1/SHARE of the event loop's time
Key = TypeVar("Key")


class Collected(Generic[Key]):
    def __init__(self, keys: Callable[[], Awaitable[Iterable[Key]]],
                 describe: Callable[[Key], bytes | None]) -> None:
        """`keys`: of the pieces, once they can be read. `describe`: a piece of the array,
        marshalled; None: it is gone."""
        self._keys = keys
        self._describe = describe
        self._next: asyncio.Task[bytes] | None = None       # the _collect() that has not begun yet
        self._collecting = asyncio.Lock()
        self._not_before = 0.0

    async def get(self) -> bytes:
        """The list, as the marshalled body of a message."""
        if self._next is None:
            # A task of its own: the first call may be cancelled while other calls wait for it.
            self._next = asyncio.get_running_loop().create_task(self._collect())
        return await asyncio.shield(self._next)

    async def _collect(self) -> bytes:
        loop = asyncio.get_running_loop()
        async with self._collecting:
            await asyncio.sleep(self._not_before - loop.time())
            self._next = None           # later calls wait for the next _collect()
            found, spent = [], 0.0
            for key in await self._keys():
                await asyncio.sleep(0)  # a hand-over waits for one piece at most
                began = loop.time()
                if (piece := self._describe(key)) is not None:
                    found.append(piece)
                spent += loop.time() - began
            self._not_before = loop.time() + (SHARE - 1) * spent
            return array(found)
