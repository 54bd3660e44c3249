# SPDX-License-Identifier: Apache-2.0
"""Asks the daemon in a thread of its own, so that keys never wait for it.

It looks once in an interval, whatever is struck, and at once after something was changed. A daemon
that does not answer is asked again, over a new connection, until it does.
"""

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import NamedTuple

from nvshared.control import Daemon
from nvshared.control.snapshot import Snapshot, Turn
from nvshared.control.tenants import Tenant
from nvshared.errors import NvshareError, PasswordNeeded
from nvshared.tui.commands import carry_out
from nvshared.tui.rows import who
from nvshared.tui.state import Command, Who


class Looked(NamedTuple):
    """How things stand."""

    snapshot: Snapshot
    moment: float
    tenants: tuple[Tenant, ...]         # of the program whose details are looked at,
    turns: tuple[Turn, ...]             # and its last turns


class Failed(NamedTuple):
    """The daemon does not answer."""

    words: str


class Answered(NamedTuple):
    """What came of a command."""

    words: str


class PasswordWanted(NamedTuple):
    """polkit would allow it to somebody who gives a password."""

    command: Command


class Broken(NamedTuple):
    """A fault of ours."""

    error: Exception


Report = Looked | Failed | Answered | PasswordWanted | Broken


class Looker:
    """`wake` is called from its thread after each report."""

    def __init__(self, bus: str, interval: float, wake: Callable[[], None]) -> None:
        self.opened: Who | None = None  # whose details are looked at
        self._bus = bus
        self._interval = interval
        self._wake = wake
        self._wishes: SimpleQueue[Command | None] = SimpleQueue()
        self._reports: deque[Report] = deque()
        self._daemon: Daemon | None = None
        # A daemon thread: one that waits for an answer must not keep the program from ending.
        Thread(target=self._run, name="looker", daemon=True).start()

    def reports(self) -> list[Report]:
        """What it has to say since it was asked last."""
        found = []
        while self._reports:
            found.append(self._reports.popleft())
        return found

    def carry_out(self, command: Command) -> None:
        """As soon as it can."""
        self._wishes.put(command)

    def look(self) -> None:
        """At once."""
        self._wishes.put(None)

    def _run(self) -> None:
        try:
            while True:
                end = time.monotonic() + self._interval
                self._look()
                with suppress(Empty):
                    wish = self._wishes.get(timeout=max(0.0, end - time.monotonic()))
                    if wish is not None:
                        self._carry_out(wish)
        except Exception as error:
            self._say(Broken(error))

    def _look(self) -> None:
        try:
            # polkit's own questions need the terminal, which is not ours.
            self._daemon = self._daemon or Daemon(self._bus, asks=False)
            snapshot = self._daemon.snapshot()
            tenants, turns = self._details(self._daemon, snapshot)
        except NvshareError as error:
            self._drop()
            self._say(Failed(str(error)))
        else:
            self._say(Looked(snapshot, time.monotonic(), tenants, turns))

    def _details(
        self, daemon: Daemon, snapshot: Snapshot
    ) -> tuple[tuple[Tenant, ...], tuple[Turn, ...]]:
        opened = self.opened
        client = next((one for one in snapshot.clients if who(one) == opened), None)
        if client is not None:
            # It may end at any moment, and the next snapshot tells.
            with suppress(NvshareError):
                own = daemon.tenant(client.tenant)
                around = [daemon.tenant(name) for name in own.within]
                return (own, *around), tuple(daemon.turns(client.id))
        return (), ()

    def _carry_out(self, command: Command) -> None:
        try:
            self._daemon = self._daemon or Daemon(self._bus, asks=False)
            words = carry_out(self._daemon, command)
        except PasswordNeeded:
            self._say(PasswordWanted(command))
        except NvshareError as error:
            if not error.answered:
                self._drop()
            self._say(Answered(f"{error}."))
        else:
            self._say(Answered(words))

    def _drop(self) -> None:
        if self._daemon is not None:
            self._daemon.close()
        self._daemon = None

    def _say(self, report: Report) -> None:
        self._reports.append(report)
        self._wake()
