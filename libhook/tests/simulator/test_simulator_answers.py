# SPDX-License-Identifier: Apache-2.0
"""The simulator returns the results of random calls that were recorded from cards.

All sequences of a recording run in one process, as they did on the card, because a pool's bytes in
use continue from one sequence to the next.
"""

import difflib
import lzma
import re
import subprocess

import pytest

from libhook.tests.random.transcript import reduced
from libhook.tests.simulator.conftest import LIBHOOK

RECORDED = lzma.decompress((LIBHOOK / "tests/random/answers.txt.xz").read_bytes()).decode()
# By seed, the lines after the comment that names the seed.
BY_SEED = dict(re.findall(
    r"^# build/random --seed (\d+) .*\n((?:[^#].*\n)+)", RECORDED, re.MULTILINE))
PROGRAM = LIBHOOK / "build" / "random"
SHOWN = 60                              # lines of the difference to print


def test_each_recorded_line_belongs_to_a_seed() -> None:
    lines = [line for line in RECORDED.splitlines() if not line.startswith("#")]
    assert [line for text in BY_SEED.values() for line in text.splitlines()] == lines


@pytest.mark.parametrize("seed", BY_SEED)
def test_random_calls_return_the_results_recorded_from_a_card(
    environment: dict[str, str], seed: str
) -> None:
    if not PROGRAM.exists():
        pytest.fail(f"{PROGRAM} is missing; make it with: make -C libhook random")
    card = BY_SEED[seed].splitlines()
    sequences = sum(line.startswith("sequence ") for line in card)
    done = subprocess.run(
        [PROGRAM, "--seed", seed, "--sequences", str(sequences)],
        env=environment | {"NVSHARE_SIM_GPUS": "1", "NVSHARE_SIM_COPY_RATE": "0"},
        capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    simulated = list(reduced(done.stdout.splitlines()))
    differing = list(difflib.unified_diff(card, simulated, "card", "simulator", lineterm=""))
    assert not differing, "\n".join(differing[:SHOWN])
