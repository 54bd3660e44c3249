# SPDX-License-Identifier: Apache-2.0
"""The rooms of the library: no file uses a room above its own, and each source file has its header.

The header with a source file's name declares exactly what other files may use of that file.
"""

import re
from pathlib import Path

import pytest

from libhook.tests.rooms import Rooms

LIBHOOK = Path(__file__).parents[2]
SOURCE, OBJECTS = LIBHOOK / "src", LIBHOOK / "build" / "src"

ROOMS = Rooms(
    ["api", "daemon", "ipc", "pool", "memory", "block", "tier", "flight", "gate", "driver"],
    sources=SOURCE, objects=OBJECTS,
    exceptions={"driver/real": "its table of hooks.def names all wrappers, which are in api/"})

# The wrappers in api/ are declared by hooks.def.
FILES = [path for path in sorted(SOURCE.rglob("*.c")) if path.parent.name != "api"]
HEADERS = sorted(SOURCE.rglob("*.h"))
# Symbols that another header declares, or none, with the reason.
ELSEWHERE = {
    "tier_disk": "tier.h names all tiers", "tier_host": "tier.h names all tiers",
    "tier_managed": "tier.h names all tiers", "tier_peer": "tier.h names all tiers",
    "examine_ptx": "in assembly, for its own file",
}

LEFT_OUT = [
    re.compile(r"/\*.*?\*/", re.DOTALL),
    re.compile(r"^#(?:.*\\\n)*.*$", re.MULTILINE),
    re.compile(r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)\s*"),
]
BODY = re.compile(r"\{[^{}]*\}")
FUNCTION = re.compile(
    r"^(?!typedef|extern|static)[A-Za-z_][\w\s*]*?\b(\w+)\([^;]*\)\s*;", re.MULTILINE)
VARIABLES = re.compile(r"^extern ([^;]*);", re.MULTILINE)
NAME = re.compile(r"\(\*(\w+)\)\(.*|(\w+)\s*(?:\[.*?\])*\s*(?=,|$)")


def declared(header: Path) -> set[str]:
    """The functions and variables that a header declares, without those declared by macros."""
    text = header.read_text()
    for one in LEFT_OUT:
        text = one.sub("", text)
    while (shorter := BODY.sub(";", text)) != text:
        text = shorter
    variables = {
        match[1] or match[2] for found in VARIABLES.findall(text) for match in NAME.finditer(found)
    }
    return (variables | set(FUNCTION.findall(text))) - ELSEWHERE.keys()


def defined(source: Path) -> set[str]:
    """The symbols of a source file that other files can use."""
    mine, _ = ROOMS.symbols[source.relative_to(SOURCE).with_suffix("").as_posix()]
    return mine - ELSEWHERE.keys()


def named(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def test_source_file_is_in_a_listed_layer() -> None:
    assert not ROOMS.homeless()


def test_library_source_file_includes_and_calls_no_higher_layer() -> None:
    assert not ROOMS.upward()


def test_folders_below_api_call_the_driver_only_through_ops() -> None:
    """The rooms call exactly the functions of ops.def, and their sources get REAL() from ops.h
    alone."""
    listed = set(re.findall(r"^OP\((\w+)\)", (SOURCE / "driver/ops.def").read_text(), re.MULTILINE))
    called: set[str] = set()
    for path in [*FILES, *HEADERS]:
        names = re.findall(r"REAL\((\w+)\)", path.read_text())
        if path.parent.name in ("api", "driver") or not names:
            continue
        called |= set(names)
        assert path.suffix == ".h" or '#include "driver/ops.h"' in path.read_text(), path
    assert called == listed


def test_dependency_cycles_of_library_source_files_have_at_most_three_files() -> None:
    assert max(map(len, ROOMS.circles())) <= 3


@pytest.mark.parametrize("source", FILES, ids=named)
def test_header_declares_exactly_the_functions_of_the_source_file(source: Path) -> None:
    header = source.with_suffix(".h")
    assert (declared(header) if header.exists() else set()) == defined(source)


@pytest.mark.parametrize("header", HEADERS, ids=named)
def test_header_without_a_source_file_declares_no_function(header: Path) -> None:
    assert header.with_suffix(".c").exists() or not declared(header)


@pytest.mark.parametrize("path", [*FILES, *HEADERS], ids=named)
def test_includes_are_sorted_own_header_first(path: Path) -> None:
    """The file's own header, then the system's headers, then the project's."""
    block = re.search(r"(?:^#include .*\n\n?)+", path.read_text(), re.MULTILINE)
    included = [] if block is None else re.findall(r'#include ([<"].*[>"])', block[0])
    own = f'"{named(path.with_suffix(".h"))}"'
    assert included == sorted(included, key=lambda one: (one != own, one[0] != "<", one))
