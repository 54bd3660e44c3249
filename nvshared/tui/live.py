# SPDX-License-Identifier: Apache-2.0
"""Runs the dashboard. A thread calls the daemon, so that keys never wait for a reply."""

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread

from nvshared.control import Daemon
from nvshared.control.snapshot import PastTurn, Snapshot, TenantSnapshot
from nvshared.errors import NvshareError, PasswordNeeded
from nvshared.tui.screen import draw
from nvshared.tui.state import Command, Request, Screen, View, act, in_snapshot, with_snapshot
from nvshared.tui.tables import UNSHARED
from nvshared.tui.terminal import Terminal

REPLY_GRACE = 0.5                       # seconds past the interval until nvshared's reply is late

Change = Callable[[View], View]


def watch(bus: str, interval: float) -> None:
    with suppress(KeyboardInterrupt, EOFError), Terminal() as terminal:
        LiveDashboard(bus, interval, terminal).run()


class LiveDashboard:
    def __init__(self, bus: str, interval: float, terminal: Terminal) -> None:
        self._bus = bus
        self._interval = interval
        self._terminal = terminal
        self._state = View()           # only the main thread assigns this field
        self._fetched_at = time.monotonic()     # end of the last attempt to fetch a snapshot
        self._requests: SimpleQueue[Command | None] = SimpleQueue()
        self._changes: deque[Change] = deque()
        self._daemon: Daemon | None = None      # only the thread of _serve() uses this field
        # A daemon thread, so that the program can end while the thread waits for a reply.
        Thread(target=self._serve, name="fetcher", daemon=True).start()

    def run(self) -> None:
        while True:
            frame = draw(self._state, *self._terminal.size)
            if self._state.screen is Screen.MAIN:
                self._state = replace(self._state, first=frame.first)
            self._terminal.show(frame.lines)
            timeout = None if self._state.daemon_error else max(0.0, self._seconds_until_outdated())
            for event in self._terminal.events(timeout):
                was_asked = self._state.unconfirmed is not None
                self._state, request = act(self._state, event, frame)
                match request:
                    case Request.QUIT:
                        return
                    case Request.REDRAW:
                        self._terminal.redraw()
                    case Request.SNAPSHOT:
                        self._requests.put(None)
                    case Command():
                        self._requests.put(request)
                if self._state.unconfirmed is not None and not was_asked:
                    break               # keys that came along, as in a pasted text, are no answer
            while self._changes:
                self._state = self._changes.popleft()(self._state)
            if not self._state.daemon_error and self._seconds_until_outdated() <= 0:
                self._state = replace(self._state, daemon_error="nvshared does not answer")

    def _seconds_until_outdated(self) -> float:
        return self._fetched_at + self._interval + REPLY_GRACE - time.monotonic()

    def _with_password(self, command: Command, state: View) -> View:
        """Carries out a command while polkit may prompt for a password on the terminal."""
        try:
            with self._terminal.suspended(), Daemon(self._bus) as daemon:
                return replace(state, message=command.carry_out(daemon))
        except NvshareError as error:
            return replace(state, message=f"{error}.")

    def _serve(self) -> None:
        """Fetches a snapshot in each interval, and at once after a command. Runs in the fetcher."""
        try:
            while True:
                end = time.monotonic() + self._interval
                self._fetch()
                with suppress(Empty):
                    request = self._requests.get(timeout=max(0.0, end - time.monotonic()))
                    if request is not None:
                        self._carry_out(request)
        except Exception as fault:      # a bug must end the program, not only the thread
            self._queue_change(partial(_raise, fault))

    def _fetch(self) -> None:
        try:
            # asks=False: a prompt of polkit would disturb the screen.
            self._daemon = self._daemon or Daemon(self._bus, asks=False)
            snapshot = self._daemon.snapshot()
            tenants, turns = self._details(self._daemon, snapshot)
        except NvshareError as error:
            self._disconnect()
            change = partial(replace, daemon_error=str(error))      # the last snapshot stays shown
        else:
            change = partial(with_snapshot, snapshot=snapshot, moment=time.monotonic(),
                             tenants=tenants, turns=turns)
        self._fetched_at = time.monotonic()
        self._queue_change(change)

    def _details(self, daemon: Daemon, snapshot: Snapshot
                 ) -> tuple[list[TenantSnapshot], list[PastTurn]]:
        opened = self._state.opened
        client = None if opened is None else in_snapshot(snapshot, opened.client)
        if client is not None and client.state != UNSHARED:
            # Fails if the program has ended; then the next snapshot lacks the program.
            with suppress(NvshareError):
                own = daemon.tenant(client.tenant)
                around = [daemon.tenant(name) for name in own.within]
                return [own, *around], daemon.turns(client.id)
        return [], []

    def _carry_out(self, command: Command) -> None:
        try:
            self._daemon = self._daemon or Daemon(self._bus, asks=False)
            words = command.carry_out(self._daemon)
        except PasswordNeeded:
            self._queue_change(partial(self._with_password, command))
            return
        except NvshareError as error:
            if not error.answered:
                self._disconnect()
            words = f"{error}."
        self._queue_change(lambda state: replace(state, message=words))

    def _disconnect(self) -> None:
        if self._daemon is not None:
            self._daemon.close()
        self._daemon = None

    def _queue_change(self, change: Change) -> None:
        self._changes.append(change)
        self._terminal.wake()


def _raise(fault: Exception, _state: View) -> View:
    raise fault
