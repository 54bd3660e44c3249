# SPDX-License-Identifier: Apache-2.0
"""A full-screen terminal: parses keys and the mouse into events, and draws changed lines.

A terminal sends a key as one or several bytes. The parser keeps an incomplete sequence until more
bytes arrive. A lone Escape may begin a sequence; `pause` says that no more bytes came.

The terminal's modes are restored however the program ends (a key, Ctrl-C, SIGTERM, an exception),
and while Ctrl-Z suspends it.
"""

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
from typing import NamedTuple, NoReturn, Self

from rich.console import Console
from rich.text import Text

ESCAPE = "\x1b"
NAMED = {
    "A": "up", "B": "down", "C": "right", "D": "left", "H": "home", "F": "end", "P": "f1",
    "Z": "backtab", "1~": "home", "4~": "end", "7~": "home", "8~": "end", "5~": "pgup",
    "6~": "pgdn", "3~": "delete", "11~": "f1", "21~": "f10",
}
PLAIN = {
    "\r": "enter", "\n": "enter", "\t": "tab", "\x7f": "backspace", "\b": "backspace",
    "\x15": "clear", "\x0c": "redraw",
}
SEQUENCE = re.compile(r"\x1b(?:\[(<?)([\d;]*)([A-Za-z~])|O([A-Za-z]))")
# The beginning of an escape sequence: more bytes may follow.
BEGINNING = re.compile(r"\x1b(?:\[<?[\d;]*|O)?\Z")
# Button, column and line; column and line count from 1. No screen has more than five digits.
MOUSE = re.compile(r"(\d{1,5});([1-9]\d{0,4});([1-9]\d{0,4})")
LEFT, WHEEL_UP, WHEEL_DOWN = 0, 64, 65


class Key(NamedTuple):
    """A key: a character, or a name such as pgup."""

    name: str


class Click(NamedTuple):
    """The left button, on a character of the screen; both count from 0."""

    column: int
    line: int


class Wheel(NamedTuple):
    """A turn of the mouse wheel, in notches; negative: up."""

    notches: int


Event = Key | Click | Wheel


class Keys:
    """Parses the bytes from one terminal."""

    def __init__(self) -> None:
        self._rest = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def unfinished(self) -> bool:
        """Whether the last bytes may be the beginning of an escape sequence."""
        return bool(self._rest)

    def feed(self, data: bytes) -> list[Event]:
        """The events that these bytes complete."""
        text = self._rest + self._decoder.decode(data)
        self._rest = ""
        found: list[Event] = []
        while text:
            if text[0] != ESCAPE:
                name = PLAIN.get(text[0], text[0])
                found += [Key(name)] if name.isprintable() else []
                text = text[1:]
            elif sequence := SEQUENCE.match(text):
                found += _event(*sequence.groups())
                text = text[sequence.end():]
            elif BEGINNING.match(text):
                self._rest = text
                break
            else:                       # the key Escape, then another key
                found.append(Key("escape"))
                text = text[1:]
        return found

    def pause(self) -> list[Event]:
        """No more bytes came within LONE seconds: a lone Escape is the key."""
        lone, self._rest = self._rest == ESCAPE, ""
        return [Key("escape")] if lone else []


def _event(mouse: str, numbers: str, last: str, single: str) -> list[Event]:
    """The event of an escape sequence, by its parts; an empty list if the sequence is unknown.

    `mouse`: "<", for a mouse report in the format of SGR 1006.
    """
    if not mouse:
        name = NAMED.get(single or (numbers.partition(";")[0] if last == "~" else "") + last)
        return [] if name is None else [Key(name)]
    parts = MOUSE.fullmatch(numbers)
    if parts is None or last != "M":
        return []
    button, column, line = map(int, parts.groups())
    if button in (WHEEL_UP, WHEEL_DOWN):
        return [Wheel(-1 if button == WHEEL_UP else 1)]
    return [Click(column - 1, line - 1)] if button == LEFT else []


# Alternate screen, hidden cursor, mouse reports for buttons and wheel in the format SGR 1006.
TAKE = "\x1b[?1049h\x1b[?25l\x1b[?1000h\x1b[?1006h"
CLEAR = "\x1b[2J"
GIVE = "\x1b[?1006l\x1b[?1000l\x1b[?25h\x1b[?1049l"
LONE = 0.05                             # seconds without more bytes after which Escape is a key
# Replacements for encodings other than UTF.
ASCII = str.maketrans("█▓▒░▁▂▃▄▅▆▇▶›│╭╮╰╯─…·▼▲↑↓▏", "#%+._.,-=+*>>|++++-~-v^^v_")


