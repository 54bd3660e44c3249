# SPDX-License-Identifier: Apache-2.0
"""Tests on a real card. Most compare results bit by bit with a run without the library."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.harness import LIBRARY, machine


@pytest.fixture(scope="session", autouse=True)
def library() -> None:
    """Fails the session if libnvshare.so is not built."""
    if not LIBRARY.exists():
        pytest.fail(f"{LIBRARY} is missing; build it with: make build")


@pytest.fixture(scope="session")
def two_cards() -> list[str]:
    """The first two usable cards, each as CUDA_VISIBLE_DEVICES may name it."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    every = named.split(",") if named else range(len(machine()["gpu"].splitlines()))
    if len(every) < 2:
        pytest.skip("there is one card only")
    return [str(card) for card in every[:2]]


@pytest.fixture(scope="session")
def record() -> Callable[[str, dict[str, Any]], None]:
    """A function that prints measured figures, and appends them to the file NVSHARE_RESULTS."""
    where = os.environ.get("NVSHARE_RESULTS")

    def keep(name: str, figures: dict[str, Any]) -> None:
        line = json.dumps({"name": name, **figures, "machine": machine()})
        print(line)
        if where:
            with Path(where).open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    return keep
