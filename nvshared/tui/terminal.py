# SPDX-License-Identifier: Apache-2.0
"""A full-screen terminal: parses keys and the mouse into events, and draws changed lines.

Key sequences are xterm's, which all terminals in use share; terminfo often lacks a remote user's
terminal. The terminal's modes are restored however the program ends, and while it is suspended."""

import codecs
import os
import re
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NamedTuple, Self

from rich.console import Console
from rich.text import Text

ESCAPE = "\x1b"
BY_SEQUENCE = {
    "A": "up", "B": "down", "C": "right", "D": "left", "H": "home", "F": "end", "P": "f1",
    "Z": "backtab", "1~": "home", "4~": "end", "7~": "home", "8~": "end", "5~": "pgup",
    "6~": "pgdn", "3~": "delete", "11~": "f1", "21~": "f10",
}
CONTROL_KEYS = {
    "\r": "enter", "\n": "enter", "\t": "tab", "\x7f": "backspace", "\b": "backspace",
    "\x15": "clear", "\x0c": "redraw",
}
SEQUENCE = re.compile(r"\x1b(?:\[(<?)([\d;]*)([A-Za-z~])|O([A-Za-z]))")
# The beginning of an escape sequence: more bytes may follow.
INCOMPLETE = re.compile(r"\x1b(?:\[<?[\d;]*|O|\[M.{0,2})?\Z", re.DOTALL)
# A mouse report of a terminal that lacks the format SGR 1006. Its three characters are no keys.
OLD_MOUSE = re.compile(r"\x1b\[M(.)(.)(.)", re.DOTALL)
# Numbers of a mouse report: button; column and line, counted from 1. At most five digits each.
MOUSE = re.compile(r"(\d{1,5});([1-9]\d{0,4});([1-9]\d{0,4})")
LEFT, WHEEL_UP, WHEEL_DOWN = 0, 64, 65


class Key(NamedTuple):
    name: str


class Click(NamedTuple):
    column: int                         # counted from 0
    line: int                           # counted from 0


class Wheel(NamedTuple):
    notches: int                        # of the mouse wheel; negative: upwards


Event = Key | Click | Wheel


class Keys:
    """Parses the bytes from one terminal. Keeps an incomplete sequence until more bytes arrive."""

    def __init__(self) -> None:
        self.incomplete = ""            # the beginning of an escape sequence
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> list[Event]:
        text = self.incomplete + self._decoder.decode(data)
        self.incomplete = ""
        found: list[Event] = []
        while text:
            if text[0] != ESCAPE:
                name = CONTROL_KEYS.get(text[0], text[0])
                found += [Key(name)] if name.isprintable() else []
                text = text[1:]
            elif INCOMPLETE.match(text):
                self.incomplete = text
                break
            elif report := OLD_MOUSE.match(text):
                numbers = ";".join(str(ord(one) - ord(" ")) for one in report.groups())
                found += _event("<", numbers, "M", "")
                text = text[report.end():]
            elif sequence := SEQUENCE.match(text):
                found += _event(*sequence.groups())
                text = text[sequence.end():]
            else:                       # a single Escape key, before other keys
                found.append(Key("escape"))
                text = text[1:]
        return found

    def time_out(self) -> list[Event]:
        """Ends an incomplete sequence after ESCAPE_DELAY without a byte. Escape alone is a key."""
        is_escape, self.incomplete = self.incomplete == ESCAPE, ""
        return [Key("escape")] if is_escape else []


def _event(mouse: str, numbers: str, last: str, single: str) -> list[Event]:
    """The events of an escape sequence; none if it is unknown. `mouse`: "<" for a mouse report."""
    if not mouse:
        name = BY_SEQUENCE.get(single or (numbers.partition(";")[0] if last == "~" else "") + last)
        return [] if name is None else [Key(name)]
    parts = MOUSE.fullmatch(numbers)
    if parts is None or last != "M":
        return []
    button, column, line = map(int, parts.groups())
    if button in (WHEEL_UP, WHEEL_DOWN):
        return [Wheel(-1 if button == WHEEL_UP else 1)]
    return [Click(column - 1, line - 1)] if button == LEFT else []


# Alternate screen, hidden cursor, mouse reports for buttons and wheel in the format SGR 1006.
FULL_SCREEN_ON = "\x1b[?1049h\x1b[?25l\x1b[?1000h\x1b[?1006h"
CLEAR = "\x1b[2J"
FULL_SCREEN_OFF = "\x1b[?1006l\x1b[?1000l\x1b[?25h\x1b[?1049l"
ENDS = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP)
ESCAPE_DELAY = 0.05                     # seconds without more bytes after which Escape is a key
END_PATIENCE = 1.0                      # seconds for a stopped terminal to take FULL_SCREEN_OFF
# ASCII replacements for characters if the encoding of the terminal is not UTF-8, -16 or -32.
ASCII = str.maketrans("█▓▒░▁▂▃▄▅▆▇▶›│╭╮╰╯─…·▼▲↑↓▏", "#%+._.,-=+*>>|++++-~-v^^v_")


