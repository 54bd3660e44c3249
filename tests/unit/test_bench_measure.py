# SPDX-License-Identifier: Apache-2.0
"""The benchmarks say what they are when asked, and what was kept of them can be read."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"
BENCHMARKS = [
    "colocation.measure", "daemon.measure", "gate.measure", "handover.measure",
    "preload.measure", "simulate.measure", "soak.measure", "training",
]


def bench(name: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", f"bench.{name}", *options], cwd=ROOT, text=True,
        capture_output=True, check=False, env={**os.environ, "COLUMNS": "100"},
    )


@pytest.mark.parametrize("name", BENCHMARKS)
def test_help_is_all_that_is_asked_for(name: str) -> None:
    before = sorted(RESULTS.iterdir())
    done = bench(name, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: ")
    assert sorted(RESULTS.iterdir()) == before


@pytest.mark.parametrize("name", BENCHMARKS)
def test_what_no_benchmark_knows_is_refused(name: str) -> None:
    done = bench(name, "--nonsense")
    assert done.returncode == 2
    assert "--nonsense" in done.stderr


def test_as_many_rounds_as_are_wanted(tmp_path: Path) -> None:
    done = bench("preload.measure", "--rounds", "3", "--output", str(tmp_path / "found"))
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "found").read_text())["rounds"] == 3
    assert "'0'" in bench("preload.measure", "--rounds", "0").stderr


def test_results_can_be_read() -> None:
    files = sorted(RESULTS.iterdir())
    assert files
    for path in files:
        assert path.suffix == ".json"
        assert isinstance(json.loads(path.read_text()), (dict, list)), path
