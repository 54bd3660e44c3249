# SPDX-License-Identifier: Apache-2.0
"""A program with endless work stays on the card; a program with an abandoned capture is evicted.

The programs are those of tests/integration; here the driver is the real one.
"""

import os
import subprocess

import pytest

from bench.harness import ROOT, sharing
from tests.gpu.running import python, started
from tests.integration.programs import PRELUDE
from tests.integration.test_broken import AWAY
from tests.integration.test_undrainable import ABANDONED, ENDLESS, ENDS

LONG = 120                              # seconds; four drains that give up take 22


def begun(body: str, **environment: str) -> subprocess.Popen[str]:
    """Starts a program that prints a line at each of its steps."""
    return subprocess.Popen(
        python(body), cwd=ROOT, env={**os.environ, **environment}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )


def test_client_with_endless_work_is_pinned_and_others_get_the_remaining_memory() -> None:
    with sharing("--tq", "1", "--capacity", "1GiB") as daemon:
        endless = begun(PRELUDE + ENDLESS + "feed_until_told()\n" + ENDS, **daemon.environment)
        large = begun(AWAY.replace("256", "800"), **daemon.environment)
        assert endless.stderr is not None
        assert "stays on GPU 0 from now on" in endless.stderr.readline()
        with started(AWAY.replace("256", "450"), **daemon.environment) as small:
            for one in (small, endless, large):
                _, errors = one.communicate("\n", timeout=LONG)
                assert one.returncode == 0, errors


@pytest.mark.parametrize("mode", [0, 1])
def test_capture_whose_thread_ended_delays_no_hand_over(mode: int) -> None:
    body = PRELUDE + ABANDONED.replace("MODE", str(mode))
    with (
        sharing("--tq", "1", "--capacity", "1GiB") as daemon,
        started(body, **daemon.environment) as program,
        started(AWAY.replace("256", "1000"), **daemon.environment) as other,
    ):
        for one in (other, program):
            _, errors = one.communicate("\n", timeout=LONG)
            assert one.returncode == 0, errors
