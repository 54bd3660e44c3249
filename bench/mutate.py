# SPDX-License-Identifier: Apache-2.0
"""Measures the share of small errors in the product that the tests notice.

    python -m bench.mutate --count 60 --seed 1 --jobs 8

For each random mutation (of a comparison, an operator, a condition, a number or a call) it changes
one place of the product in a copy of the tree, builds, runs the tests of that place's room, and
restores the file. --jobs copies are used at the same time. Prints a line for each mutation and the
share that a test noticed. A mutation that does not compile is replaced by another one. Tests that
fail in the unchanged tree are left out.

ROOMS has the tests of each room that CONTRIBUTING.md recommends for a change there, not all of
`make test`.
"""

import argparse
import ast
import io
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Lock

# By the beginning of a product path: globs of tests. The first matching row counts.
OTHER = ("tests/unit/test_[a-r]*.py", "tests/unit/test_s[ahtuy]*.py", "tests/unit/test_t[a-n]*.py")
ROOMS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("nvshared/scheduler", (
        "tests/unit/test_scheduler_*.py", "tests/unit/test_budget.py",
        "tests/unit/test_control_groups.py", "tests/unit/test_gangs.py")),
    ("nvshared/kubelet", ("tests/unit/test_kubelet*.py", "tests/integration/test_kubelet_*.py")),
    ("nvshared/sharing", (
        "tests/unit/test_[bcdegmrstuw]*.py", "tests/bus/test_tenants.py",
        "tests/bus/test_clients.py", "tests/bus/test_calls.py")),
    ("nvshared/settings", OTHER),
    ("nvshared/machine", OTHER),
    ("nvshared/hook", (
        "tests/unit/test_[lp]*.py", "tests/unit/test_se*.py", "tests/unit/test_manager.py",
        "tests/integration/test_descriptors.py", "tests/integration/test_takeover.py")),
    ("nvshared/report", (*OTHER, "tests/unit/test_scrapes.py")),
    ("nvshared/history", ("tests/unit/test_history*.py", "tests/bus/test_history.py")),
    *((f"nvshared/{room}", ("tests/unit/test_dbus.py", "tests/bus/test_*.py"))
      for room in ("bus", "control", "dbus")),
    ("nvshared/cli", (
        "tests/unit/test_[cdptq]*.py", "tests/bus/test_commands.py", "tests/bus/test_tenants.py",
        "tests/bus/test_history.py")),
    ("nvshared/tui", (
        "tests/unit/test_top_*.py", "tests/unit/test_dashboard.py", "tests/bus/test_top.py",
        "tests/bus/test_tenants.py")),
    ("nvshared/", OTHER),
    ("libhook/src", (
        "libhook/tests/test_rooms.py", "libhook/tests/[abcdhpst]*/test_*.py",
        "tests/integration/test_own_memory.py",
        "tests/integration/test_random_calls.py",
        "tests/integration/test_random_handovers.py", "tests/integration/test_pools.py",
        "tests/integration/test_ipc.py", "tests/integration/test_managed.py",
        "tests/integration/test_contexts.py", "tests/integration/test_captures.py",
        "tests/integration/test_pinned.py", "tests/integration/test_dependent_work.py")),
)
# Left-out tests: they compile for minutes, check style, or test only the simulated card.
LEFT_OUT = ("test_style.py", "test_packaging.py", "test_simulator_")
SWAPPED = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "+": "-", "-": "+",
    "and": "or", "or": "and", "&&": "||", "||": "&&", "True": "False", "False": "True",
    "true": "false", "false": "true",
}
PATIENCE = 120                          # seconds for one test; a test that takes longer fails
UNUSED = (".git", ".venv", ".mypy_cache", ".ruff_cache", ".hypothesis")     # these are not copied


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of a file: characters from `start` to `end` become `new`."""

    path: str
    line: int
    start: int
    end: int
    new: str

    def applied(self, text: str) -> str:
        return text[:self.start] + self.new + text[self.end:]

    def description(self, text: str) -> str:
        """File and line of the mutation, and the old and new text."""
        return f"{self.path}:{self.line}: {text[self.start:self.end]!r} -> {self.new!r}"


def python_mutations(path: str, text: str) -> Iterator[Mutation]:
    """Yields all mutations of a Python file, except in annotations, which have no effect."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        row, column = token.start
        start = starts[row - 1] + column
        new = SWAPPED.get(token.string)
        if token.type == tokenize.NUMBER and token.string.isdigit():
            new = str(int(token.string) + 1)
        if new and token.type in (tokenize.OP, tokenize.NAME, tokenize.NUMBER):
            yield Mutation(path, row, start, start + len(token.string), new)
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        span: ast.expr | ast.stmt
        if isinstance(node, ast.If | ast.While | ast.IfExp):
            span, new = node.test, "(not ({}))"
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await):
            span, new = node, "pass"
        else:
            continue
        assert span.end_lineno is not None
        assert span.end_col_offset is not None
        # ast counts columns in bytes of UTF-8.
        start, end = (
            starts[row - 1] + len(lines[row - 1].encode()[:column].decode())
            for row, column in ((span.lineno, span.col_offset),
                                (span.end_lineno, span.end_col_offset)))
        yield Mutation(path, span.lineno, start, end, new.format(text[start:end]))


