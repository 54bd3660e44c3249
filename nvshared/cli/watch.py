# SPDX-License-Identifier: Apache-2.0
"""The dashboard at a terminal: draws its state, and carries keys and news to it."""

import time
from contextlib import suppress
from dataclasses import replace

from nvshared.cli.looker import Answered, Broken, Failed, Looked, Looker, PasswordWanted, Report
from nvshared.control import Daemon
from nvshared.errors import NvshareError
from nvshared.tui.actions import Wish, act, failed, looked
from nvshared.tui.commands import carry_out
from nvshared.tui.screen import draw
from nvshared.tui.state import Command, Frame, Screen, State
from nvshared.tui.terminal import Terminal

LATE = 0.5                              # seconds that an answer may take


def watch(bus: str, interval: float) -> None:
    """Until somebody quits, or the terminal is gone."""
    with suppress(KeyboardInterrupt, EOFError), Terminal() as terminal:
        Watch(bus, interval, terminal).run()


class Watch:
    """One terminal and one daemon."""

    def __init__(self, bus: str, interval: float, terminal: Terminal) -> None:
        self._bus = bus
        self._terminal = terminal
        self._looker = Looker(bus, interval, terminal.wake)
        self._interval = interval
        self._heard = time.monotonic()  # when the looker said something of the daemon last
        self._state = State()

    def run(self) -> None:
        """Draws whenever something has happened."""
        while True:
            frame = draw(self._state, *self._terminal.size)
            if self._state.screen is Screen.MAIN:
                self._state = replace(self._state, first=frame.first)
            self._terminal.show(frame.lines)
            if self._quits(frame):
                return
            for report in self._looker.reports():
                self._hear(report)
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
            opened = self._state.opened
            self._looker.opened = None if opened is None else opened.who
            match wish:
                case Wish.QUIT:
                    return True
                case Wish.REDRAW:
                    self._terminal.forget()
                case Wish.LOOK:
                    self._looker.look()
                case Command():
                    self._looker.carry_out(wish)
        return False

    def _hear(self, report: Report) -> None:
        if isinstance(report, Looked | Failed):
            self._heard = time.monotonic()
        match report:
            case Looked():
                self._state = looked(self._state, *report)
            case Failed(words):
                self._state = failed(self._state, words)
            case Answered(words):
                self._state = replace(self._state, words=words)
            case PasswordWanted(command):
                self._state = replace(self._state, words=self._with_a_password(command))
            case Broken(error):
                raise error

    def _with_a_password(self, command: Command) -> str:
        """polkit asks for it where it usually does. What came of the command."""
        try:
            with self._terminal.left(), Daemon(self._bus) as daemon:
                return carry_out(daemon, command)
        except NvshareError as error:
            return f"{error}."
