# SPDX-License-Identifier: Apache-2.0
"""Moving blocks (swap/ and block/) with a store that keeps bytes in files: store_file.c.

The library has no such store. What moves blocks does so by `struct store` alone, so it takes this
one as it takes those that it has.
"""

import ctypes
import random
import subprocess
from ctypes import c_bool, c_char_p, c_uint, c_void_p
from functools import cache
from pathlib import Path

import pytest

from nvshared.hook.protocol import Flag

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parents[1] / "src"
SIZE = 17 << 20                         # of a block: store_double.c
LENGTH = 1_000_003
MOVED_BY = ["block/block.c", "block/search.c", "block/store.c", "swap/departure.c", "swap/load.c",
            "swap/pipeline.c", "swap/presave.c", "swap/swap.c", "swap/victim.c"]


class Program:
    """A fresh library: its state is static, so each has a file of its own."""

    def __init__(self, library: Path) -> None:
        self.c = ctypes.CDLL(str(library))
        self.c.make.restype = self.c.bytes_of.restype = c_void_p
        self.blocks: list[c_void_p] = []

    def has(self, *contents: bytes, emptied: bool = False) -> None:
        """It allocates a block for each, and writes that."""
        first = len(self.blocks)
        self.blocks += [c_void_p(self.c.make(c_bool(emptied))) for _ in contents]
        assert self.comes() == 0
        for block, content in zip(self.blocks[first:], contents, strict=True):
            self.write(block, content)

    def write(self, block: c_void_p, content: bytes) -> None:
        self.c.runs()
        ctypes.memmove(self.c.bytes_of(block), content, SIZE)

    def read(self) -> list[bytes | None]:
        """All blocks' bytes; None: it is away."""
        found = [self.c.bytes_of(block) for block in self.blocks]
        return [None if at is None else ctypes.string_at(at, SIZE) for at in found]

    def leaves(self, staying: int = 0, ahead: bool = False) -> int:
        return int(self.c.leave(c_uint(staying), c_bool(ahead)))

    def comes(self, blocks: int = 100, ahead: bool = False) -> int:
        return int(self.c.come(c_uint(blocks), c_bool(ahead)))

    def fails(self, step: str, at: int = 1) -> None:
        c_char_p.in_dll(self.c, "fails").value = step.encode()
        self.set("fails_at", at)

    def set(self, name: str, value: int) -> None:
        c_uint.in_dll(self.c, name).value = value

    def figure(self, name: str) -> int:
        return c_uint.in_dll(self.c, name).value

    def is_at_rest(self) -> bool:
        """Nothing that the store made for a move is left."""
        return self.figure("buffers") == 0


@pytest.fixture(scope="module", name="built")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("store") / "store.so"
    subprocess.run(
        ["gcc", "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared",
         "-fvisibility=hidden", f"-I{SOURCE}", f"-I{SOURCE.parent}/include",
         HERE / "store_double.c", HERE / "store_file.c", *(SOURCE / name for name in MOVED_BY),
         "-o", library, "-pthread"], check=True)
    return library


@pytest.fixture
def program(built: Path, tmp_path: Path) -> Program:
    copy = tmp_path / "store.so"
    copy.write_bytes(built.read_bytes())
    return Program(copy)


