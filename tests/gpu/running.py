# SPDX-License-Identifier: Apache-2.0
"""Runs programs, and returns their output."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.harness import ROOT


def python(body: str) -> tuple[str, ...]:
    """The command that runs `body`, the text of a program."""
    return sys.executable, "-c", body


def said(command: Sequence[str | Path], environment: dict[str, str] | None = None,
         limit_s: float = 120) -> str:
    """The stdout of a program. Fails with the program's output if the program fails."""
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **(environment or {})}, text=True,
        capture_output=True, timeout=limit_s, check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def started(body: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A program that has printed that it has submitted its work and may be evicted."""
    with subprocess.Popen(
        python(body), cwd=ROOT, env={**os.environ, **environment}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline().strip() == '"away"'
            yield program
        finally:
            program.kill()
