# SPDX-License-Identifier: Apache-2.0
"""Random sequences of driver calls answer the same under the library as the driver alone does.

The program and what may differ are those of tests/integration/test_random_calls.py; here the
driver is the real one, and somebody fights for the card meanwhile.
"""

import os
import subprocess
from pathlib import Path

import pytest

from bench.harness import sharing
from bench.trace import summary
from tests.integration.randomcalls import LIBHOOK, Runner, difference

SEQUENCES = 40
# Either fits with what it needs besides, both together do not.
CARD = ("--capacity", "192MiB", "--reserve", "0", "--context-reserve", "0", "--swap-budget", "4GiB")
OTHER_MIB = 160


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    """The program, made if need be; the driver is the machine's."""
    subprocess.run(["make", "-C", str(LIBHOOK), "-s", "hook", "random", "stress"], check=True)
    return Runner(tmp_path, LIBHOOK / "build", {})


@pytest.mark.parametrize("seed", [20_000, 30_000])
def test_every_answer_is_the_drivers(runner: Runner, seed: int) -> None:
    alone = runner.alone(seed, SEQUENCES)
    assert alone.code == 0, alone.errors
    with sharing("--tq", "100ms", *CARD) as daemon:
        other = subprocess.Popen(
            [str(runner.build / "stress"), "--seed", "1", "--threads", "4", "--seconds", "300",
             "--megabytes", str(OTHER_MIB)],
            env={**os.environ, **daemon.environment},
            stdout=subprocess.DEVNULL,
        )
        try:
            under = runner.shared(seed, SEQUENCES, daemon.environment)
            assert other.poll() is None, "the other program has ended"
        finally:
            other.kill()
            other.wait()
        turns = summary(daemon.trace())["turns"]
    found = difference(alone, under)
    assert not found, found
    assert turns > 10, "they did not take turns"
