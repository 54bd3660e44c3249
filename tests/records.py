# SPDX-License-Identifier: Apache-2.0
"""The hook's side of the protocol, for tests: encodes reports and decodes orders."""

from operator import attrgetter

from nvshared.hook.packets import BEGIN, LAYOUTS, OLD_TERMS, check_length, message
from nvshared.hook.protocol import OLDEST, OrderRecord, ReportRecord, Type, rows

_terms = attrgetter(*(row.name for row in rows(ReportRecord) if row.group == "terms"))


def decode_order(packet: bytes) -> OrderRecord:
    kind, (_, version) = message(packet), BEGIN.unpack_from(packet)
    check_length(packet)
    return OrderRecord(kind, **LAYOUTS[version][kind].unpack(packet))


def encode_report(report: ReportRecord) -> bytes:
    """Also of a version or of a type that no hook may send, with the fields of MEMORY."""
    layouts = LAYOUTS.get(report.version, LAYOUTS[OLDEST])
    layout = layouts[Type.MEMORY if report.type.is_order else report.type]
    if report.version == OLDEST and report.type is Type.GANG and any(_terms(report)):
        layout = OLD_TERMS
    return BEGIN.pack(report.type, report.version) + layout.pack(report)[BEGIN.size:]
