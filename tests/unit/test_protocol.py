# SPDX-License-Identifier: Apache-2.0
"""Packets in Python and in C follow the table of messages, and invalid packets are refused."""

import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from libhook import messages
from nvshared import names
from nvshared.errors import ProtocolError
from nvshared.hook import packets
from nvshared.hook.packets import decode_report, encode_order, places
from nvshared.hook.protocol import (
    NUMBER,
    TEXT,
    Flag,
    OrderRecord,
    ReportRecord,
    Row,
    Type,
)
from nvshared.scheduler.events import Memory, PinReason
from tests.records import decode_order, encode_report

LIBHOOK = Path(__file__).parents[2] / "libhook"
ORDERS = [kind for kind in Type if kind.is_order]
REPORTS = [kind for kind in Type if not kind.is_order]
UUID = bytes(range(1, 17))


def value(row: Row, index: int) -> Any:
    """A value of a field, which no other field has."""
    if row.name == "memory.pin_reason":
        return PinReason.UNSEEN
    return 100 + index if row.kind is NUMBER else "tr\u00e4in" if row.kind is TEXT else UUID


def fields_of(kind: Type, *, terms: bool = False) -> dict[str, Any]:
    """Values of all fields of a message, by their names. A GANG has a text or terms."""
    return {place.row.name: value(place.row, index) for index, place in enumerate(places(kind))
            if kind is not Type.GANG or terms == (place.row.group == "terms") or index == 0}


