# SPDX-License-Identifier: Apache-2.0
"""The records of libhook/include/nvshare/protocol.h, which is the specification.

One packet of the socket is one record of 104 bytes, little-endian. `decode`
checks everything that can be checked without knowing the conversation; what a
record means at its moment is session.py's to judge.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag

from nvshared.errors import ProtocolError

VERSION = 1


class Type(IntEnum):
    """enum nvshare_type."""

    WELCOME = 1
    REFUSED = 2
    RUN = 3
    STOP = 4
    EVICT = 5
    LOAD = 6
    LIMITS = 7
    INTRODUCE = 8
    YIELD = 9
    SAVE = 10

    HELLO = 64
    WANT = 65
    IDLE = 66
    STOPPED = 67
    REOPENED = 68
    EVICTED = 69
    LOADED = 70
    MEMORY = 71
    ROOM = 72
    COMMIT = 73
    BEYOND = 74
    COPYING = 75
    SAVED = 76


FROM_HOOK = frozenset(kind for kind in Type if kind >= Type.HELLO)
WITH_LIMITS = frozenset({Type.WELCOME, Type.LIMITS})
WITH_ANSWERED = FROM_HOOK - {Type.HELLO}


class Flag(IntFlag):
    """enum nvshare_flag."""

    CONTENDED = 1 << 0
    RUNNING = 1 << 1
    WANTS = 1 << 2
    NO_DEVICE_MEMORY = 1 << 3
    NO_HOST_MEMORY = 1 << 4
    DRIVER_ERROR = 1 << 5
    WATCHED = 1 << 6
    AHEAD = 1 << 7
    YIELDED = 1 << 8
    INWARD = 1 << 9
    OUTWARD = 1 << 10
    COVETED = 1 << 11


class Refusal(IntEnum):
    """enum nvshare_refusal, in the flags of REFUSED."""

    VERSION = 1
    NO_SUCH_GPU = 2
    TOO_MANY_CLIENTS = 3


@dataclass(frozen=True, slots=True)
class Memory:
    """struct nvshare_memory; bytes."""

    allocated: int = 0
    resident: int = 0
    pinned: int = 0
    pending: int = 0
    room: int = 0
    host: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """struct nvshare_limits; bytes."""

    commit: int = 0
    most: int = 0
    total: int = 0
    host_slab: int = 0
    beyond: int = 0


Raw = bytes                             # inside Record, `bytes` is a field
NO_UUID: Raw = bytes(16)

HEAD = struct.Struct("<HHIQQQQ")
MEMORY = struct.Struct("<6Q")
LIMITS = struct.Struct("<5Q8x")
UUID = struct.Struct("16s")
ANSWERED = struct.Struct("<2Q")
SIZE = HEAD.size + MEMORY.size + UUID.size


@dataclass(frozen=True, slots=True)
class Record:
    """struct nvshare_record. `memory` or `limits` counts, as the type says."""

    type: Type
    flags: int = 0
    number: int = 0
    bytes: int = 0
    host: int = 0
    microseconds: int = 0
    memory: Memory = Memory()
    limits: Limits = Limits()
    uuid: Raw = NO_UUID
    answered: int = 0                   # from the hook, where it is not HELLO, which has a uuid
    to_pin: int = 0                     # likewise
    version: int = VERSION


def encode(record: Record) -> bytes:
    """The 104 bytes of a record."""
    head = HEAD.pack(
        record.type, record.version, record.flags, record.number,
        record.bytes, record.host, record.microseconds,
    )
    if record.type in WITH_LIMITS:
        limits = record.limits
        body = LIMITS.pack(
            limits.commit, limits.most, limits.total, limits.host_slab, limits.beyond)
    else:
        memory = record.memory
        body = MEMORY.pack(
            memory.allocated, memory.resident, memory.pinned,
            memory.pending, memory.room, memory.host,
        )
    if record.type in WITH_ANSWERED:
        return head + body + ANSWERED.pack(record.answered, record.to_pin)
    return head + body + record.uuid


def decode(packet: bytes) -> Record:
    """Raises ProtocolError unless this is one record of a type and with flags we know.

    A HELLO of another version is passed on as it is, so that it can be answered.
    """
    if len(packet) != SIZE:
        raise ProtocolError(f"a record of {len(packet)} bytes came, and all have {SIZE}")
    code, version, flags, number, size, host, microseconds = HEAD.unpack_from(packet)
    try:
        kind = Type(code)
    except ValueError:
        raise ProtocolError(f"a record of the unknown type {code} came") from None
    if version != VERSION and kind is not Type.HELLO:
        raise ProtocolError(f"a {kind.name} of version {version} came, and we speak {VERSION}")
    body, tail = packet[HEAD.size:HEAD.size + MEMORY.size], packet[-UUID.size:]
    answered, to_pin = ANSWERED.unpack(tail) if kind in WITH_ANSWERED else (0, 0)
    return Record(
        kind, flags, number, size, host, microseconds,
        memory=Memory() if kind in WITH_LIMITS else Memory(*MEMORY.unpack(body)),
        limits=Limits(*LIMITS.unpack(body)) if kind in WITH_LIMITS else Limits(),
        uuid=NO_UUID if kind in WITH_ANSWERED else tail,
        answered=answered,
        to_pin=to_pin,
        version=version,
    )
