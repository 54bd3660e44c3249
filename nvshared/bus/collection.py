# SPDX-License-Identifier: Apache-2.0
"""All objects with all properties, for whoever asks, at a price that hand-overs do not notice.

Anybody on the machine may ask, as often as they like. A thousand clients take
some ten milliseconds to put together; so that is done in slices, between which
the loop serves the clients' sockets. One collection is made at a time. Those who
asked before it began share it, and nobody is answered with one that was begun
before they asked. After each there is a pause several times as long as it took,
which a command on a machine with a few clients does not notice.
"""

import asyncio
from collections.abc import Awaitable, Callable

from nvshared.bus.members import Body
from nvshared.bus.tree import SLICE, Tree
from nvshared.dbus.writing import begin, end

SHARE = 5                               # of the time, collections may take one part in so many


class Collection:
    """What GetManagedObjects answers."""

    def __init__(self, tree: Tree, refresh: Callable[[], Awaitable[None]]) -> None:
        """`refresh` is called before the objects are put together."""
        self._tree = tree
        self._refresh = refresh
        self._next: asyncio.Future[Body] | None = None  # of those who ask now
        self._making = False
        self._not_before = 0.0

    async def body(self) -> Body:
        """Every managed object, its interfaces and their properties: a{oa{sa{sv}}}."""
        loop = asyncio.get_running_loop()
        if self._next is None:
            self._next = loop.create_future()
        mine = self._next
        if not self._making:
            self._making = True
            # A task of its own: whoever asked first may be cancelled, the others still wait.
            self._task = loop.create_task(self._make_all())
        return await asyncio.shield(mine)

    async def _make_all(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._next is not None:
                await asyncio.sleep(max(0.0, self._not_before - loop.time()))
                await self._refresh()
                waiting, self._next = self._next, None
                try:
                    body, spent = await self._make()
                except Exception as error:      # told to those who asked, and logged there
                    waiting.set_exception(error)
                    continue
                self._not_before = loop.time() + (SHARE - 1) * spent
                waiting.set_result(body)
        finally:
            self._making = False

    async def _make(self) -> tuple[Body, float]:
        """And the seconds of work that it took."""
        loop = asyncio.get_running_loop()
        out = bytearray()
        objects = begin(out)
        spent, began = 0.0, loop.time()
        for path in tuple(self._tree.managed()):
            if (now := loop.time()) - began > SLICE:
                spent += now - began
                await asyncio.sleep(0)
                began = loop.time()
            if self._tree.interfaces(path):     # it may have gone meanwhile
                self._tree.put(out, path)
        end(out, objects)
        return Body(out), spent + loop.time() - began