@cache
def content(number: int) -> bytes:
    part = random.Random(number).randbytes(LENGTH)
    return (part * (SIZE // LENGTH + 1))[:SIZE]


def contents(count: int) -> list[bytes]:
    """Random bytes, which repeat themselves but never at the same place of two pieces."""
    return [content(number) for number in range(count)]


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("emptied", [False, True])
def test_the_bytes_that_come_back_are_those_that_left(
        program: Program, emptied: bool, ahead: bool) -> None:
    written = contents(5)
    program.has(*written, emptied=emptied)
    assert program.leaves(2, ahead) == 0
    assert program.read() == [*written[:2], *[None] * 3]
    assert program.figure("files") == 3
    assert program.leaves(0, ahead) == 0
    assert program.comes(ahead=ahead) == 0
    assert program.read() == written
    assert program.figure("files") == (0 if emptied else 5)
    assert program.is_at_rest()


def test_what_has_not_changed_is_not_written_again(program: Program) -> None:
    written = contents(3)
    program.has(*written)
    assert program.leaves() == program.comes() == 0
    assert program.figure("written") == 3
    written[1] = written[1][::-1]
    program.write(program.blocks[1], written[1])
    assert program.leaves() == program.comes() == 0
    assert program.figure("written") == 4
    assert program.read() == written


def test_zeros_take_no_place(program: Program) -> None:
    written = [bytes(SIZE), *contents(1)]
    program.has(*written)
    assert program.leaves() == 0
    assert program.figure("files") == 1
    assert program.comes() == 0
    assert program.read() == written


def test_what_was_presaved_leaves_without_a_copy(program: Program) -> None:
    written = contents(2)
    program.has(*written)
    assert program.c.presave(c_uint(2)) == 0
    assert program.read() == written
    assert program.figure("written") == 2
    assert program.leaves() == program.comes() == 0
    assert program.figure("written") == 2
    assert program.read() == written


@pytest.mark.parametrize(("step", "said", "ahead"), [
    ("take", Flag.NO_MEMORY, False),
    ("out", Flag.DRIVER_ERROR, False),
    ("out", Flag.DRIVER_ERROR, True),
    ("settle", Flag.DRIVER_ERROR, True),
])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_what_cannot_leave_stays_as_it_is(
        program: Program, step: str, said: int, ahead: bool, at: int) -> None:
    written = contents(3)
    program.has(*written)
    program.fails(step, at)
    assert program.leaves(0, ahead) == said
    assert program.is_at_rest()
    there = program.read()
    assert 0 < sum(content is not None for content in there) == program.c.resident()
    assert all(found in (None, right) for found, right in zip(there, written, strict=True))
    assert program.leaves() == program.comes() == 0
    assert program.read() == written


@pytest.mark.parametrize(("step", "said", "ahead", "emptied"), [
    ("map", Flag.NO_MEMORY, False, False),
    ("in", Flag.DRIVER_ERROR, False, True),
    ("in", Flag.DRIVER_ERROR, True, False),
    ("settle", Flag.DRIVER_ERROR, False, True),
    ("settle", Flag.DRIVER_ERROR, True, False),
])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_what_cannot_come_comes_later(
        program: Program, step: str, said: int, ahead: bool, at: int, emptied: bool) -> None:
    written = contents(3)
    program.has(*written, emptied=emptied)
    assert program.leaves() == 0
    program.fails(step, at)
    assert program.comes(ahead=ahead) == said
    assert program.is_at_rest()
    there = program.read()
    assert 0 < there.count(None) == 3 - program.c.resident()
    assert all(found in (None, right) for found, right in zip(there, written, strict=True))
    assert program.comes() == 0
    assert program.read() == written


@pytest.mark.parametrize("at", range(1, 7))
def test_an_order_that_yields_leaves_nothing_half_done(program: Program, at: int) -> None:
    written = contents(3)
    program.has(*written)
    program.set("yields_at", at)
    assert program.leaves(0, ahead=True) == Flag.YIELDED
    assert program.is_at_rest()
    program.set("yields_at", 0)
    assert program.leaves() == 0
    program.set("yields_at", at)
    assert program.comes(ahead=True) == Flag.YIELDED
    assert program.is_at_rest()
    program.set("yields_at", 0)
    assert program.comes() == 0
    assert program.read() == written


def test_what_is_freed_gives_its_place_back(program: Program) -> None:
    program.has(*contents(3))
    assert program.leaves(1) == 0
    for block in program.blocks:
        program.c.unmake(block)
    assert program.figure("files") == 0
    assert program.c.resident() == 0
