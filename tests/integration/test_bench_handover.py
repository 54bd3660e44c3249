# SPDX-License-Identifier: Apache-2.0
"""make bench-handover on the simulated card: its data is right, and what is wrong is found."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench.handover.bus import bus
from bench.handover.card import Card, find
from bench.handover.program import Task, perform
from bench.harness import ROOT
from nvshared.units import MIB

COMMAND = [sys.executable, "-m", "bench.handover.measure", "--simulate"]
MARK = "NVSHARE_TEST_MARK"


@pytest.fixture
def card(tmp_path: Path) -> Card:
    """A simulated one."""
    return find(tmp_path, simulate=True, seconds=None, budget=None)


@pytest.mark.long
def test_from_beginning_to_end(tmp_path: Path) -> None:
    subprocess.run(["make", "-C", "bench/handover", "-s"], cwd=ROOT, check=True)
    output = tmp_path / "kept"
    done = subprocess.run(
        [*COMMAND, "--variant", "bus", "--variant", "allocation", "--variant", "two-large",
         "--variant", "first-out", "--seconds", "2", "--json", "--output", str(output)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report == json.loads(output.read_text())
    assert report["machine"]["simulated"] is True
    assert [one["variant"] for one in report["results"]] == [
        "bus", "allocation", *["two-large"] * 2, *["first-out"] * 2]
    assert all(one["right"] for one in report["results"])
    bus, allocation, *large, _, _ = report["results"]
    assert set(bus["figures"]["rounds"]) == {"copies", "freed", "mapped", "both"}
    assert bus["goals"]
    for medians in ("medians_us", "new_medians_us"):
        assert set(allocation["figures"][medians]) == {"without", "with"}
    for one in large:
        assert one["figures"]["moves"]["turns"] >= 1
        assert [program["right"] for program in one["figures"]["programs"]] == [True, True]


def test_a_program_that_fails_is_not_right(card: Card) -> None:
    tasks = [Task(8 * MIB, 1, seed, MIB) for seed in (1, 2)]
    failing = {**card.environment, "NVSHARE_SIM_FAIL": "cuStreamSynchronize:1"}
    found = perform(tasks, failing)
    assert [one.right for one in found] == [False, False]
    assert all("failed" in one.message for one in found)
    found = perform(tasks, card.environment)
    assert [one.right for one in found] == [True, True], found
    assert all(one.steps and not one.message for one in found)


def test_what_the_bus_gives_to_one_that_fails_is_not_right(card: Card) -> None:
    subprocess.run(["make", "-C", "bench/handover", "-s"], cwd=ROOT, check=True)
    failing = {**card.environment, "NVSHARE_SIM_FAIL": "cuMemcpyHtoDAsync:7"}
    found = bus(replace(card, environment=failing))
    assert "failed with error" in found.wrong[0]


def heed_interrupts() -> None:
    """As in a terminal, even if we run where Ctrl-C is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def marked(mark: str) -> Iterator[str]:
    """Commands of living processes with the mark in their environment."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue                    # gone meanwhile, or another user's
        if f"{MARK}={mark}".encode() in environment:
            yield command.replace(b"\0", b" ").decode()


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "TERM"]
)
def test_interrupted_it_leaves_nothing(number: int, status: int, short_path: Path) -> None:
    mark = uuid.uuid4().hex
    with subprocess.Popen(
        [*COMMAND, "--variant", "two-large", "--seconds", "600"], cwd=ROOT, text=True,
        env={**os.environ, MARK: mark, "TMPDIR": str(short_path)}, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, preexec_fn=heed_interrupts,
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "two-large ...\n"
        # Until then there is nothing that could be left.
        while process.poll() is None and not any("nvshare-workload" in one for one in marked(mark)):
            time.sleep(0.02)
        os.kill(process.pid, number)
        errors = process.stderr.read()
        assert process.wait() == status, errors
    assert list(marked(mark)) == []
    assert list(short_path.iterdir()) == []
