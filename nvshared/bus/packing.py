# SPDX-License-Identifier: Apache-2.0
"""D-Bus' wire format, made quickly.

dbus-next spends some 40 µs on each value it sends. That is nothing for a
setting, and a tenth of a second for the figures of three hundred clients, for
which hand-overs would wait. So what concerns all objects at once is put together
here: the part of an entry that never changes is made once for each property.

A property's entry, and whatever else is made here, is laid out as it is from a
position that is a multiple of eight. Each entry of a dictionary and each
structure begins at one, so it fits wherever it is put.

https://dbus.freedesktop.org/doc/dbus-specification.html#message-protocol-marshaling
"""

import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

from dbus_next._private.constants import PROTOCOL_VERSION, HeaderField
from dbus_next._private.marshaller import Marshaller
from dbus_next.constants import MessageType
from dbus_next.message import Message
from dbus_next.signature import Variant

_LENGTH = struct.Struct("<I")
_FIXED = {
    "b": _LENGTH, "u": _LENGTH, "i": struct.Struct("<i"),
    "t": struct.Struct("<Q"), "x": struct.Struct("<q"), "d": struct.Struct("<d"),
}
_HEAD = struct.Struct("<BBBBIII")       # of a message, up to the length of its fields


class Body(NamedTuple):
    """All that a method answers, ready to be sent. Methods may return one instead of values."""

    data: bytes


class Packed(Message):
    """A message whose body is ready."""

    packed: bytes

    @classmethod
    def answer(cls, call: Message, signature: str, body: Body) -> "Packed":
        """To a method call."""
        made = cls(
            message_type=MessageType.METHOD_RETURN, reply_serial=call.serial,
            destination=call.sender, signature=signature,
        )
        made.packed = body.data
        return made

    @classmethod
    def signal(
        cls, path: str, interface: str, member: str, signature: str, data: bytes
    ) -> "Packed":
        """From an object."""
        made = cls(
            message_type=MessageType.SIGNAL, path=path, interface=interface, member=member,
            signature=signature,
        )
        made.packed = data
        return made

    def _marshall(self, negotiate_unix_fd: bool = False) -> bytes:
        fields = [
            bytes([field.value, 1, ord(type_), 0]) + _value(type_, value)
            for field, type_, value in (
                (HeaderField.PATH, "o", self.path),
                (HeaderField.INTERFACE, "s", self.interface),
                (HeaderField.MEMBER, "s", self.member),
                (HeaderField.REPLY_SERIAL, "u", self.reply_serial),
                (HeaderField.DESTINATION, "s", self.destination),
                (HeaderField.SIGNATURE, "g", self.signature),
            ) if value
        ]
        content = joined(fields)
        start: bytes = _HEAD.pack(
            ord("l"), self.message_type.value, self.flags.value, PROTOCOL_VERSION,
            len(self.packed), self.serial, len(content),
        )
        return padded(start + content) + self.packed


def text(value: str) -> bytes:
    """A string or an object path."""
    data = value.encode()
    return _LENGTH.pack(len(data)) + data + b"\0"


def arguments(types: Sequence[str], values: Sequence[Any]) -> bytes:
    """The body of a signal that carries these."""
    data = b""
    for type_, value in zip(types, values, strict=True):
        fixed = _FIXED.get(type_)
        if fixed is not None:
            data = padded(data, fixed.size) + fixed.pack(value)
        elif type_ in ("s", "o"):
            data = padded(data, 4) + text(value)
        else:
            return _marshalled("".join(types), values)
    return data


def padded(data: bytes, to: int = 8) -> bytes:
    """Up to where the next thing may begin."""
    return data + bytes(-len(data) % to)


def joined(elements: Sequence[bytes]) -> bytes:
    """Elements of an array, each beginning at a multiple of eight; nothing follows the last."""
    return b"".join([*map(padded, elements[:-1]), *elements[-1:]])


def array(content: bytes, before: int = 0) -> bytes:
    """An array of what begins at multiples of eight, `before` bytes after one."""
    lead = bytes(-before % 4) + _LENGTH.pack(len(content))
    return lead + bytes(-(before + len(lead)) % 8) + content


def entry(key: str, content: bytes) -> bytes:
    """An entry whose value is such an array."""
    start = text(key)
    return start + array(content, len(start))


@cache
def packer(name: str, type: str) -> Callable[[Any], bytes]:  # noqa: A002
    """A function that makes a property's entry, {sv}, of its value."""
    head = text(name) + bytes([len(type)]) + type.encode() + b"\0"
    fixed = _FIXED.get(type)
    if fixed is not None:
        start = padded(head, fixed.size)
        pack: Callable[[Any], bytes] = fixed.pack
        return lambda value: start + pack(value)
    if type in ("s", "o"):
        start = padded(head, 4)
        return lambda value: start + text(value)

    # A structure is laid out as an entry of a dictionary is.
    return lambda value: _marshalled("(sv)", [[name, Variant(type, value)]])


def _marshalled(signature: str, values: Sequence[Any]) -> bytes:
    """As dbus-next does it, for types that are rare."""
    block = Marshaller(signature, list(values))     # type: ignore[no-untyped-call]
    block.marshall()                                # type: ignore[no-untyped-call]
    return bytes(block.buffer)


def _value(type_: str, value: Any) -> bytes:
    """Of a field of a header."""
    match type_:
        case "u":
            number: bytes = _LENGTH.pack(value)
            return number
        case "g":
            return bytes([len(value)]) + str(value).encode() + b"\0"
        case _:
            return text(value)
