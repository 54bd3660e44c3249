# SPDX-License-Identifier: Apache-2.0
"""What an ELF file says of itself: for which machine it is, and what it needs of others.

Only what the loader looks at is read, the program headers and the dynamic
section, so it makes no difference whether a file was stripped.

https://refspecs.linuxfoundation.org/elf/gabi4+/contents.html and, for versions,
https://refspecs.linuxfoundation.org/LSB_5.0.0/LSB-Core-generic/LSB-Core-generic/symversion.html
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MACHINES = {3: "i386", 21: "ppc64", 22: "s390", 40: "arm", 62: "x86-64", 183: "aarch64",
            243: "riscv", 258: "loongarch"}
SHARED = 3                              # ET_DYN
LARGEST = 1 << 28                       # bytes; the library has less than one of these

_LOAD, _DYNAMIC, _INTERPRETER = 1, 2, 3
_STRINGS, _VERSIONS_DEFINED, _VERSIONS_NEEDED = 5, 0x6FFFFFFC, 0x6FFFFFFE
_BASE = 1                               # VER_FLG_BASE: the file's own name, no version


class NotELF(ValueError):
    """The file is no ELF file, or a damaged one; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class ELF:
    """One program or library."""

    bits: int                           # 32 or 64
    order: str                          # "<" or ">", as struct has it
    machine: int
    kind: int
    interpreter: str                    # the dynamic loader it asks for; libraries have none
    needs: dict[str, frozenset[str]]    # versions of symbols, by the library that must have them
    defines: frozenset[str]             # versions that it has itself

    @property
    def machine_name(self) -> str:
        """For people."""
        name = MACHINES.get(self.machine, f"machine {self.machine}")
        return f"{name}, {self.bits} bits, {'little' if self.order == '<' else 'big'}-endian"

    def runs_with(self, other: "ELF") -> bool:
        """Whether both can be parts of one process."""
        mine = (self.bits, self.order, self.machine)
        return mine == (other.bits, other.order, other.machine)


def read(path: Path) -> ELF:
    """Raises NotELF, OSError."""
    if path.stat().st_size > LARGEST:
        raise NotELF(f"it has {path.stat().st_size} bytes, more than any library")
    return parse(path.read_bytes())


def parse(data: bytes) -> ELF:
    """Raises NotELF."""
    if data[:4] != b"\x7fELF":
        raise NotELF("it does not begin as an ELF file does")
    try:
        return _File(data).whole()
    except (struct.error, LookupError, ValueError) as error:
        raise NotELF(f"it is cut off or damaged: {error}") from error


class _File:
    """Offsets into one file's bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._bits = {1: 32, 2: 64}[data[4]]
        self._order = {1: "<", 2: ">"}[data[5]]
        self._segments = list(self._headers())
        self._dynamic = dict(self._entries())

    def whole(self) -> ELF:
        kind, machine = self._unpack("HH", 16)
        return ELF(
            self._bits, self._order, machine, kind, self._interpreter(),
            dict(self._needs()), frozenset(self._defines()),
        )

    def _unpack(self, form: str, offset: int) -> tuple[int, ...]:
        if offset > len(self._data):    # and perhaps than any number that struct knows
            raise IndexError(f"it has no byte {offset}")
        return struct.unpack_from(self._order + form, self._data, offset)

    def _headers(self) -> Iterator[tuple[int, int, int, int]]:
        """Type, offset, address and size in the file of each segment."""
        if self._bits == 64:
            (table,) = self._unpack("Q", 32)
            size, count = self._unpack("HH", 54)
        else:
            (table,) = self._unpack("I", 28)
            size, count = self._unpack("HH", 42)
        for at in range(table, table + size * count, size):
            if self._bits == 64:
                kind, _, offset, address, _, in_file = self._unpack("IIQQQQ", at)
            else:
                kind, offset, address, _, in_file = self._unpack("IIIII", at)
            yield kind, offset, address, in_file

    def _entries(self) -> Iterator[tuple[int, int]]:
        word = "QQ" if self._bits == 64 else "II"
        for kind, offset, _, size in self._segments:
            if kind == _DYNAMIC:
                for at in range(offset, offset + size, struct.calcsize(word)):
                    tag, value = self._unpack(word, at)
                    if tag == 0:
                        return
                    yield tag, value

    def _place(self, address: int) -> int:
        """Where in the file lies what the loader maps at this address."""
        for kind, offset, start, size in self._segments:
            if kind == _LOAD and start <= address < start + size:
                return offset + address - start
        raise IndexError(f"nothing is mapped at {address:#x}")

    def _text(self, at: int) -> str:
        return self._data[at:self._data.index(b"\0", at)].decode()

    def _string(self, index: int) -> str:
        return self._text(self._place(self._dynamic[_STRINGS]) + index)

    def _interpreter(self) -> str:
        for kind, offset, _, _ in self._segments:
            if kind == _INTERPRETER:
                return self._text(offset)
        return ""

    def _needs(self) -> Iterator[tuple[str, frozenset[str]]]:
        if _VERSIONS_NEEDED not in self._dynamic:
            return
        at = self._place(self._dynamic[_VERSIONS_NEEDED])
        following = -1
        while following:                # the last one says 0
            _, _, file, auxiliary, following = self._unpack("HHIII", at)
            yield self._string(file), frozenset(self._versions(at + auxiliary))
            at += following

    def _versions(self, at: int) -> Iterator[str]:
        following = -1
        while following:
            _, _, _, name, following = self._unpack("IHHII", at)
            yield self._string(name)
            at += following

    def _defines(self) -> Iterator[str]:
        if _VERSIONS_DEFINED not in self._dynamic:
            return
        at = self._place(self._dynamic[_VERSIONS_DEFINED])
        following = -1
        while following:
            _, flags, _, _, _, auxiliary, following = self._unpack("HHHHIII", at)
            name, _ = self._unpack("II", at + auxiliary)
            if not flags & _BASE:
                yield self._string(name)
            at += following