class Terminal:
    def __init__(self) -> None:
        # show() prints lines that fit already; with a width of 0, as of COLUMNS, rich prints none.
        self._console = Console(width=shutil.get_terminal_size().columns)
        self._keys = Keys()
        self._shown: list[str] = []     # empty: all lines are to be drawn
        self._has_screen = False        # whether the full screen is on, or is to be on
        self._is_ending = False
        self._reading, self._waking = os.pipe()
        for end in (self._reading, self._waking):
            os.set_blocking(end, False)

    def __enter__(self) -> Self:
        self._saved_modes = termios.tcgetattr(sys.stdin)
        self._handlers = {number: signal.signal(number, handler) for number, handler in (
            *((number, self._end) for number in ENDS), (signal.SIGTSTP, self._suspend),
            (signal.SIGCONT, self._resume), (signal.SIGWINCH, self._resume))}
        signal.set_wakeup_fd(self._waking, warn_on_full_buffer=False)
        try:
            self._set_modes()
        except BaseException:           # as of a signal
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._is_ending = True
        with suppress(OSError, termios.error):      # the terminal may be closed
            self._restore_modes()
        signal.set_wakeup_fd(-1)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    @property
    def size(self) -> tuple[int, int]:
        found = os.get_terminal_size(sys.stdout.fileno())
        if 0 in found:                      # the terminal reports no size
            found = shutil.get_terminal_size()
        return found.columns, found.lines

    def wake(self) -> None:
        """Makes `events` return; may be called in any thread."""
        with suppress(BlockingIOError):     # the pipe is full, so `events` will return anyway
            os.write(self._waking, b"\0")

    def events(self, seconds: float | None) -> list[Event]:
        """Waits for events of keys or mouse; returns none after wake(), a signal or `seconds`.

        Raises EOFError if the terminal is closed."""
        terminal = sys.stdin.fileno()
        timeout = ESCAPE_DELAY if self._keys.incomplete else seconds
        ready, _, _ = select.select([terminal, self._reading], [], [], timeout)
        if not ready:
            return self._keys.time_out()
        if self._reading in ready:
            os.read(self._reading, 4096)
        if terminal not in ready:
            return []
        # Not through sys.stdin, whose buffer select() does not see.
        data = os.read(terminal, 4096)
        if not data:
            raise EOFError
        return self._keys.feed(data)

    def show(self, lines: Sequence[Text]) -> None:
        with self._console.capture() as captured:
            self._console.print(Text("\n").join(lines), soft_wrap=True, highlight=False, end="")
        drawn = captured.get().split("\n")
        if not (sys.stdout.encoding or "").lower().startswith("utf"):
            drawn = [line.translate(ASCII) for line in drawn]
        # Before drawing, as a signal handler may call redraw() during the drawing.
        before, self._shown = self._shown, drawn
        must_redraw = len(before) != len(drawn)
        before = [""] * len(drawn) if must_redraw else before
        self._write(CLEAR * must_redraw + "".join(
            f"\x1b[{number};1H{line}" for number, (line, old) in enumerate(
                zip(drawn, before, strict=True), 1) if line != old))

    def redraw(self) -> None:
        self._shown = []

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Leaves the full screen and restores the terminal's modes while the block runs."""
        self._restore_modes()
        try:
            yield
        finally:
            self._set_modes()

    def _set_modes(self) -> None:
        self._has_screen = True
        tty.setcbreak(sys.stdin)
        self.redraw()
        self._write(FULL_SCREEN_ON)

    def _restore_modes(self) -> None:
        self._has_screen = False
        self._write(FULL_SCREEN_OFF)
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._saved_modes)

    def _write(self, text: str) -> None:
        """Waits while the terminal takes no output, at the end of the program for a moment alone.

        So Ctrl-S does not keep SIGTERM from ending the program. select() is also needed where
        another program has set O_NONBLOCK of the terminal."""
        encoding = sys.stdout.encoding or "ascii"
        data, terminal = text.encode(encoding, "replace"), sys.stdout.fileno()
        while data and select.select(
                [], [terminal], [], END_PATIENCE if self._is_ending else None)[1]:
            data = data[os.write(terminal, data):]

    def _suspend(self, number: int, _frame: FrameType | None) -> None:
        """SIGTSTP: restores the terminal's modes, then stops the process by the default action."""
        if self._is_ending:
            return
        had_screen = self._has_screen
        handlers = {one: signal.signal(one, signal.SIG_DFL) for one in (number, signal.SIGCONT)}
        if had_screen:
            self._restore_modes()
        os.kill(os.getpid(), number)        # stops here; ignored if the process group is orphaned
        for one, handler in handlers.items():
            signal.signal(one, handler)
        if had_screen:
            self._set_modes()

    def _resume(self, number: int, _frame: FrameType | None) -> None:
        """SIGCONT after a SIGSTOP, or SIGWINCH: the screen may show anything, so redraw all."""
        self.redraw()
        if number == signal.SIGCONT and self._has_screen:
            with suppress(OSError, termios.error):      # a closed terminal sends SIGHUP and SIGCONT
                self._set_modes()

    def _end(self, number: int, _frame: FrameType | None) -> None:
        """Ends the program by an exception, so that the terminal's modes are restored first.

        A second signal, as timeout(1) sends it at once, must not interrupt that."""
        if not self._is_ending:
            self._is_ending = True
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
