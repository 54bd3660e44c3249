# SPDX-License-Identifier: Apache-2.0
"""Reads all objects of nvshared again and again: python -m bench.daemon.asking BUS.

It sends the next call before it reads the last reply, so that only nvshared limits the rate. It
prints "asking" after the first reply, and ends at the end of its standard input.
"""

import select
import sys

from dbus_next.message import Message

from nvshared.control import Call
from nvshared.control.connection import ControlConnection
from nvshared.dbus import START, size
from nvshared.names import BUS_NAME, MANAGER_PATH

AHEAD = 4                               # requests sent before their replies are read
EVERYTHING = Call(MANAGER_PATH, "org.freedesktop.DBus.ObjectManager", "GetManagedObjects")


class Asker(ControlConnection):
    """A D-Bus client that counts answers without parsing them."""

    def run(self) -> None:
        """Reads all objects again and again until standard input ends."""
        self.ask(EVERYTHING)
        print("asking", flush=True)
        for _ in range(AHEAD):
            self._send()
        while not select.select([sys.stdin], [], [], 0)[0]:
            self._fill(START)
            whole = sum(size(bytes(self._buffer[:START])))
            self._fill(whole)
            del self._buffer[:whole]
            self._send()

    def _send(self) -> None:
        path, interface, member, *_ = EVERYTHING
        self._socket.sendall(self._pack(Message(BUS_NAME, path, interface, member)))


if __name__ == "__main__":
    Asker(sys.argv[1]).run()
