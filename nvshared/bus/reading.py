# SPDX-License-Identifier: Apache-2.0
"""Messages as they come in from the bus, from senders that nobody has vetted.

dbus-next reads whatever comes, completely and at once. Here

* what is longer than anything we are ever sent is not read into values: a
  megabyte of them would take seconds, in which no hand-over happens;
* a header that is longer than any is not read at all, so nobody hears whose it is and
  no answer goes out: that of an object path of megabytes would take as long;
* types of values that a sender made up are forgotten again (dbus-next keeps
  each one that it has ever seen);
* a header field or a kind of message that it does not know, which the
  specification has everybody ignore, does not end the connection (dbus-daemon
  removes such fields, other buses do not).
"""

import struct
from functools import lru_cache
from typing import Any

from dbus_next._private.unmarshaller import Unmarshaller
from dbus_next.constants import MessageFlag, MessageType
from dbus_next.errors import InvalidMessageError
from dbus_next.message import Message
from dbus_next.signature import SignatureTree, Variant

LONGEST = 8192                          # bytes of a body; the longest we know are error messages
LONGEST_HEADER = 1 << 16                # bytes; each name in it has at most 255, but for the path
TYPES_REMEMBERED = 256
_START = 16                             # bytes of a header up to the length of its fields
_FIXED = "BBBBIII"
_ORDERS = {ord("l"): "<", ord("B"): ">"}
_FLAGS = int(
    MessageFlag.NO_REPLY_EXPECTED | MessageFlag.NO_AUTOSTART
    | MessageFlag.ALLOW_INTERACTIVE_AUTHORIZATION
)
_FIELDS = {
    1: "path", 2: "interface", 3: "member", 4: "error_name", 5: "reply_serial",
    6: "destination", 7: "sender", 8: "signature",
}
# Signals are not for us: we listen to none.
_WANTED = {
    kind.value: kind
    for kind in (MessageType.METHOD_CALL, MessageType.METHOD_RETURN, MessageType.ERROR)
}

_types = lru_cache(TYPES_REMEMBERED)(SignatureTree)


class Reader(Unmarshaller):
    """Reads one message; to be called again until it is complete. One to be ignored is None."""

    complete: bool = False
    message: Message | None

    def read_variant(self, _type: Any = None) -> Variant:
        """A value that brings its type along."""
        type_ = _types(self._get(_types("g").types[0])).types[0]
        return Variant(type_, self._get(type_))

    def _unmarshall(self) -> None:
        self.offset = 0
        self._have(_START)
        order = _ORDERS.get(self.buf[0])
        if order is None:
            raise InvalidMessageError(f"a message cannot start with {self.buf[0]}")
        self.endian = self.buf[0]
        _, kind, flags, _, body_length, serial, fields_length = struct.unpack_from(
            order + _FIXED, self.buf
        )
        body_start = _START + fields_length + -fields_length % 8
        self._have(body_start + body_length)
        if fields_length > LONGEST_HEADER:
            self.complete = True
            return
        self.offset = _START - 4
        fields = {
            _FIELDS[code]: value.value
            for code, value in self._get(_types("a(yv)").types[0]) if code in _FIELDS
        }
        self.complete = True
        if kind not in _WANTED:
            return
        self.offset = body_start
        signature, body = fields.pop("signature", ""), []
        if body_length <= LONGEST:
            body = [self._get(type_) for type_ in _types(signature).types]
        else:
            signature += f", and {body_length} bytes long"
        self.message = Message(
            message_type=_WANTED[kind], flags=MessageFlag(flags & _FLAGS), serial=serial,
            body=body, **fields,
        )
        self.message.signature = signature

    def _have(self, length: int) -> None:
        """Raises what unmarshall() waits for unless so many bytes have come."""
        self.read(length, prefetch=True)        # type: ignore[no-untyped-call]

    def _get(self, type_: Any) -> Any:
        return self.read_argument(type_)        # type: ignore[no-untyped-call]
