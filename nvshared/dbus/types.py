# SPDX-License-Identifier: Apache-2.0
"""The types of values. A signature is one or more of them: "sa{sv}" is "s" and "a{sv}"."""

import struct
from typing import Any, NamedTuple

NUMBERS = {
    "y": "B", "n": "h", "q": "H", "i": "i", "u": "I", "x": "q", "t": "Q", "d": "d", "b": "I",
}
_ALIGNMENTS = {"s": 4, "o": 4, "a": 4, "(": 8, "{": 8, "g": 1, "v": 1}
TYPES_KEPT = 256                        # readers and writers of so many; senders make types up


class WireError(ValueError):
    """Bytes that are no D-Bus message, or a value that is not of its type."""


class Variant(NamedTuple):
    """A value that brings its type along."""

    type: str
    value: Any


def split(signature: str) -> list[str]:
    """The complete types of a signature. Raises WireError if it is none."""
    types = []
    while signature:
        end = _end(signature, 0)
        types.append(signature[:end])
        signature = signature[end:]
    return types


def alignment(type_: str) -> int:
    """A value of this type begins at a multiple of so many bytes."""
    return _ALIGNMENTS.get(type_[0]) or struct.calcsize("=" + NUMBERS[type_[0]])


def _end(signature: str, start: int) -> int:
    """Where the complete type that starts there ends."""
    match signature[start:start + 1]:
        case "a":
            return _end(signature, start + 1)
        case "(" | "{" as bracket:
            closing = ")" if bracket == "(" else "}"
            position = _end(signature, start + 1)
            while signature[position:position + 1] != closing:
                position = _end(signature, position)
            return position + 1
        case letter if letter and (letter in NUMBERS or letter in "sogv"):
            return start + 1
    raise WireError(f"{signature!r} is not a signature")
