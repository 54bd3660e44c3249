# SPDX-License-Identifier: Apache-2.0
"""Random sequences of driver calls return the same with the library as without.

The program, the allowed differences and the daemon's random orders come from
tests/integration/test_random_calls.py; here the driver is the real one.
"""

import subprocess
from pathlib import Path

import pytest

from tests.integration.randomcalls import LIBHOOK, Runner, difference

SEQUENCES = 40


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    """Runs the program, which is compiled first if necessary, on the machine's driver."""
    subprocess.run(["make", "-C", str(LIBHOOK), "-s", "hook", "random"], check=True)
    return Runner(tmp_path, LIBHOOK / "build", {})


@pytest.mark.parametrize("seed", [20_000, 30_000, 40_000])
def test_random_calls_return_the_same_as_the_driver(runner: Runner, seed: int) -> None:
    alone = runner.alone(seed, SEQUENCES)
    assert alone.code == 0, alone.errors
    under, commander = runner.ordered(seed, SEQUENCES)
    found = difference(alone, under)
    assert not found, found
    assert commander.turns > 10, "the library was hardly ever told to stop"
