# SPDX-License-Identifier: Apache-2.0
"""How benchmarks calibrate the programs that they run."""

import sys
from pathlib import Path

import pytest

from bench.handover.program import calibrated
from nvshared.errors import NvshareError

# Its first start sleeps, like the first start of a CUDA program on a machine.
PROGRAM = """
import json, pathlib, sys, time
started = pathlib.Path(sys.argv[2])
if not started.exists():
    started.touch()
    time.sleep(0.5)
print(json.dumps({"event": "allocated"}))
for step in range(int(sys.argv[1])):
    print(json.dumps({"event": "step", "at": 1000 + 10_000 * step}))
"""


def test_calibrated_with_a_slow_first_start_counts_steps_alone(tmp_path: Path) -> None:
    tried: list[int] = []

    def command(steps: int, rounds: int) -> list[str]:
        tried.append(rounds)
        return [sys.executable, "-c", PROGRAM, str(steps), str(tmp_path / "started")]

    rounds = calibrated(command, 0.5, {})
    assert rounds == 50 * tried[0]          # 0.5 s are 50 steps of 10 ms


def test_calibrated_with_a_failing_program_raises_its_message() -> None:
    code = "import sys; sys.exit('no GPU memory')"
    with pytest.raises(NvshareError, match="no GPU memory"):
        calibrated(lambda _steps, _rounds: [sys.executable, "-c", code], 0.5, {})
