# SPDX-License-Identifier: Apache-2.0
"""The simulator answers random calls as a real card did, where that was recorded.

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


def test_results_recorded_from_real_drivers_exist() -> None:
    assert RECORDED


def test_driver_transcript_is_reduced_to_comparable_results() -> None:
    lines = [
        "cuInit(0) = 0",
        "cuDevicePrimaryCtxRetain(sequence 7) = 0",
        "cuMemAlloc_v2(9) = 0 b1 aligned",
        "cuMemAlloc_v2(8) = 0 b2 crooked",
        "cuStreamQuery(s1) = (nobody knows)",
        "cuMemGetInfo_v2() = 0 fits (depends)",
        "cuMemFree_v2(b1+1) = 1",
        "cuDevicePrimaryCtxRetain(sequence 8) = 2",
    ]
    assert list(reduced(lines)) == [
        "sequence 7, 6 lines",
        "  cuMemAlloc_v2(8) = 0 b2 crooked",
        "  cuMemFree_v2(b1+1) = 1",
        "sequence 8, 1 lines",
        "  cuDevicePrimaryCtxRetain(sequence 8) = 2",
    ]


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