class Terminal:
    """Standard input and output as a full-screen terminal."""

    def __init__(self) -> None:
        self._console = Console()
        self._keys = Keys()
        self._shown: list[str] = []
        self._spoilt = True
        self._reading, self._waking = os.pipe()
        for end in (self._reading, self._waking):
            os.set_blocking(end, False)

    def __enter__(self) -> Self:
        self._found = termios.tcgetattr(sys.stdin)
        self._handlers = {
            number: signal.signal(number, handler) for number, handler in (
                (signal.SIGTERM, _end), (signal.SIGHUP, _end), (signal.SIGTSTP, self._stop),
                (signal.SIGCONT, self._go_on), (signal.SIGWINCH, self._go_on),
            )
        }
        signal.set_wakeup_fd(self._waking, warn_on_full_buffer=False)
        self._take()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError, termios.error):      # the terminal may be closed
            self._give()
        signal.set_wakeup_fd(-1)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        found = os.get_terminal_size(sys.stdout.fileno())
        if 0 in found:                      # the terminal does not know its size
            found = shutil.get_terminal_size()
        return found.columns, found.lines

    def wake(self) -> None:
        """Makes `events` return. Any thread may call this function."""
        with suppress(BlockingIOError):     # the pipe is full, so `events` will return anyway
            os.write(self._waking, b"\0")

    def events(self, seconds: float | None) -> list[Event]:
        """Waits for keys or the mouse; empty after `wake`, a signal, or `seconds`.

        Raises EOFError if the terminal is closed.
        """
        terminal = sys.stdin.fileno()
        patience = LONE if self._keys.unfinished else seconds
        ready, _, _ = select.select([terminal, self._reading], [], [], patience)
        if not ready:
            return self._keys.pause()
        if self._reading in ready:
            os.read(self._reading, 4096)
        if terminal not in ready:
            return []
        # Not through sys.stdin, whose buffer select() does not see.
        struck = os.read(terminal, 4096)
        if not struck:
            raise EOFError
        return self._keys.feed(struck)

    def show(self, lines: Sequence[Text]) -> None:
        """Draws the lines that differ from those on the screen."""
        with self._console.capture() as captured:
            self._console.print(Text("\n").join(lines), soft_wrap=True, highlight=False, end="")
        drawn = captured.get().split("\n")
        if not (sys.stdout.encoding or "").lower().startswith("utf"):
            drawn = [line.translate(ASCII) for line in drawn]
        # Cleared before drawing: if a signal handler sets it meanwhile, the next call redraws all.
        spoilt, self._spoilt = self._spoilt or len(self._shown) != len(drawn), False
        before = [""] * len(drawn) if spoilt else self._shown
        self._write(CLEAR * spoilt + "".join(
            f"\x1b[{number};1H{line}" for number, (line, old) in enumerate(
                zip(drawn, before, strict=True), 1) if line != old
        ))
        self._shown = drawn

    def forget(self) -> None:
        """Has the next `show` draw all lines: another program may have written."""
        self._spoilt = True

    @contextmanager
    def left(self) -> Iterator[None]:
        """Restores the terminal's modes while the block runs."""
        self._give()
        try:
            yield
        finally:
            self._take()

    def _take(self) -> None:
        tty.setcbreak(sys.stdin)
        self._spoilt = True
        self._write(TAKE)

    def _give(self) -> None:
        self._write(GIVE)
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._found)

    def _write(self, text: str) -> None:
        encoding = sys.stdout.encoding or "ascii"
        data = text.encode(encoding, "replace")
        while data:
            data = data[os.write(sys.stdout.fileno(), data):]

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        """SIGTSTP: restores the terminal's modes, then stops the process by the default action."""
        mine = {one: signal.signal(one, signal.SIG_DFL) for one in (number, signal.SIGCONT)}
        self._give()
        os.kill(os.getpid(), number)        # stops here; ignored in an orphaned group
        for one, handler in mine.items():
            signal.signal(one, handler)
        self._take()

    def _go_on(self, number: int, _frame: FrameType | None) -> None:
        """SIGCONT after a SIGSTOP, or SIGWINCH: the screen may show anything, so redraw all."""
        self.forget()
        if number == signal.SIGCONT:
            with suppress(OSError, termios.error):      # sent with SIGHUP when it is closed
                self._take()


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    """Raises SystemExit at a signal to end, so that the terminal's modes are restored first."""
    raise SystemExit(128 + number)
