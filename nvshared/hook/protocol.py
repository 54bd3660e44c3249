# SPDX-License-Identifier: Apache-2.0
"""Encodes and decodes the records that libhook/include/nvshare/protocol.h specifies.

Each record is a packet of 104 bytes, little-endian. This module checks a record by itself;
session.py, whether it is valid in the state of the connection."""

import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from functools import partial
from typing import NamedTuple

from nvshared.errors import ProtocolError
from nvshared.scheduler.events import Memory, PinReason

VERSION = 2


# The enumerations of protocol.h. Of nvshare_type, orders of the daemon come before HELLO.
Type = IntEnum("Type", {
    "LIMITS": 1, "REFUSED": 2, "RUN": 3, "STOP": 4, "EVICT": 5, "LOAD": 6, "YIELD": 7,
    "INTRODUCE": 8, "QUEUED": 9, "REASON": 10, "PUBLISH": 11, "WATCH": 12, "PREALLOCATE": 13,
    "PARK": 14, "UNPARK": 15, "STORE": 16, "LEAVE": 17,
    "HELLO": 64, "MEMORY": 65, "IDLE": 66, "STOPPED": 67, "REOPENED": 68, "MOVED": 69, "COMMIT": 70,
    "COPIES": 71, "WAITING": 72, "NAME": 73, "BUSY": 74, "GANG": 75, "BORROWED": 76, "PARKED": 77,
    "WAKE": 78, "STORED": 79,
})
Flag = IntFlag("Flag", [               # bits 0 to 15
    "PACE", "REPORT_IDLE", "REPORT_COPIES", "AHEAD", "KEEP", "YIELDED", "NO_MEMORY", "DRIVER_ERROR",
    "WANTS", "RUNNING", "INWARD", "OUTWARD", "REPORT_BUSY", "GAPS", "STEP", "IS_PARKED",
])
Refusal = IntEnum("Refusal", ["VERSION", "NO_SUCH_GPU", "TOO_MANY_CLIENTS"])
Park = IntEnum("Park", ["DONE", "BUSY", "CALLED", "SEVERAL", "HOLDS", "UNSEEN"], start=0)
Wait = IntEnum("Wait", ["MOVES", "TURN", "ROOM", "SHARE", "RESUME", "GANG"], start=0)

NO_UUID = bytes(16)
HEAD = struct.Struct("<HHIQ")
ORDER = struct.Struct("<HHIQ11Q")
LENDER = struct.Struct("<2Q")
TEXT = struct.Struct("<HHIQ88s")
TERMS = struct.Struct("<16x8x4Q48x")
REPORT = struct.Struct("<HHHHQ7Q16s2Q")
ANSWERS = struct.Struct("<2Q")
SIZE = 104
TYPES = {int(one): one for one in Type}
REASONS = {int(one): one for one in PinReason if one is not PinReason.KEPT}    # sent by hooks
TEXT_PIECE = 88                         # bytes of text in one record
TEXT_LONGEST = 5 * TEXT_PIECE           # bytes of text in all records of a REASON
TEXTS = (Type.NAME, Type.GANG)
NAMES_GPU = frozenset({Type.HELLO, Type.BORROWED})      # types with a UUID in place of ANSWERS


@dataclass(frozen=True, slots=True)
class OrderRecord:
    """struct nvshare_order, daemon to hook."""

    type: Type
    flags: int = 0                      # in REFUSED a Refusal, in QUEUED a Wait
    number: int = 0
    room: int = 0
    host: int = 0
    writeback: int = 0                  # in STORE: the field `file`
    step_pause: int = 0
    idle_window: int = 0
    commit: int = 0                     # from here on struct nvshare_limits
    most: int = 0
    total: int = 0
    host_slab: int = 0
    beyond: int = 0
    loan: int = 0                       # in EVICT
    lender: bytes = b""                 # UUID; in EVICT, at the offset of struct nvshare_limits
    text: str = ""                      # in REASON, which is sent in several packets


class GivenTerms(NamedTuple):
    """struct nvshare_terms, from the program's environment; 0: not given."""

    memory_limit: int = 0
    compute_limit: int = 0
    weight: int = 0
    priority: int = 0


