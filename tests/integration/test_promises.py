# SPDX-License-Identifier: Apache-2.0
"""A library of an earlier minor version shares its GPU; --json keeps its keys."""

import json
import os
import select
import struct
from operator import attrgetter
from typing import Any

import pytest

from nvshared.hook.protocol import OrderRecord, ReportRecord, Type
from nvshared.units import MIB
from tests import promised
from tests.integration import fakehook
from tests.integration.conftest import Site
from tests.integration.fakehook import Hook
from tests.integration.test_pages import Machine, machine, pytestmark

assert machine                          # the fixture
assert pytestmark                       # where it cannot be had
SIZE, SPARE, LENGTH_AT = 104, 16, 16    # of a packet of version 2; of the head from version 3 on
# Lists that are empty as a rule, or at times.
SOMETIMES = ("status faults[]", "status gpus[].faults[]", "status gpus[].holders[]")
COMMANDS = {
    "status": "nvsharectl --json status", "clients": "nvsharectl --json clients",
    "tenants": "nvsharectl --json tenants", "history": "nvsharectl --json history --by user",
    "doctor": "nvsharectl --json doctor || true", "set-tq": "nvsharectl --json set-tq 10",
    "limit": "nvsharectl --json limit 4711 --memory 20GiB",
    "weight": "nvsharectl --json weight user:root 200",
    "explain": "nvsharectl --json tenants --explain user:root",
    "error": "nvsharectl --json limit 1 --memory 1GiB 2>&1 || true",
}


class Packets:
    """Encodes and decodes by a kept list alone, as a library of that version does."""

    def __init__(self, name: str) -> None:
        lines = [line.split() for line in promised.kept(name)]
        self.codes = {line[1]: int(line[2]) for line in lines if line[0] == "message"}
        self.fields: dict[str, list[tuple[str, int, int]]] = {}
        for what, *rest in lines:
            if what == "field":
                message, field, offset, size = rest
                self.fields.setdefault(message, []).append((field, int(offset), int(size)))
        self.version = int(name.rpartition("-")[2])

    def encode_report(self, report: ReportRecord) -> bytes:
        end = max(offset + size for _, offset, size in self.fields[report.type.name])
        packet = bytearray(SIZE if self.version == 2 else max(end, 24) + SPARE)
        struct.pack_into("<HH", packet, 0, self.codes[report.type.name], self.version)
        for field, offset, size in self.fields[report.type.name]:
            value = attrgetter(field)(report)
            if isinstance(value, str):
                value = value.encode()
            packet[offset:offset + size] = (
                value.ljust(size, b"\0") if isinstance(value, bytes)
                else int(value).to_bytes(size, "little"))
        if self.version > 2:
            struct.pack_into("<I", packet, LENGTH_AT, len(packet))
        return bytes(packet)

    def decode_order(self, packet: bytes) -> OrderRecord:
        assert len(packet) == (SIZE if self.version == 2 else struct.unpack_from(
            "<I", packet, LENGTH_AT)[0])
        code, version = struct.unpack_from("<HH", packet)
        assert version == self.version
        name = next(name for name, number in self.codes.items() if number == code)
        values: dict[str, Any] = {}
        for field, offset, size in self.fields[name]:
            value = packet[offset:offset + size]
            values[field] = (
                value.rstrip(b"\0").decode() if field == "text" else value if size > 8
                else int.from_bytes(value, "little"))
        return OrderRecord(Type[name], **values)


@pytest.mark.parametrize("name", sorted(
    path.stem for path in promised.FOLDER.glob("protocol-*.txt"))[-2:])
def test_client_of_a_kept_protocol_shares_the_gpu_with_a_present_client(
    site: Site, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """By turns, each with its memory evicted for the other and loaded again."""
    site.start("--capacity", "64MiB", "--context-reserve", "0", "--reserve", "0", "--tq", "1")
    uuid = site.uuids[0]
    present = Hook(str(site.socket), uuid)
    earlier_packets = Packets(name)

    class Earlier(Hook):
        """Uses the kept list for its packets, and nothing of the present table."""

        def say(self, kind: Type, *, flags: int = 0, number: int = 0, **words: int) -> bool:
            with monkeypatch.context() as patched:
                patched.setattr(fakehook, "encode_report", earlier_packets.encode_report)
                return super().say(kind, flags=flags, number=number, **words)

        def hear(self) -> OrderRecord | None:
            with monkeypatch.context() as patched:
                patched.setattr(fakehook, "decode_order", earlier_packets.decode_order)
                return super().hear()

    earlier = Earlier(str(site.socket), uuid, version=earlier_packets.version)
    for hook in (present, earlier):
        answer = hook.hello()
        assert answer is not None
        assert answer.type is Type.LIMITS
        assert hook.allocate(40 * MIB)
        assert not hook.allocate(1 << 40)
    for hook in (present, earlier, present, earlier):
        hook.want()
        drive(hook, present, earlier)
        assert hook.memory.resident == 40 * MIB
    for hook in (present, earlier):
        hook.close()


def drive(wanted: Hook, *hooks: Hook) -> None:
    """Has clients carry out their orders until one of them runs."""
    while not wanted.running:
        ready, _, _ = select.select([hook.socket for hook in hooks], [], [], fakehook.PATIENCE)
        assert ready
        for hook in hooks:
            if hook.socket in ready:
                hook.obey_next()


def test_json_of_commands_keeps_its_keys_and_their_kinds(machine: Machine) -> None:
    found = {
        f"{name} {line}" for name, command in COMMANDS.items()
        for line in promised.keys(json.loads(machine.run(command)))}
    if os.environ.get("NVSHARE_KEEP"):  # after a release
        promised.keep("json", found)
    present: dict[str, set[str]] = {}
    for line in found:
        path, _, kind = line.rpartition(" ")
        present.setdefault(path, set()).add(kind)
    for line in promised.kept("json"):
        path, _, kind = line.rpartition(" ")
        if path not in present and path.startswith(SOMETIMES):
            continue
        assert path in present, f"--json has lost {path}"
        assert "null" in (kind, *present[path]) or kind in present[path], line
