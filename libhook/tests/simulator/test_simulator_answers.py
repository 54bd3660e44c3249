# SPDX-License-Identifier: Apache-2.0
"""The simulator returns the results of random calls that were recorded from cards.

All sequences of a recording run in one process, as they did on the card, because a pool's bytes in
use continue from one sequence to the next.
"""

import difflib
import subprocess
from pathlib import Path

import pytest

from libhook.tests.random.transcript import reduced
from libhook.tests.simulator.conftest import LIBHOOK

RECORDED = sorted((LIBHOOK / "tests" / "random" / "answers").glob("*.txt"))
PROGRAM = LIBHOOK / "build" / "random"
SHOWN = 60                              # lines of the difference to print


@pytest.mark.parametrize("recording", RECORDED, ids=lambda path: path.stem)
def test_random_calls_return_the_results_recorded_from_a_card(
    environment: dict[str, str], recording: Path
) -> None:
    if not PROGRAM.exists():
        pytest.fail(f"{PROGRAM} is missing; make it with: make -C libhook random")
    card = [line for line in recording.read_text().splitlines() if not line.startswith("#")]
    sequences = sum(line.startswith("sequence ") for line in card)
    done = subprocess.run(
        [PROGRAM, "--seed", recording.stem, "--sequences", str(sequences)],
        env=environment | {"NVSHARE_SIM_GPUS": "1", "NVSHARE_SIM_COPY_RATE": "0"},
        capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    simulated = list(reduced(done.stdout.splitlines()))
    differing = list(difflib.unified_diff(card, simulated, "card", "simulator", lineterm=""))
    assert not differing, "\n".join(differing[:SHOWN])
