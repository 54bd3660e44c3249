# SPDX-License-Identifier: Apache-2.0
"""Divides the event loop's time among users.

Work caused by clients is done round-robin, one piece per user, for at most MOMENT. Then the event
loop runs everything else that is due, and continues.

Packets of all clients are handled in one event loop, and so is every hand-over. Without the
rotation, a user with a thousand busy connections would delay a user with one by a factor of a
thousand.

While there is less than MOMENT of work, as nearly always, each piece is done at once and none is
queued.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable

MOMENT = 0.001                          # seconds of clients' work before other events are handled


class Rotation:
    """Pieces of work by account (machine/peer.py)."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # Queued work by account; the first account is served next.
        self._waiting: dict[Hashable, deque[Callable[[], None]]] = {}
        self._used = 0.0                # seconds of MOMENT that immediate work has used
        self._ended = 0.0               # when `_used` was last updated; it falls with elapsed time
        self._serving: asyncio.Handle | None = None

    def offer(self, account: Hashable, work: Callable[[], None]) -> bool:
        """Does work at once (True), or queues it behind the account's other work (False)."""
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
                account = next(iter(self._waiting))
                mine = self._waiting.pop(account)
                work = mine.popleft()
                if mine:
                    self._waiting[account] = mine   # behind the others
                work()
        finally:
            self._serving = self._loop.call_soon(self._serve) if self._waiting else None