def record(kind: Type, given: dict[str, Any]) -> Any:
    words = {name: one for name, one in given.items() if not name.startswith("memory.")}
    figures = {name.removeprefix("memory."): one for name, one in given.items()
               if name.startswith("memory.")}
    if kind.is_order:
        return OrderRecord(kind, **words)
    return ReportRecord(kind, memory=Memory(**figures), **words)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that encodes each report as fields_of(), and prints the fields of orders."""
    if shutil.which("gcc") is None:
        pytest.skip("there is no gcc on this machine")
    lines = []
    for kind in REPORTS:
        lines.append(f"{{ struct nvshare_report one = {{ .type = {int(kind)}, "
                     ".version = NVSHARE_PROTOCOL_VERSION };")
        given = fields_of(kind)
        for place in places(kind):
            if (one := given.get(place.row.name)) is None:
                continue
            member = f"one.{place.row.member}"
            lines.append(
                f"{member} = {int(one)};" if isinstance(one, int)
                else f"memcpy({member}, {text(one)}, {len(raw(one))});")
        lines.append("packet_write(&packet_reports, &one, packet); show(); }")
    lines.append("while (fread(packet, sizeof packet, 1, stdin) == 1) { struct nvshare_order one; "
                 "packet_read(&packet_orders, packet, &one, sizeof one);")
    for kind in ORDERS:
        lines.append(f"if (one.type == {int(kind)}) {{")
        for place in places(kind):
            member = f"one.{place.row.member}"
            lines.append(
                f'printf("%llu ", (unsigned long long){member});' if place.row.kind is NUMBER
                else f'for (size_t i = 0; i < sizeof {member}; i++) '
                f'printf("%02x%s", (unsigned char){member}[i], i + 1 < sizeof {member} ? "" : " ");'
            )
        lines.append('puts(""); }')
    folder = tmp_path_factory.mktemp("protocol")
    source, program = folder / "packets.c", folder / "packets"
    source.write_text(
        "#include <stdio.h>\n#include <string.h>\n#include \"gate/packet.h\"\n"
        "static unsigned char packet[NVSHARE_PACKET_SIZE];\n"
        "static void show(void) { for (size_t i = 0; i < sizeof packet; i++) "
        'printf("%02x", packet[i]); puts(""); }\n'
        "int main(void) {\n" + "\n".join([*lines, "}", "return 0; }"]))
    subprocess.run(["gcc", "-std=gnu11", "-Wall", "-Werror", f"-I{LIBHOOK / 'include'}",
                    f"-I{LIBHOOK / 'src'}", source, LIBHOOK / "src" / "gate" / "packet.c",
                    "-o", program], check=True)
    return program


def raw(one: str | bytes) -> bytes:
    return one if isinstance(one, bytes) else one.encode()


def text(one: str | bytes) -> str:
    return '"' + "".join(f"\\x{byte:02x}" for byte in raw(one)) + '"'


def test_header_and_page_are_made_from_the_table() -> None:
    stale = "is out of date: make -C libhook protocol"
    assert messages.HEADER.read_text() == messages.header(), f"{messages.HEADER.name} {stale}"
    assert messages.PAGE.read_text() == messages.page(), f"{messages.PAGE.name} {stale}"
    header = (messages.HEADER.parent / "protocol.h").read_text()
    assert f'NVSHARE_DEFAULT_SOCKET "{names.DEFAULT_SOCKET}"' in header
    assert f"NVSHARE_PACKET_SIZE {packets.SIZE}\n" in header


def test_library_and_daemon_place_each_field_of_each_message_equally(compiled: Path) -> None:
    orders = {kind: fields_of(kind) for kind in ORDERS}
    sent = b"".join(encode_order(record(kind, given)) for kind, given in orders.items())
    out = subprocess.run([compiled], input=sent, check=True, capture_output=True).stdout
    lines = out.decode().splitlines()
    assert len(lines) == len(Type)
    for kind, line in zip(REPORTS, lines, strict=False):
        given = record(kind, fields_of(kind))
        assert decode_report(bytes.fromhex(line)) == given, kind.name
        assert encode_report(given).hex() == line, kind.name
    for kind, line in zip(ORDERS, lines[len(REPORTS):], strict=True):
        expected = [str(one) if isinstance(one, int) else raw(one).ljust(
            TEXT.size if isinstance(one, str) else 16, b"\0").hex()
            for one in orders[kind].values()]
        assert line.split() == expected, kind.name
        packet = encode_order(record(kind, orders[kind]))
        assert decode_order(packet) == record(kind, orders[kind])


def test_packets_of_version_2_are_those_of_the_first_release() -> None:
    """Programs that run during an upgrade have libraries of that release."""
    evict = OrderRecord(Type.EVICT, 3, 4, room=5, host=6, writeback=7, lender=UUID, loan=8)
    assert encode_order(evict) == struct.pack("<HHIQ5Q16s24xQ", 5, 2, 3, 4, 5, 6, 7, 0, 0, UUID, 8)
    limits = OrderRecord(Type.LIMITS, 0, 4, commit=5, most=6, total=7, host_slab=8, beyond=9)
    assert encode_order(limits) == struct.pack("<HHIQ40x5Q8x", 1, 2, 0, 4, 5, 6, 7, 8, 9)
    run = OrderRecord(Type.RUN, 3, step_pause=5, idle_window=6)
    assert encode_order(run) == struct.pack("<HHIQ24x2Q48x", 3, 2, 3, 0, 5, 6)
    for order, code in (
        (OrderRecord(Type.STORE, number=4, file=5), "<HHIQ16xQ64x"),
        (OrderRecord(Type.PARK, number=4, host=5), "<HHIQ8xQ72x"),
        (OrderRecord(Type.PREALLOCATE, number=4, host=5), "<HHIQ8xQ72x"),
    ):
        assert encode_order(order) == struct.pack(code, order.type, 2, 0, 4, 5)
    refused = OrderRecord(Type.REFUSED, refusal=2)
    assert encode_order(refused) == struct.pack("<HHI96x", 2, 2, 2)
    queued = OrderRecord(Type.QUEUED, number=4, waits_for=5)
    assert encode_order(queued) == struct.pack("<HHIQ88x", 9, 2, 5, 4)
    unpark = OrderRecord(Type.UNPARK, Flag.DRIVER_ERROR, gpu=UUID)
    assert encode_order(unpark) == struct.pack("<HHIQ16s72x", 15, 2, 128, 0, UUID)
    reason = OrderRecord(Type.REASON, text="because")
    assert encode_order(reason) == struct.pack("<HHIQ88s", 10, 2, 0, 0, b"because")
    memory = Memory(1, 2, 3, 4, 5, 6, 7, pin_reason=PinReason.GIVEN)
    answers = struct.pack("<2Q", 8, 9)
    heard = Memory(1, 2, 3, 4, 5, 6, 7, 8, 9, PinReason.GIVEN)
    for report, tail, last in (
        (ReportRecord(Type.HELLO, 11, 12, memory, UUID, commit=13, context=14), UUID, (13, 14)),
        (ReportRecord(Type.BORROWED, 11, 12, memory, UUID, moved=13, dirty=14), UUID, (13, 14)),
        (ReportRecord(Type.COMMIT, 11, 12, heard, wanted=13, pins=14), answers, (13, 14)),
        (ReportRecord(Type.MOVED, 11, 12, heard, moved=13, took=14), answers, (13, 14)),
        (ReportRecord(Type.STORED, 11, 12, heard, moved=13, error=14), answers, (13, 14)),
        (ReportRecord(Type.STOPPED, 11, 12, heard, used=13, took=14), answers, (13, 14)),
        (ReportRecord(Type.PARKED, 11, 12, heard, park=1), answers, (1, 0)),
        (ReportRecord(Type.MEMORY, 11, 12, heard), answers, (0, 0)),
    ):
        packet = struct.pack(
            "<4HQ7Q16s2Q", report.type, 2, 11, 3, 12, *range(1, 8), tail, *last)
        assert decode_report(packet) == report
        assert encode_report(report) == packet
    gang = struct.pack("<HHIQ88s", 75, 2, 0, 0, b"a:4")
    assert decode_report(gang) == ReportRecord(Type.GANG, text="a:4")
    terms = struct.pack("<HHIQ8x4Q48x", 75, 2, 0, 0, 1 << 40, 50, 7, 1)
    given = ReportRecord(
        Type.GANG, memory_limit=1 << 40, compute_limit=50, weight=7, priority=1)
    assert decode_report(terms) == given
    assert encode_report(given) == terms


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


def test_text_of_a_report_may_fill_its_field_and_drops_partial_utf_8() -> None:
    whole = ReportRecord(Type.NAME, text="x" * 88)      # a text without a terminating zero
    assert decode_report(encode_report(whole)) == whole
    cut = encode_report(ReportRecord(Type.NAME))[:16] + b"x" * 87 + b"\xc3"
    assert decode_report(cut).text == "x" * 87


def test_report_of_another_version_keeps_its_type_and_version() -> None:
    for kind in (Type.NAME, Type.GANG, Type.HELLO):
        packet = encode_report(ReportRecord(kind, version=9, commit=7, text="a"))
        assert decode_report(packet) == ReportRecord(kind, version=9)


