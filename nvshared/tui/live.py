# SPDX-License-Identifier: Apache-2.0
"""The dashboard at a terminal: draws its state, and carries keys and news to it.

A thread of its own asks the daemon, so that keys never wait for it: once in an interval, whatever
is struck, and at once after something was changed. A daemon that does not answer is asked again,
over a new connection, until it does.
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
from nvshared.control.snapshot import Snapshot, Turn
from nvshared.control.tenants import Tenant
from nvshared.errors import NvshareError, PasswordNeeded
from nvshared.tui.actions import Wish, act, carry_out, failed, looked
from nvshared.tui.screen import draw
from nvshared.tui.state import Command, Frame, Screen, State, who
from nvshared.tui.terminal import Terminal

LATE = 0.5                              # seconds that an answer may take

News = Callable[[State], State]


def watch(bus: str, interval: float) -> None:
    """Until somebody quits, or the terminal is gone."""
    with suppress(KeyboardInterrupt, EOFError), Terminal() as terminal:
        Watch(bus, interval, terminal).run()


class Watch:
    """One terminal and one daemon. The thread hands over what becomes of the state."""

    def __init__(self, bus: str, interval: float, terminal: Terminal) -> None:
        self._bus = bus
        self._interval = interval
        self._terminal = terminal
        self._state = State()           # the thread reads it, and never replaces it
        self._heard = time.monotonic()  # when the daemon answered last, or was found not to
        self._wishes: SimpleQueue[Command | None] = SimpleQueue()
        self._news: deque[News] = deque()
        self._daemon: Daemon | None = None      # the thread's own
        # A daemon thread: one that waits for an answer must not keep the program from ending.
        Thread(target=self._ask, name="looker", daemon=True).start()

    def run(self) -> None:
        """Draws whenever something has happened."""
        while True:
            frame = draw(self._state, *self._terminal.size)
            if self._state.screen is Screen.MAIN:
                self._state = replace(self._state, first=frame.first)
            self._terminal.show(frame.lines)
            if self._quits(frame):
                return
            while self._news:
                self._state = self._news.popleft()(self._state)
            if not self._state.trouble and self._until_old() <= 0:
                self._state = failed(self._state, "nvshared does not answer")

    def _until_old(self) -> float:
        """Seconds for which what is shown counts as the present."""
        return self._heard + self._interval + LATE - time.monotonic()

    def _quits(self, frame: Frame) -> bool:
        """Waits for keys, or for news, and does what the keys say."""
        patience = None if self._state.trouble else max(0.0, self._until_old())
        for event in self._terminal.events(patience):
            self._state, wish = act(self._state, event, frame)
            match wish:
                case Wish.QUIT:
                    return True
                case Wish.REDRAW:
                    self._terminal.forget()
                case Wish.LOOK:
                    self._wishes.put(None)
                case Command():
                    self._wishes.put(wish)
        return False

    def _with_password(self, command: Command, state: State) -> State:
        """polkit asks for it where it usually does."""
        try:
            with self._terminal.left(), Daemon(self._bus) as daemon:
                return replace(state, words=carry_out(daemon, command))
        except NvshareError as error:
            return replace(state, words=f"{error}.")

    def _ask(self) -> None:
        """The thread."""
        try:
            while True:
                end = time.monotonic() + self._interval
                self._look()
                with suppress(Empty):
                    wish = self._wishes.get(timeout=max(0.0, end - time.monotonic()))
                    if wish is not None:
                        self._carry_out(wish)
        except Exception as fault:      # a fault of ours ends the program, not the thread alone
            self._tell(partial(_raise, fault))

    def _look(self) -> None:
        try:
            # polkit's own questions need the terminal, which is not ours.
            self._daemon = self._daemon or Daemon(self._bus, asks=False)
            snapshot = self._daemon.snapshot()
            tenants, turns = self._details(self._daemon, snapshot)
        except NvshareError as error:
            self._drop()
            news = partial(failed, words=str(error))
        else:
            news = partial(looked, snapshot=snapshot, moment=time.monotonic(), tenants=tenants,
                           turns=turns)
        self._heard = time.monotonic()
        self._tell(news)

    def _details(
        self, daemon: Daemon, snapshot: Snapshot
    ) -> tuple[tuple[Tenant, ...], tuple[Turn, ...]]:
        """Of the program whose details are looked at."""
        opened = self._state.opened
        for client in snapshot.clients:
            if opened is not None and who(client) == opened.who:
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
            self._tell(partial(self._with_password, command))
            return
        except NvshareError as error:
            if not error.answered:
                self._drop()
            words = f"{error}."
        self._tell(lambda state: replace(state, words=words))

    def _drop(self) -> None:
        if self._daemon is not None:
            self._daemon.close()
        self._daemon = None

    def _tell(self, news: News) -> None:
        self._news.append(news)
        self._terminal.wake()


def _raise(fault: Exception, _state: State) -> State:
    raise fault
