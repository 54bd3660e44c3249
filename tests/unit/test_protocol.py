# SPDX-License-Identifier: Apache-2.0
"""protocol.py says what protocol.h says, and takes nothing else."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvshared import names
from nvshared.errors import ProtocolError
from nvshared.hook import protocol
from nvshared.hook.protocol import Flag, Limits, Memory, Record, Refusal, Type, decode, encode

INCLUDE = Path(__file__).parents[2] / "libhook" / "include"
HEADER = INCLUDE / "nvshare" / "protocol.h"

FIELDS = {
    "nvshare_record": [
        "type", "version", "flags", "number", "bytes", "host", "microseconds", "memory", "limits",
        "uuid", "answered", "to_pin",
    ],
    "nvshare_memory": ["allocated", "resident", "pinned", "pending", "room", "host"],
    "nvshare_limits": ["commit", "most", "total", "host_slab", "beyond"],
}

u64 = st.integers(0, 2**64 - 1)


def enumerators(name: str) -> list[str]:
    """The names in one enum of the header."""
    body = re.search(rf"enum {name} {{(.*?)}};", HEADER.read_text(), re.S)
    assert body is not None
    return re.findall(r"\b(NVSHARE_\w+)\s*=", re.sub(r"/\*.*?\*/", "", body.group(1), flags=re.S))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """Every value, offset and size of the header, as the C compiler sees them."""
    if shutil.which("gcc") is None:
        pytest.skip("there is no gcc on this machine")
    enums = ("nvshare_type", "nvshare_flag", "nvshare_refusal")
    values = [name for enum in enums for name in enumerators(enum)]
    lines = [f'printf("{v} %d\\n", (int){v});' for v in [*values, "NVSHARE_PROTOCOL_VERSION"]]
    for struct, fields in FIELDS.items():
        lines.append(f'printf("{struct} %d\\n", (int)sizeof(struct {struct}));')
        lines += [
            f'printf("{struct}.{field} %d\\n", (int)offsetof(struct {struct}, {field}));'
            for field in fields
        ]
    folder = tmp_path_factory.mktemp("protocol")
    source, program = folder / "layout.c", folder / "layout"
    source.write_text(
        "#include <stddef.h>\n#include <stdio.h>\n#include <nvshare/protocol.h>\n"
        "int main(void) {\n" + "\n".join(lines) + "\nreturn 0; }\n"
    )
    subprocess.run(["gcc", "-std=c11", f"-I{INCLUDE}", source, "-o", program], check=True)
    out = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return {name: int(value) for name, value in (line.split() for line in out.splitlines())}


def test_values_are_the_headers(compiled: dict[str, int]) -> None:
    assert {f"NVSHARE_{one.name}": one.value for one in Type} == {
        name: compiled[name] for name in enumerators("nvshare_type")
    }
    assert {f"NVSHARE_{one.name}": one.value for one in Flag} == {
        name: compiled[name] for name in enumerators("nvshare_flag")
    }
    assert {f"NVSHARE_REFUSED_{one.name}": one.value for one in Refusal} == {
        name: compiled[name] for name in enumerators("nvshare_refusal")
    }
    assert compiled["NVSHARE_PROTOCOL_VERSION"] == protocol.VERSION
    assert f'NVSHARE_DEFAULT_SOCKET "{names.DEFAULT_SOCKET}"' in HEADER.read_text()


def test_sizes_are_the_headers(compiled: dict[str, int]) -> None:
    assert compiled["nvshare_record"] == protocol.SIZE
    assert compiled["nvshare_memory"] == protocol.MEMORY.size
    assert compiled["nvshare_limits"] == protocol.LIMITS.size


def test_each_field_lies_where_the_header_has_it(compiled: dict[str, int]) -> None:
    def at(packet: bytes, offset: int, size: int) -> int:
        return int.from_bytes(packet[offset:offset + size], "little")

    record = Record(
        Type.EVICTED, flags=0x11121314, number=2, bytes=3, host=4, microseconds=5,
        memory=Memory(11, 12, 13, 14, 15, 16), answered=6, to_pin=7,
    )
    packet = encode(record)
    base = compiled["nvshare_record.memory"]
    for offset, size, value in [
        (compiled["nvshare_record.type"], 2, Type.EVICTED),
        (compiled["nvshare_record.version"], 2, protocol.VERSION),
        (compiled["nvshare_record.flags"], 4, 0x11121314),
        (compiled["nvshare_record.number"], 8, 2),
        (compiled["nvshare_record.bytes"], 8, 3),
        (compiled["nvshare_record.host"], 8, 4),
        (compiled["nvshare_record.microseconds"], 8, 5),
        (compiled["nvshare_record.answered"], 8, 6),
        (compiled["nvshare_record.to_pin"], 8, 7),
        *((base + compiled[f"nvshare_memory.{name}"], 8, getattr(record.memory, name))
          for name in FIELDS["nvshare_memory"]),
    ]:
        assert at(packet, offset, size) == value
    packet = encode(Record(Type.HELLO, uuid=bytes(range(16))))
    assert packet[compiled["nvshare_record.uuid"]:] == bytes(range(16))

    limits = Limits(21, 22, 23, 24, 25)
    packet = encode(Record(Type.WELCOME, limits=limits))
    base = compiled["nvshare_record.limits"]
    for name in FIELDS["nvshare_limits"]:
        offset = base + compiled[f"nvshare_limits.{name}"]
        assert at(packet, offset, 8) == getattr(limits, name)


@given(
    st.sampled_from(Type), st.integers(0, 2**32 - 1), u64, u64, u64, u64,
    st.tuples(*[u64] * 6), st.tuples(*[u64] * 5), st.binary(min_size=16, max_size=16),
    st.tuples(u64, u64),
)
def test_what_is_encoded_is_decoded(
    kind: Type, flags: int, number: int, size: int, host: int, microseconds: int,
    memory: tuple[int, ...], limits: tuple[int, ...], uuid: bytes,
    heard: tuple[int, int],
) -> None:
    limited, hears = kind in protocol.WITH_LIMITS, kind in protocol.WITH_ANSWERED
    answered, to_pin = heard if hears else (0, 0)
    record = Record(
        kind, flags, number, size, host, microseconds,
        uuid=protocol.NO_UUID if hears else uuid, answered=answered, to_pin=to_pin,
        memory=Memory() if limited else Memory(*memory),
        limits=Limits(*limits) if limited else Limits(),
    )
    assert decode(encode(record)) == record


@given(st.binary(max_size=2 * protocol.SIZE))
def test_any_bytes_are_a_record_or_a_sentence(packet: bytes) -> None:
    sentence = "it came, and is a record"
    try:
        decode(packet)
    except ProtocolError as error:
        sentence = str(error)
    assert re.search(r" came(, and|$)", sentence)


@given(st.binary(min_size=protocol.SIZE, max_size=protocol.SIZE), st.sampled_from(Type))
def test_any_body_behind_a_right_head_is_a_record(packet: bytes, kind: Type) -> None:
    head = protocol.HEAD.pack(kind, protocol.VERSION, 0, 0, 0, 0, 0)
    assert decode(head + packet[protocol.HEAD.size:]).type is kind


@pytest.mark.parametrize(("packet", "sentence"), [
    (b"", "a record of 0 bytes came, and all have 104"),
    (bytes(105), "a record of 105 bytes came, and all have 104"),
    (bytes(104), "a record of the unknown type 0 came"),
    (b"\x41\x00\x07\x00" + bytes(100), "a WANT of version 7 came, and we speak 1"),
])
def test_the_sentence_says_what_came(packet: bytes, sentence: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode(packet)
    assert str(caught.value) == sentence


def test_a_hello_of_another_version_can_be_answered() -> None:
    assert decode(encode(Record(Type.HELLO, version=9))).version == 9
