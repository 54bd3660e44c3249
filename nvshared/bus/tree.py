# SPDX-License-Identifier: Apache-2.0
"""The objects on the bus, and what they announce.

Changes of properties are coalesced. Whoever changed something calls `changed`
with the interface; a moment later its announced properties are compared with
what was announced last, and the difference goes out in one PropertiesChanged.
So a name cannot be misspelt, nothing is announced that did not change, and a
GPU that is handed over a hundred times in a second sends ten signals.

Nothing is sent by those who have something to announce, who are in the middle of
a hand-over: signals go out in order, a little later, and a few at a time.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from nvshared.bus.members import Changes, Interface, SignalMember, signature
from nvshared.dbus.message import SIGNAL, Message
from nvshared.dbus.writing import begin_entry, encode, end, writer

COALESCE = 0.1                          # seconds between announcements, at least
SLICE = 0.000_25                        # seconds of work at a time, then others have their turn

OBJECT_MANAGER = "org.freedesktop.DBus.ObjectManager"
PROPERTIES = "org.freedesktop.DBus.Properties"

_put_names = writer("as")


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
        self._outbox: deque[Callable[[], Message | None]] = deque()
        self._sender: asyncio.Handle | None = None

    def connect(self, post: Callable[[Message], None] | None) -> None:
        """Signals go out through `post` from now on; None: nobody is there to hear them."""
        self._post = post
        if post is None:
            self._outbox.clear()

    def add(self, path: str, *interfaces: Interface) -> None:
        """Exports an object."""
        for interface in interfaces:
            interface.path = path
            self._announced[interface] = interface.values(Changes.ANNOUNCED)
        self._objects[path] = {interface.name: interface for interface in interfaces}
        if self._managed(path) and self._post is not None:
            described = bytearray()     # as it is now
            self.put(described, path)
            self._later(lambda: _signal(
                self.manager, OBJECT_MANAGER, "InterfacesAdded", "oa{sa{sv}}", described
            ))

    def remove(self, path: str) -> None:
        """Takes an object away."""
        interfaces = self._objects.pop(path)
        for interface in interfaces.values():
            self._announced.pop(interface)
            self._dirty.pop(interface, None)
        if self._managed(path):
            self._later(lambda: _signal(
                self.manager, OBJECT_MANAGER, "InterfacesRemoved", "oas",
                encode("oas", [path, list(interfaces)]),
            ))

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

    def put(self, out: bytearray, path: str) -> None:
        """Appends an object with its interfaces and their properties: an {oa{sa{sv}}}."""
        interfaces = begin_entry(out, path)
        for name, interface in self._objects[path].items():
            properties = begin_entry(out, name)
            if interface.properties:
                interface.put(out)
            end(out, properties)
        end(out, interfaces)

    def emit(self, interface: Interface, signal: SignalMember, *values: Any) -> None:
        """Sends a signal from an object."""
        assert interface.signals[signal.name] is signal
        path, types = interface.path, signature(signal.carries)
        self._later(lambda: _signal(
            path, interface.name, signal.name, types, encode(types, values)
        ))

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
            self._later(partial(self._changes, interface))

    def flush(self) -> None:
        """Sends now what is to go out a little later."""
        self._send(float("inf"))

    def _managed(self, path: str) -> bool:
        return path.startswith(self.manager + "/")

    def _changes(self, interface: Interface) -> Message | None:
        """What has changed about an interface since that was announced last."""
        before = self._announced.get(interface)
        if before is None:
            return None                 # its object is gone
        now = interface.values(Changes.ANNOUNCED)
        self._announced[interface] = now
        changes = {name: value for name, value in now.items() if value != before[name]}
        if not changes:
            return None
        body = bytearray()
        changed = begin_entry(body, interface.name)
        interface.put_properties(body, changes)
        end(body, changed)
        _put_names(body, ())            # of those that are no longer valid
        return _signal(interface.path, PROPERTIES, "PropertiesChanged", "sa{sv}as", body)

    def _later(self, make: Callable[[], Message | None]) -> None:
        if self._post is None:
            return
        self._outbox.append(make)
        if self._sender is None:
            self._sender = asyncio.get_running_loop().call_soon(self._send)

    def _send(self, seconds: float = SLICE) -> None:
        loop = asyncio.get_running_loop()
        if self._sender is not None:
            self._sender.cancel()
            self._sender = None
        end = loop.time() + seconds
        while self._outbox and loop.time() < end:
            message = self._outbox.popleft()()
            if message is not None and self._post is not None:
                self._post(message)
        if self._outbox:
            self._sender = loop.call_soon(self._send)


def _signal(
    path: str, interface: str, member: str, signature: str, body: bytes | bytearray
) -> Message:
    return Message(
        SIGNAL, path=path, interface=interface, member=member, signature=signature,
        body=bytes(body),
    )
