# SPDX-License-Identifier: Apache-2.0
"""ruff and mypy find no errors, and source files name the licence."""

import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.programs import PRELUDE

ROOT = Path(__file__).parents[2]
FOLDERS = [".ci", "bench", "dbus", "docs", "libhook", "nvshared", "packaging", "systemd", "tests"]
SOURCES = {
    ".S", ".c", ".conf", ".def", ".h", ".in", ".map", ".md", ".mk", ".policy", ".ptx", ".py",
    ".service", ".sh", ".socket", ".toml", ".xml",
}
BY_NAME = {"Makefile", "run"}
LICENCE = "SPDX-License-Identifier: Apache-2.0"
UNFINISHED = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X"]) + r")\b")


def source_files() -> list[Path]:
    """All source files, without build outputs and results."""
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    found += ROOT.iterdir()
    return sorted(
        path
        for path in found
        if path.is_file()
        and (path.suffix in SOURCES or path.name in BY_NAME)
        and "__pycache__" not in path.parts
        and not any(part.startswith("build") for part in path.relative_to(ROOT).parts[:-1]))


def run(*command: str) -> None:
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True,
                          text=True, check=False)
    if done.returncode != 0:
        pytest.fail(f"{' '.join(command)}:\n{done.stdout}{done.stderr}", pytrace=False)


@pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(),
    reason="git, or a checkout, is missing")
def test_repository_holds_no_folder_without_a_purpose() -> None:
    command = ["git", "-c", "safe.directory=*", "ls-files"]    # another user may own the checkout
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    folders = {line.split("/")[0] for line in listed.stdout.splitlines() if "/" in line}
    assert folders == set(FOLDERS)      # a daemon started by hand may have left its state here


def test_ruff_finds_no_errors() -> None:
    run("ruff", "check", "--no-cache", ".")


def test_mypy_finds_no_type_errors() -> None:
    run("mypy")


def test_programs_in_strings_of_gpu_tests_use_defined_names_only(tmp_path: Path) -> None:
    # These programs run on real cards only, so a misspelt name would be found late.
    for path in (ROOT / "tests" / "gpu").glob("test_*.py"):
        module = importlib.import_module(f"tests.gpu.{path.stem}")
        programs = [
            text for text in vars(module).values() if isinstance(text, str) and "call(" in text]
        (tmp_path / path.name).write_text(PRELUDE + "".join(programs))
    assigned_by_tests = 'builtins = ["MODE", "first", "on", "plugin", "size"]'
    run("ruff", "check", "--isolated", "--no-cache", "--select", "F821",
        "--config", assigned_by_tests, str(tmp_path))


def test_source_files_name_the_licence_and_have_no_todo_or_fixme_comments() -> None:
    files = {str(path.relative_to(ROOT)): path.read_text().splitlines() for path in source_files()}
    assert len(files) > 50
    without = []
    for name, lines in files.items():
        first = lines[1:2] if lines and lines[0].startswith(("#!", "<?xml")) else lines[:1]
        if not first or LICENCE not in first[0]:
            without.append(name)
    assert not without, f"no '{LICENCE}' in the first line of {', '.join(without)}"
    marked = [
        f"{name}:{number}" for name, lines in files.items()
        for number, line in enumerate(lines, 1) if UNFINISHED.search(line)]
    assert not marked
