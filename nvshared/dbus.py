# SPDX-License-Identifier: Apache-2.0
"""D-Bus for the daemon and nvsharectl: finds message buses, encodes and decodes messages.

dbus-next encodes. Its __init__.py would import asyncio and TLS, which takes longer than a call of
the daemon, so its modules are imported one by one. Only this module uses its private names."""

import io
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Any

if "dbus_next" not in sys.modules and (_package := PathFinder.find_spec("dbus_next")):
    sys.modules["dbus_next"] = module_from_spec(_package)

from dbus_next._private.address import parse_address
from dbus_next._private.marshaller import Marshaller
from dbus_next._private.unmarshaller import Unmarshaller
from dbus_next.constants import ErrorType
from dbus_next.errors import InvalidAddressError
from dbus_next.message import Message
from dbus_next.signature import SignatureTree, Variant

from nvshared.errors import BusUnavailable, InvalidArgs, NvshareError

SYSTEM_BUS = "unix:path=/run/dbus/system_bus_socket"
# Name, path and interface by which the bus itself is called.
BUS = ("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus")
PATIENCE = 25.0                         # seconds for a reply, as in libdbus
LET_IN = b"OK "                         # start of the bus's reply to a successful `introduction`
BEGIN = b"BEGIN\r\n"                    # sent before the first message
START = 16                              # first bytes of a message, which contain its length
SIGNATURES = 256                        # entries of dbus-next's cache; senders choose signatures
_LONGEST = 1 << 27                      # bytes of a message, by the specification


class WireError(ValueError):
    """Raised for bytes that are not a valid D-Bus message."""


class BusError(NvshareError):
    """An error reply from another peer on the bus; `name` is its D-Bus name."""

    def __init__(self, type_: ErrorType | str, message: str) -> None:
        super().__init__(message)
        self.name = str(type_.value) if isinstance(type_, ErrorType) else type_


def introduction() -> bytes:
    """Returns the authentication line with this process's user id. The bus replies with LET_IN."""
    return f"\0AUTH EXTERNAL {str(os.geteuid()).encode().hex()}\r\n".encode()


def locate(bus: str) -> str:
    """The address of "system" or "session"; an address is returned as it is.

    Raises BusUnavailable if there is no session bus, InvalidArgs for any other text."""
    if bus == "system":
        return os.environ.get("DBUS_SYSTEM_BUS_ADDRESS", SYSTEM_BUS)
    if bus == "session":
        if address := os.environ.get("DBUS_SESSION_BUS_ADDRESS"):
            return address
        if runtime := os.environ.get("XDG_RUNTIME_DIR"):
            return f"unix:path={runtime}/bus"
        raise BusUnavailable(
            "there is no session bus: neither DBUS_SESSION_BUS_ADDRESS nor XDG_RUNTIME_DIR is set",
            "choose another with --bus, or start one: dbus-run-session COMMAND")
    if bus == "none":
        raise InvalidArgs("an nvshared that runs with --bus none cannot be asked or told anything",
                          "start it with another, such as: nvshared --bus session")
    if ":" not in bus:
        raise InvalidArgs(f"{bus!r} is no message bus", "give system, session, or an address such "
                          "as unix:path=/run/dbus/system_bus_socket")
    return bus


def connect(address: str) -> socket.socket:
    """Connects to the first of the addresses that is reachable. Raises BusUnavailable."""
    reasons = []
    try:
        places = parse_address(address)
    except InvalidAddressError as error:
        places, reasons = [], [str(error)]
    for transport, options in places:
        path = options.get("path") or f"\0{options.get('abstract', '')}"
        if transport != "unix" or path == "\0":
            reasons.append("only unix:path= and unix:abstract= can be connected to")
            continue
        try:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            try:
                connection.connect(path)
            except BaseException:
                connection.close()
                raise
        except OSError as error:
            reasons.append(os.strerror(error.errno) if error.errno else str(error))
        else:
            return connection
    raise BusUnavailable(f"cannot connect to the message bus at {address!r}: {'; '.join(reasons)}",
                         "is dbus running? --bus chooses another")


def marshalled(signature: str, *values: Any) -> bytes:
    """Encodes values as the body of a message. Raises ValueError if a type does not match."""
    block = Marshaller(signature, list(values))
    block.marshall()
    block.writers.clear()               # ends the reference cycle of `block` and its writers
    return bytes(block.buffer)


def array(entries: Iterable[bytes]) -> bytes:
    """Marshals a body that is one array, from marshalled entries aligned to eight bytes."""
    out = bytearray(8)
    for entry in entries:
        out += bytes(-len(out) % 8) + entry
    struct.pack_into("<I", out, 0, len(out) - 8)
    return bytes(out)


def pack(message: Message, serial: int) -> bytes:
    """Encodes a message with this serial number; its body may be bytes made by `marshalled`.

    Raises ValueError if a value of the body is not of its type."""
    body: Any = message.body
    if not isinstance(body, bytes):
        body = marshalled(message.signature, *body)
    fields = _fields(message.path, message.interface, message.member, message.error_name,
                     message.reply_serial, message.destination, message.sender, message.signature)
    header = struct.pack("<BBBBII", ord("l"), message.message_type.value, message.flags.value, 1,
                         len(body), serial) + fields
    return b"".join((header, bytes(-len(header) % 8), body))


@lru_cache(256)                         # signals have the same fields again and again
def _fields(*values: str | int | None) -> bytes:
    """The fields of a header, from byte 12 on."""
    given = enumerate(zip("osssussg", values, strict=True), 1)
    array = marshalled("a(yv)", [[code, Variant(*field)] for code, field in given if field[1]])
    return array[:4] + array[8:]        # a header needs no padding, as its fields begin at byte 16


def size(start: bytes) -> tuple[int, int]:
    """Returns the lengths of header and body of the message that starts with these 16 bytes."""
    order = {b"l": "<", b"B": ">"}.get(start[:1])
    if order is None:
        raise WireError(f"a message cannot start with {start[:1]!r}")
    body, _serial, fields = struct.unpack_from(order + "4xIII", start)
    header = START + fields + -fields % 8
    if header + body > _LONGEST:
        raise WireError(f"a message of {header + body} bytes is longer than any may be")
    return header, body


class Received:
    """A received message. Only its header is decoded until values(), as a call may be refused."""

    def __init__(self, header: bytes, body: bytes | None = None) -> None:
        """`body`: None if it is too long to be stored, or not read yet. Raises WireError."""
        if len(SignatureTree._cache) > SIGNATURES:
            SignatureTree._cache.clear()
        self.body = body
        self._endian = header[0]
        # Decodes the header with a body length of 0.
        self.message: Message = _read(
            header[:4] + bytes(4) + header[8:], lambda reader: reader.unmarshall())
        if self.message is None:
            raise WireError("a message's header ends too early")

    def values(self) -> list[Any]:
        """Decodes the values of the body. Raises WireError."""
        if self.body is None:
            raise WireError("it is too long")

        def read(reader: Unmarshaller) -> list[Any]:
            reader.endian = self._endian
            return [reader.read_argument(one) for one in self.message.signature_tree.types]

        found: list[Any] = _read(self.body, read)
        return found


def _read(data: bytes, read: Callable[[Unmarshaller], Any]) -> Any:
    reader = Unmarshaller(io.BytesIO(data))
    try:
        return read(reader)
    except Exception as error:          # dbus-next raises exceptions of many types
        raise WireError(f"a damaged message: {error}") from error
    finally:
        reader.readers.clear()          # break a reference cycle that would keep the data alive
