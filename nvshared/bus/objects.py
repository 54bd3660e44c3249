# SPDX-License-Identifier: Apache-2.0
"""The objects on the bus: dbus-next's message bus, with what it gets wrong put right.

dbus-next tells of new objects from the wrong path, finds children by a part of their path, and
asks all objects for all properties at once. The socket is connection.py's, so the objects outlive
a bus that goes and comes back.

Changes of properties are coalesced. Whoever changed something calls `changed` with the interface;
a moment later its announced properties are compared with what was announced last, and the
difference goes out in one PropertiesChanged. So nothing is announced that did not change, and a
GPU that is handed over a hundred times in a second sends ten signals.

Anybody on the machine may ask for everything, as often as they like. So GetManagedObjects is put
together in slices, between which the loop serves the clients' sockets. Those who asked before a
collection began share it, and nobody is answered with one that began before they asked. After
each there is a pause several times as long as it took, which a command on a machine with a few
clients does not notice.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from dbus_next import introspection
from dbus_next.message import Message
from dbus_next.message_bus import BaseMessageBus
from dbus_next.service import ServiceInterface

from nvshared.bus.connection import BusConnection
from nvshared.bus.interface import Interface, array
from nvshared.dbus import SYSTEM_BUS, marshalled
from nvshared.names import MANAGER_PATH

COALESCE = 0.1                          # seconds between announcements, at least
SLICE = 0.000_25                        # seconds of work at a time, then others have their turn
SHARE = 5                               # of the time, collections may take one part in so many

OBJECT_MANAGER = "org.freedesktop.DBus.ObjectManager"
PROPERTIES = "org.freedesktop.DBus.Properties"


class Objects(BaseMessageBus):
    """What is exported, announced and collected."""

    def __init__(self, refresh: Callable[[], Awaitable[None]]) -> None:
        """`refresh` is called before all objects are collected."""
        super().__init__(SYSTEM_BUS)    # which is not connected to
        self._refresh = refresh
        self._connection: BusConnection | None = None
        self._announced: dict[Interface, dict[str, Any]] = {}
        self._dirty: dict[Interface, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._last = float("-inf")
        self._next: asyncio.Task[bytes] | None = None       # of those who ask now for everything
        self._collecting = asyncio.Lock()
        self._not_before = 0.0

    def _setup_socket(self) -> None:
        """Not here: connection.py has it."""

    def attach(self, connection: BusConnection | None) -> None:
        """Signals go out over this connection from now on; None: nobody is there to hear them."""
        self._connection = connection

    def export(self, path: str, interface: Interface) -> None:  # type: ignore[override]
        interface.path = path
        self._announced[interface] = interface.announced()
        super().export(path, interface)

    def unexport(self, path: str, interface: Any = None) -> None:
        for one in self._path_exports[path]:
            self._announced.pop(one)
            self._dirty.pop(one, None)
        super().unexport(path, interface)

    def changed(self, interface: Interface) -> None:
        """Something about an interface may have changed: find out soon, and announce it."""
        if interface not in self._announced:
            return
        self._dirty[interface] = None
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(max(loop.time(), self._last + COALESCE), self.announce)

    def announce(self, seconds: float = SLICE) -> None:
        """Announces now what has changed; the rest after so many seconds a moment later."""
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._last = loop.time()
        end = loop.time() + seconds
        while self._dirty and loop.time() < end:
            interface = next(iter(self._dirty))
            del self._dirty[interface]
            self._announce(interface)
        if self._dirty:
            self._timer = loop.call_later(0, self.announce)

    async def everything(self) -> bytes:
        """Every managed object, its interfaces and their properties: a{oa{sa{sv}}}."""
        if self._next is None:
            # A task of its own: whoever asked first may be cancelled, the others still wait.
            self._next = asyncio.get_running_loop().create_task(self._collect_next())
        return await asyncio.shield(self._next)

    async def _collect_next(self) -> bytes:
        loop = asyncio.get_running_loop()
        async with self._collecting:
            await asyncio.sleep(max(0.0, self._not_before - loop.time()))
            self._next = None           # whoever asks from now on waits for another
            await self._refresh()
            body, spent = await self._collect()
            self._not_before = loop.time() + (SHARE - 1) * spent
            return body

    async def _collect(self) -> tuple[bytes, float]:
        """And the seconds of work that it took."""
        loop = asyncio.get_running_loop()
        found = []
        spent, began = 0.0, loop.time()
        for path in filter(_managed, tuple(self._path_exports)):
            if (now := loop.time()) - began > SLICE:
                spent += now - began
                await asyncio.sleep(0)
                began = loop.time()
            if path in self._path_exports:      # it may have gone meanwhile
                found.append(self._described(path))
        return array(found), spent + loop.time() - began

    def _described(self, path: str) -> bytes:
        """An object with its interfaces and their properties: an {oa{sa{sv}}}."""
        interfaces = {one.name: one.values() for one in self._path_exports[path]}
        return marshalled("(oa{sa{sv}})", [path, interfaces])

    def _has_interface(self, interface: ServiceInterface) -> bool:
        """Whether it is still exported after its object is not; each belongs to one object."""
        return False

    def _emit_interface_added(self, path: str, interface: Interface) -> None:
        if _managed(path) and self._connection is not None:
            body = [path, {interface.name: interface.values()}]     # as it is now
            self._signal(MANAGER_PATH, OBJECT_MANAGER, "InterfacesAdded", "oa{sa{sv}}", body)

    def _emit_interface_removed(self, path: str, removed_interfaces: list[str]) -> None:
        if _managed(path):
            body = [path, removed_interfaces]
            self._signal(MANAGER_PATH, OBJECT_MANAGER, "InterfacesRemoved", "oas", body)

    def _interface_signal_notify(
        self, interface: Interface, interface_name: str, member: str, signature: str,
        body: list[Any], unix_fds: object = None,
    ) -> None:
        self._signal(interface.path, interface_name, member, signature, body)

    def _introspect_export_path(self, path: str) -> introspection.Node:
        node = introspection.Node.default()
        # Not dbus-next's, which is at every path.
        node.interfaces = [
            one for one in node.interfaces if one.name != OBJECT_MANAGER or path == MANAGER_PATH
        ]
        node.interfaces += [one.introspect() for one in self._path_exports.get(path, ())]
        node.nodes = [introspection.Node(name) for name in self._children(path)]
        return node

    def _children(self, path: str) -> list[str]:
        """Names of the nodes directly below a path."""
        start = path.rstrip("/") + "/"
        return sorted({
            other[len(start):].split("/", 1)[0]
            for other in self._path_exports if other.startswith(start) and other != start
        })

    def _announce(self, interface: Interface) -> None:
        """Announces what has changed about an interface since that was done last."""
        before, now = self._announced[interface], interface.announced()
        changed = [name for name, value in now.items() if value != before[name]]
        self._announced[interface] = now
        if changed:
            body = [interface.name, interface.values(changed), []]
            self._signal(interface.path, PROPERTIES, "PropertiesChanged", "sa{sv}as", body)

    def _signal(
        self, path: str, interface: str, member: str, signature: str, body: list[Any]
    ) -> None:
        """Who has something to tell may be in a hand-over, so the message is made later."""
        if self._connection is not None:
            self._connection.post(partial(
                Message.new_signal, path, interface, member, signature, body))


def _managed(path: str) -> bool:
    return path.startswith(MANAGER_PATH + "/")
