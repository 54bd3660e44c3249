# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the simulator's tests: its libraries, and programs that load them."""

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
    """Variables of a program with two simulated GPUs that no other process uses."""
    if not (SIMULATOR / "libcuda.so.1").exists():
        pytest.fail(f"{SIMULATOR} is not built; run make -C libhook")
    return {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ} | {
        "LD_LIBRARY_PATH": str(SIMULATOR), "NVSHARE_SIM_DIR": str(tmp_path / "gpus"),
        "NVSHARE_SIM_GPUS": "2", "NVSHARE_SIM_MEMORY": "1G",
    }


@pytest.fixture(name="python")
def run_python(environment: dict[str, str]) -> Python:
    """Runs Python code with the simulator in a process of its own; returns its output.

    Keyword arguments are additional variables. The test fails if the code fails.
    """

    def run(program: str, **variables: str) -> str:
        result = subprocess.run(
            [sys.executable, "-c", program], env=environment | variables, capture_output=True,
            text=True, check=False)
        assert result.returncode == 0, result.stderr
        return result.stdout

    return run
