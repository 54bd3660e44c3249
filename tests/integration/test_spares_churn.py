# SPDX-License-Identifier: Apache-2.0
"""A program that allocates and frees in turn, alone and beside others: every byte is right.

In the random hand-overs memory is so short that hardly anything that was freed
stays. Here one program of four threads has the card to itself, but for others
that come, want it as well, and go: what it has freed stays mapped and comes again,
and goes in the midst of that.
"""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.integration.conftest import Site
from tests.integration.fakehook import PATIENCE
from tests.integration.test_random_handovers import SANITIZED, built


def start(site: Site, build: Path, seed: int, seconds: int) -> subprocess.Popen[str]:
    """A program with 64 MiB, which compares all bytes at its end, or after SIGTERM."""
    return site.program(
        [build / "stress", "--seed", seed, "--threads", 4, "--seconds", seconds, "--megabytes", 64],
        {
            **os.environ, **site.environment, **SANITIZED,
            "LD_PRELOAD": str(build / "libnvshare.so"),
            "LD_LIBRARY_PATH": str(build / "simulator"),
            "NVSHARE_KEEP_FREED_MS": "20",      # short, so that spares also expire
        }, stdin=None, stderr=subprocess.PIPE)


def ends_well(process: subprocess.Popen[str]) -> dict[str, int]:
    said, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors[-4000:]
    found: dict[str, int] = json.loads(said)
    return found


@pytest.mark.parametrize(("sanitizer", "visitors"), [
    ("", 1),
    pytest.param("", 5, marks=pytest.mark.long),
    pytest.param("thread", 1, marks=pytest.mark.long),      # slow under this sanitizer
    pytest.param("address", 2, marks=pytest.mark.long),
])
def test_programs_keep_every_byte_while_other_programs_start_and_end(
    site: Site, sanitizer: str, visitors: int
) -> None:
    with built(sanitizer) as build:
        site.start("--tq", "50ms", "--capacity", "120MiB")
        one = start(site, build, 1, 3600)
        for seed in range(visitors):
            ends_well(start(site, build, 2 + seed, 1))
        one.send_signal(signal.SIGTERM)
        assert ends_well(one)["churned"] > 0
