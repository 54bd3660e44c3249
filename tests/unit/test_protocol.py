# SPDX-License-Identifier: Apache-2.0
"""Packets in Python and in C follow the table of messages, and invalid packets are refused."""

import shutil
import struct
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from libhook import messages
from nvshared import names
from nvshared.errors import ProtocolError
from nvshared.hook import packets, protocol
from nvshared.hook.packets import decode_report, encode_order, places
from nvshared.hook.protocol import (
    NUMBER,
    OLDEST,
    TEXT,
    VERSION,
    Flag,
    OrderRecord,
    ReportRecord,
    Row,
    Type,
    rows,
)
from nvshared.scheduler.events import Memory, PinReason
from tests.records import decode_order, encode_report

LIBHOOK = Path(__file__).parents[2] / "libhook"
ORDERS = [kind for kind in Type if kind.is_order]
REPORTS = [kind for kind in Type if not kind.is_order]
UUID = bytes(range(1, 17))
MEMBERS = {row.name: row.member for row in rows(ReportRecord)}


def value(row: Row, index: int) -> Any:
    """A value of a field, which no other field has."""
    if row.name == "memory.pin_reason":
        return PinReason.UNSEEN
    return 100 + index if row.kind is NUMBER else "tr\u00e4in" if row.kind is TEXT else UUID


def fields_of(kind: Type, version: int) -> dict[str, Any]:
    """Values of all fields of a message, by their names. In version 2 a GANG has no terms."""
    return {place.row.name: value(place.row, index) for index, place in enumerate(
        places(kind, version, "terms" if version == OLDEST else ""))}


def record(kind: Type, given: dict[str, Any], version: int) -> Any:
    words = {name: one for name, one in given.items() if not name.startswith("memory.")}
    figures = {name.removeprefix("memory."): one for name, one in given.items()
               if name.startswith("memory.")}
    if kind.is_order:
        return OrderRecord(kind, **words)
    return ReportRecord(kind, memory=Memory(**figures), **words, version=version)


def program_in_c(folder: Path, include: Path, version: int) -> Path:
    """A program that encodes each report as fields_of(), and prints the fields of orders, which
    come on stdin in LONGEST bytes each, after their length in 4 bytes."""
    lines = []
    for kind in REPORTS:
        lines.append(f"{{ struct nvshare_report one = {{ .type = {int(kind)} }};")
        for name, one in fields_of(kind, version).items():
            member = f"one.{MEMBERS.get(name, name)}"
            lines.append(
                f"{member} = {int(one)};" if isinstance(one, int)
                else f"memcpy({member}, {text(one)}, {len(raw(one))});")
        lines.append(f"show(packet_write(&packet_reports, &one, {version}, packet)); }}")
    lines.append(
        "uint32_t length; while (fread(&length, 4, 1, stdin) == 1 "
        "&& fread(packet, sizeof packet, 1, stdin) == 1) { struct nvshare_order one; "
        'if (!packet_read(&packet_orders, packet, length, &one, sizeof one)) puts("invalid");')
    for kind in ORDERS:
        lines.append(f"else if (one.type == {int(kind)}) {{")
        for place in places(kind, version):
            member = f"one.{place.row.member}"
            lines.append(
                f'printf("%llu ", (unsigned long long){member});' if place.row.kind is NUMBER
                else f'for (size_t i = 0; i < sizeof {member}; i++) '
                f'printf("%02x%s", (unsigned char){member}[i], i + 1 < sizeof {member} ? "" : " ");'
            )
        lines.append('puts(""); }')
    source, program = folder / "packets.c", folder / "packets"
    source.write_text(
        "#include <stdio.h>\n#include <string.h>\n#include \"gate/packet.h\"\n"
        "static unsigned char packet[NVSHARE_PACKET_LONGEST];\n"
        "static void show(size_t size) { for (size_t i = 0; i < size; i++) "
        'printf("%02x", packet[i]); puts(""); }\n'
        "int main(void) {\n" + "\n".join([*lines, "}", "return 0; }"]))
    subprocess.run(["gcc", "-std=gnu11", "-Wall", "-Werror", f"-I{include}",
                    f"-I{LIBHOOK / 'include'}", f"-I{LIBHOOK / 'src'}", source,
                    LIBHOOK / "src" / "gate" / "packet.c", "-o", program], check=True)
    return program


