# SPDX-License-Identifier: Apache-2.0
"""Programs whose contexts end while others are at work say the same with the library as without.

They are those of tests/integration/test_contexts.py; here the driver is the real one.
"""

import os
import subprocess
import sys

import pytest

from bench.harness import ROOT, sharing
from tests.integration import test_contexts as contexts

PROGRAMS = {
    "retained meanwhile": contexts.RETAINED,
    "let go of in vain": contexts.IN_VAIN,
    "destroyed while one captures": contexts.DESTROYED,
    "memory from a pool": contexts.FROM_A_POOL,
    "default streams": contexts.DEFAULT_STREAMS,
}


def said(body: str, **environment: str) -> str:
    """What the program prints. It fails on its own if a call does not do what it must."""
    done = subprocess.run(
        [sys.executable, "-c", body], cwd=ROOT, env={**os.environ, **environment}, text=True,
        capture_output=True, timeout=120, check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", PROGRAMS)
def test_contexts_end_as_the_drivers_do(name: str) -> None:
    body = PROGRAMS[name]
    with sharing() as daemon:
        assert said(body, **daemon.environment) == said(body)
