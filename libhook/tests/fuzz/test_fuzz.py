# SPDX-License-Identifier: Apache-2.0
"""A program keeps all bytes of its memory while a daemon or another program sends random input; see
fuzz.h."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.long           # the programs alone take half a minute to compile
LIBHOOK = Path(__file__).parents[2]
RUNS = 60


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """Names a folder with a path short enough for a socket."""
    with tempfile.TemporaryDirectory() as folder:
        yield {**os.environ, "NVSHARE_FUZZ_FOLDER": folder, "ASAN_OPTIONS": "detect_leaks=0"}


@pytest.mark.parametrize("program", ["random", "sharing-random"])
def test_random_messages_do_not_crash_the_order_and_ipc_parsers(
    environment: dict[str, str], program: str
) -> None:
    """Orders of a daemon; and clients and exporters of memory shared between processes."""
    subprocess.run(["make", "-s", "-C", str(LIBHOOK), "fuzz-random"], check=True)
    done = subprocess.run(
        [LIBHOOK / "build" / "fuzz" / program, str(RUNS)],
        env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == f"{RUNS} runs\n"
