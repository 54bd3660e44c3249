# SPDX-License-Identifier: Apache-2.0
"""The history of usage, compared with the daemon's trace."""

import signal
import sqlite3
import time
from collections import Counter

import pytest

from nvshared.history.store import FIELDS, STEPS
from nvshared.hook.protocol import Type
from nvshared.names import user
from nvshared.units import MIB
from tests.integration.conftest import Site
from tests.integration.fakehook import pump

NEAR = 20                               # us: the history rounds figures
LARGE = 700 * MIB                       # two such clients do not fit on the card
SMALL = 300 * MIB
OPTIONS = ("--tq", "3600", "--trace", "{}/trace", "--state-dir", "{}/state")


def start(site: Site, *options: str) -> None:
    site.start(*(one.format(site.folder) for one in OPTIONS), *options)


def stop(site: Site) -> None:
    site.started[-1].send_signal(signal.SIGTERM)
    site.started[-1].wait()


def kept(site: Site) -> dict[str, int]:
    """Sums of the history over all cards and tenants, which are equal for each step length."""
    file = sqlite3.connect(site.folder / "state" / "history.db")
    sums = [
        file.execute(
            f"SELECT {', '.join(f'sum({name})' for name in FIELDS)} FROM usage "
            "JOIN step ON step.id = step WHERE length = ?", (length,)).fetchone()
        for length in STEPS
    ]
    users = file.execute("SELECT DISTINCT user FROM party").fetchall()
    file.close()
    # Rows from before the name of the user was known have the number.
    assert {(user(0),)} <= {*users} <= {(user(0),), ("0",)}
    assert sums[0] == sums[1] == sums[2]
    return dict(zip(FIELDS, sums[0], strict=True))


def using(holds: dict[int, set[int]], idle: set[int]) -> int:
    """The number of cards that a client uses which is not idle."""
    return sum(bool(some - idle) for some in holds.values())


def traced(site: Site) -> Counter[str]:
    """The sums of the history, computed from the trace as far as it has them."""
    found: Counter[str] = Counter()
    holds: dict[int, set[int]] = {}
    idle: set[int] = set()
    before = 0
    for line in site.trace():
        passed, before = line["at"] - before, line["at"]
        found["gpu"] += passed * using(holds, idle)
        found["held"] += passed * sum(map(len, holds.values()))
        match line.get("report") or line.get("event"):
            case "turn-started":
                holds.setdefault(line["gpu"], set()).add(line["client"])
                idle.discard(line["client"])
            case "went-idle":
                idle = idle | {line["client"]} if not line["resumed"] else idle - {line["client"]}
            case "turn-ended":
                holds[line["gpu"]].discard(line["client"])
            case "evicted":
                found["bytes_out"] += line["bytes"]
            case "loaded":
                found["bytes_in"] += line["bytes"]
    return found


def said(site: Site) -> Counter[str]:
    return Counter(line["report"] for line in site.trace() if "report" in line)


def test_history_of_turns_and_bytes_equals_the_trace_and_is_unchanged_by_a_daemon_restart(
    site: Site
) -> None:
    start(site)
    one = site.holding(LARGE)
    two = site.wanting(LARGE)
    for holder, waiter in ((one, two), (two, one)) * 3:
        pump([one, two], lambda holder=holder: holder.running and holder.paced)  # type: ignore[misc]
        holder.say(Type.IDLE)
        pump([one, two], lambda waiter=waiter: waiter.running)      # type: ignore[misc]
    short = site.wanting(SMALL, 1)
    pump([one, two, short], lambda: short.running)
    beside = site.wanting(SMALL, 1)
    pump([one, two, short, beside], lambda: beside.running)
    for hook in (one, two, short, beside):
        hook.close()
    while said(site)["turn-ended"] < 9:
        time.sleep(0.01)
    stop(site)
    trace, file = traced(site), kept(site)
    assert file["turns"] == said(site)["turn-started"] == 9
    assert file["handovers"] == 6
    assert (file["bytes_in"], file["bytes_out"]) == (trace["bytes_in"], trace["bytes_out"])
    assert trace["bytes_out"] >= 6 * (2 * LARGE - 1024 * MIB)
    for name in ("gpu", "held"):
        assert file[name] == pytest.approx(trace[name], abs=NEAR)
    assert file["gpu"] < file["held"]   # two clients held the second card at once

    start(site)                         # a restart without clients counts nothing again
    stop(site)
    assert kept(site) == file


def test_history_bills_no_gpu_time_to_a_holder_without_work(site: Site) -> None:
    start(site)
    worker, sleeper = site.holding(SMALL), site.holding(SMALL)
    pump([worker, sleeper], lambda: worker.running and sleeper.running)
    sleeper.say(Type.IDLE)
    while not any(line.get("event") == "went-idle" for line in site.trace()):
        time.sleep(0.01)
    worker.close()                      # from now on, only the holder without work is there
    while said(site)["turn-ended"] < 1:
        time.sleep(0.01)
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        pump([sleeper], lambda: True)
        time.sleep(0.01)
    sleeper.close()
    while said(site)["turn-ended"] < 2:
        time.sleep(0.01)
    stop(site)
    trace, file = traced(site), kept(site)
    assert file["gpu"] == pytest.approx(trace["gpu"], abs=NEAR)
    assert file["gpu"] + 500_000 <= file["held"]


def test_history_counts_the_turn_of_a_program_that_spans_a_daemon_restart_once(site: Site) -> None:
    start(site)
    hook = site.holding(SMALL)
    stop(site)
    first = kept(site)
    assert (first["turns"], first["bytes_in"]) == (1, SMALL)
    hook.close()
    start(site)
    hook.connect()
    assert hook.hello() is not None
    hook.close()
    while said(site)["turn-ended"] < 1:         # the turn goes on when the first daemon ends
        time.sleep(0.01)
    stop(site)
    both = kept(site)
    assert (both["turns"], both["bytes_in"]) == (1, SMALL)
    assert both["held"] > first["held"] > 0
