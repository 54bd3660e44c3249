# SPDX-License-Identifier: Apache-2.0
"""Messages: a header in sixteen bytes and fields, then a body.

A body stays bytes until somebody wants its values: what a message claims to carry can be
compared, and refused, before any of it is read.
"""

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from nvshared.dbus.reading import decode
from nvshared.dbus.types import Variant, WireError
from nvshared.dbus.writing import encode, pad, writer

METHOD_CALL, METHOD_RETURN, ERROR, SIGNAL = 1, 2, 3, 4
NO_REPLY_EXPECTED, NO_AUTO_START, ALLOW_INTERACTIVE_AUTHORIZATION = 1, 2, 4

START = 16                              # bytes of a message that tell how long it is
_VERSION = 1
_LONGEST = 1 << 27                      # bytes of a message, by the specification
_HEAD = "BBBBIII"                       # up to the length of the header's fields
# Fields of a header: their codes, their names in Message, and their types.
_FIELDS = {
    1: ("path", "o"), 2: ("interface", "s"), 3: ("member", "s"), 4: ("error", "s"),
    5: ("reply_to", "u"), 6: ("destination", "s"), 7: ("sender", "s"), 8: ("signature", "g"),
}
_NEEDED = {
    METHOD_CALL: ("path", "member"), METHOD_RETURN: ("reply_to",), ERROR: ("error", "reply_to"),
    SIGNAL: ("path", "interface", "member"),
}


class Message(NamedTuple):
    """A message; "" and 0 stand for what it does not have."""

    kind: int
    flags: int = 0
    serial: int = 0
    path: str = ""
    interface: str = ""
    member: str = ""
    error: str = ""                     # name of the error
    reply_to: int = 0                   # serial of the call it answers
    destination: str = ""
    sender: str = ""
    signature: str = ""                 # of the body
    body: bytes = b""
    order: str = "<"                    # of the body's bytes

    def values(self) -> list[Any]:
        """What the body carries. Raises WireError."""
        return decode(self.order, self.signature, self.body)

    def reason(self) -> str:
        """What an error says to people; "" if it says nothing."""
        return str(self.values()[0]) if self.signature else ""

    def reply(self, signature: str, body: bytes) -> "Message":
        """The result of this call."""
        return Message(
            METHOD_RETURN, reply_to=self.serial, destination=self.sender,
            signature=signature, body=body,
        )

    def refusal(self, error: str, sentence: str) -> "Message":
        """An error that answers this call."""
        return Message(
            ERROR, error=error, reply_to=self.serial, destination=self.sender,
            signature="s", body=encode("s", [sentence]),
        )


def call(
    destination: str, path: str, interface: str, member: str,
    signature: str = "", values: Sequence[Any] = (), flags: int = 0,
) -> Message:
    """A method call. Raises WireError if a value is not of its type."""
    return Message(
        METHOD_CALL, flags, path=path, interface=interface, member=member,
        destination=destination, signature=signature, body=encode(signature, values),
    )


def pack(message: Message, serial: int) -> bytes:
    """The message with this serial number, ready to be sent."""
    fields = [
        (code, Variant(type_, value)) for code, (name, type_) in _FIELDS.items()
        if (value := getattr(message, name))
    ]
    out = bytearray(struct.pack(
        "<BBBBII", ord("l"), message.kind, message.flags, _VERSION, len(message.body), serial
    ))
    writer("a(yv)")(out, fields)
    pad(out)
    return bytes(out + message.body)


def size(start: bytes) -> tuple[int, int]:
    """Lengths of header and body of the message that starts with these 16 bytes."""
    order = _order(start)
    if len(start) < START:
        raise WireError(f"a message of {len(start)} bytes is shorter than any may be")
    *_, body, _serial, fields = struct.unpack_from(order + _HEAD, start)
    header = START + fields + -fields % 8
    if header + body > _LONGEST:
        raise WireError(f"a message of {header + body} bytes is longer than any may be")
    return header, body


def unpack(header: bytes, body: bytes) -> Message:
    """The message that has this header and this body. Raises WireError.

    Kinds and fields of headers that nobody knows are nothing wrong, by the specification.
    """
    order = _order(header)
    _, kind, flags, _, _, serial, _ = struct.unpack_from(order + _HEAD, header)
    known: dict[str, Any] = {}
    for code, (type_, value) in decode(order, "a(yv)", header, START - 4)[0]:
        if code in _FIELDS:
            name, expected = _FIELDS[code]
            if type_ != expected:
                raise WireError(f"the field {name} of a message has type {type_!r}")
            known[name] = value
    for name in _NEEDED.get(kind, ()):
        if not known.get(name):
            raise WireError(f"a message of kind {kind} without {name}")
    return Message(kind, flags, serial, **known, body=body, order=order)


def _order(data: bytes) -> str:
    match data[:1]:
        case b"l":
            return "<"
        case b"B":
            return ">"
    raise WireError(f"a message cannot start with {data[:1]!r}")
