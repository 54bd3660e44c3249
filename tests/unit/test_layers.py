# SPDX-License-Identifier: Apache-2.0
"""Modules import lower packages only, without cycles, and each third-party library is imported in
one package.

A package is a folder of nvshared/ or a module at its top. A package may import those that stand
before it in ORDER.
"""

import ast
import re
import subprocess
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "nvshared"

# From the lowest package to the highest.
ORDER = [
    "errors", "names", "faults", "units", "parser", "signal", "clock", "quantity", "terms",
    "tiers", "library", "kept", "locks", "lanes", "caller", "saved", "checkpointer",
    "saver",
    "scheduler", "machine", "containers",
    "settings", "sharing", "history", "report", "hook", "dbus", "control", "bus", "program",
    "preload", "tui", "demo", "doctor", "cli", "kubelet", "daemon", "__main__",
]

# User interfaces call the daemon over the bus, and do not import it.
WORDS = {"errors", "names", "faults", "units", "parser", "signal", "clock", "quantity", "terms",
         "tiers"}
ONLY_FROM: dict[str, set[str]] = {
    "caller": set(),
    "checkpointer": {"caller"},
    "saved": set(),
    "saver": {"caller", "saved"},
    "scheduler": WORDS,
    "containers": {*WORDS, "library", "kept", "machine"},
    "preload": {"errors", "library", "kept", "locks"},
    "dbus": WORDS,
    "control": {*WORDS, "dbus"},
    "tui": {*WORDS, "control"},
    "demo": {*WORDS, "library", "machine", "tui"},
    "kubelet": {*WORDS, "library", "kept", "containers", "control", "report"},
    "cli": {*WORDS, "library", "containers", "control", "tui", "demo", "doctor", "preload"},
}

# Where a foreign library may be imported: a package, or a module of a package.
FOREIGN: dict[str, set[str]] = {
    "argcomplete": {"cli"},
    "dbus_next": {"dbus", "bus", "control"},
    "pynvml": {"machine.nvml"},
    "rich": {"cli", "tui"},
    "prometheus_client": {"report.metrics", "report.families"},
    "sdnotify": {"report.systemd"},
    "grpc": {"kubelet.rpc"},
    "google": {"kubelet.rpc"},
    "yaml": {"kubelet", "containers.cdi"},
}
WITHOUT_ASYNCIO = {"scheduler", "hook.protocol", "sharing.dispatcher", "sharing.gpu"}

MODULES = sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    """A file's dotted name below nvshared; "" for the package itself."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").strip(
        ".")


NAMES = {name_of(path) for path in MODULES}


@cache
def imported(path: Path) -> tuple[str, ...]:
    package = ["nvshared", *path.relative_to(PACKAGE).parent.parts]
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            found += [f"{module}.{alias.name}" for alias in node.names]
    return tuple(found)


@cache
def own(path: Path) -> set[str]:
    found = set()
    for name in imported(path):
        if not name.startswith("nvshared."):
            continue
        below = name.removeprefix("nvshared.")
        while below not in NAMES and "." in below:
            below = below.rpartition(".")[0]
        if below in NAMES:
            found.add(below)
    return found - {name_of(path)}


def test_modules_import_only_lower_packages() -> None:
    for purpose, name in sorted(
            (name_of(path).split(".")[0], name) for path in MODULES for name in own(path)):
        target = name.split(".")[0]
        if target != purpose:
            assert purpose, f"the package itself imports {name}"
            assert ORDER.index(target) < ORDER.index(purpose), f"{purpose} imports {name} above it"
            assert target in ONLY_FROM.get(purpose, {target}), f"{purpose} must not know {name}"


def test_python_modules_have_no_import_cycle() -> None:
    edges = {name_of(path): own(path) for path in MODULES}
    while edges:                        # remove modules that import no remaining module
        ends = {name for name, targets in edges.items() if not targets & edges.keys()}
        assert ends, f"a circle is among {sorted(edges)}"
        edges = {name: targets for name, targets in edges.items() if name not in ends}


def test_third_party_library_is_imported_only_by_the_modules_listed_for_that_library() -> None:
    for module, name in ((name_of(path), name) for path in MODULES for name in imported(path)):
        here = {module, module.split(".")[0]}
        library = name.split(".")[0]
        assert here & FOREIGN.get(library, here), f"{module} imports {name}"
        assert library != "asyncio" or not here & WITHOUT_ASYNCIO, f"{module} imports asyncio"


def test_every_python_package_is_listed_in_the_order_of_imports() -> None:
    assert {name.split(".")[0] for name in NAMES} - {""} == set(ORDER)


def test_architecture_page_lists_every_python_package_in_the_order_of_imports() -> None:
    table = (PACKAGE.parent / "ARCHITECTURE.md").read_text().partition(
        "| the daemon and its tools: `nvshared/` |")[2].partition("\n\n")[0]
    rows = [re.findall(r"`(\w+)/?`", line.split("|")[1]) for line in table.splitlines()[2:]]
    listed = [name for row in rows for name in row]
    assert sorted(listed) == sorted({*ORDER} - {"daemon", "__main__"})
    for upper, lower in pairwise(rows):
        assert min(map(ORDER.index, upper)) > max(map(ORDER.index, lower)), f"{lower} below {upper}"


def test_daemon_after_its_start_has_loaded_no_large_unused_module() -> None:
    """Each takes memory of every daemon; _hashlib alone 3 MiB."""
    heavy = {"_ssl", "_hashlib", "bz2", "lzma", "zlib", "_elementtree", "uuid", "nvshared.saver",
             "nvshared.checkpointer"}
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, nvshared.__main__, nvshared.bus, nvshared.history, "
         "nvshared.machine.nvml, pynvml\nprint(*sys.modules)\nimport ssl, zlib, _elementtree"],
        cwd=PACKAGE.parent, text=True, check=True, stdout=subprocess.PIPE).stdout.split()
    assert "nvshared.daemon" in loaded
    assert not heavy & {*loaded}
