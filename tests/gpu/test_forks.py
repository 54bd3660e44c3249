# SPDX-License-Identifier: Apache-2.0
"""Children forked at any instruction, with the real driver, which answers each of their calls as in
children of a program without the library. The program is tests/integration/forks.c."""

import os
import subprocess
from pathlib import Path

import pytest

from bench.harness import ROOT, sharing
from tests.integration.test_forks import results
from tests.integration.test_life import LINKED, SOURCE, compiled

SECONDS = os.environ.get("NVSHARE_FORK_SECONDS", "30")


def said(program: Path, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [program, *arguments], cwd=ROOT, env={**os.environ, **environment}, text=True,
        capture_output=True, timeout=120 + int(SECONDS), check=False,
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("what", [("release",), ("everything", SECONDS)], ids=lambda what: what[0])
def test_forked_children_get_the_drivers_errors_and_inherit_no_descriptors(
    tmp_path: Path, what: tuple[str, ...]
) -> None:
    program = compiled(tmp_path, *LINKED, source=SOURCE.with_name("forks.c"))
    alone = said(program, *what)
    with sharing("--tq", "20ms") as daemon:
        under = said(program, *what, **daemon.environment)
    assert results(under) == results(alone)
    assert under.count("inherited") == alone.count("inherited") == 0
