# SPDX-License-Identifier: Apache-2.0
"""ELF files: real ones, made ones of other machines, and damaged ones."""

import shutil
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nvshared.preload import elf

PYTHON = Path(sys.executable).resolve()
X86_64, AARCH64 = 62, 183
WHOLE = Path("/bin/true").resolve().read_bytes()


def made(bits: int, order: str, machine: int, kind: int = elf.SHARED) -> bytes:
    """A library of a machine that this one need not be, with nothing in it."""
    ident = b"\x7fELF" + bytes([bits // 32, "<>".index(order) + 1, 1]) + bytes(9)
    word = "Q" if bits == 64 else "I"
    rest = struct.pack(
        f"{order}HHI{word}{word}{word}IHHHHHH", kind, machine, 1, 0, 0, 0, 0, 64, 56, 0, 0, 0, 0
    )
    return ident + rest


def test_a_program() -> None:
    found = elf.parse(WHOLE)
    assert found.interpreter.startswith("/lib")
    assert "libc.so.6" in found.needs
    assert any(version.startswith("GLIBC_2.") for version in found.needs["libc.so.6"])
    assert found.runs_with(elf.read(PYTHON))


def test_what_a_library_defines_is_what_readelf_says() -> None:
    if not shutil.which("readelf"):
        pytest.skip("there is no readelf on this machine")
    with Path("/proc/self/maps").open() as lines:
        libc = next(line.split()[-1] for line in lines if "libc.so.6" in line)
    shown = subprocess.run(
        ["readelf", "-VW", libc], capture_output=True, text=True, check=True
    ).stdout
    section = shown[shown.index("definition section"):].split("\n\n")[0]
    names = {
        line.split("Name: ")[1] for line in section.splitlines()
        if "Name: " in line and "Flags: BASE" not in line
    }
    assert elf.read(Path(libc)).defines == names


@pytest.mark.parametrize(
    ("bits", "order", "machine", "name"),
    [
        (64, "<", X86_64, "x86-64, 64 bits, little-endian"),
        (64, "<", AARCH64, "aarch64, 64 bits, little-endian"),
        (32, "<", 3, "i386, 32 bits, little-endian"),
        (64, ">", 21, "ppc64, 64 bits, big-endian"),
        (64, "<", 9999, "machine 9999, 64 bits, little-endian"),
    ],
)
def test_other_machines(bits: int, order: str, machine: int, name: str) -> None:
    found = elf.parse(made(bits, order, machine))
    assert found.machine_name == name
    assert (found.needs, found.defines, found.interpreter) == ({}, frozenset(), "")
    assert not found.runs_with(elf.parse(made(64, "<", 40)))
    assert found.runs_with(elf.parse(made(bits, order, machine)))


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"#!/bin/sh\n", WHOLE[:20], WHOLE[:4000]])
def test_no_elf_file(data: bytes) -> None:
    with pytest.raises(elf.NotELF):
        elf.parse(data)


@example(changes=[(191, 128)])          # an offset that does not fit into 63 bits
@given(changes=st.lists(
    st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=20
))
def test_a_damaged_file_is_called_one_or_read(changes: list[tuple[int, int]]) -> None:
    data = bytearray(WHOLE)
    for at, value in changes:
        data[at] = value
    with suppress(elf.NotELF):
        assert elf.parse(bytes(data)).bits in (32, 64)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(elf.LARGEST + 1)
    with pytest.raises(elf.NotELF, match="more than any library"):
        elf.read(large)
