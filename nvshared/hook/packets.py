# SPDX-License-Identifier: Apache-2.0
"""Encodes and decodes the packets of the messages in protocol.py, little-endian.

From version 3 on a packet begins with a head that has its length; then come the fields of its
message in the order of their rows, and SPARE bytes. A receiver ignores bytes behind the fields that
it knows, and takes fields that the packet does not reach for 0. So a field can be added without
another version. In version 2 a packet has 104 bytes, and the rows have the places.

This module checks a record by itself; session.py, whether it is valid in the state of the
connection."""

import struct
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from nvshared.errors import ProtocolError
from nvshared.hook.protocol import (
    NUMBER,
    OLDEST,
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

SIZE = 104                              # of a packet of version 2
BEGIN = struct.Struct("<HH")            # type and version, in every version
LENGTH = struct.Struct("<16xI")         # of a packet, in its head
LENGTH_SPOT = 16, 4, True
HEAD = 24                               # bytes: type, version, flags, number, length, 4 spare
SPARE = 16                              # bytes after the last field
LONGEST = 512                           # bytes of a packet, also in later daemons and libraries
TEXT_LONGEST = 5 * TEXT.size            # bytes of text in all records of a REASON
OF_ANY_VERSION = (Type.HELLO, Type.NAME, Type.GANG)
IN_OLDEST = frozenset({Type.REFUSED, Type.INTRODUCE})   # orders that every library can read
CODES = {2: "H", 4: "I", 8: "Q"}        # of struct, by size


class Place(NamedTuple):
    """Where a field is in a packet."""

    offset: int
    size: int
    row: Row


def places(kind: Type, version: int = VERSION, left_out: str = "") -> list[Place]:
    """The fields of a message after type and version. `left_out`: a group that is left out."""
    head = Row("", "", "")
    found, end = [Place(8, 8, head._replace(name="number"))], HEAD
    for row in rows(OrderRecord if kind.is_order else ReportRecord):
        if kind not in row.places or (left_out and row.group == left_out):
            continue
        if version > OLDEST:
            found.append(Place(end, row.kind.size, row))
            end += row.kind.size
        elif (place := row.places[kind]) is not None:
            found.append(Place(*place, row))
    if all(place.offset != 4 for place in found):
        size = 4 if version > OLDEST or kind.is_order else 2
        found.append(Place(4, size, head._replace(name="flags")))
    return sorted(found, key=itemgetter(0))


def _picked(names: Sequence[str], wanted: Callable[[str], bool]) -> tuple[
        tuple[str, ...], Callable[[Sequence[Any]], tuple[Any, ...]]]:
    """The last parts of the names that are wanted, and a function that picks their values."""
    indices = [index for index, name in enumerate(names) if wanted(name)]
    words = tuple(names[index].rpartition(".")[2] for index in indices)
    if len(indices) > 1:
        return words, itemgetter(*indices)
    return words, lambda values: tuple(values[index] for index in indices)


def _code(fields: Iterable[tuple[int, int, bool]], end: int) -> str:
    """The format for struct; `fields`: by offset, each with its size and whether it is a number."""
    code, at = "<", 0
    for offset, size, is_number in fields:
        assert offset >= at, "a field overlaps another"
        code += "x" * (offset - at) + (CODES[size] if is_number else f"{size}s")
        at = offset + size
    return code + "x" * (end - at)


class Layout:
    """The packets of a message in one version."""

    def __init__(self, kind: Type, version: int, fields: Sequence[Place]) -> None:
        self._begin = (kind, version)
        spots = [(offset, size, row.kind is NUMBER) for offset, size, row in fields]
        end = max(offset + size for offset, size, _ in spots)
        length = SIZE if version == OLDEST else max(end, HEAD) + SPARE
        self._lengths = () if version == OLDEST else (length,)
        counted = [] if version == OLDEST else [LENGTH_SPOT]
        self._fields = struct.Struct(_code(spots, end))
        self._packet = struct.Struct(
            _code([(0, 2, True), (2, 2, True), *spots[:2], *counted, *spots[2:]], length))
        names = [place.row.name for place in fields]
        self._get = attrgetter(*names)
        self._text = names.index("text") if "text" in names else None
        self._figure_names, self._figures = _picked(names, lambda name: name.startswith("memory."))
        self._names, self._others = _picked(names, lambda name: not name.startswith("memory."))

    def pack(self, record: OrderRecord | ReportRecord) -> bytes:
        values = self._get(record)
        if self._text is not None:
            at = self._text
            values = (*values[:at], values[at].encode(errors="surrogateescape"), *values[at + 1:])
        return self._packet.pack(*self._begin, *values[:2], *self._lengths, *values[2:])

    def unpack(self, packet: bytes) -> dict[str, Any]:
        """The fields by their names in the record. Raises ProtocolError for an unknown reason."""
        if len(packet) < self._fields.size:     # an older peer does not know the last fields
            packet = packet.ljust(self._fields.size, b"\0")
        values = self._fields.unpack_from(packet)
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


LAYOUTS = {version: {kind: Layout(kind, version, places(kind, version, "terms" * (
    version == OLDEST))) for kind in Type} for version in (OLDEST, VERSION)}
# In version 2 a GANG has a text or, without one, terms in the text's place.
OLD_TERMS = Layout(Type.GANG, OLDEST, [
    place for place in places(Type.GANG, OLDEST) if place.row.name != "text"])
OLD_TERMS_AT = 16                       # where the text begins
TYPES = {int(one): one for one in Type}


def encode_order(order: OrderRecord, version: int = VERSION) -> bytes:
    """Returns the packet of an order other than REASON, for a hook that speaks the version."""
    return LAYOUTS[OLDEST if order.type in IN_OLDEST else version][order.type].pack(order)


def encode(order: OrderRecord, version: int = VERSION) -> list[bytes]:
    """Returns the packets of an order. The text of a REASON loses its middle if it is too long."""
    if order.type is not Type.REASON:
        return [encode_order(order, version)]
    encoded = order.text.encode()
    if len(encoded) > TEXT_LONGEST:
        half = (TEXT_LONGEST - 3) // 2
        encoded = encoded[:half] + b"..." + encoded[-half:]
    encoded = encoded.decode(errors="ignore").encode()  # drops partial UTF-8 characters
    pieces = [encoded[at:at + TEXT.size] for at in range(0, len(encoded), TEXT.size)]
    return [
        encode_order(OrderRecord(Type.REASON, text=piece.decode(errors="surrogateescape")), version)
        for piece in pieces]


def message(packet: bytes) -> Type:
    """The type of an encoded message."""
    return Type(BEGIN.unpack_from(packet)[0])


def decode_report(packet: bytes) -> ReportRecord:
    """Decodes a hook's report. Raises ProtocolError unless the packet is one record of known type;
    of an unknown version only HELLO, which gets a refusal, NAME and GANG, without their fields."""
    if len(packet) < BEGIN.size:
        raise ProtocolError(f"a record of {len(packet)} bytes came, which is too short")
    code, version = BEGIN.unpack_from(packet)
    if (kind := TYPES.get(code)) is None:
        raise ProtocolError(f"a record of the unknown type {code} came")
    if kind.is_order:
        raise ProtocolError(f"a {kind.name} came, which only the daemon may send")
    if version not in LAYOUTS:
        if kind in OF_ANY_VERSION:
            return ReportRecord(kind, version=version)
        raise ProtocolError(f"a {kind.name} of version {version} came, and we speak "
                            + " and ".join(map(str, LAYOUTS)))
    check_length(packet)
    layout = LAYOUTS[version][kind]
    if version == OLDEST and kind is Type.GANG and packet[OLD_TERMS_AT] == 0:
        layout = OLD_TERMS
    return ReportRecord(kind, version=version, **layout.unpack(packet))


def check_length(packet: bytes) -> None:
    """Raises ProtocolError unless a packet of a known version has the length that it should."""
    length, (_, version) = SIZE, BEGIN.unpack_from(packet)
    if version > OLDEST:
        if not HEAD <= len(packet) <= LONGEST:
            raise ProtocolError(f"a record of {len(packet)} bytes came, which is too "
                                + ("short" if len(packet) < HEAD else "long"))
        length, = LENGTH.unpack_from(packet)
    if len(packet) != length:
        raise ProtocolError(f"a record of {len(packet)} bytes came, and should have {length}")
