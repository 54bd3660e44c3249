# SPDX-License-Identifier: Apache-2.0
"""The D-Bus wire format, as far as a client that asks and waits needs it.

dbus-next would do this too, but importing it brings asyncio along, and the two
take longer to import than `nvsharectl status` takes for everything else.
Tests hold this against dbus-next in both directions.

A value of type v is a `Variant` going out and the plain value coming in: who
reads a property wants the value.

https://dbus.freedesktop.org/doc/dbus-specification.html#message-protocol
"""

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

METHOD_CALL, METHOD_RETURN, ERROR, SIGNAL = 1, 2, 3, 4
NO_AUTO_START, ALLOW_INTERACTIVE_AUTHORIZATION = 2, 4

# Fields of a header.
_PATH, _INTERFACE, _MEMBER, _ERROR_NAME = 1, 2, 3, 4
_REPLY_SERIAL, _DESTINATION, _SENDER, _SIGNATURE = 5, 6, 7, 8
_VERSION = 1
_FIXED = struct.Struct("=BBBBIII")      # before the header's fields, and the length of these
_NUMBERS = {
    "y": "B", "n": "h", "q": "H", "i": "i", "u": "I", "x": "q", "t": "Q", "d": "d", "b": "I",
}
_ALIGNMENTS = {"s": 4, "o": 4, "a": 4, "(": 8, "{": 8, "g": 1, "v": 1}
_LONGEST = 1 << 27                      # bytes of a message, by the specification
READERS_KEPT = 256

# Takes a whole message and where a value begins, before its padding; returns it and where it ends.
Reader = Callable[[bytes, int], tuple[Any, int]]


class WireError(ValueError):
    """Bytes that are no D-Bus message, or a value that is not of its type."""


class Variant(NamedTuple):
    """A value that brings its type along."""

    type: str
    value: Any


class Message(NamedTuple):
    """A message that came in."""

    kind: int
    serial: int
    reply_to: int                       # serial of the call it answers, or 0
    error: str                          # name of the error, or ""
    sender: str
    path: str
    interface: str
    member: str
    body: list[Any]


def split(signature: str) -> list[str]:
    """The complete types of a signature. Raises WireError if it is none."""
    types = []
    while signature:
        end = _end(signature, 0)
        types.append(signature[:end])
        signature = signature[end:]
    return types


def call(
    serial: int, destination: str, path: str, interface: str, member: str,
    signature: str = "", body: tuple[Any, ...] = (), flags: int = NO_AUTO_START,
) -> bytes:
    """A method call, ready to be sent."""
    writer = _Writer()
    for type_, value in zip(split(signature), body, strict=True):
        writer.put(type_, value)
    fields = [
        (_PATH, Variant("o", path)), (_INTERFACE, Variant("s", interface)),
        (_MEMBER, Variant("s", member)), (_DESTINATION, Variant("s", destination)),
    ]
    if signature:
        fields.append((_SIGNATURE, Variant("g", signature)))
    header = _Writer()
    for value in (ord("l"), METHOD_CALL, flags, _VERSION):
        header.put("y", value)
    header.put("u", len(writer.bytes))
    header.put("u", serial)
    header.put("a(yv)", fields)
    header.align(8)
    return bytes(header.bytes + writer.bytes)


def size(start: bytes) -> int:
    """Length of the whole message of which these are the first 16 bytes or more."""
    order = _order(start)
    if len(start) < _FIXED.size:
        raise WireError(f"a message of {len(start)} bytes is shorter than any may be")
    (body,) = struct.unpack_from(order + "I", start, 4)
    (fields,) = struct.unpack_from(order + "I", start, 12)
    whole: int = _FIXED.size + fields + -fields % 8 + body
    if whole > _LONGEST:
        raise WireError(f"a message of {whole} bytes is longer than any may be")
    return whole


def parse(data: bytes) -> Message:
    """A whole message. Raises WireError."""
    if size(data) != len(data):
        raise WireError(f"a message of {len(data)} bytes that says it has {size(data)}")
    try:
        order = _order(data)
        kind = data[1]
        serial, at = _reader(order, "u")(data, 8)
        header, at = _reader(order, "a(yv)")(data, at)
        fields = dict(header)
        body, _ = _sequence(order, fields.get(_SIGNATURE, ""))(data, at + -at % 8)
    except (struct.error, TypeError, UnicodeDecodeError) as error:
        raise WireError(f"a damaged message: {error}") from error
    return Message(
        kind, serial, fields.get(_REPLY_SERIAL, 0), fields.get(_ERROR_NAME, ""),
        fields.get(_SENDER, ""), fields.get(_PATH, ""), fields.get(_INTERFACE, ""),
        fields.get(_MEMBER, ""), body,
    )


