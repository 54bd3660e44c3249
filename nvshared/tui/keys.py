# SPDX-License-Identifier: Apache-2.0
"""What a terminal sends when somebody strikes a key or uses the mouse, as events with names.

A terminal sends a key as one or several bytes. What is not complete is kept until more comes. A
lone Escape looks like the beginning of something longer; `pause` says that nothing more came.
"""

import codecs
import re
from typing import NamedTuple

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
# A beginning of one: whatever may still come.
BEGINNING = re.compile(r"\x1b(?:\[<?[\d;]*|O)?\Z")
# Button, column and line; those count from 1. Whatever has more digits is no place of a screen.
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
    """So many notches: up if below zero."""

    notches: int


Event = Key | Click | Wheel


class Keys:
    """Of one terminal."""

    def __init__(self) -> None:
        self._rest = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def unfinished(self) -> bool:
        """Whether more may come that belongs to what came last."""
        return bool(self._rest)

    def feed(self, data: bytes) -> list[Event]:
        """What these bytes complete."""
        text = self._rest + self._decoder.decode(data)
        self._rest = ""
        found: list[Event] = []
        while text:
            if text[0] != ESCAPE:
                found += _plain(text[0])
                text = text[1:]
            elif sequence := SEQUENCE.match(text):
                found += _meant(sequence)
                text = text[sequence.end():]
            elif BEGINNING.match(text):
                self._rest = text
                break
            else:                       # Escape, and then something else
                found.append(Key("escape"))
                text = text[1:]
        return found

    def pause(self) -> list[Event]:
        """Nothing more came for a while."""
        lone, self._rest = self._rest == ESCAPE, ""
        return [Key("escape")] if lone else []


def _plain(character: str) -> list[Event]:
    name = PLAIN.get(character, character)
    return [Key(name)] if len(name) > 1 or name.isprintable() else []


def _meant(sequence: re.Match[str]) -> list[Event]:
    """None, if it is nothing that we know."""
    mouse, numbers, last, single = sequence.groups()
    if mouse:
        return _mouse(numbers, pressed=last == "M")
    name = NAMED.get(single or (numbers.partition(";")[0] if last == "~" else "") + last)
    return [] if name is None else [Key(name)]


def _mouse(numbers: str, *, pressed: bool) -> list[Event]:
    """As SGR 1006 has it."""
    parts = MOUSE.fullmatch(numbers)
    if parts is None or not pressed:
        return []
    button, column, line = map(int, parts.groups())
    if button in (WHEEL_UP, WHEEL_DOWN):
        return [Wheel(-1 if button == WHEEL_UP else 1)]
    return [Click(column - 1, line - 1)] if button == LEFT else []
