# SPDX-License-Identifier: Apache-2.0
"""Which users see a command line, and the names of notebooks."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nvshared.control.snapshot import command

NAME = Path(sys.executable).name        # name of the process by the kernel
TENANT = "user:ada"
WORDS = ("-c", "print(flush=True), input()", "-m", "ipykernel_launcher", "-f", "a\x1b.json")
SHOWN = "-c print(flush=True), input() -m ipykernel_launcher -f a?.json"


@pytest.fixture(params=["/home/ada/my train.ipynb", ""])
def session(request: pytest.FixtureRequest) -> str:
    """Path of the notebook in Jupyter's variable; "": not set."""
    return str(request.param)


@pytest.fixture
def process(session: str) -> Iterator[int]:
    with running(*WORDS, **{"JPY_SESSION_NAME": session} if session else {}) as pid:
        yield pid


@contextmanager
def running(*words: str, **environment: str) -> Iterator[int]:
    with subprocess.Popen([sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          env={"LANG": "C", **environment}) as popen:
        assert popen.stdout is not None
        popen.stdout.readline()         # wait until the program runs and has its name
        yield popen.pid
        popen.kill()


@pytest.fixture(autouse=True)
def nothing_remembered() -> None:
    """Clear the cache: processes of other tests had the same pids."""
    command.cache_clear()


def test_command_line_is_shown_only_to_the_owner_and_names_the_notebook(
        process: int, session: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = f"{sys.executable} {SHOWN}"
    short = f"my train.ipynb: {Path(sys.executable).name} {SHOWN}"
    assert command(1, process, os.geteuid(), NAME, TENANT) == (short if session else whole)
    # 0: a process of another pid namespace
    assert command(1, 0, os.geteuid(), NAME, TENANT) == NAME
    if os.geteuid() == 0:
        assert command(2, process, 1000, NAME, TENANT) == NAME
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert command(3, process, owner, NAME, TENANT) == NAME


def test_command_line_begins_with_the_programs_own_name(process: int) -> None:
    shown = f"my model: {Path(sys.executable).name} {SHOWN}"
    assert command(1, process, os.geteuid(), "my model", TENANT) == shown
    # The name of the program's pod is not shown as a name of the program.
    ours = command(1, process, os.geteuid(), "lab/train", "pod:lab/train")
    assert "lab/train" not in ours


def test_command_of_a_program_with_a_long_name_contains_the_full_name_once(tmp_path: Path) -> None:
    """Of 30 characters the kernel keeps 15; the daemon finds the others in the command line."""
    program = tmp_path / "a_program_with_a_name_too_long"
    program.symlink_to(sys.executable)
    with subprocess.Popen([program, *WORDS[:2]], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as popen:
        assert popen.stdout is not None
        popen.stdout.readline()
        assert Path(f"/proc/{popen.pid}/comm").read_text() == "a_program_with_\n"
        assert command(1, popen.pid, os.geteuid(), program.name, TENANT) == (
            f"{program} {' '.join(WORDS[:2])}")
        popen.kill()


@pytest.mark.parametrize(("words", "tenant", "title"), [
    (("ipykernel_launcher", "-f", "/run/kernel-1a2b3c4d-5e6f.json"), TENANT, "kernel-1a2b3c4d: "),
    (("train.py",), "job:42", "night run: "), (("train.py",), TENANT, sys.executable),
])
def test_command_line_begins_with_the_notebook_or_job_name(words: tuple[str, ...], tenant: str,
                                                           title: str) -> None:
    with running(*WORDS[:2], *words, SLURM_JOB_NAME="night run") as pid:
        assert command(1, pid, os.geteuid(), NAME, tenant).startswith(title)
