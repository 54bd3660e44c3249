# SPDX-License-Identifier: Apache-2.0
"""The first eviction of each program, which needs new host memory, next to its later evictions:
two programs of 57 % of the card, with host memory preallocated and without.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.handover.card import Card
from bench.handover.company import described, run, wrong
from bench.handover.goal import Goal, Result
from bench.handover.passage import covered, spans
from bench.handover.swapping import LARGE, tasks
from bench.trace import Line, moves
from nvshared.units import GIB

QUANTUM = 5.0                           # seconds
LATER = 0.04                            # part of the run after which the second program starts
NAMES = ("the first program", "the second")


@dataclass(frozen=True, slots=True)
class WayOut:
    bytes: int
    gbps: float
    had: int                            # bytes of host memory before the hand-over


def first_out(card: Card, writeback: bool) -> Result:
    """Measures first evictions. `writeback`: host memory is allocated before it is needed."""
    first, second = tasks(card, 2, LARGE)
    programs = (first, replace(second, after=card.seconds * LATER))
    trace, outcomes = run(card, programs, "100%", QUANTUM, examined=False, writeback=writeback)
    found = ways_out(trace, 8 * card.block)
    ways = [found.get(one.pid, []) for one in outcomes]
    least = 45 if writeback else None
    goals = [
        Goal(f"first way out of {name}", one[0].gbps if one else None, "GB/s", least=least)
        for name, one in zip(NAMES, ways, strict=True)]
    goals += [
        Goal(f"host memory of {name} before that", one[0].had / GIB if one else None, "GiB")
        for name, one in zip(NAMES, ways, strict=True)]
    later = [way.gbps for one in ways for way in one[1:]]
    return Result(
        "first-out", f"writeback {'on' if writeback else 'off'}",
        (*goals, Goal("later ways out", statistics.median(later) if later else None, "GB/s")),
        {"ways_out": [
            [{"gib": way.bytes / GIB, "gbps": way.gbps, "had_gib": way.had / GIB} for way in one]
            for one in ways], **described(programs, outcomes)},
        wrong(outcomes))


def ways_out(trace: Sequence[Line], least: int) -> dict[int, list[WayOut]]:
    """Returns each program's evictions of `least` bytes or more, by pid, in order of time."""
    left: dict[tuple[int, int], list[Line]] = {}
    for move in moves(trace, least=1):
        if move["event"] == "evicted":
            pid, began = move["pid"], move["began"]
            turn = sum(
                line.get("report") == "turn-started" and line["pid"] == pid and line["at"] < began
                for line in trace)
            left.setdefault((pid, turn), []).append(move)
    ways: dict[int, list[WayOut]] = {}
    for (pid, _), out in left.items():
        size, began = sum(move["bytes"] for move in out), out[0]["began"]
        held = [line["memory"]["host"] for line in trace
                if "memory" in line and line["pid"] == pid and line["at"] <= began]
        if size >= least:
            way = WayOut(size, size / covered(spans(out)) / 1000, held[-1] if held else 0)
            ways.setdefault(pid, []).append(way)
    return ways
