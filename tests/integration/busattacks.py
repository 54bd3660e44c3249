# SPDX-License-Identifier: Apache-2.0
"""Attacks of a user without privileges on the daemon over a message bus. See attacker.py.

They write to the bus's socket, because D-Bus libraries send no malformed messages.
"""

import random
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dbus_next.constants import MessageFlag
from dbus_next.message import Message
from dbus_next.signature import Variant

from nvshared.dbus import BUS, introduction, pack
from nvshared.names import BUS_NAME, MANAGER_INTERFACE, MANAGER_PATH

AT_ONCE = 100                           # messages of one round


class Caller:
    """A connection to the bus with the operations of an attacker."""

    def __init__(self, address: str) -> None:
        """`address`: of the bus. Raises OSError if the bus refuses the connection."""
        self.serial = 0
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(address.removeprefix("unix:path="))
        self.socket.sendall(introduction())
        if not self.socket.recv(1000).startswith(b"OK"):
            raise ConnectionRefusedError
        self.socket.sendall(b"BEGIN\r\n")
        self.socket.sendall(self.message("Hello", peer=BUS))
        self.socket.recv(1000)

    def message(
        self, member: str, signature: str = "", body: Sequence[Any] = (), *,
        path: str = MANAGER_PATH, of: str = MANAGER_INTERFACE,
        flags: MessageFlag = MessageFlag.NONE, peer: tuple[str, str, str] | None = None,
    ) -> bytes:
        self.serial += 1
        to = peer or (BUS_NAME, path, of)
        call = Message(*to, member, flags=flags, signature=signature, body=list(body))
        return pack(call, self.serial)

    def hear(self) -> None:
        self.socket.setblocking(False)
        try:
            while self.socket.recv(1 << 20):
                continue
        except BlockingIOError:
            pass
        self.socket.setblocking(True)


Messages = Callable[[Caller, random.Random], bytes]


def flood(address: str, width: int, messages: Messages, *, hear: bool) -> Iterator[None]:
    """Repeat a message on `number` connections, and reconnect when the bus ends one."""
    dice = random.Random(width)
    callers: list[Caller | None] = [None] * width
    while True:
        for number, caller in enumerate(callers):
            try:
                if caller is None:
                    caller = callers[number] = Caller(address)
                caller.socket.settimeout(0.1)
                caller.socket.sendall(b"".join(messages(caller, dice) for _ in range(AT_ONCE)))
                if hear:
                    caller.hear()
            except TimeoutError:
                continue                # the bus delays the reply
            except OSError:
                if caller is not None:
                    caller.socket.close()
                callers[number] = None
        yield


def change(caller: Caller, dice: random.Random) -> bytes:
    made: Callable[[], bytes] = dice.choice([
        lambda: caller.message("SetTQ", "u", [dice.randrange(1, 9)]),
        lambda: caller.message("SetAntiThrash", "s", ["off"]),
        lambda: caller.message("SetMemoryLimit", "ut", [1, 1]),
        lambda: caller.message("Reload"),
        lambda: caller.message(
            "Set", "ssv", [MANAGER_INTERFACE, "TQ", Variant("u", 1)],
            of="org.freedesktop.DBus.Properties"),
    ])
    return made()


def change_quietly(caller: Caller, dice: random.Random) -> bytes:
    """A SetTQ call without a reply, so that no limit of the bus on pending replies applies."""
    return caller.message("SetTQ", "u", [dice.randrange(1, 9)], flags=MessageFlag.NO_REPLY_EXPECTED)


def long_quietly(caller: Caller, _: random.Random) -> bytes:
    """A call of 1 MiB: a hundred of them, kept, would exceed the daemon's memory limit."""
    return caller.message("SetTQ", "s", ["y" * (1 << 20)], flags=MessageFlag.NO_REPLY_EXPECTED)


def everything(caller: Caller, _: random.Random) -> bytes:
    return caller.message("GetManagedObjects", of="org.freedesktop.DBus.ObjectManager")


def oddities(caller: Caller, dice: random.Random) -> bytes:
    """Calls of unknown objects and members, with arguments of wrong types."""
    path = "/" + "/".join("x" * dice.randrange(1, 200) for _ in range(dice.randrange(1, 9)))
    deep: Any = Variant("s", "deep")
    for _ in range(20):
        deep = Variant("v", deep)
    made: Callable[[], bytes] = dice.choice([
        lambda: caller.message("Introspect", path=path, of="org.freedesktop.DBus.Introspectable"),
        lambda: caller.message("Introspect", of="org.freedesktop.DBus.Introspectable"),
        lambda: caller.message("N" * 255, path=path),
        lambda: caller.message("SetTQ", "s", ["long " * dice.randrange(1, 5000)]),
        lambda: caller.message("SetTQ", "v", [deep]),
        lambda: caller.message("SetTQ", "a{sv}", [{str(n): Variant("u", n) for n in range(200)}]),
        lambda: caller.message("GetGPU", "s", ["\n\x1b[2J" * 50]),
    ])
    return made()


# For each attack by name: its messages, and whether the attacker reads replies.
BUS_ATTACKS: dict[str, tuple[Messages, bool]] = {
    "change_settings": (change, True),
    "change_settings_deaf": (change, False),
    "change_settings_quietly": (change_quietly, False),
    "get_everything_deaf": (everything, False),
    "long_quietly": (long_quietly, False),
    "oddities": (oddities, True),
}