def _order(data: bytes) -> str:
    match data[:1]:
        case b"l":
            return "<"
        case b"B":
            return ">"
    raise WireError(f"a message cannot start with {data[:1]!r}")


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
        case letter if letter and (letter in _NUMBERS or letter in "sogv"):
            return start + 1
    raise WireError(f"{signature!r} is not a signature")


def _alignment(type_: str) -> int:
    return _ALIGNMENTS.get(type_[0]) or struct.calcsize("=" + _NUMBERS[type_[0]])


class _Writer:
    """Values to bytes, little-endian."""

    def __init__(self) -> None:
        self.bytes = bytearray()

    def align(self, to: int) -> None:
        self.bytes += bytes(-len(self.bytes) % to)

    def put(self, type_: str, value: Any) -> None:
        self.align(_alignment(type_))
        match type_[0]:
            case "s" | "o":
                try:
                    text = str(value).encode()
                except UnicodeEncodeError:
                    raise WireError(f"{value!r} is no UTF-8") from None
                self.bytes += struct.pack("<I", len(text)) + text + b"\0"
            case "g":
                text = str(value).encode()
                self.bytes += struct.pack("<B", len(text)) + text + b"\0"
            case "v":
                self.put("g", value.type)
                self.put(value.type, value.value)
            case "a":
                self._put_array(type_[1:], value)
            case "(" | "{":
                for one, part in zip(split(type_[1:-1]), value, strict=True):
                    self.put(one, part)
            case letter:
                try:
                    self.bytes += struct.pack("<" + _NUMBERS[letter], value)
                except struct.error as error:
                    raise WireError(f"{value!r} does not fit type {letter!r}") from error

    def _put_array(self, element: str, value: Any) -> None:
        at = len(self.bytes)
        self.bytes += bytes(4)
        self.align(_alignment(element))
        start = len(self.bytes)
        for item in value.items() if isinstance(value, dict) else value:
            self.put(element, item)
        struct.pack_into("<I", self.bytes, at, len(self.bytes) - start)


def _sequence(order: str, signature: str) -> Reader:
    """Reads the values of all these types, one after the other."""
    readers = [_reader(order, one) for one in split(signature)]

    def read(data: bytes, at: int) -> tuple[Any, int]:
        values = []
        for one in readers:
            value, at = one(data, at)
            values.append(value)
        return values, at

    return read


@lru_cache(READERS_KEPT)
def _reader(order: str, type_: str) -> Reader:
    """Reads a value of this type, which is taken to pieces once and not for each value."""
    match type_[0]:
        case "s" | "o":
            return _text(order, "I")
        case "g":
            return _text(order, "B")
        case "v":
            return _variant(order)
        case "a":
            return _array(order, type_[1:])
        case "(" | "{":
            parts = _sequence(order, type_[1:-1])
            return lambda data, at: parts(data, at + -at % 8)
        case letter:
            return _number(order, letter)


def _number(order: str, letter: str) -> Reader:
    form = struct.Struct(order + _NUMBERS[letter])
    unpack, size = form.unpack_from, form.size

    def read(data: bytes, at: int) -> tuple[Any, int]:
        at += -at % size
        return unpack(data, at)[0], at + size

    def truth(data: bytes, at: int) -> tuple[bool, int]:
        value, at = read(data, at)
        return bool(value), at

    return truth if letter == "b" else read


def _text(order: str, letter: str) -> Reader:
    form = struct.Struct(order + letter)
    unpack, size = form.unpack_from, form.size

    def read(data: bytes, at: int) -> tuple[str, int]:
        at += -at % size
        start = at + size
        end = start + unpack(data, at)[0]
        if end >= len(data):
            raise WireError("a string goes beyond the end of its message")
        return data[start:end].decode(), end + 1

    return read


def _variant(order: str) -> Reader:
    signature = _text(order, "B")

    def read(data: bytes, at: int) -> tuple[Any, int]:
        type_, at = signature(data, at)
        return _single(order, type_)(data, at)

    return read


@lru_cache(READERS_KEPT)
def _single(order: str, signature: str) -> Reader:
    types = split(signature)
    if len(types) != 1:
        raise WireError(f"a variant of {len(types)} types came, and all have one")
    return _reader(order, types[0])


def _array(order: str, element: str) -> Reader:
    count = _number(order, "u")
    alignment = _alignment(element)
    item = _reader(order, element)

    def read(data: bytes, at: int) -> tuple[Any, int]:
        length, at = count(data, at)
        at += -at % alignment
        end = at + length
        items = []
        while at < end:
            value, at = item(data, at)
            items.append(value)
        return items, at

    def entries(data: bytes, at: int) -> tuple[Any, int]:
        items, at = read(data, at)
        return dict(items), at

    if element[0] != "{":
        return read
    if len(split(element[1:-1])) != 2:
        raise WireError(f"{element!r} is no entry of a dictionary")
    return entries
