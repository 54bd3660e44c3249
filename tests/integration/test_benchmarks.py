# SPDX-License-Identifier: Apache-2.0
"""Benchmarks run from beginning to end on a simulated card, and their data is right."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.handover.card import find
from bench.handover.program import Task, perform
from nvshared.units import MIB
from tests.integration.conftest import ROOT

pytestmark = pytest.mark.long


def make(name: str) -> None:
    """Builds a benchmark's programs, in one process at a time: tests run in several."""
    subprocess.run(["flock", "bench", "make", "-C", f"bench/{name}", "-s"], cwd=ROOT, check=True)


def report(folder: Path, name: str, *options: str, build: bool = True) -> dict[str, Any]:
    if build:
        make(name)
    kept = folder / "kept.json"
    done = subprocess.run(
        [sys.executable, "-m", f"bench.{name}.measure", "--simulate", "--json",
         "--output", str(kept), *options],
        cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found == json.loads(kept.read_text())
    return found


def test_bench_handover_on_a_simulated_card_reports_right_results(tmp_path: Path) -> None:
    found = report(
        tmp_path, "handover", "--variant", "bus", "--variant", "allocation",
        "--variant", "two-large", "--variant", "first-out", "--seconds", "2")
    assert found["machine"]["simulated"] is True
    assert [one["variant"] for one in found["results"]] == [
        "bus", "allocation", *["two-large"] * 2, *["first-out"] * 2]
    assert all(one["right"] for one in found["results"])
    for one in found["results"][2:4]:
        assert one["figures"]["moves"]["turns"] >= 1
        assert [program["right"] for program in one["figures"]["programs"]] == [True, True]


def test_bench_colocation_on_a_simulated_card_reports_right_results(tmp_path: Path) -> None:
    found = report(tmp_path, "colocation", "--variant", "big_50", "--variant", "notebooks",
                   "--seconds", "2")
    *trials, notebooks = found["results"]
    assert [one["right"] for one in found["results"]] == [True] * 9
    assert all(one["figures"]["trace"]["handovers"] > 0 for one in trials)
    assert {one["digest"] for one in trials[0]["figures"]["each"]} & {"0" * 16} == set()
    assert len(notebooks["figures"]["cells"]) == 30


def test_bench_rl_on_a_simulated_card_reports_right_results(tmp_path: Path) -> None:
    make("handover")
    found = report(tmp_path, "rl", "--seconds", "2")
    assert [one["setting"] for one in found["results"]] == [
        "shared, released", "shared", "by hand, what is missing", "by hand, all"]
    assert all(one["right"] and one["figures"]["milliseconds"] for one in found["results"])


def test_bench_shares_with_programs_that_start_beside_a_training_reports_right_results(
    tmp_path: Path
) -> None:
    subprocess.run(["make", "-C", "bench/shares", "-s"], cwd=ROOT, check=True)
    found = report(tmp_path, "shares", "--seconds", "5", "--variant", "urgent", build=False)
    (urgent,) = found["results"]
    assert urgent["right"]
    assert urgent["figures"]["waits"]


def test_bench_peers_on_a_simulated_card_reports_right_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NVSHARE_PEERS", raising=False)
    make("shares")
    found = report(tmp_path, "peers", "--seconds", "2", build=False)["results"]
    assert [one["setting"] for one in found[:3]] == [
        "one after the other", "nvshared, quantum 10 s", "nvshared, quantum 2 s"]
    assert all(one["figures"]["codes"] == [0, 0] for one in found[:3])
    assert all(one["right"] for one in found)


def test_bench_counts_the_results_of_a_program_with_a_driver_error_as_wrong(tmp_path: Path) -> None:
    card = find(tmp_path, simulate=True, seconds=None, budget=None)
    tasks = [Task(8 * MIB, 1, seed, MIB) for seed in (1, 2)]
    failing = {**card.environment, "NVSHARE_SIM_FAIL": "cuStreamSynchronize:1"}
    assert [one.right for one in perform(tasks, failing)] == [False, False]
    assert [one.right for one in perform(tasks, card.environment)] == [True, True]
