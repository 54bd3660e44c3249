# SPDX-License-Identifier: Apache-2.0
"""The commands and files that README.md and docs/*.md print, for tests that run them as printed.

`block()` returns one block, named by how it begins. tests/unit/test_documents.py fails for a block
that no test asks for, unless NOT_RUN says why.
"""

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[1]
# tests/kubernetes/test_pages.py runs each command of these, and fails for one that it did not run.
ON_A_NODE = {"docs/kubernetes.md", "docs/strategies.md"}
PAGES = ("README.md", "packaging/README.md", *sorted(
    {str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md")} - ON_A_NODE))

CALL = "pages.block"
OUTPUT = "output of a command"
# Page and first words of each block that no test runs, and the reason.
NOT_RUN: dict[tuple[str, str], str] = {
    ("docs/lab-server.md", "apt-get install ./dist"):
        "each test of the system level does so, with options of apt that ask nobody",
    ("docs/install.md", "apt-get install ./nvshared"):
        "each test of the system level does so, with options of apt that ask nobody",
    ("docs/install.md", "polkit.addRule"):
        "a rule of polkit's; tests/unit/test_documents.py looks for the names in it",
    ("docs/install.md", "nvsharectl drain"): "tests/system/test_removal.py removes the packages",
    ("docs/lab-server.md", "c.Spawner.cmd"): "lines of the example file, which tests/system uses",
    ("docs/lab-server.md", "python3 -m venv ~/torch"): "downloads PyTorch, gigabytes",
    ("docs/lab-server.md", "systemd-run"):
        "needs a user's session; tests/unit/test_tenant.py has its control group",
    ("docs/lab-server.md", "C = total"): "a formula, which tests/unit/test_documents.py calculates",
    ("docs/lab-server.md", "S = n"): "a formula, which tests/unit/test_documents.py calculates",
    ("docs/internals/connections.md", "hook"): "a diagram",
    ("docs/saving.md", "nvsharectl save user:alice"): "for a machine that is restarted",
    ("docs/saving.md", "nvsharectl park"): "needs Podman with a GPU",
    ("docs/containers.md", "systemctl enable"): "needs NVIDIA's toolkit; tests/system enables it",
    ("docs/containers.md", "docker run"): "tests/integration/test_containers.py has Podman do so",
    ("docs/containers.md", "docker compose"):
        "tests/integration/test_containers.py runs each service of that file with Podman",
    ("docs/containers.md", "nvsharectl run --memory"): "needs Apptainer and an image",
    ("docs/containers.md", "incus config"): "needs Incus and a GPU",
    ("docs/containers.md", "systemd-nspawn"): "needs a root file system and a GPU",
    ("docs/internals/scheduler.md", "latency + pace"): "a formula, for maintainers",
    ("docs/lab-server.md", "D = S"): "a formula, which tests/unit/test_documents.py calculates",
    ("docs/lab-server.md", "gpu0: held by you"): OUTPUT,
    ("docs/lab-server.md", "libnvshare[604]"): OUTPUT,
}


@dataclass(frozen=True, slots=True)
class Block:
    """One indented or fenced block of a page."""

    page: str
    line: int                           # number of the block's first line in the page, from 1
    text: str                           # the block's lines without the indentation

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text.splitlines()[0]}"


@cache
def blocks(page: str) -> tuple[Block, ...]:
    found = []
    for token in MarkdownIt().parse((ROOT / page).read_text()):
        if token.type in ("fence", "code_block"):
            assert token.map is not None
            line = token.map[0] + (2 if token.type == "fence" else 1)
            found.append(Block(page, line, token.content))
    return tuple(found)


def block(page: str, beginning: str) -> str:
    """The text of the block with this beginning. requests() finds the literal arguments in tests.

    Raises LookupError unless exactly one block of the page does.
    """
    found = [each for each in blocks(page) if each.text.startswith(beginning)]
    if len(found) != 1:
        raise LookupError(f"{page} has {len(found)} blocks that begin with {beginning!r}")
    return found[0].text


@cache
def inline() -> tuple[tuple[str, str], ...]:
    """Page and text of each command of nvsharectl or busctl that stands, with arguments, in a
    sentence or a table."""
    found = []
    for page in ("README.md", *sorted(f"docs/{path.name}" for path in ROOT.glob("docs/*.md"))):
        for token in MarkdownIt().enable("table").parse((ROOT / page).read_text()):
            for child in token.children or ():
                if child.type == "code_inline" and re.match(
                        r"(nvsharectl|busctl) \S+ \S", child.content):
                    found.append((page, child.content))
    return tuple(dict.fromkeys(found))


@cache
def requests() -> tuple[tuple[str, str], ...]:
    found = []
    for path in sorted({*(ROOT / "tests").rglob("*.py")} - {ROOT / "tests/unit/test_documents.py"}):
        if CALL not in (text := path.read_text()):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == CALL:
                page, beginning = map(ast.literal_eval, node.args)
                found.append((page, beginning))
    return tuple(found)
