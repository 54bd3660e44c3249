# SPDX-License-Identifier: Apache-2.0
"""nvshared/hook/protocol.py has the layout of protocol.h and refuses invalid records."""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nvshared import names
from nvshared.errors import ProtocolError
from nvshared.hook import protocol
from nvshared.hook.protocol import (
    Flag,
    GivenTerms,
    OrderRecord,
    Refusal,
    ReportRecord,
    Type,
    Wait,
    decode_report,
    encode_order,
)
from nvshared.scheduler.events import Memory, PinReason
from tests.records import decode_order, encode_report, last_words

INCLUDE = Path(__file__).parents[2] / "libhook" / "include"
HEADER = INCLUDE / "nvshare" / "protocol.h"

LIMITS = ["commit", "most", "total", "host_slab", "beyond"]
FIGURES = ["allocated", "resident", "pinned", "pending", "room", "host", "beyond"]
ORDER = ["room", "host", "writeback", "step_pause", "idle_window"]
FIELDS = {
    "nvshare_order": [
        "type", "version", "flags", "refusal", "waits_for", "number", *ORDER, "file", "limits",
        "lender", "loan"],
    "nvshare_limits": LIMITS,
    "nvshare_memory": FIGURES,
    "nvshare_report": [
        "type", "version", "flags", "pin_reason", "number", "memory", "uuid", "answered", "to_pin",
        "commit", "wanted", "pins", "moved", "took", "text", "terms"],
    "nvshare_terms": list(GivenTerms._fields),
}


def enumerators(name: str) -> list[str]:
    body = re.search(rf"enum {name} {{(.*?)}};", HEADER.read_text(), re.S)
    assert body is not None
    return re.findall(r"\b(NVSHARE_\w+)\s*=", re.sub(r"/\*.*?\*/", "", body.group(1), flags=re.S))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """Every value, offset and size of the header, as the C compiler sees them."""
    if shutil.which("gcc") is None:
        pytest.skip("there is no gcc on this machine")
    enums = (
        "nvshare_type", "nvshare_flag", "nvshare_refusal", "nvshare_wait", "nvshare_pin_reason")
    values = [name for enum in enums for name in enumerators(enum)]
    lines = [f'printf("{v} %d\\n", (int){v});' for v in [*values, "NVSHARE_PROTOCOL_VERSION"]]
    for struct, fields in FIELDS.items():
        lines.append(f'printf("{struct} %d\\n", (int)sizeof(struct {struct}));')
        lines += [
            f'printf("{struct}.{field} %d\\n", (int)offsetof(struct {struct}, {field}));'
            for field in fields]
    folder = tmp_path_factory.mktemp("protocol")
    source, program = folder / "layout.c", folder / "layout"
    source.write_text(
        "#include <stddef.h>\n#include <stdio.h>\n#include <nvshare/protocol.h>\n"
        "int main(void) {\n" + "\n".join(lines) + "\nreturn 0; }\n")
    subprocess.run(["gcc", "-std=c11", f"-I{INCLUDE}", source, "-o", program], check=True)
    out = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return {name: int(value) for name, value in (line.split() for line in out.splitlines())}


def test_protocol_constants_and_record_sizes_equal_the_header(
        compiled: dict[str, int]) -> None:
    for kind, prefix, enum in (
        (Type, "", "type"), (Flag, "", "flag"), (Refusal, "REFUSED_", "refusal"),
        (Wait, "WAITS_", "wait"), (PinReason, "PIN_", "pin_reason"),
    ):
        assert {f"NVSHARE_{prefix}{one.name}": one.value for one in kind} == {
            name: compiled[name] for name in enumerators(f"nvshare_{enum}")}
    assert compiled["nvshare_order"] == protocol.ORDER.size == protocol.SIZE
    assert compiled["nvshare_report"] == protocol.REPORT.size == protocol.SIZE
    assert compiled["NVSHARE_PROTOCOL_VERSION"] == protocol.VERSION
    assert f'NVSHARE_DEFAULT_SOCKET "{names.DEFAULT_SOCKET}"' in HEADER.read_text()


def compare(packet: bytes, compiled: dict[str, int], expected: list[tuple[str, int, int]]) -> None:
    """Each field is at the offset that protocol.h gives; all other bytes of the packet are zero."""
    rest = bytearray(packet)
    for field, size, value in expected:
        struct, _, last = field.rpartition(".")
        offset = compiled[field] if struct in FIELDS else (
            compiled[struct] + compiled[f"nvshare_{struct.rpartition('.')[2]}.{last}"])
        assert int.from_bytes(packet[offset:offset + size], "little") == value, field
        rest[offset:offset + size] = bytes(size)
    assert rest == bytes(protocol.SIZE)


