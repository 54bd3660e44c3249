# SPDX-License-Identifier: Apache-2.0
"""Encodes and decodes the packets of the messages in protocol.py.

A packet has 104 bytes, little-endian. This module checks a record by itself; session.py, whether it
is valid in the state of the connection."""

import struct
from collections.abc import Callable, Sequence
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from nvshared.errors import ProtocolError
from nvshared.hook.protocol import (
    NUMBER,
    REASONS,
    TEXT,
    VERSION,
    OrderRecord,
    ReportRecord,
    Row,
    Type,
    rows,
)
from nvshared.scheduler.events import Memory

SIZE = 104
BEGIN = struct.Struct("<HH")            # type and version, in every version
TEXT_LONGEST = 5 * TEXT.size            # bytes of text in all records of a REASON
OF_ANY_VERSION = (Type.HELLO, Type.NAME, Type.GANG)
CODES = {2: "H", 4: "I", 8: "Q"}        # of struct, by size


class Place(NamedTuple):
    """Where a field is in a packet."""

    offset: int
    size: int
    row: Row


def places(kind: Type, left_out: str = "") -> list[Place]:
    """The fields of a message after type and version. `left_out`: a group that is left out."""
    found = [Place(8, 8, Row("", "", "", name="number"))]
    for row in rows(OrderRecord if kind.is_order else ReportRecord):
        if (place := row.places.get(kind)) is not None and not (left_out and row.group == left_out):
            found.append(Place(*place, row))
    if all(place.offset != 4 for place in found):
        found.append(Place(4, 4 if kind.is_order else 2, Row("", "", "", name="flags")))
    return sorted(found, key=itemgetter(0))


def _picked(names: Sequence[str], wanted: Callable[[str], bool]) -> tuple[
        tuple[str, ...], Callable[[Sequence[Any]], tuple[Any, ...]]]:
    """The last parts of the names that are wanted, and a function that picks their values."""
    indices = [index for index, name in enumerate(names) if wanted(name)]
    words = tuple(names[index].rpartition(".")[2] for index in indices)
    if len(indices) > 1:
        return words, itemgetter(*indices)
    return words, lambda values: tuple(values[index] for index in indices)


class Layout:
    """The packets of a message."""

    def __init__(self, kind: Type, fields: Sequence[Place]) -> None:
        self._type = kind
        code, at = "<HH", BEGIN.size
        for offset, size, row in fields:
            assert offset >= at, f"{kind.name}: {row.name} overlaps another field"
            code += "x" * (offset - at) + (CODES[size] if row.kind is NUMBER else f"{size}s")
            at = offset + size
        self._struct = struct.Struct(code + "x" * (SIZE - at))
        names = [place.row.name for place in fields]
        self._get = attrgetter(*names)
        self._text = names.index("text") if "text" in names else None
        self._figure_names, self._figures = _picked(names, lambda name: name.startswith("memory."))
        self._names, self._others = _picked(names, lambda name: not name.startswith("memory."))

    def pack(self, record: OrderRecord | ReportRecord, version: int = VERSION) -> bytes:
        values = self._get(record)
        if self._text is not None:
            at = self._text
            values = (*values[:at], values[at].encode(errors="surrogateescape"), *values[at + 1:])
        return self._struct.pack(self._type, version, *values)

    def unpack(self, packet: bytes) -> dict[str, Any]:
        """The fields by their names in the record. Raises ProtocolError for an unknown reason."""
        values = self._struct.unpack(packet)[2:]
        found: dict[str, Any] = dict(zip(self._names, self._others(values), strict=True))
        if self._text is not None:
            found["text"] = found["text"].partition(b"\0")[0].decode(errors="ignore")
        if self._figure_names:
            figures = dict(zip(self._figure_names, self._figures(values), strict=True))
            reason = figures["pin_reason"]
            if reason not in REASONS:
                raise ProtocolError(f"the unknown reason {reason} to stay came")
            figures["pin_reason"] = REASONS[reason]
            found["memory"] = Memory(**figures)
        return found


# A GANG has a text or, without one, terms in the text's place.
TERMS = Layout(Type.GANG, [place for place in places(Type.GANG) if place.row.name != "text"])
TERMS_AT = 16                           # where a GANG's text begins
LAYOUTS = {kind: Layout(kind, places(kind, "terms")) for kind in Type}
TYPES = {int(one): one for one in Type}


def encode_order(order: OrderRecord) -> bytes:
    """Returns the packet of an order other than REASON."""
    return LAYOUTS[order.type].pack(order)


def encode(order: OrderRecord) -> list[bytes]:
    """Returns the packets of an order. The text of a REASON loses its middle if it is too long."""
    if order.type is not Type.REASON:
        return [encode_order(order)]
    encoded = order.text.encode()
    if len(encoded) > TEXT_LONGEST:
        half = (TEXT_LONGEST - 3) // 2
        encoded = encoded[:half] + b"..." + encoded[-half:]
    encoded = encoded.decode(errors="ignore").encode()  # drops partial UTF-8 characters
    pieces = [encoded[at:at + TEXT.size] for at in range(0, len(encoded), TEXT.size)]
    return [
        encode_order(OrderRecord(Type.REASON, text=piece.decode(errors="surrogateescape")))
        for piece in pieces]


def message(packet: bytes) -> Type:
    """The type of an encoded message."""
    return Type(BEGIN.unpack_from(packet)[0])


def decode_report(packet: bytes) -> ReportRecord:
    """Decodes a hook's report. Raises ProtocolError unless the packet is one record of known type;
    of another version only HELLO, which gets a refusal, NAME and GANG, without their fields."""
    if len(packet) != SIZE:
        raise ProtocolError(f"a record of {len(packet)} bytes came, and all have {SIZE}")
    code, version = BEGIN.unpack_from(packet)
    if (kind := TYPES.get(code)) is None:
        raise ProtocolError(f"a record of the unknown type {code} came")
    if version != VERSION and kind not in OF_ANY_VERSION:
        raise ProtocolError(f"a {kind.name} of version {version} came, and we speak {VERSION}")
    if kind.is_order:
        raise ProtocolError(f"a {kind.name} came, which only the daemon may send")
    if version != VERSION:
        return ReportRecord(kind, version=version)
    layout = LAYOUTS[kind]
    if kind is Type.GANG and packet[TERMS_AT] == 0:
        layout = TERMS
    return ReportRecord(kind, **layout.unpack(packet))
