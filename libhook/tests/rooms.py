# SPDX-License-Identifier: Apache-2.0
"""The rooms of C sources: which file uses which, and which of that goes up or in a circle.

A room is a folder of sources. A file may include and call its own room and those below it. What a
file includes is read from its text, what it calls from its object (`nm`), so that a prototype
that was copied by hand hides nothing. `x.c` and `x.h` of a room are one file here, "room/x".

All uses of a file that is an exception are excused. An exception that excuses nothing is an error
of upward(), too. As the rooms have an order, a circle between two of them always goes up.
"""

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
COMPILED = {".c", ".S"}
TEXT = {*COMPILED, ".h", ".def"}


class Rooms:
    """The files of some rooms, and the uses between them."""

    def __init__(
        self, order: Sequence[str], *, sources: Path, objects: Path,
        exceptions: Mapping[str, str] | None = None,
    ) -> None:
        self._order = list(order)
        self._sources = sources.resolve()
        self._objects = objects
        self._exceptions = dict(exceptions or {})
        self._paths = sorted(path for path in self._sources.rglob("*") if path.suffix in TEXT)

    @cached_property
    def uses(self) -> dict[str, dict[str, set[str]]]:
        """For each file the files that it uses, with the headers and symbols of each use."""
        found: dict[str, dict[str, set[str]]] = {self._name(path): {} for path in self._paths}
        for user, used, how in [*self._includes(), *self._calls()]:
            if user != used:
                found[user].setdefault(used, set()).add(how)
        return found

    @cached_property
    def symbols(self) -> dict[str, tuple[set[str], set[str]]]:
        """For each file the symbols that its object defines, and the symbols that it needs."""
        names = [self._name(path) for path in self._paths if path.suffix in COMPILED]
        found: dict[str, tuple[set[str], set[str]]] = {name: (set(), set()) for name in names}
        for name in names:
            if not (path := self._objects / f"{name}.o").exists():
                raise FileNotFoundError(f"{path} is not built; run make -C libhook")
        listed = subprocess.run(
            ["nm", "--extern-only", "--portability", "--print-file-name",
             *(f"{name}.o" for name in names)],
            check=True, capture_output=True, text=True, cwd=self._objects).stdout
        for line in listed.splitlines():
            file, symbol, kind = line.split()[:3]
            found[file.removesuffix(".o:")][kind in "Uvw"].add(symbol)
        return found

    def homeless(self) -> list[str]:
        """Files outside of all rooms, and rooms without a file."""
        names = [self._name(path) for path in self._paths]
        lost = {name for name in names if name.split("/")[0] not in self._order}
        empty = {room for room in self._order if not any(n.startswith(f"{room}/") for n in names)}
        return sorted(lost | empty)

    def upward(self) -> list[str]:
        """Uses of a file in a room above, as "below/a -> above/b: symbol"; and unused exceptions.
        """
        found: list[str] = []
        needed: set[str] = set()
        for user, others in self.uses.items():
            for used, ways in others.items():
                if self._depth(used) >= self._depth(user):
                    continue
                if user in self._exceptions:
                    needed.add(user)
                else:
                    found.append(f"{user} -> {used}: {', '.join(sorted(ways))}")
        unused = [f"{one}: an exception of nothing" for one in self._exceptions.keys() - needed]
        return sorted(found) + sorted(unused)

    def circles(self) -> list[list[str]]:
        """The largest groups of files that use each other, directly or through others."""
        reached = {name: self._reached(name) for name in self.uses}
        groups = {
            tuple(sorted(other for other in beyond if name in reached[other]))
            for name, beyond in reached.items() if name in beyond
        }
        return sorted(map(list, groups))

    def _reached(self, start: str) -> set[str]:
        reached: set[str] = set()
        left = [start]
        while left:
            user = left.pop()
            new = set() if user in self._exceptions else self.uses[user].keys() - reached
            reached |= new
            left += new
        return reached

    def _name(self, path: Path) -> str:
        return path.relative_to(self._sources).with_suffix("").as_posix()

    def _depth(self, name: str) -> int:
        """The number of rooms above this one. Files outside of all rooms count as lowest;
        homeless() reports them."""
        room = name.split("/")[0]
        return self._order.index(room) if room in self._order else len(self._order)

    def _includes(self) -> Iterator[tuple[str, str, str]]:
        paths = set(self._paths)
        for path in self._paths:
            for header in INCLUDE.findall(path.read_text()):
                for folder in (path.parent, self._sources):
                    if (found := (folder / header).resolve()) in paths:
                        yield self._name(path), self._name(found), header
                        break

    def _calls(self) -> Iterator[tuple[str, str, str]]:
        owners = {one: name for name, (defined, _) in self.symbols.items() for one in defined}
        for name, (_, wanted) in self.symbols.items():
            yield from ((name, owners[symbol], symbol) for symbol in wanted & owners.keys())
