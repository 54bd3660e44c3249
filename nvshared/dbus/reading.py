# SPDX-License-Identifier: Apache-2.0
"""Bytes to values.

A reader is made once for each type, since most types come again and again. A value of type v
is a `Variant`.
"""

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from nvshared.dbus.types import NUMBERS, TYPES_KEPT, Variant, WireError, alignment, split

# Takes bytes and where a value begins, before its padding; returns it and where it ends.
Reader = Callable[[bytes, int], tuple[Any, int]]


def decode(order: str, signature: str, data: bytes, at: int = 0) -> list[Any]:
    """The values of these types that begin there. `order`: "<" or ">".

    Raises WireError if there are none.
    """
    try:
        values: list[Any] = _sequence(order, signature)(data, at)[0]
        return values
    except (struct.error, UnicodeDecodeError, IndexError, TypeError) as error:
        raise WireError(f"a damaged message: {error}") from error
    except RecursionError as error:
        raise WireError("values within values, too deep to be read") from error


@lru_cache(TYPES_KEPT)
def _sequence(order: str, signature: str) -> Reader:
    """Reads the values of all these types, one after the other."""
    readers = [reader(order, one) for one in split(signature)]

    def read(data: bytes, at: int) -> tuple[Any, int]:
        values = []
        for one in readers:
            value, at = one(data, at)
            values.append(value)
        return values, at

    return read


@lru_cache(TYPES_KEPT)
def reader(order: str, type_: str) -> Reader:
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
    form = struct.Struct(order + NUMBERS[letter])
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
    def read(data: bytes, at: int) -> tuple[Any, int]:
        end = at + 1 + data[at]
        type_, read_value = _single(order, data[at + 1:end])
        value, at = read_value(data, end + 1)
        return Variant(type_, value), at

    return read


@lru_cache(TYPES_KEPT)
def _single(order: str, signature: bytes) -> tuple[str, Reader]:
    """The type that a variant's signature has to be, and its reader."""
    types = split(signature.decode())
    if len(types) != 1:
        raise WireError(f"a variant of {len(types)} types came, and all have one")
    return types[0], reader(order, types[0])


def _array(order: str, element: str) -> Reader:
    count = _number(order, "u")
    to = alignment(element)
    item = reader(order, element)

    def read(data: bytes, at: int) -> tuple[Any, int]:
        length, at = count(data, at)
        at += -at % to
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
