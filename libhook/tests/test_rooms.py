# SPDX-License-Identifier: Apache-2.0
"""The rooms of the library and of the simulator: no file uses a room above its own.

A room is a folder of sources. `x.c` and `x.h` of a room are one file here, "room/x". Included
headers are read from a file's text, and called functions from its object (`nm`), so that a copied
prototype hides no call.
"""

import re
import subprocess
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import pytest

LIBHOOK = Path(__file__).resolve().parents[1]
SOURCE, OBJECTS = LIBHOOK / "src", LIBHOOK / "build" / "src"
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
COMPILED = {".c", ".S"}
TEXT = {*COMPILED, ".h", ".def"}


class Rooms:
    """The files of some rooms, and the uses between them. All uses by `excused` are ignored."""

    def __init__(
        self, order: list[str], sources: Path, objects: Path, excused: tuple[str, ...] = (),
    ) -> None:
        self._order = order
        self._sources = sources
        self._objects = objects
        self._excused = excused
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

    def unlisted(self) -> list[str]:
        """Files outside of all rooms, and rooms without a file."""
        names = [self._name(path) for path in self._paths]
        lost = {name for name in names if name.split("/")[0] not in self._order}
        empty = {room for room in self._order if not any(n.startswith(f"{room}/") for n in names)}
        return sorted(lost | empty)

    def upward(self) -> list[str]:
        """Uses of a file in a room above, as "below/a -> above/b: header, symbol"."""
        return sorted(
            f"{user} -> {used}: {', '.join(sorted(ways))}"
            for user, others in self.uses.items() if user not in self._excused
            for used, ways in others.items() if self._depth(used) < self._depth(user))

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
            new = set() if user in self._excused else self.uses[user].keys() - reached
            reached |= new
            left += new
        return reached

    def _name(self, path: Path) -> str:
        return path.relative_to(self._sources).with_suffix("").as_posix()

    def _depth(self, name: str) -> int:
        """The number of rooms above the file's room; files outside of all rooms count as lowest."""
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
        owners = {symbol: name for name, (mine, _) in self.symbols.items() for symbol in mine}
        for name, (_, wanted) in self.symbols.items():
            yield from ((name, owners[symbol], symbol) for symbol in wanted & owners.keys())


LAYERS = ["api", "service", "ipc", "pool", "memory", "block", "tier", "flight", "gate", "driver"]
# The table of hooks.def in driver/real.c names all wrappers, which are in api/. The list of
# tiers.def in tier/tiers.c names all tiers.
LIBRARY = Rooms(LAYERS, SOURCE, OBJECTS, excused=("driver/real", "tier/tiers"))
SIMULATOR = Rooms(
    ["nvml", "table", "context", "stream", "graph", "module", "memory", "engine", "space",
     "driver", "shared"],
    LIBHOOK / "simulator", LIBHOOK / "build" / "simulator")
in_both = pytest.mark.parametrize("rooms", [LIBRARY, SIMULATOR], ids=["library", "simulator"])


@in_both
def test_source_file_is_in_a_listed_layer(rooms: Rooms) -> None:
    assert not rooms.unlisted()


@in_both
def test_source_file_includes_and_calls_no_higher_layer(rooms: Rooms) -> None:
    assert not rooms.upward()


def test_layer_check_with_the_layers_reversed_reports_includes_and_calls() -> None:
    found = Rooms(LAYERS[::-1], SOURCE, OBJECTS).upward()
    assert "api/pools -> memory/managed: managed_free, memory/managed.h" in found


def test_dependency_cycles_have_at_most_three_library_files_and_no_simulator_file() -> None:
    assert max(map(len, LIBRARY.circles())) <= 3
    assert not SIMULATOR.circles()


def test_simulated_nvml_depends_only_on_its_own_and_shared_source_files() -> None:
    uses = SIMULATOR.uses.items()
    used = {name for user, names in uses if user.startswith("nvml/") for name in names}
    assert {name.split("/")[0] for name in used} == {"nvml", "shared"}


def test_folders_below_api_call_the_driver_only_through_ops() -> None:
    """The folders call exactly the functions of ops.def, and include ops.h to get REAL()."""
    listed = set(re.findall(r"^OP\((\w+)\)", (SOURCE / "driver/ops.def").read_text(), re.MULTILINE))
    called: set[str] = set()
    for path in SOURCE.rglob("*.[ch]"):
        names = re.findall(r"REAL\((\w+)\)", path.read_text())
        if path.parent.name in ("api", "driver") or not names:
            continue
        called |= set(names)
        assert path.suffix == ".h" or '#include "driver/ops.h"' in path.read_text(), path
    assert called == listed


def test_files_outside_of_tier_name_no_tier() -> None:
    """All they use of that room is struct tier, the list of all tiers, and ranges of addresses."""
    listed = re.findall(r"^TIER\((\w+)\)", (SOURCE / "tier/tiers.def").read_text(), re.MULTILINE)
    tiers = re.compile(rf"\btier_({'|'.join(listed)})\b")
    assert tiers.search("tier_host")
    named = {name for path in SOURCE.rglob("*.[ch]") if tiers.search(path.read_text())
             if not (name := path.relative_to(SOURCE).as_posix()).startswith("tier/")}
    used = {used for user, others in LIBRARY.uses.items() if not user.startswith("tier/")
            for used in others if used.startswith("tier/")}
    assert not named
    assert used == {"tier/tier", "tier/tiers", "tier/ranges"}


def fields(header: str, structure: str) -> list[str]:
    """The fields of a structure, but for those of structures within it."""
    text = re.sub(r"/\*.*?\*/", "", (SOURCE / header).read_text(), flags=re.DOTALL)
    body = text.split(f"struct {structure} {{")[1].split("\n};")[0]
    body = re.sub(r"\{[^{}]*\}", "", body)
    declared = (part.strip() for part in re.split("[;,]", body))
    return [found[1] for part in declared if (found := re.search(r"(\w+)(\[\w+\])*$", part))]


def test_client_has_at_most_16_fields_that_the_gate_does_not_use() -> None:
    """State lives in the room that uses it. The number may only become smaller."""
    gate = "".join(path.read_text() for path in (SOURCE / "gate").iterdir())
    listed = fields("gate/client.h", "client")
    assert {"device", "memory", "open_commits", "wake", "postponed"} <= set(listed)
    assert len([name for name in listed if not re.search(rf"->{name}\b", gate)]) <= 16
