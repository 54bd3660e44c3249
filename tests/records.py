# SPDX-License-Identifier: Apache-2.0
"""The hook's side of the protocol, for tests: encodes reports and decodes orders."""

from operator import attrgetter

from nvshared.hook.packets import BEGIN, LAYOUTS, TERMS, message
from nvshared.hook.protocol import OrderRecord, ReportRecord, Type, rows

_terms = attrgetter(*(row.name for row in rows(ReportRecord) if row.group == "terms"))


def decode_order(packet: bytes) -> OrderRecord:
    kind = message(packet)
    return OrderRecord(kind, **LAYOUTS[kind].unpack(packet))


def encode_report(report: ReportRecord) -> bytes:
    """Also of a type that a hook may not send, with the fields of MEMORY."""
    if report.type.is_order:
        return BEGIN.pack(report.type, report.version) + LAYOUTS[Type.MEMORY].pack(report)[4:]
    has_terms = report.type is Type.GANG and any(_terms(report))
    layout = TERMS if has_terms else LAYOUTS[report.type]
    return layout.pack(report, report.version)
