# SPDX-License-Identifier: Apache-2.0
"""What systemd hands to a service, and what it wants to hear. Harmless without systemd."""

import os
import socket
from collections.abc import Mapping
from typing import Any

from nvshared.errors import InvalidArgs

FIRST_DESCRIPTOR = 3                    # SD_LISTEN_FDS_START


def listening_socket(environment: Mapping[str, str]) -> socket.socket | None:
    """The socket of nvshared.socket, if systemd started us with one.

    Raises InvalidArgs when that unit gives something else than one SOCK_SEQPACKET socket.
    """
    if environment.get("LISTEN_PID") != str(os.getpid()):
        return None
    count = int(environment.get("LISTEN_FDS", "0"))
    if count == 0:
        return None
    given = socket.socket(fileno=FIRST_DESCRIPTOR)
    if count != 1 or given.family != socket.AF_UNIX or given.type != socket.SOCK_SEQPACKET:
        given.detach()
        raise InvalidArgs(
            "systemd gave us other sockets than the one we need",
            "the socket unit must have one ListenSequentialPacket= and nothing else",
        )
    os.set_inheritable(given.fileno(), False)
    return given


class Notifier:
    """Tells systemd (Type=notify) how we are."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Looks whether anybody listens, and only then needs the package sdnotify."""
        self._notifier: Any = None
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
        self._tell(f"STATUS={words}")

    def alive(self) -> None:
        """Feeds the watchdog."""
        self._tell("WATCHDOG=1")

    def stopping(self) -> None:
        """We were told to end and do."""
        self._tell("STOPPING=1")

    def close(self) -> None:
        """Says nothing more."""
        notifier, self._notifier = self._notifier, None
        if notifier is not None and notifier.socket is not None:
            notifier.socket.close()

    def _tell(self, line: str) -> None:
        if self._notifier is not None:
            self._notifier.notify(line)
