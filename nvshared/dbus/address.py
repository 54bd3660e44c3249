# SPDX-License-Identifier: Apache-2.0
"""Where a message bus is to be found, and the first words to it.

https://dbus.freedesktop.org/doc/dbus-specification.html#addresses
https://dbus.freedesktop.org/doc/dbus-specification.html#auth-protocol
"""

import os
import re
import socket

from nvshared.errors import BusUnavailable, InvalidArgs

SYSTEM_BUS = "unix:path=/run/dbus/system_bus_socket"
BUS = ("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus")  # it, as a peer
PATIENCE = 25.0                         # seconds for an answer, as libdbus has it
LET_IN = b"OK "                         # how its answer to `introduction` begins, if it lets us in
BEGIN = b"BEGIN\r\n"                    # before the first message


def introduction() -> bytes:
    """Who we are. The bus answers with a line."""
    return f"\0AUTH EXTERNAL {str(os.geteuid()).encode().hex()}\r\n".encode()


def locate(bus: str) -> str:
    """The address of "system" or "session", or the address itself.

    Raises BusUnavailable if there is no session bus, InvalidArgs if it is neither.
    """
    if bus == "system":
        return os.environ.get("DBUS_SYSTEM_BUS_ADDRESS", SYSTEM_BUS)
    if bus == "session":
        if address := os.environ.get("DBUS_SESSION_BUS_ADDRESS"):
            return address
        if runtime := os.environ.get("XDG_RUNTIME_DIR"):
            return f"unix:path={runtime}/bus"
        raise BusUnavailable(
            "there is no session bus: neither DBUS_SESSION_BUS_ADDRESS nor XDG_RUNTIME_DIR is set",
            "choose another with --bus, or start one with: dbus-run-session",
        )
    if bus == "none":
        raise InvalidArgs(
            "an nvshared that runs with --bus none cannot be asked or told anything",
            "start it with another, such as: nvshared --bus session",
        )
    if ":" not in bus:
        raise InvalidArgs(
            f"{bus!r} is no message bus",
            "give system, session, or an address such as unix:path=/run/dbus/system_bus_socket",
        )
    return bus


def connect(address: str) -> socket.socket:
    """A socket connected to the first of the addresses that answers. Raises BusUnavailable."""
    reasons = []
    for one in filter(None, address.split(";")):
        try:
            place = _place(one)
        except ValueError as error:
            reasons.append(str(error))
            continue
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            connection.connect(place)
        except OSError as error:
            connection.close()
            reasons.append(os.strerror(error.errno) if error.errno else str(error))
        else:
            return connection
    raise BusUnavailable(
        f"cannot connect to the message bus at {address!r}: {'; '.join(reasons) or 'it is empty'}",
        "is dbus running? --bus chooses another",
    )


def _place(address: str) -> str:
    transport, _, rest = address.partition(":")
    options = dict(item.partition("=")[::2] for item in rest.split(","))
    if transport == "unix" and "path" in options:
        return _unescape(options["path"])
    if transport == "unix" and "abstract" in options:
        return "\0" + _unescape(options["abstract"])
    raise ValueError("only unix:path= and unix:abstract= can be connected to")


def _unescape(text: str) -> str:
    return re.sub("%([0-9a-fA-F]{2})", lambda found: chr(int(found[1], 16)), text)
