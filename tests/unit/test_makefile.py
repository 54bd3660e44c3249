# SPDX-License-Identifier: Apache-2.0
"""The Makefile: folders that were moved or cannot be preloaded from, and the files it names."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INCLUDED = ("Makefile", "packaging/packaging.mk", "tests/system/system.mk")


def checkout(folder: Path) -> Path:
    """A folder with the Makefiles alone, which is enough for make --dry-run."""
    for name in INCLUDED:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", "-s", *arguments], cwd=folder, text=True, capture_output=True,
                          check=False)


def environment(folder: Path, named: Path) -> Path:
    """A .venv in the folder, with scripts that name another folder as theirs."""
    activate = folder / ".venv/bin/activate"
    activate.parent.mkdir(parents=True)
    activate.write_text(f'VIRTUAL_ENV="{named}/.venv"\n')
    return activate


def test_make_removes_the_environment_of_a_moved_folder_and_keeps_another(tmp_path: Path) -> None:
    moved, kept = checkout(tmp_path / "moved"), checkout(tmp_path / "kept")
    stale, good = environment(moved, tmp_path / "before"), environment(kept, kept)
    for folder in (moved, kept):
        make(folder, "--dry-run", "clean")
    assert not stale.exists()
    assert good.exists()


@pytest.mark.parametrize("name", ["a b", "a:b"])
def test_make_in_a_folder_that_cannot_be_preloaded_from_installs_nothing(
        tmp_path: Path, name: str) -> None:
    folder = checkout(tmp_path / name)
    ended = make(folder, "demo")
    assert ended.returncode != 0
    assert "has a blank or a colon" in ended.stderr
    assert not (folder / ".venv").exists()


def test_each_test_file_of_test_quick_exists() -> None:
    printed = make(ROOT, "--eval=quick-files: ; @printf '%s\\n' $(QUICK)", "quick-files").stdout
    assert printed
    assert [name for name in printed.split() if not (ROOT / name).exists()] == []
