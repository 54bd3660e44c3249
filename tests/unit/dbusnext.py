# SPDX-License-Identifier: Apache-2.0
"""What dbus-next makes of the same values. It keeps that to itself, so only this file looks."""

import io
from typing import Any

from dbus_next._private.marshaller import Marshaller
from dbus_next._private.unmarshaller import Unmarshaller
from dbus_next.message import Message
from dbus_next.signature import Variant as Theirs

from nvshared.dbus.types import Variant


def theirs(value: Any) -> Any:
    """A value as dbus-next has it."""
    if isinstance(value, Variant):
        return Theirs(value.type, theirs(value.value))
    if isinstance(value, dict):
        return {key: theirs(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [theirs(one) for one in value]
    return value


def marshalled(signature: str, *values: Any) -> bytes:
    """A body."""
    block = Marshaller(signature, theirs(values))       # type: ignore[no-untyped-call]
    block.marshall()                                    # type: ignore[no-untyped-call]
    return bytes(block.buffer)


def sent(message: Message) -> bytes:
    """As it goes over the socket."""
    return bytes(message._marshall())                   # type: ignore[no-untyped-call]


def received(data: bytes) -> Message:
    """As it comes in."""
    message: Message = Unmarshaller(io.BytesIO(data)).unmarshall()  # type: ignore[no-untyped-call]
    return message
