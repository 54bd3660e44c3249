# SPDX-License-Identifier: Apache-2.0
"""Imports point down only, and each foreign library is known in one place."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "nvshared"

# From the bottom up. A name is a module or a folder of nvshared/.
LAYERS: list[set[str]] = [
    {"errors", "names", "signal", "clock", "quantity"},
    {"protocol", "config", "systemd", "log", "library", "host", "listening", "rotation", "scrapes"},
    {"scheduler", "nvml", "peer", "capacity", "arguments"},
    {"agreement"},
    {"gpu", "state", "defaults"},
    {"budget"},
    {"manager", "sampler", "trace", "agreements"},
    {"session", "client", "preload", "safebudget"},
    {"connection"},
    {"bus", "server", "metrics", "journal", "tui"},
    {"demo", "doctor"},
    {"cli", "daemon"},
    {"__main__"},
]

# What talks to a person talks to the daemon over the bus, and never is the daemon.
ONLY_FROM: dict[str, set[str]] = {
    part: {"client", "names", "errors", "signal", "clock", "quantity", "library", "tui", "demo"}
    for part in ("cli", "tui", "demo")
}
ONLY_FROM["cli"] |= {"doctor", "preload"}
ONLY_FROM["preload"] = {"errors", "library"}
ONLY_FROM["client"] = {"names", "errors", "signal", "clock", "quantity"}
ONLY_FROM["scheduler"] = {"errors", "names"}

# Where a foreign library may be imported.
FOREIGN: dict[str, set[str]] = {
    "dbus_next": {"bus", "client"},
    "pynvml": {"nvml"},
    "rich": {"cli", "tui", "demo"},
    "prometheus_client": {"metrics"},
    "sdnotify": {"systemd"},
}
WITHOUT_ASYNCIO = {"scheduler", "protocol", "gpu"}

MODULES = sorted(PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    """The module or folder of nvshared/ a file belongs to; "nvshared" for the package's own."""
    first = path.relative_to(PACKAGE).parts[0]
    return "nvshared" if first == "__init__.py" else first.removesuffix(".py")


def imported(path: Path) -> Iterator[str]:
    """Dotted names of everything a file imports, wherever in the file."""
    package = ["nvshared", *path.relative_to(PACKAGE).parent.parts]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def layer_of(part: str) -> int:
    """The number of a part's layer, from the bottom; fails for a part that has none."""
    for number, layer in enumerate(LAYERS):
        if part in layer:
            return number
    pytest.fail(f"nvshared/{part} has no place in the layers of tests/unit/test_layers.py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    part = part_of(path)
    for name in imported(path):
        words = name.split(".")
        if words[0] != "nvshared" or words[1:] == ["__version__"]:
            continue
        target = words[1]
        if target == part:
            continue
        assert part != "nvshared", f"the package itself imports {name}"
        assert layer_of(target) < layer_of(part), f"{part} imports {name}, which is not below it"
        allowed = ONLY_FROM.get(part)
        assert allowed is None or target in allowed, f"{part} must not know {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_foreign_libraries_stay_in_their_place(path: Path) -> None:
    part = part_of(path)
    for name in imported(path):
        library = name.split(".")[0]
        assert part in FOREIGN.get(library, {part}), f"{part} imports {name}"
        assert library != "asyncio" or part not in WITHOUT_ASYNCIO, f"{part} imports asyncio"


def test_every_part_that_is_here_has_one_layer() -> None:
    parts = {part_of(path) for path in MODULES} - {"nvshared"}
    assert parts
    for part in parts:
        assert sum(part in layer for layer in LAYERS) == 1, part
