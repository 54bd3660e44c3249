# SPDX-License-Identifier: Apache-2.0
"""Whether a library can be loaded by the programs of a system, found out without running any.

The system is known by one of its programs: for which machine that is, and which
dynamic loader it asks for. What the library needs of other libraries, by the
versions of their symbols, must be there.
"""

from collections.abc import Iterator
from pathlib import Path

from nvshared.errors import NvshareError
from nvshared.preload import elf
from nvshared.preload.tree import Tree

PROGRAMS = ("/bin/true", "/usr/bin/true", "/bin/sh", "/bin/bash")
FOLDERS = ("lib", "lib64", "usr/lib", "usr/lib64")


class Unfit(NvshareError):
    """The library cannot be loaded by this system's programs."""


def check(tree: Tree, library: Path) -> None:
    """`library` is a path of the system. Raises Unfit with the reason."""
    place = tree.outside(tree.resolve(library))
    try:
        found = elf.read(place)
    except FileNotFoundError as error:
        raise Unfit(
            f"there is no {place}", "install libnvshare, or name another with --library"
        ) from error
    except OSError as error:
        raise Unfit(f"{place} cannot be read: {error.strerror}") from error
    except elf.NotELF as error:
        raise Unfit(f"{place} is no shared library: {error}", "install it again") from error
    if found.kind != elf.SHARED:
        raise Unfit(f"{place} is no shared library", "name another with --library")
    program, ours = _program(tree)
    if not found.runs_with(ours):
        raise Unfit(
            f"{place} is for {found.machine_name}, and this system's programs are for "
            f"{ours.machine_name} ({program} is)",
            "install the library that was built for this system",
        )
    for name, versions in found.needs.items():
        _compare(tree, place, ours, name, versions)


def _program(tree: Tree) -> tuple[str, elf.ELF]:
    for name in PROGRAMS:
        place = tree.outside(tree.resolve(Path(name)))
        try:
            return name, elf.read(place)
        except (OSError, elf.NotELF):
            continue                    # the next one tells as much
    raise Unfit(
        f"there is no program in {tree.top} to tell what system it is",
        "is --root the top folder of a system?",
    )


def _compare(
    tree: Tree, place: Path, ours: elf.ELF, name: str, versions: frozenset[str]
) -> None:
    """Raises Unfit unless a library of this name and machine has these versions."""
    seen: list[frozenset[str]] = []
    for there in _libraries(tree, ours, name):
        if versions <= there.defines:
            return
        seen.append(there.defines)
    if not seen:
        raise Unfit(
            f"{place} needs {name}, which this system does not have",
            "it is for systems with the GNU C library",
        )
    missing = max(versions - seen[0], key=_order)
    alike = [version for version in seen[0] if _order(version)[0] == _order(missing)[0]]
    newest = max((version for version in alike if _order(version)[1]), key=_order, default="none")
    raise Unfit(
        f"{place} needs {missing}, and this system's {name} has up to {newest}",
        "install the library that was built for this system, or build it here",
    )


def _libraries(tree: Tree, ours: elf.ELF, name: str) -> Iterator[elf.ELF]:
    """Those that this system's programs could load under a name."""
    for folder in FOLDERS:
        top = tree.outside(tree.resolve(Path("/", folder)))
        for place in sorted([top / name, *top.glob(f"*-linux-gnu*/{name}")]):
            inside = Path("/", place.relative_to(tree.top))
            try:
                there = elf.read(tree.outside(tree.resolve(inside)))
            except (OSError, elf.NotELF):
                continue                # the loader would go on as well
            if there.runs_with(ours):
                yield there


def _order(version: str) -> tuple[str, list[int]]:
    """GLIBC_2.4 before GLIBC_2.34."""
    name, _, number = version.rpartition("_")
    return name, [int(part) for part in number.split(".") if part.isdigit()]
