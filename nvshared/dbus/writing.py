# SPDX-License-Identifier: Apache-2.0
"""Values to bytes, little-endian.

A writer appends one value, with the padding before it, to bytes that begin at a multiple of
eight. It is made once for each type.

`begin` and `end` write an array or a dictionary piece by piece. That is for what is large: the
daemon puts the figures of a thousand clients together in slices, between two hand-overs.
"""

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from nvshared.dbus.types import NUMBERS, TYPES_KEPT, Variant, WireError, alignment, split

Writer = Callable[[bytearray, Any], None]

_LENGTH = struct.Struct("<I")
_PADS = [bytes(length) for length in range(8)]


def encode(signature: str, values: Sequence[Any]) -> bytes:
    """The body of a message. Raises WireError if a value is not of its type."""
    types = split(signature)
    if len(types) != len(values):
        raise WireError(f"{len(values)} values are not of the types {signature!r}")
    out = bytearray()
    for type_, value in zip(types, values, strict=True):
        writer(type_)(out, value)
    return bytes(out)


def pad(out: bytearray, to: int = 8) -> None:
    """Up to where the next thing may begin."""
    out += _PADS[-len(out) % to]


def put_text(out: bytearray, value: str) -> None:
    """A string or an object path."""
    try:
        data = value.encode()
    except (AttributeError, UnicodeEncodeError):
        raise WireError(f"{value!r} is no UTF-8") from None
    out += _PADS[-len(out) % 4] + _LENGTH.pack(len(data)) + data + b"\0"


def begin(out: bytearray, to: int = 8) -> int:
    """Begins an array of what is aligned to so many bytes. Returns what `end` needs."""
    pad(out, 4)
    at = len(out)
    out += bytes(4)
    pad(out, to)
    return at


def begin_entry(out: bytearray, key: str) -> int:
    """Begins an entry of a dictionary, {sa{…}}: its key, and the dictionary in it."""
    pad(out)
    put_text(out, key)
    return begin(out)


def end(out: bytearray, at: int, to: int = 8) -> None:
    """Ends the array that began there."""
    start = at + 4
    _LENGTH.pack_into(out, at, len(out) - start - -start % to)


@lru_cache(TYPES_KEPT)
def writer(type_: str) -> Writer:
    """Appends a value of this type."""
    match type_[0]:
        case "s" | "o":
            return put_text
        case "g":
            return _put_signature
        case "v":
            return _put_variant
        case "a":
            return _array(type_[1:])
        case "(" | "{":
            return _structure(split(type_[1:-1]))
        case letter:
            return _number(letter)


def _number(letter: str) -> Writer:
    form = struct.Struct("<" + NUMBERS[letter])
    pack, size = form.pack, form.size

    def put(out: bytearray, value: Any) -> None:
        try:
            out += _PADS[-len(out) % size] + pack(value)
        except struct.error:
            raise WireError(f"{value!r} does not fit type {letter!r}") from None

    return put


def _put_signature(out: bytearray, value: str) -> None:
    data = value.encode()
    out += bytes([len(data)]) + data + b"\0"


def _put_variant(out: bytearray, value: Variant) -> None:
    _put_signature(out, value.type)
    writer(value.type)(out, value.value)


def _array(element: str) -> Writer:
    put_element = writer(element)
    to = alignment(element)

    def put(out: bytearray, value: Any) -> None:
        at = begin(out, to)
        for item in value.items() if isinstance(value, dict) else value:
            put_element(out, item)
        end(out, at, to)

    return put


def _structure(types: list[str]) -> Writer:
    writers = [writer(one) for one in types]

    def put(out: bytearray, value: Any) -> None:
        pad(out)
        if len(value) != len(writers):
            raise WireError(f"{value!r} does not have {len(writers)} parts")
        for one, part in zip(writers, value, strict=True):
            one(out, part)

    return put
