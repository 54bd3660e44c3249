# SPDX-License-Identifier: Apache-2.0
"""systemd's service protocol: inherited sockets and notifications. Without systemd, a no-op.

systemd also stores clients' sockets and files (FDSTORE), which the next daemon inherits by name."""

import base64
import os
import socket
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import sdnotify

from nvshared.errors import InvalidArgs

FIRST_DESCRIPTOR = 3                    # SD_LISTEN_FDS_START
NOTIFICATION = 4096                     # bytes from which on systemd ignores a notification
KEPT_AS = "client-"                     # prefix of the names of stored sockets
FILES_KEPT_AS = "disk-"                 # prefix of the names of stored files of the disk tier
# systemd passes the names of all stored descriptors in LISTEN_FDNAMES. Linux executes no program
# with 128 KiB in one variable (MAX_ARG_STRLEN, E2BIG), so with longer names no daemon could start.
NAMES_MOST = 124 << 10                  # bytes of all names; the rest is for those of socket units
NAMES_OF_SOCKETS = 48 << 10             # bytes that names of files leave to sockets: 4,096 of them


class Inherited(NamedTuple):
    listening: socket.socket | None     # the listening socket of nvshared.socket
    kept: Mapping[str, socket.socket]   # an earlier daemon's connections, by name
    files: Mapping[str, int]            # an earlier daemon's files of clients, by name


def inherited(environment: Mapping[str, str]) -> Inherited:
    """Takes over systemd's descriptors: a listening socket, and those of an earlier daemon.

    Raises InvalidArgs unless at most one is listening, of type SOCK_SEQPACKET."""
    if environment.get("LISTEN_PID") != str(os.getpid()):
        return Inherited(None, {}, {})
    count = int(environment.get("LISTEN_FDS", "0"))
    names = environment.get("LISTEN_FDNAMES", "").split(":")
    kept: dict[str, socket.socket] = {}
    files: dict[str, int] = {}
    listening = []
    for number in range(count):
        name = names[number] if number < len(names) else ""
        if name.startswith(FILES_KEPT_AS):
            files[name] = FIRST_DESCRIPTOR + number
            os.set_inheritable(files[name], False)
            continue
        given = socket.socket(fileno=FIRST_DESCRIPTOR + number)
        if name.startswith(KEPT_AS):
            kept[name] = given
        else:
            listening.append(given)
    if len(listening) > 1 or any(
        one.family != socket.AF_UNIX or one.type != socket.SOCK_SEQPACKET for one in listening
    ):
        for one in [*listening, *kept.values()]:
            one.detach()
        raise InvalidArgs("systemd gave us other sockets than the one we need",
                          "the socket unit must have one ListenSequentialPacket= and nothing else")
    for one in [*listening, *kept.values()]:
        os.set_inheritable(one.fileno(), False)
    return Inherited(listening[0] if listening else None, kept, files)


def send_failure(environment: Mapping[str, str], words: str) -> None:
    """Sends the reason why the daemon fails as the status that systemd shows."""
    notifier = Notifier(environment)
    notifier.status(words)
    notifier.close()


class Notifier:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self._notifier: Any = None
        self._unstored: dict[str, int] = {}     # descriptors to store once systemd's queue has room
        self._sums = {KEPT_AS: 0, FILES_KEPT_AS: 0}     # bytes of these names, by prefix
        self._connections: Counter[str] = Counter()     # sockets and files, by the socket's name
        self._refused: set[str] = set()                 # names for which there was no room
        if environment.get("LISTEN_PID") == str(os.getpid()):
            for name in {*environment.get("LISTEN_FDNAMES", "").split(":")}:
                if name.startswith((KEPT_AS, FILES_KEPT_AS)):
                    self._count(name, 1)
        self.watchdog: int | None = None    # most microseconds between two pings; None: off
        if not environment.get("NOTIFY_SOCKET"):
            return
        self._notifier = sdnotify.SystemdNotifier()
        if environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid()):
            self.watchdog = int(environment.get("WATCHDOG_USEC", "0")) or None

    @property
    def listened(self) -> bool:
        return self._notifier is not None

    def ready(self) -> None:
        """Reports that clients can connect. May block; later notifications that would are dropped.

        A service manager may stop reading; a blocking call would then stop the whole daemon."""
        self._notify("READY=1")
        if self._notifier is not None and self._notifier.socket is not None:
            self._notifier.socket.setblocking(False)

    def status(self, words: str) -> None:
        # Paths may have bytes that are no UTF-8, and systemd ignores a status with such.
        line = ("STATUS=" + words.replace("\n", "; ")).encode(errors="replace")
        if len(line) >= NOTIFICATION:
            line = line[:NOTIFICATION - 4].decode(errors="ignore").encode() + "…".encode()
        self._notify(line.decode())

    def alive(self) -> None:
        self._notify("WATCHDOG=1")

    def new_name(self) -> str:
        """Returns a short name for a socket that differs from all known names, files' included."""
        while True:
            name = KEPT_AS + base64.b64encode(os.urandom(3), b"_.").decode()
            if name not in self._connections and name not in self._refused:
                return name

    def keep(self, name: str, descriptor: int) -> bool:
        """Has systemd store a descriptor for the next daemon, now or at catch_up().

        False: there is no room for the name, so the next daemon does not get the descriptor. Either
        way the name is known until forget()."""
        size, room = len(name) + 1, NAMES_MOST - sum(self._sums.values())
        if _prefix(name) == FILES_KEPT_AS:
            room -= max(0, NAMES_OF_SOCKETS - self._sums[KEPT_AS])
        if self.listened and size > room:
            self._refused.add(name)
            return False
        self._count(name, 1)
        if not self._store(name, descriptor):
            self._unstored[name] = descriptor
        return True

    def forget(self, name: str) -> None:
        if name in self._refused:
            self._refused.remove(name)
            return
        self._count(name, -1)
        if self._unstored.pop(name, None) is None:
            self._notify(f"FDSTOREREMOVE=1\nFDNAME={name}")

    def catch_up(self) -> None:
        """Stores descriptors for which systemd's queue had no room, as far as it has room now."""
        for name, descriptor in tuple(self._unstored.items()):
            if not self._store(name, descriptor):
                return
            del self._unstored[name]

    def stopping(self) -> None:
        self._notify("STOPPING=1")

    def close(self) -> None:
        notifier, self._notifier = self._notifier, None
        if notifier is not None and notifier.socket is not None:
            notifier.socket.close()

    def _count(self, name: str, more: int) -> None:
        self._sums[_prefix(name)] += more * (len(name) + 1)
        self._connections[_connection(name)] += more
        if not self._connections[_connection(name)]:
            del self._connections[_connection(name)]

    def _store(self, name: str, descriptor: int) -> bool:
        """Sends a socket to systemd. False: the queue is full; other failures are not retried."""
        if self._notifier is None or self._notifier.socket is None:
            return True
        words = f"FDSTORE=1\nFDNAME={name}".encode()
        try:
            socket.send_fds(self._notifier.socket, [words], [descriptor])
        except OSError as error:
            return not isinstance(error, BlockingIOError)
        return True

    def _notify(self, line: str) -> None:
        if self._notifier is not None:
            # sdnotify would encode it as Latin-1, and drop all that has other characters.
            self._notifier.notify(line.encode().decode("latin-1"))


def _prefix(name: str) -> str:
    return FILES_KEPT_AS if name.startswith(FILES_KEPT_AS) else KEPT_AS


def _connection(name: str) -> str:
    """The name of the socket to which a name belongs."""
    return "-".join(name.removeprefix(FILES_KEPT_AS).split("-")[:2])
