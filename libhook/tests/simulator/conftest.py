# SPDX-License-Identifier: Apache-2.0
"""What the tests of the simulator share: its libraries, and programs that find them."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

LIBHOOK = Path(__file__).parents[2]
SIMULATOR = LIBHOOK / "build" / "simulator"

Python = Callable[..., str]


@pytest.fixture(name="environment")
def make_environment(tmp_path: Path) -> dict[str, str]:
    """Variables with which a program finds two simulated GPUs that nobody else uses."""
    if not (SIMULATOR / "libcuda.so.1").exists():
        pytest.fail(f"{SIMULATOR} is not built; run make -C libhook")
    return {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ} | {
        "LD_LIBRARY_PATH": str(SIMULATOR),
        "NVSHARE_SIM_DIR": str(tmp_path / "gpus"),
        "NVSHARE_SIM_GPUS": "2",
        "NVSHARE_SIM_MEMORY": "1G",
    }


@pytest.fixture(name="python")
def run_python(environment: dict[str, str]) -> Python:
    """Runs Python with the simulator in a process of its own; returns what it printed.

    Keyword arguments are further variables. A failing program fails the test.
    """

    def run(program: str, **variables: str) -> str:
        result = subprocess.run(
            [sys.executable, "-c", program],
            env=environment | variables,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    return run
