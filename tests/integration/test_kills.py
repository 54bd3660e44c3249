# SPDX-License-Identifier: Apache-2.0
"""kill -9 in each state of a hand-over: the other programs finish with right results.

The daemon's trace shows when the victim is in that state.
"""

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Site, kill
from tests.integration.fakehook import PATIENCE

PROGRAMS = 3                            # any two fit on the card together, all three do not
SETTINGS = ("--tq", "100ms", "--capacity", "60MiB")

# By state of the victim: field and value of the trace's last line before that state.
STATES: dict[str, tuple[str, object]] = {
    "waiting": ("wants", True), "loading": ("order", "load"), "running": ("report", "turn-started"),
    "draining": ("order", "stop"), "evicting": ("order", "evict"),
}
# make test kills in a state in which memory moves; make test-long in all states.
STATES_TO_TRY = [
    pytest.param(state, marks=[] if state == "evicting" else pytest.mark.long) for state in STATES
]


def program(
    site: Site, seed: int, steps: int | None = 24, **environment: str
) -> subprocess.Popen[str]:
    """A program with this number of steps; None: until finish()."""
    length = ["--until-told"] if steps is None else ["--steps", str(steps)]
    # Slow copies, so that the kill hits a load or eviction that is still under way.
    slow = {"NVSHARE_SIM_COPY_RATE": str(100 << 20), "NVSHARE_SIM_NVLINK_RATE": str(400 << 20)}
    return site.workload(
        "--memory", "24MiB", "--chunk", "2MiB", *length, "--kernel-us", "2000",
        "--seed", str(seed), "--json", **slow | environment)


def follow(trace: Path) -> Iterator[dict[str, Any]]:
    """The lines of a trace, as the daemon writes them."""
    deadline = time.monotonic() + PATIENCE
    rest = ""
    with trace.open() as file:
        while time.monotonic() < deadline:
            *lines, rest = (rest + file.read()).split("\n")
            yield from (json.loads(line) for line in lines)
            time.sleep(0.002)
    pytest.fail("the victim never came into that state")


def await_state(trace: Path, state: str, after: int = 2) -> int:
    """Waits until a program is in `state` after it was so `after` times. Returns its pid."""
    kind, name = STATES[state]
    seen = 0
    for line in follow(trace):
        if line.get(kind) == name and "pid" in line:
            seen += 1
            if seen > after:
                return int(line["pid"])
    raise AssertionError("unreachable: follow() fails the test")


def finish(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:           # first close all: the holder may be the last process
        if process.stdin is not None:
            process.stdin.close()
            process.stdin = None
    for process in processes:
        output, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, f"exit code {process.returncode}: {output[-2000:]}"


@pytest.mark.parametrize("state", STATES_TO_TRY)
def test_killed_program_does_not_change_results_of_other_programs(site: Site, state: str) -> None:
    trace = site.folder / "trace"
    site.start(*SETTINGS, "--trace", str(trace))
    programs = [program(site, seed) for seed in range(1, PROGRAMS + 1)]
    victim = await_state(trace, state)
    for process in programs:
        if process.pid == victim:
            process.kill()
    finish([process for process in programs if process.pid != victim])


def test_programs_continue_without_a_daemon_and_share_after_the_restart(site: Site) -> None:
    trace = site.folder / "trace"
    daemon = site.start(*SETTINGS, "--trace", str(trace))
    # The programs run until finish(), so that some of them still want a turn from the last daemon.
    programs = [program(site, seed, None) for seed in range(1, PROGRAMS + 1)]
    for _ in range(PROGRAMS):
        await_state(trace, "running", after=0)
        kill(daemon)
        trace = trace.with_name(trace.name + "-next")
        daemon = site.start(*SETTINGS, "--trace", str(trace))
    finish(programs)
