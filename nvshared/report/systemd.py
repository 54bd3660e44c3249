# SPDX-License-Identifier: Apache-2.0
"""What systemd hands to a service, and what it wants to hear. Harmless without systemd.

systemd also keeps sockets for us (sd_notify's FDSTORE): those that we name come
back to the next daemon behind the listening one, whatever became of us. One
whose other side has gone it drops by itself.
"""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nvshared.errors import InvalidArgs, NvshareError

FIRST_DESCRIPTOR = 3                    # SD_LISTEN_FDS_START
KEPT_AS = "client-"                     # what the names of kept sockets begin with


@dataclass(frozen=True, slots=True)
class Inherited:
    """What systemd started us with."""

    listening: socket.socket | None     # of nvshared.socket
    kept: Mapping[str, socket.socket]   # connections of a daemon before us, by name


def inherited(environment: Mapping[str, str]) -> Inherited:
    """Takes over the descriptors that systemd passed to us.

    Raises InvalidArgs when there is something else than one listening SOCK_SEQPACKET socket
    and what an earlier daemon has left.
    """
    if environment.get("LISTEN_PID") != str(os.getpid()):
        return Inherited(None, {})
    count = int(environment.get("LISTEN_FDS", "0"))
    names = environment.get("LISTEN_FDNAMES", "").split(":")
    kept: dict[str, socket.socket] = {}
    listening = []
    for number in range(count):
        given = socket.socket(fileno=FIRST_DESCRIPTOR + number)
        name = names[number] if number < len(names) else ""
        if name.startswith(KEPT_AS):
            kept[name] = given
        else:
            listening.append(given)
    if len(listening) > 1 or any(
        one.family != socket.AF_UNIX or one.type != socket.SOCK_SEQPACKET for one in listening
    ):
        for one in [*listening, *kept.values()]:
            one.detach()
        raise InvalidArgs(
            "systemd gave us other sockets than the one we need",
            "the socket unit must have one ListenSequentialPacket= and nothing else",
        )
    for one in [*listening, *kept.values()]:
        os.set_inheritable(one.fileno(), False)
    return Inherited(listening[0] if listening else None, kept)


def say_why(environment: Mapping[str, str], words: str) -> None:
    """Leaves the reason of our end as the status that systemd shows of us."""
    with suppress(NvshareError):        # it cannot be told: that is why we end, or matters less
        notifier = Notifier(environment)
        notifier.status(words)
        notifier.close()


class Notifier:
    """Tells systemd (Type=notify) how we are."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Looks whether anybody listens, and only then needs the package sdnotify."""
        self._notifier: Any = None
        self._unkept: dict[str, int] = {}   # descriptors that systemd had no time to take
        self.watchdog: int | None = None    # microseconds between two pings at most
        if not environment.get("NOTIFY_SOCKET"):
            return
        try:
            import sdnotify
        except ImportError as error:
            raise InvalidArgs(
                "systemd wants to be notified, and the Python package sdnotify is not installed",
                "install it, or set Type=simple in the unit",
            ) from error
        self._notifier = sdnotify.SystemdNotifier()
        if environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid()):
            self.watchdog = int(environment.get("WATCHDOG_USEC", "0")) or None

    @property
    def listened(self) -> bool:
        """Whether anybody wants to know."""
        return self._notifier is not None

    def ready(self) -> None:
        """Clients can connect now. This must arrive; what comes later may be lost.

        A manager that does not read its notifications (a frozen one, or one that wanted to hear
        of the start alone) would otherwise stop the whole daemon once its queue is full.
        """
        self._tell("READY=1")
        if self._notifier is not None and self._notifier.socket is not None:
            self._notifier.socket.setblocking(False)

    def status(self, words: str) -> None:
        """What `systemctl status` shows."""
        self._tell("STATUS=" + words.replace("\n", "; "))

    def alive(self) -> None:
        """Feeds the watchdog."""
        self._tell("WATCHDOG=1")

    def keep(self, name: str, descriptor: int) -> None:
        """Has a copy of a client's socket kept for a daemon after us, now or with a later try."""
        if not self._store(name, descriptor):
            self._unkept[name] = descriptor

    def forget(self, name: str) -> None:
        """Has the copy let go of."""
        if self._unkept.pop(name, None) is None:
            self._tell(f"FDSTOREREMOVE=1\nFDNAME={name}")

    def catch_up(self) -> bool:
        """Tries again what systemd's queue had no place for. False: try again later."""
        for name, descriptor in tuple(self._unkept.items()):
            if not self._store(name, descriptor):
                return False
            del self._unkept[name]
        return True

    def stopping(self) -> None:
        """We were told to end and do."""
        self._tell("STOPPING=1")

    def close(self) -> None:
        """Says nothing more."""
        notifier, self._notifier = self._notifier, None
        if notifier is not None and notifier.socket is not None:
            notifier.socket.close()

    def _store(self, name: str, descriptor: int) -> bool:
        """False: not now. Where nobody keeps anything there is no use in trying again."""
        if self._notifier is None or self._notifier.socket is None:
            return True
        words = f"FDSTORE=1\nFDNAME={name}".encode()
        try:
            socket.send_fds(self._notifier.socket, [words], [descriptor])
        except BlockingIOError:
            return False
        except OSError:
            return True                 # whoever started us wanted to hear of the start alone
        return True

    def _tell(self, line: str) -> None:
        if self._notifier is not None:
            self._notifier.notify(line)