def c_mutations(path: str, text: str) -> Iterator[Mutation]:
    """Yields all mutations of a C file outside of comments, strings and preprocessor lines."""
    kept = re.sub(
        r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'"
        r"|^[ \t]*#(?:\\\n|[^\n])*",
        lambda found: re.sub(r"[^\n]", " ", found[0]), text, flags=re.DOTALL | re.MULTILINE)
    for found in re.finditer(
        r"(?P<word>\b(?:true|false)\b|(?<= )(?:[<>=!]=|[<>+-]|&&|\|\|)(?= ))"
        r"|(?P<number>(?<![\w.])[0-9]+(?![\w.]))"
        r"|(?P<test>\b(?:if|while) (?=\())"
        r"|(?P<call>^\t+\w+\([^;{}]*\);$)", kept, re.MULTILINE,
    ):
        start, end = found.span()
        if found["word"]:
            new = SWAPPED[found["word"]]
        elif found["number"]:
            new = str(int(found["number"]) + 1)
        elif found["call"]:
            new = "\t;"
        else:
            start = end
            depth, end = 1, end + 1
            while depth:
                depth += {"(": 1, ")": -1}.get(kept[end], 0)
                end += 1
            new = f"(!{text[start:end]})"
        yield Mutation(path, text.count("\n", 0, start) + 1, start, end, new)


def mutations(tree: Path) -> list[Mutation]:
    """Returns all mutations of the product, in a fixed order."""
    found: list[Mutation] = []
    for path in sorted([*tree.glob("nvshared/**/*.py"), *tree.glob("libhook/src/**/*.c")]):
        make = python_mutations if path.suffix == ".py" else c_mutations
        found += make(str(path.relative_to(tree)), path.read_text())
    return found


def tests(tree: Path, path: str) -> list[str]:
    """Returns the tests of a file's room, first the tests with the file's name in their name."""
    stem = Path(path).stem
    globs = next(globs for room, globs in ROOMS if path.startswith(room))
    found = {str(one.relative_to(tree)) for each in globs for one in tree.glob(each)
             if not one.name.startswith(LEFT_OUT)}
    return sorted(found, key=lambda name: (stem not in name, name.startswith("tests/integ"), name))


def failures(tree: Path, tests: list[str], left_out: list[str], options: list[str],
             prefix: list[str]) -> list[str]:
    """Returns failing tests or test files of a tree; else pytest's exit status, if it failed."""
    done = subprocess.run(
        [*prefix, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
         f"--timeout={PATIENCE}", f"--basetemp={tree.parent / f'{tree.name}t'}", *options,
         *(f"--deselect={test}" for test in left_out), *tests],
        cwd=tree, env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode in (0, 5):       # 5: no test is left
        return []
    if done.returncode == 4:            # exit status 4: an error of usage
        raise RuntimeError(done.stderr)
    return (re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
            or [f"pytest ends with {done.returncode}"])


def noticing(clone: Path, mutation: Mutation, left_out: list[str], prefix: list[str]) -> str | None:
    """Returns the first failing test; "": no test fails; None: the mutation does not compile.

    A test that fails once and passes in a second run has not noticed the mutation.
    """
    path = clone / mutation.path
    text = path.read_text()
    build = ["make", "-s", "-C", "libhook", "all"]
    try:
        path.write_text(mutation.applied(text))
        if path.suffix == ".py":
            try:
                compile(path.read_text(), mutation.path, "exec")
            except SyntaxError:
                return None
        elif subprocess.run(build, cwd=clone, capture_output=True, check=False).returncode:
            return None
        names = tests(clone, mutation.path)
        passing = list(left_out)
        while failed := failures(clone, names, passing, ["-x"], prefix):
            if "::" not in failed[0] or failures(clone, failed[:1], [], [], prefix):
                return failed[0]
            passing.append(failed[0])
        return ""
    finally:
        path.write_text(text)
        if path.suffix == ".c":
            subprocess.run(build, cwd=clone, check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="copies of the tree in use at a time")
    parser.add_argument("--tree", type=Path, default=Path(), help="a built tree")
    parser.add_argument("--list", action="store_true", help="print the changes alone")
    parser.add_argument("--prefix", default="", help="a command that runs the tests: nice -n 10")
    options = parser.parse_args()
    tree = options.tree.resolve()
    prefix = options.prefix.split()
    found = mutations(tree)
    random.Random(options.seed).shuffle(found)
    if options.list:
        for mutation in found[:options.count]:
            print(mutation.description((tree / mutation.path).read_text()))
        return
    with (tempfile.TemporaryDirectory(prefix="m") as name,
          ThreadPoolExecutor(options.jobs) as workers):
        folder = Path(name)             # a short path: sockets lie below it
        folder.chmod(0o755)             # some tests run programs as another user
        shutil.copytree(tree, folder / "0", symlinks=True, ignore=shutil.ignore_patterns(*UNUSED))
        names = sorted({test for mutation in found[:2 * options.count]
                        for test in tests(tree, mutation.path)})
        left_out = failures(folder / "0", names, [], ["-n", str(options.jobs)], prefix)
        for test in left_out:
            print(f"left out: {test} fails in the unchanged tree", flush=True)
        clones: SimpleQueue[Path] = SimpleQueue()
        for number in range(options.jobs):
            clones.put(folder / str(number))
            if number:
                shutil.copytree(folder / "0", folder / str(number), symlinks=True)
        drawn = iter(found)
        lock = Lock()

        def next_one() -> Mutation | None:
            with lock:
                return next(drawn, None)

        def work(_: int) -> bool | None:
            clone = clones.get()
            try:
                while mutation := next_one():
                    test = noticing(clone, mutation, left_out, prefix)
                    if test is not None:
                        place = mutation.description((tree / mutation.path).read_text())
                        print(f"{'noticed' if test else 'MISSED '} {place}  {test}", flush=True)
                        return bool(test)
                return None
            finally:
                clones.put(clone)

        results = [result for result in workers.map(work, range(options.count))
                   if result is not None]
    print(f"{sum(results)} of {len(results)} noticed"
          f" ({100 * sum(results) // max(len(results), 1)} %)")


if __name__ == "__main__":
    main()
