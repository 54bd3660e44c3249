# SPDX-License-Identifier: Apache-2.0
"""The hook's side of the protocol, for tests: encodes reports and decodes orders."""

from dataclasses import astuple, replace

from nvshared.hook.protocol import (
    ANSWERS,
    HEAD,
    LENDER,
    NAMES_GPU,
    ORDER,
    REPORT,
    TERMS,
    TEXT,
    TEXTS,
    OrderRecord,
    ReportRecord,
    Type,
)


def last_words(kind: Type) -> tuple[str, str]:
    """Returns the names of the last two words of a report of this type."""
    return {
        Type.HELLO: ("commit", "pins"), Type.COMMIT: ("wanted", "pins"),
    }.get(kind, ("moved", "took"))


def decode_order(packet: bytes) -> OrderRecord:
    _, _, *fields = ORDER.unpack(packet)
    order = OrderRecord(Type(HEAD.unpack_from(packet)[0]), *fields)
    if order.loan:
        lender = LENDER.pack(order.commit, order.most)
        order = replace(order, commit=0, most=0, lender=lender)
    return order


def encode_report(report: ReportRecord) -> bytes:
    if any(report.terms):
        return HEAD.pack(report.type, report.version, 0, 0) + TERMS.pack(*report.terms)[HEAD.size:]
    if report.type in TEXTS:
        return TEXT.pack(report.type, report.version, 0, 0, report.text.encode())
    *figures, answered, to_pin, reason, _, _, _ = astuple(report.memory)
    return REPORT.pack(report.type, report.version, report.flags, reason, report.number, *figures,
                       report.uuid if report.type in NAMES_GPU else ANSWERS.pack(answered, to_pin),
                       *(getattr(report, name) for name in last_words(report.type)))