def test_order_fields_have_the_offsets_of_the_header(compiled: dict[str, int]) -> None:
    values: dict[str, Any] = {name: 100 + number for number, name in enumerate([*ORDER, *LIMITS])}
    packet = encode_order(OrderRecord(Type.EVICT, 0x11121314, 2, **values))
    compare(packet, compiled, [
        ("nvshare_order.type", 2, Type.EVICT),
        ("nvshare_order.version", 2, protocol.VERSION),
        ("nvshare_order.flags", 4, 0x11121314),
        ("nvshare_order.number", 8, 2),
        *((f"nvshare_order.{name}", 8, values[name]) for name in ORDER),
        *((f"nvshare_order.limits.{name}", 8, values[name]) for name in LIMITS)])
    borrowing = replace(
        OrderRecord(Type.EVICT), loan=200, lender=bytes.fromhex("1122334455667788" * 2))
    compare(encode_order(borrowing), compiled, [
        ("nvshare_order.type", 2, Type.EVICT),
        ("nvshare_order.version", 2, protocol.VERSION),
        ("nvshare_order.lender", 16, int.from_bytes(borrowing.lender, "little")),
        ("nvshare_order.loan", 8, 200)])
    assert decode_order(encode_order(borrowing)) == borrowing
    assert compiled["nvshare_order.file"] == compiled["nvshare_order.writeback"]
    assert compiled["nvshare_order.refusal"] == compiled["nvshare_order.flags"]
    assert compiled["nvshare_order.waits_for"] == compiled["nvshare_order.flags"]


@pytest.mark.parametrize("kind", [Type.COMMIT, Type.MOVED, Type.STOPPED, Type.HELLO])
def test_report_fields_have_the_offsets_of_the_header(compiled: dict[str, int], kind: Type) -> None:
    figures = {name: 10 + number for number, name in enumerate(FIGURES)}
    heard = {} if kind is Type.HELLO else {"answered": 30, "to_pin": 31}
    uuid = bytes(range(1, 17))
    packet = encode_report(ReportRecord(kind, 0x1112, 2,
                                        Memory(**figures, **heard, pin_reason=PinReason.UNSEEN),
                                        uuid, 40, 41, 42, 50, 51))
    values = {"commit": 40, "wanted": 41, "pins": 42, "moved": 50, "took": 51}
    compare(packet, compiled, [
        ("nvshare_report.type", 2, kind),
        ("nvshare_report.version", 2, protocol.VERSION),
        ("nvshare_report.flags", 2, 0x1112),
        ("nvshare_report.pin_reason", 2, PinReason.UNSEEN),
        ("nvshare_report.number", 8, 2),
        *((f"nvshare_report.memory.{name}", 8, figures[name]) for name in FIGURES),
        *((f"nvshare_report.{name}", 8, value) for name, value in heard.items()),
        *((f"nvshare_report.{name}", 8, values[name]) for name in last_words(kind)),
        *([] if heard else [("nvshare_report.uuid", 16, int.from_bytes(uuid, "little"))])])


@pytest.mark.parametrize(("packet", "sentence"), [
    (b"", "a record of 0 bytes came, and all have 104"),
    (bytes(105), "a record of 105 bytes came, and all have 104"),
    (bytes(104), "a record of the unknown type 0 came"),
    (b"\x41\x00\x07\x00" + bytes(100), "a MEMORY of version 7 came, and we speak 2"),
    (b"\x03\x00\x02\x00" + bytes(100), "a RUN came, which only the daemon may send"),
])
def test_invalid_report_is_refused_with_the_received_value(packet: bytes, sentence: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_report(packet)
    assert str(caught.value) == sentence


def test_name_report_has_the_offset_of_the_header_and_drops_partial_utf_8(
        compiled: dict[str, int]) -> None:
    packet = encode_report(ReportRecord(Type.NAME, text="tr\u00e4in"))
    assert packet[compiled["nvshare_report.text"]:] == b"tr\xc3\xa4in".ljust(88, b"\0")
    assert decode_report(packet) == ReportRecord(Type.NAME, text="tr\u00e4in")
    whole = ReportRecord(Type.NAME, text="x" * 88)      # a text without a terminating zero
    assert decode_report(encode_report(whole)) == whole
    cut = encode_report(ReportRecord(Type.NAME))[:16] + b"x" * 87 + b"\xc3"
    assert decode_report(cut).text == "x" * 87
    for kind in (Type.NAME, Type.HELLO):
        assert decode_report(encode_report(ReportRecord(kind, version=9))).version == 9


def test_terms_have_the_offsets_of_the_header_in_a_gang_without_text(
        compiled: dict[str, int]) -> None:
    """A daemon that knows no terms reads an empty text, which names no gang."""
    given = ReportRecord(Type.GANG, terms=GivenTerms(1 << 40, 50, 7, 1))
    packet = encode_report(given)
    compare(packet, compiled, [
        ("nvshare_report.type", 2, Type.GANG),
        ("nvshare_report.version", 2, protocol.VERSION),
        *((f"nvshare_report.terms.{name}", 8, value) for name, value in given.terms._asdict(
            ).items())])
    assert decode_report(packet) == given
    assert packet[compiled["nvshare_report.text"]] == 0
    assert not any(decode_report(encode_report(ReportRecord(Type.GANG, text="a"))).terms)
