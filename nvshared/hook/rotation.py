# SPDX-License-Identifier: Apache-2.0
"""Divides the event loop's time among users.

Work that clients cause is taken in turns, one piece of each user who has any, and only for a
moment at a time. Then the loop does everything else that is due, and goes on.

All that clients send is handled in one event loop, and so is every hand-over. Without this, a
user with a thousand connections that always have something to say would let a user with one
wait a thousand times as long as need be.

While there is less than a moment's work, which is nearly always, each piece is done at once and
nothing is queued.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable

MOMENT = 0.001                          # seconds of work, then everything else has its turn


class Rotation:
    """Pieces of work by account (machine/peer.py)."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # By account; the first has the next turn.
        self._waiting: dict[Hashable, deque[Callable[[], None]]] = {}
        self._used = 0.0                # of the present moment, on work that did not wait
        self._ended = 0.0               # when that was done; time that passes after is given back
        self._serving: asyncio.Handle | None = None

    def offer(self, account: Hashable, work: Callable[[], None]) -> bool:
        """Does work at once (True), or in the user's turn, after other work of it (False)."""
        now = self._loop.time()
        self._used = max(0.0, self._used - (now - self._ended))
        self._ended = now
        if self._serving is not None or self._used >= MOMENT:
            self._waiting.setdefault(account, deque()).append(work)
            if self._serving is None:
                self._serving = self._loop.call_soon(self._serve)
            return False
        try:
            work()
        finally:
            self._ended = self._loop.time()
            self._used += self._ended - now
        return True

    def close(self) -> None:
        """Drops waiting work."""
        if self._serving is not None:
            self._serving.cancel()
            self._serving = None
        self._waiting.clear()

    def _serve(self) -> None:
        end = self._loop.time() + MOMENT
        try:
            while self._waiting and self._loop.time() < end:
                self._next()()
        finally:
            self._serving = self._loop.call_soon(self._serve) if self._waiting else None

    def _next(self) -> Callable[[], None]:
        account = next(iter(self._waiting))
        mine = self._waiting.pop(account)
        work = mine.popleft()
        if mine:
            self._waiting[account] = mine   # behind the others
        return work
