# SPDX-License-Identifier: Apache-2.0
"""Benchmarks run from beginning to end on a simulated card, and their data is right."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.handover.card import find
from bench.handover.program import Task, perform
from nvshared.units import MIB
from tests.integration.conftest import ROOT

pytestmark = pytest.mark.long

# For each benchmark: the folders of bench/ with the programs that it runs, and options.
BENCHMARKS = {
    "handover": ("handover", "--variant bus --variant allocation --variant two-large --seconds 2"),
    "colocation": ("colocation", "--variant big_50 --variant notebooks --seconds 2"),
    "rl": ("handover rl", "--seconds 2"),
    "shares": ("shares", "--seconds 5 --variant urgent"),
    "peers": ("shares", "--seconds 2"),
}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_benchmark_on_a_simulated_card_reports_right_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delenv("NVSHARE_PEERS", raising=False)
    programs, options = BENCHMARKS[name]
    # Built in one process at a time: tests run in several.
    for folder in programs.split():
        make = ["flock", "bench", "make", "-C", f"bench/{folder}", "-s"]
        subprocess.run(make, cwd=ROOT, check=True)
    kept = tmp_path / "kept.json"
    done = subprocess.run(
        [sys.executable, "-m", f"bench.{name}.measure", "--simulate", "--json",
         "--output", str(kept), *options.split()],
        cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == json.loads(kept.read_text())
    assert found["results"]
    assert all(one["right"] for one in found["results"])


def test_bench_counts_the_results_of_a_program_with_a_driver_error_as_wrong(tmp_path: Path) -> None:
    card = find(tmp_path, simulate=True, seconds=None, budget=None)
    tasks = [Task(8 * MIB, 1, seed, MIB) for seed in (1, 2)]
    failing = {**card.environment, "NVSHARE_SIM_FAIL": "cuStreamSynchronize:1"}
    assert [one.right for one in perform(tasks, failing)] == [False, False]
    assert [one.right for one in perform(tasks, card.environment)] == [True, True]
