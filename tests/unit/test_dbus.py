# SPDX-License-Identifier: Apache-2.0
"""D-Bus messages have the bytes that dbus-next makes; invalid bytes raise WireError."""

from typing import Any

import pytest
from dbus_next.constants import MessageType
from dbus_next.message import Message
from dbus_next.signature import Variant
from hypothesis import given
from hypothesis import strategies as st

from nvshared.dbus import START, Received, WireError, marshalled, pack, size

NAMED = ("com.nvshare", "/com", "com.nvshare.Manager", "Do")
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
BODIES: st.SearchStrategy[tuple[str, list[Any]]] = st.sampled_from([
    ("u", [7]), ("sa{sv}", ["x", {"a": Variant("t", 2**63), "b": Variant("as", ["c", "d"])}]),
    ("a(ysb)d", [[[1, "one", True], [2, "two", False]], 0.5]), ("v", [Variant("(ui)", [1, -1])]),
    ("ayg", [b"bytes", "a{sv}"]), ("", []),
])


def whole(data: bytes) -> tuple[Message, list[Any]]:
    if len(data) < START:
        raise WireError("it is too short")
    header, body = size(data[:START])
    if header + body != len(data):
        raise WireError("some bytes are left, or lack")
    received = Received(data[:header], data[header:])
    return received.message, received.values()


@given(BODIES, TEXT, st.booleans())
def test_packed_dbus_message_has_the_bytes_of_dbus_next_and_is_read_back_unchanged(
        body: tuple[str, list[Any]], error: str, marshalled_before: bool) -> None:
    signature, values = body
    message = Message(*NAMED, signature=signature, body=values, serial=7)
    expected = bytes(message._marshall())
    if marshalled_before:
        message.body = marshalled(signature, *values)       # type: ignore[assignment]
    assert pack(message, 7) == expected
    read, found = whole(expected)
    assert (read.message_type, read.serial) == (MessageType.METHOD_CALL, 7)
    assert (read.destination, read.path, read.interface, read.member) == NAMED
    assert (read.signature, found) == (signature, values)
    read, found = whole(pack(Message.new_error(read, "com.nvshare.Error.Failed", error), 8))
    assert (read.error_name, read.reply_serial) == ("com.nvshare.Error.Failed", 7)
    assert found == [error]


@given(BODIES, st.integers(0, 10_000), st.integers(0, 255))
def test_reading_a_damaged_dbus_message_raises_no_error_but_wire_error(
        body: tuple[str, list[Any]], offset: int, byte: int) -> None:
    signature, values = body
    data = bytearray(pack(Message(*NAMED, signature=signature, body=values), 7))
    data[offset % len(data)] = byte
    try:
        whole(bytes(data))
    except WireError:
        return


@pytest.mark.parametrize("values", [[-1], [2**32], ["x"], [], [1, 2]])
def test_marshalling_dbus_values_of_a_wrong_type_or_number_raises_value_error(
        values: list[object]) -> None:
    with pytest.raises(ValueError, match=r"DBus|wrong number"):
        marshalled("u", *values)