def carried_out(program: Path, orders: list[bytes]) -> list[str]:
    """The lines that the program prints: its reports, and the fields of these orders."""
    sent = b"".join(len(one).to_bytes(4, "little") + one.ljust(packets.LONGEST, b"\0")
                    for one in orders)
    return subprocess.run(
        [program], input=sent, check=True, capture_output=True).stdout.decode().splitlines()


@pytest.fixture(scope="module", params=[OLDEST, VERSION])
def compiled(
        request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[int, Path]:
    """A version, and the program for it."""
    if shutil.which("gcc") is None:
        pytest.skip("there is no gcc on this machine")
    folder = tmp_path_factory.mktemp("protocol")
    return request.param, program_in_c(folder, LIBHOOK / "include", request.param)


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


def test_library_and_daemon_place_each_field_of_each_message_equally(
        compiled: tuple[int, Path]) -> None:
    version, program = compiled
    sent = [packets.LAYOUTS[version][kind].pack(record(kind, fields_of(kind, version), version))
            for kind in ORDERS]
    lines = carried_out(program, sent)
    assert len(lines) == len(Type)
    for kind, line in zip(REPORTS, lines, strict=False):
        given = record(kind, fields_of(kind, version), version)
        assert decode_report(bytes.fromhex(line)) == given, kind.name
        assert encode_report(given).hex() == line, kind.name
    for kind, packet, line in zip(ORDERS, sent, lines[len(REPORTS):], strict=True):
        fields = fields_of(kind, version)
        expected = [str(one) if isinstance(one, int) else raw(one).ljust(
            TEXT.size if isinstance(one, str) else 16, b"\0").hex() for one in fields.values()]
        assert line.split() == expected, kind.name
        assert decode_order(packet) == record(kind, fields, version)


def test_packets_of_version_2_are_unchanged() -> None:
    """Programs that run during an upgrade have libraries that speak it."""
    old, report_of = partial(encode_order, version=OLDEST), partial(ReportRecord, version=OLDEST)
    evict = OrderRecord(Type.EVICT, 3, 4, room=5, host=6, writeback=7, lender=UUID, loan=8)
    assert old(evict) == struct.pack("<HHIQ5Q16s24xQ", 5, 2, 3, 4, 5, 6, 7, 0, 0, UUID, 8)
    limits = OrderRecord(Type.LIMITS, 0, 4, commit=5, most=6, total=7, host_slab=8, beyond=9)
    assert old(limits) == struct.pack("<HHIQ40x5Q8x", 1, 2, 0, 4, 5, 6, 7, 8, 9)
    run = OrderRecord(Type.RUN, 3, step_pause=5, idle_window=6)
    assert old(run) == struct.pack("<HHIQ24x2Q48x", 3, 2, 3, 0, 5, 6)
    for order, code in (
        (OrderRecord(Type.STORE, number=4, file=5), "<HHIQ16xQ64x"),
        (OrderRecord(Type.PARK, number=4, host=5), "<HHIQ8xQ72x"),
        (OrderRecord(Type.PREALLOCATE, number=4, host=5), "<HHIQ8xQ72x"),
    ):
        assert old(order) == struct.pack(code, order.type, 2, 0, 4, 5)
    refused = OrderRecord(Type.REFUSED, refusal=2)
    assert old(refused) == struct.pack("<HHI96x", 2, 2, 2)
    queued = OrderRecord(Type.QUEUED, number=4, waits_for=5)
    assert old(queued) == struct.pack("<HHIQ88x", 9, 2, 5, 4)
    unpark = OrderRecord(Type.UNPARK, Flag.DRIVER_ERROR, gpu=UUID)
    assert old(unpark) == struct.pack("<HHIQ16s72x", 15, 2, 128, 0, UUID)
    reason = OrderRecord(Type.REASON, text="because")
    assert old(reason) == struct.pack("<HHIQ88s", 10, 2, 0, 0, b"because")
    memory = Memory(1, 2, 3, 4, 5, 6, 7, pin_reason=PinReason.GIVEN)
    answers = struct.pack("<2Q", 8, 9)
    heard = Memory(1, 2, 3, 4, 5, 6, 7, 8, 9, PinReason.GIVEN)
    for report, tail, last in (
        (report_of(Type.HELLO, 11, 12, memory, UUID, commit=13, context=14), UUID, (13, 14)),
        (report_of(Type.BORROWED, 11, 12, memory, UUID, moved=13, dirty=14), UUID, (13, 14)),
        (report_of(Type.COMMIT, 11, 12, heard, wanted=13, pins=14), answers, (13, 14)),
        (report_of(Type.MOVED, 11, 12, heard, moved=13, took=14), answers, (13, 14)),
        (report_of(Type.STORED, 11, 12, heard, moved=13, error=14), answers, (13, 14)),
        (report_of(Type.STOPPED, 11, 12, heard, used=13, took=14), answers, (13, 14)),
        (report_of(Type.PARKED, 11, 12, heard, park=1), answers, (1, 0)),
        (report_of(Type.MEMORY, 11, 12, heard), answers, (0, 0)),
    ):
        packet = struct.pack(
            "<4HQ7Q16s2Q", report.type, 2, 11, 3, 12, *range(1, 8), tail, *last)
        assert decode_report(packet) == report
        assert encode_report(report) == packet
    gang = struct.pack("<HHIQ88s", 75, 2, 0, 0, b"a:4")
    assert decode_report(gang) == report_of(Type.GANG, text="a:4")
    terms = struct.pack("<HHIQ8x4Q48x", 75, 2, 0, 0, 1 << 40, 50, 7, 1)
    given = report_of(
        Type.GANG, memory_limit=1 << 40, compute_limit=50, weight=7, priority=1)
    assert decode_report(terms) == given
    assert encode_report(given) == terms


@pytest.mark.parametrize(("packet", "sentence"), [
    (b"", "a record of 0 bytes came, which is too short"),
    (b"\x41\x00\x02\x00" + bytes(101), "a record of 105 bytes came, and should have 104"),
    (b"\x41\x00\x03\x00" + bytes(19), "a record of 23 bytes came, which is too short"),
    (b"\x41\x00\x03\x00" + bytes(509), "a record of 513 bytes came, which is too long"),
    (b"\x41\x00\x03\x00" + bytes(12) + b"\x19" + bytes(7),
     "a record of 24 bytes came, and should have 25"),
    (bytes(104), "a record of the unknown type 0 came"),
    (b"\x41\x00\x07\x00" + bytes(100), "a MEMORY of version 7 came, and we speak 2 and 3"),
    (b"\x03\x00\x02\x00" + bytes(100), "a RUN came, which only the daemon may send"),
])
def test_invalid_report_is_refused_with_the_received_value(packet: bytes, sentence: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_report(packet)
    assert str(caught.value) == sentence


def longer(packet: bytes, more: bytes) -> bytes:
    """A packet of version 3 with further bytes at its end."""
    length = (len(packet) + len(more)).to_bytes(4, "little")
    return packet[:16] + length + packet[20:] + more


def test_fields_that_a_receiver_does_not_know_are_ignored_and_missing_ones_are_0(
        compiled: tuple[int, Path]) -> None:
    report = ReportRecord(Type.COMMIT, memory=Memory(host=1), wanted=2, pins=3)
    assert decode_report(longer(encode_report(report), b"\xff" * 40)) == report
    pins, = (one.offset for one in places(Type.COMMIT) if one.row.name == "pins")
    short = encode_report(report)[:pins]
    assert decode_report(longer(short, b"")) == ReportRecord(
        Type.COMMIT, memory=Memory(host=1), wanted=2)
    load = encode_order(OrderRecord(Type.LOAD, 1, 2, room=3, host=4))
    lines = carried_out(compiled[1], [
        longer(load, b"\xff" * 40), longer(load[:packets.HEAD + 8], b""), load + b"\0", load[:-1],
        longer(load, bytes(packets.LONGEST))])
    assert lines[len(REPORTS):] == ["1 2 3 4 ", "1 2 3 0 ", "invalid", "invalid", "invalid"]


@pytest.mark.parametrize("version", [OLDEST, VERSION])
def test_text_of_a_report_may_fill_its_field_and_drops_partial_utf_8(version: int) -> None:
    whole = ReportRecord(Type.NAME, text="x" * 88, version=version)     # no terminating zero
    assert decode_report(encode_report(whole)) == whole
    packet = encode_report(whole)
    assert decode_report(packet.replace(b"xx" * 44, b"x" * 87 + b"\xc3")).text == "x" * 87


@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc on this machine")
def test_protocol_when_its_table_gains_a_field_carries_the_field_in_both_directions(
    tmp_path: Path
) -> None:
    """Only the table is changed; its users here are the program in C and this test."""
    table = Path(protocol.__file__).read_text()
    added = table.replace(
        "    text: str = row(\"REASON:16\"",
        "    grace: int = row(\"STOP\", \"us\", \"least time until a drain fails\")\n"
        "    text: str = row(\"REASON:16\"").replace(
        "    version: int = VERSION ",
        "    burst: int = row(\"IDLE\", \"us\", \"work before it\")\n    version: int = VERSION ")
    assert added.count("\n") == table.count("\n") + 2
    script = tmp_path / "added.py"
    script.write_text(f"""
import sys, types
from pathlib import Path
sys.path.insert(0, {str(LIBHOOK.parent)!r})
import nvshared.hook
table = types.ModuleType("nvshared.hook.protocol")
sys.modules[table.__name__] = nvshared.hook.protocol = table
exec(compile(Path("table.py").read_text(), "table.py", "exec"), table.__dict__)
from libhook import messages
from nvshared.hook import packets, protocol
from tests.unit import test_protocol as tests
Path("nvshare").mkdir()
for name in ("protocol.h",):
    Path("nvshare", name).write_text((messages.HEADER.parent / name).read_text())
Path("nvshare/messages.h").write_text(messages.header())
program = tests.program_in_c(Path(), Path(), protocol.VERSION)
stop = packets.encode_order(protocol.OrderRecord(protocol.Type.STOP, grace=77))
*reports, line = tests.carried_out(Path("packets").resolve(), [stop])
print(line.split()[2])
idle, = (one for one in map(packets.decode_report, map(bytes.fromhex, reports))
         if one.type is protocol.Type.IDLE)
print(idle.burst == tests.fields_of(protocol.Type.IDLE, protocol.VERSION)["burst"])
old = packets.LAYOUTS[protocol.OLDEST][protocol.Type.STOP]
print(len(old.pack(protocol.OrderRecord(protocol.Type.STOP, grace=77))))
""")
    (tmp_path / "table.py").write_text(added)
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.split() == ["77", "True", str(packets.SIZE)], done.stderr


def test_report_of_another_version_keeps_its_type_and_version() -> None:
    for kind in (Type.NAME, Type.GANG, Type.HELLO):
        packet = encode_report(ReportRecord(kind, version=9, commit=7, text="a"))
        assert decode_report(packet) == ReportRecord(kind, version=9)


