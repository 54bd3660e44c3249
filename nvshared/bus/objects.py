# SPDX-License-Identifier: Apache-2.0
"""The objects on the bus: dbus-next's message bus, with its faults corrected.

dbus-next sends InterfacesAdded from the wrong path, matches children by a part of their path, and
reads all properties of all objects at once. connection.py owns the socket, so the objects outlive
a restart of the bus.

Changes of properties are coalesced. Code that changed something calls `changed` with the interface.
Up to COALESCE later the properties are compared with the values announced last, and one
PropertiesChanged carries the difference. So an unchanged value is never announced, and a GPU with
a hundred hand-overs in a second sends ten signals.

Anybody on the machine may call GetManagedObjects at any rate. So its reply is collected in slices,
between which the event loop serves the clients' sockets. Calls that arrived before a collection
began share its result; a later call waits for the next collection. After each collection there is a
pause of SHARE - 1 times its duration, which is not noticeable on a machine with few clients.
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

COALESCE = 0.1                          # seconds between two announcements at least
SLICE = 0.000_25                        # seconds of work until the event loop runs other tasks
SHARE = 5                               # collections take at most 1/SHARE of the time

OBJECT_MANAGER = "org.freedesktop.DBus.ObjectManager"
PROPERTIES = "org.freedesktop.DBus.Properties"


class Objects(BaseMessageBus):
    """Exports objects, announces their changes, and collects them for GetManagedObjects."""

    def __init__(self, refresh: Callable[[], Awaitable[None]]) -> None:
        """`refresh` is called before all objects are collected."""
        super().__init__(SYSTEM_BUS)  # never used
        self._refresh = refresh
        self._connection: BusConnection | None = None
        self._announced: dict[Interface, dict[str, Any]] = {}
        self._dirty: dict[Interface, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._last = float("-inf")
        self._next: asyncio.Task[bytes] | None = None       # the next collection
        self._collecting = asyncio.Lock()
        self._not_before = 0.0

    def _setup_socket(self) -> None:
        """Does nothing: connection.py owns the socket."""

    def attach(self, connection: BusConnection | None) -> None:
        """Sets the connection that signals are sent over; None: signals are dropped."""
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
        """Schedules a comparison of the interface's properties, which announces changes."""
        if interface not in self._announced:
            return
        self._dirty[interface] = None
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(max(loop.time(), self._last + COALESCE), self.announce)

    def announce(self, seconds: float = SLICE) -> None:
        """Announces pending changes for up to `seconds`, and schedules the rest."""
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
            # A task of its own: the first caller may be cancelled while others wait for the result.
            self._next = asyncio.get_running_loop().create_task(self._collect_next())
        return await asyncio.shield(self._next)

    async def _collect_next(self) -> bytes:
        loop = asyncio.get_running_loop()
        async with self._collecting:
            await asyncio.sleep(max(0.0, self._not_before - loop.time()))
            self._next = None           # calls from now on wait for the next collection
            await self._refresh()
            body, spent = await self._collect()
            self._not_before = loop.time() + (SHARE - 1) * spent
            return body

    async def _collect(self) -> tuple[bytes, float]:
        """The marshalled objects, and the seconds of work that collecting them took."""
        loop = asyncio.get_running_loop()
        found = []
        spent, began = 0.0, loop.time()
        for path in filter(_managed, tuple(self._path_exports)):
            if (now := loop.time()) - began > SLICE:
                spent += now - began
                await asyncio.sleep(0)
                began = loop.time()
            if path in self._path_exports:      # it may have been unexported meanwhile
                found.append(self._described(path))
        return array(found), spent + loop.time() - began

    def _described(self, path: str) -> bytes:
        """An object with its interfaces and their properties, as a marshalled {oa{sa{sv}}}."""
        interfaces = {one.name: one.values() for one in self._path_exports[path]}
        return marshalled("(oa{sa{sv}})", [path, interfaces])

    def _has_interface(self, interface: ServiceInterface) -> bool:
        """False: an interface belongs to one object, so no other path still exports it."""
        return False

    def _emit_interface_added(self, path: str, interface: Interface) -> None:
        if _managed(path) and self._connection is not None:
            body = [path, {interface.name: interface.values()}]     # values at this time
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
        # dbus-next shows ObjectManager at every path; only MANAGER_PATH has it.
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
        """Announces the properties of an interface that differ from the last announcement."""
        before, now = self._announced[interface], interface.announced()
        changed = [name for name, value in now.items() if value != before[name]]
        self._announced[interface] = now
        if changed:
            body = [interface.name, interface.values(changed), []]
            self._signal(interface.path, PROPERTIES, "PropertiesChanged", "sa{sv}as", body)

    def _signal(
        self, path: str, interface: str, member: str, signature: str, body: list[Any]
    ) -> None:
        """Queues a signal; the message is made later, as the caller may be in a hand-over."""
        if self._connection is not None:
            self._connection.post(partial(
                Message.new_signal, path, interface, member, signature, body))


def _managed(path: str) -> bool:
    return path.startswith(MANAGER_PATH + "/")
