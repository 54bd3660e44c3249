# SPDX-License-Identifier: Apache-2.0
"""The objects on the bus, and what they announce.

Changes of properties are coalesced. Whoever changed something calls `changed`
with the interface; a moment later its announced properties are compared with
what was announced last, and the difference goes out in one PropertiesChanged.
So a name cannot be misspelt, nothing is announced that did not change, and a
GPU that is handed over a hundred times in a second sends ten signals.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from dbus_next.message import Message
from dbus_next.signature import Variant

from nvshared.bus.members import Changes, Interface, Signal

COALESCE = 0.1                          # seconds between announcements, at least

OBJECT_MANAGER = "org.freedesktop.DBus.ObjectManager"
PROPERTIES = "org.freedesktop.DBus.Properties"


def variants(interface: Interface, *changes: Changes) -> dict[str, Variant]:
    """The properties of an interface, as a{sv}."""
    return {
        name: Variant(interface.properties[name].type, value)
        for name, value in interface.values(*changes).items()
    }


class Tree:
    """Objects by path; each is its interfaces by name."""

    def __init__(self, manager: str) -> None:
        """`manager` is the path whose ObjectManager announces what comes below it."""
        self.manager = manager
        self._objects: dict[str, dict[str, Interface]] = {}
        self._announced: dict[Interface, dict[str, Any]] = {}
        self._dirty: dict[Interface, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._last = float("-inf")
        self._post: Callable[[Message], None] | None = None

    def connect(self, post: Callable[[Message], None] | None) -> None:
        """Signals go out through `post` from now on; None: nobody is there to hear them."""
        self._post = post

    def add(self, path: str, *interfaces: Interface) -> None:
        """Exports an object."""
        for interface in interfaces:
            interface.path = path
            self._announced[interface] = interface.values(Changes.ANNOUNCED)
        self._objects[path] = {interface.name: interface for interface in interfaces}
        if self._managed(path):
            self._send(self.manager, OBJECT_MANAGER, "InterfacesAdded", "oa{sa{sv}}",
                       [path, self.describe(path)])

    def remove(self, path: str) -> None:
        """Takes an object away."""
        interfaces = self._objects.pop(path)
        for interface in interfaces.values():
            self._announced.pop(interface)
            self._dirty.pop(interface, None)
        if self._managed(path):
            self._send(self.manager, OBJECT_MANAGER, "InterfacesRemoved", "oas",
                       [path, list(interfaces)])

    def interfaces(self, path: str) -> dict[str, Interface]:
        """The interfaces at a path by name; empty if there is no object."""
        return self._objects.get(path, {})

    def children(self, path: str) -> list[str]:
        """Names of the nodes directly below a path."""
        start = path.rstrip("/") + "/"
        return sorted({
            other[len(start):].split("/", 1)[0]
            for other in self._objects
            if other.startswith(start) and other != start
        })

    def managed(self) -> Iterator[str]:
        """Paths of the objects that the object manager tells of."""
        return filter(self._managed, self._objects)

    def describe(self, path: str) -> dict[str, dict[str, Variant]]:
        """The interfaces of an object and their properties, as a{sa{sv}}."""
        return {name: variants(interface) for name, interface in self._objects[path].items()}

    def emit(self, interface: Interface, signal: Signal, *values: Any) -> None:
        """Sends a signal from an object."""
        assert interface.signals[signal.name] is signal
        self._send(interface.path, interface.name, signal.name, signal.signature, list(values))

    def changed(self, interface: Interface) -> None:
        """Something about an interface may have changed: find out soon, and announce it."""
        if interface not in self._announced:
            return
        self._dirty[interface] = None
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(max(loop.time(), self._last + COALESCE), self.announce)

    def announce(self) -> None:
        """Announces now what has changed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._last = asyncio.get_running_loop().time()
        dirty, self._dirty = self._dirty, {}
        for interface in dirty:
            before = self._announced[interface]
            now = interface.values(Changes.ANNOUNCED)
            self._announced[interface] = now
            changes = {
                name: Variant(interface.properties[name].type, value)
                for name, value in now.items() if value != before[name]
            }
            if changes:
                self._send(interface.path, PROPERTIES, "PropertiesChanged", "sa{sv}as",
                           [interface.name, changes, []])

    def _managed(self, path: str) -> bool:
        return path.startswith(self.manager + "/")

    def _send(
        self, path: str, interface: str, member: str, signature: str, body: list[Any]
    ) -> None:
        if self._post is not None:
            self._post(Message.new_signal(path, interface, member, signature, body))
