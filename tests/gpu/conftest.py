# SPDX-License-Identifier: Apache-2.0
"""Tests on a real card. Each compares results bit by bit with a run without the library."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.harness import LIBRARY, machine


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without a card these tests cannot run; asked for by name they fail instead."""
    if shutil.which("nvidia-smi") and subprocess.run(
        ["nvidia-smi", "-L"], capture_output=True, check=False
    ).returncode == 0:
        return
    reason = "no NVIDIA GPU: nvidia-smi finds none"
    if os.environ.get("NVSHARE_TEST_LEVEL") == "gpu":
        pytest.exit(f"tests/gpu was asked for and cannot run: {reason}", returncode=1)
    for item in items:
        if "tests/gpu" in item.nodeid:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session", autouse=True)
def library() -> None:
    """The library must be built."""
    if not LIBRARY.exists():
        pytest.fail(f"{LIBRARY} is missing; build it with: make build")


@pytest.fixture(scope="session")
def record() -> Callable[[str, dict[str, Any]], None]:
    """Keeps a figure: prints it, and appends it to the file NVSHARE_RESULTS names."""
    where = os.environ.get("NVSHARE_RESULTS")

    def keep(name: str, figures: dict[str, Any]) -> None:
        line = json.dumps({"name": name, **figures, "machine": machine()})
        print(line)
        if where:
            with Path(where).open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    return keep