@dataclass(frozen=True, slots=True)
class ReportRecord:
    """struct nvshare_report, hook to daemon."""

    type: Type
    flags: int = 0
    number: int = 0
    memory: Memory = Memory()           # `answered`, `to_pin` are 0 in HELLO and BORROWED
    uuid: bytes = NO_UUID               # in HELLO, BORROWED
    commit: int = 0                     # in HELLO
    wanted: int = 0                     # in COMMIT
    pins: int = 0                       # in COMMIT; in HELLO: the field `context`
    moved: int = 0                      # not in HELLO and COMMIT; in STOPPED: the field `used`
    took: int = 0                       # us; in STORED an errno, in BORROWED bytes
    version: int = VERSION
    text: str = ""                      # in NAME, GANG
    terms: GivenTerms = GivenTerms()    # in a GANG without text

    def has(self, flag: Flag) -> bool:
        """Whether the record has this flag."""
        return bool(self.flags & flag)


def encode_order(order: OrderRecord) -> bytes:
    """Returns the packet of an order other than REASON."""
    begin = LENDER.unpack(order.lender) if order.lender else (order.commit, order.most)
    return ORDER.pack(
        order.type, VERSION, order.flags, order.number,
        order.room, order.host, order.writeback, order.step_pause, order.idle_window,
        *begin, order.total, order.host_slab, order.beyond, order.loan)


def encode(order: OrderRecord) -> list[bytes]:
    """Returns the packets of an order. The text of a REASON loses its middle if it is too long."""
    if order.type is not Type.REASON:
        return [encode_order(order)]
    encoded = order.text.encode()
    if len(encoded) > TEXT_LONGEST:
        half = (TEXT_LONGEST - 3) // 2
        encoded = encoded[:half] + b"..." + encoded[-half:]
    encoded = encoded.decode(errors="ignore").encode()  # drops partial UTF-8 characters
    return [
        TEXT.pack(Type.REASON, VERSION, 0, 0, encoded[start:start + TEXT_PIECE])
        for start in range(0, len(encoded), TEXT_PIECE)]


def order_type(packet: bytes) -> Type:
    return Type(HEAD.unpack_from(packet)[0])


def decode_report(packet: bytes) -> ReportRecord:
    """Decodes a hook's report. Raises ProtocolError unless the packet is one record of known type;
    of another version only HELLO, which gets a refusal, NAME and GANG."""
    if len(packet) != SIZE:
        raise ProtocolError(f"a record of {len(packet)} bytes came, and all have {SIZE}")
    code, version, _, _ = HEAD.unpack_from(packet)
    if code not in TYPES:
        raise ProtocolError(f"a record of the unknown type {code} came")
    kind = TYPES[code]
    if version != VERSION and kind not in (Type.HELLO, *TEXTS):
        raise ProtocolError(f"a {kind.name} of version {version} came, and we speak {VERSION}")
    if kind < Type.HELLO:
        raise ProtocolError(f"a {kind.name} came, which only the daemon may send")
    if kind in TEXTS:
        text = TEXT.unpack(packet)[-1].partition(b"\0")[0].decode(errors="ignore")
        terms = kind is Type.GANG and version == VERSION and packet[HEAD.size] == 0
        return ReportRecord(kind, version=version, text=text, terms=GivenTerms(
            *(TERMS.unpack(packet) if terms else ())))
    _, _, flags, reason, number, *figures, tail, first, second = REPORT.unpack(packet)
    reason = reason if version == VERSION else 0    # other versions may use the field differently
    if reason not in REASONS:
        raise ProtocolError(f"the unknown reason {reason} to stay came")
    answers, uuid = ((0, 0), tail) if kind in NAMES_GPU else (ANSWERS.unpack(tail), NO_UUID)
    memory = Memory(*[*figures, *answers, REASONS[reason]])
    record = partial(ReportRecord, kind, flags, number, memory, uuid)
    match kind:
        case Type.HELLO:
            return record(commit=first, pins=second, version=version)
        case Type.COMMIT:
            return record(wanted=first, pins=second)
    return record(moved=first, took=second)
