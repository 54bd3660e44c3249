# SPDX-License-Identifier: Apache-2.0
"""Runs the dashboard on a terminal: draws its state, and applies keys and snapshots to it.

A separate thread calls the daemon, so that keys never wait for a reply. The thread fetches a
snapshot in each interval, and at once after a command. If the daemon does not answer, the thread
tries again, over a new connection.
"""

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread

from nvshared.control import Daemon
from nvshared.control.snapshot import Snapshot, Tenant, Turn
from nvshared.errors import NvshareError, PasswordNeeded
from nvshared.tui.screen import draw
from nvshared.tui.state import (
    Command,
    Request,
    Screen,
    State,
    act,
    carry_out,
    program_key,
    with_snapshot,
)
from nvshared.tui.terminal import Terminal

LATE = 0.5                              # seconds that a reply may take

News = Callable[[State], State]


def watch(bus: str, interval: float) -> None:
    """Runs the dashboard until the user quits or the terminal is closed."""
    with suppress(KeyboardInterrupt, EOFError), Terminal() as terminal:
        Watch(bus, interval, terminal).run()


class Watch:
    """One terminal and one daemon. The thread queues functions that change the state."""

    def __init__(self, bus: str, interval: float, terminal: Terminal) -> None:
        self._bus = bus
        self._interval = interval
        self._terminal = terminal
        self._state = State()           # only the main thread assigns it
        self._heard = time.monotonic()  # when the last fetch of a snapshot ended
        self._requests: SimpleQueue[Command | None] = SimpleQueue()
        self._news: deque[News] = deque()
        self._daemon: Daemon | None = None      # only the thread uses it
        # A daemon thread, so that the program can end while the thread waits for a reply.
        Thread(target=self._ask, name="looker", daemon=True).start()

    def run(self) -> None:
        """Draws after each event until the user quits."""
        while True:
            frame = draw(self._state, *self._terminal.size)
            if self._state.screen is Screen.MAIN:
                self._state = replace(self._state, first=frame.first)
            self._terminal.show(frame.lines)
            patience = None if self._state.daemon_error else max(0.0, self._until_old())
            for event in self._terminal.events(patience):
                self._state, request = act(self._state, event, frame)
                match request:
                    case Request.QUIT:
                        return
                    case Request.REDRAW:
                        self._terminal.forget()
                    case Request.SNAPSHOT:
                        self._requests.put(None)
                    case Command():
                        self._requests.put(request)
            while self._news:
                self._state = self._news.popleft()(self._state)
            if not self._state.daemon_error and self._until_old() <= 0:
                self._state = replace(self._state, daemon_error="nvshared does not answer")

    def _until_old(self) -> float:
        """Seconds until the last snapshot counts as outdated."""
        return self._heard + self._interval + LATE - time.monotonic()

    def _with_password(self, command: Command, state: State) -> State:
        """Carries out a command while polkit may prompt for a password on the terminal."""
        try:
            with self._terminal.left(), Daemon(self._bus) as daemon:
                return replace(state, message=carry_out(daemon, command))
        except NvshareError as error:
            return replace(state, message=f"{error}.")

    def _ask(self) -> None:
        """The thread: fetches snapshots and carries out commands."""
        try:
            while True:
                end = time.monotonic() + self._interval
                self._look()
                with suppress(Empty):
                    request = self._requests.get(timeout=max(0.0, end - time.monotonic()))
                    if request is not None:
                        self._carry_out(request)
        except Exception as fault:      # a bug must end the program, not only the thread
            self._tell(partial(_raise, fault))

    def _look(self) -> None:
        try:
            # asks=False: a prompt of polkit would disturb the screen.
            self._daemon = self._daemon or Daemon(self._bus, asks=False)
            snapshot = self._daemon.snapshot()
            tenants, turns = self._details(self._daemon, snapshot)
        except NvshareError as error:
            self._drop()
            news = partial(replace, daemon_error=str(error))      # the last snapshot stays
        else:
            news = partial(
                with_snapshot, snapshot=snapshot, moment=time.monotonic(), tenants=tenants,
                turns=turns)
        self._heard = time.monotonic()
        self._tell(news)

    def _details(self, daemon: Daemon, snapshot: Snapshot) -> tuple[list[Tenant], list[Turn]]:
        """Tenants and last turns of the program whose details are shown."""
        opened = self._state.opened
        for client in snapshot.clients:
            if opened is not None and program_key(client) == opened.key:
                # The program may have ended since the snapshot; the next one shows that.
                with suppress(NvshareError):
                    own = daemon.tenant(client.tenant)
                    around = [daemon.tenant(name) for name in own.within]
                    return [own, *around], daemon.turns(client.id)
        return [], []

    def _carry_out(self, command: Command) -> None:
        try:
            self._daemon = self._daemon or Daemon(self._bus, asks=False)
            words = carry_out(self._daemon, command)
        except PasswordNeeded:
            self._tell(partial(self._with_password, command))
            return
        except NvshareError as error:
            if not error.answered:
                self._drop()
            words = f"{error}."
        self._tell(lambda state: replace(state, message=words))

    def _drop(self) -> None:
        if self._daemon is not None:
            self._daemon.close()
        self._daemon = None

    def _tell(self, news: News) -> None:
        self._news.append(news)
        self._terminal.wake()


def _raise(fault: Exception, _state: State) -> State:
    raise fault
