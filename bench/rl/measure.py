# SPDX-License-Identifier: Apache-2.0
"""Measures hand-overs between two engines of reinforcement learning: python -m bench.rl.measure.

See docs/internals/benchmarks.md. Exit status 1 if any memory has wrong bytes.
"""

import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from statistics import median
from typing import Any

from bench.handover.bus import bus
from bench.handover.card import Card, locks_too_much
from bench.handover.goal import Goal, Result
from bench.handover.measure import main
from bench.handover.passage import handovers
from bench.harness import ROOT
from bench.program import Program, started
from bench.trace import Line
from nvshared.units import GIB

ENGINE = ROOT / "build" / "bench-rl" / "engine"
EACH = 0.62                             # part of the card: 49 of 79 GiB
CHUNK = 256 << 20
PHASE = 1.0                             # seconds that an engine computes in a phase
WARM = 4                                # number of first phases: uncounted, they allocate memory
SPARE = 0.04                            # part of the card for contexts of unshared engines
FIRST_STOP = 100.0                      # limit of ms from the first work's end to STOP
OVER_LIMIT = 1.1                        # limit, in multiples of the bus time of missing bytes


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase as its engine reports it; microseconds of CLOCK_MONOTONIC."""

    first: int
    ended: int
    usual: int                          # usual microseconds of a pass over its memory


def phases(engines: Sequence[Program], lasts: float, moved: int, releases: bool,
           number: int) -> list[Phase]:
    found = []
    for one in range(number):
        engine = engines[one % 2]
        engine.send(round(1e6 * lasts), moved, int(releases))
        said = engine.receive()
        found.append(Phase(said["first"], said["ended"], said["pass"]))
    return found


def gaps(found: Sequence[Phase]) -> list[float]:
    """Returns ms from the end of an engine's work until the other engine has changed all its memory
    once, less the time of that change when the memory is resident."""
    later = found[WARM:]
    return [
        max(0.0, (after.first - before.ended - after.usual) / 1000)
        for before, after in pairwise(later)]


def until_stop(found: Sequence[Phase], trace: Sequence[Line]) -> list[float]:
    """Returns ms from the end of each phase until the daemon orders STOP, of those with a STOP
    before the end of the next phase."""
    stops = [line["at"] for line in trace if line.get("order") == "stop"]
    next_stops = (next((at for at in stops if one.ended <= at < after.ended), None)
                  for one, after in pairwise(found))
    return [(at - one.ended) / 1000 for one, at in zip(found, next_stops, strict=False)
            if at is not None]


def lasting(card: Card) -> tuple[float, int]:
    """Returns the duration of a phase in seconds, and the number of phases."""
    phase = PHASE / 5 if card.simulated else PHASE
    return phase, WARM + max(4, round(card.seconds / (2 * phase)))


def shared(card: Card, releases: bool) -> Iterator[Result]:
    commands = [[str(ENGINE), *map(str, (card.share(EACH), chunk(card), seed))] for seed in (1, 2)]
    with card.sharing("--capacity", "100%") as daemon, ExitStack() as stack:
        engines = [stack.enter_context(started(one, daemon.environment)) for one in commands]
        found = phases(engines, lasting(card)[0], 0, releases, lasting(card)[1])
        trace = daemon.trace()
        right = [engine.conclude()["right"] for engine in engines]
    warm = handovers(trace)[WARM:]
    crossed = {
        "out_bytes": median([one.out_bytes for one in warm] or [0]),
        "in_bytes": median([one.in_bytes for one in warm] or [0])}
    goals = [
        Goal("went out in a hand-over", crossed["out_bytes"] / GIB, "GiB"),
        Goal("came in", crossed["in_bytes"] / GIB, "GiB"),
        Goal("STOP to RUN", median([one.stop_to_run_ms for one in warm] or [0]), "ms")]
    waited = until_stop(found, trace)
    if waited:
        goals += [
            Goal("from the end of one's work to STOP, the first time", waited[0], "ms",
                 most=None if releases else FIRST_STOP),
            Goal("from the end of one's work to STOP, later", median(waited[1:] or waited), "ms")]
    figures = {**crossed, "to_stop_ms": waited}
    yield result("shared, released" if releases else "shared", card, found, right, figures, goals,
                 OVER_LIMIT if releases else None)


def by_hand(card: Card, everything: bool) -> Iterator[Result]:
    """Measures engines without the library that copy memory to pinned host memory and free it."""
    moved = card.share(EACH) if everything else 2 * card.share(EACH) - int(card.total * (1 - SPARE))
    commands = [[str(ENGINE), *map(str, (card.share(EACH), chunk(card), seed))] for seed in (1, 2)]
    name = "by hand, all" if everything else "by hand, what is missing"
    if not locks_too_much(2 * moved, name):
        yield alone(card, name, commands, moved)


def saver(card: Card, retain: bool) -> Iterator[Result]:
    """Measures engines with torch_memory_saver, if it and PyTorch are installed."""
    if card.simulated or not all(map(importlib.util.find_spec, ("torch", "torch_memory_saver"))):
        print("left out: it needs a GPU, torch and torch_memory_saver", file=sys.stderr)
        return
    command = [sys.executable, "-m", "bench.rl.saver",
               *map(str, (card.share(EACH), chunk(card), int(retain)))]
    name = "torch_memory_saver" + (", backup retained" if retain else "")
    if not locks_too_much(2 * card.share(EACH), name):
        yield alone(card, name, [command, command], card.share(EACH))


def alone(card: Card, name: str, commands: Sequence[Sequence[str]], moved: int) -> Result:
    environment = {**card.plain, "PYTHONPATH": os.pathsep.join(
        filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    with ExitStack() as stack:
        engines = [stack.enter_context(started(commands[0], environment))]
        phases(engines * 2, 0.0, moved, False, 1)
        engines.append(stack.enter_context(started(commands[1], environment)))
        phases(engines[1:] * 2, 0.0, moved, False, 1)
        found = phases(engines, lasting(card)[0], moved, False, lasting(card)[1])
        right = [engine.conclude()["right"] for engine in engines]
    crossed = {"out_bytes": moved, "in_bytes": moved}
    goals = [Goal("moved each way", moved / GIB, "GiB")]
    return result(name, card, found, right, crossed, goals, None)


def result(name: str, card: Card, found: Sequence[Phase], right: Sequence[bool],
           crossed: Mapping[str, Any], goals: Sequence[Goal], most: float | None) -> Result:
    took = gaps(found)
    speeds = limit(card)
    least = max(
        (crossed[f"{way}_bytes"] / speeds[f"{way}_gbps"] / 1e6 for way in ("out", "in")
         if speeds[f"{way}_gbps"]), default=0.0)
    return Result(
        "hand-over", name,
        (
            Goal("from the end of one's work to the other's", median(took), "ms"),
            Goal("the longest", max(took), "ms"),
            *goals,
            Goal("the bus takes for that, both ways at once", least, "ms"),
            Goal("over the bus's limit", median(took) / least if least else None, "times",
                 most=most)),
        {"milliseconds": took, "limit_ms": least, "engine_bytes": card.share(EACH),
         "phase_seconds": lasting(card)[0], "bus": speeds, **crossed},
        tuple(f"engine {one}: wrong words" for one, same in enumerate(right, 1) if not same))


@cache
def limit(card: Card) -> dict[str, float]:
    """Returns GB/s of two processes that copy at once, one off the card and one onto it."""
    measured = bus(card)
    rounds: dict[str, Any] = measured.figures["rounds"]["copies"]
    return {way: median(speeds) for way, speeds in rounds.items()}


def chunk(card: Card) -> int:
    return min(CHUNK, card.total // 32)


VARIANTS = {
    "released": partial(shared, releases=True), "shared": partial(shared, releases=False),
    "hand-missing": partial(by_hand, everything=False),
    "hand-all": partial(by_hand, everything=True), "saver": partial(saver, retain=False),
    "saver-retained": partial(saver, retain=True),
}

if __name__ == "__main__":
    sys.exit(main("rl", "Measures two engines in turns; without --variant, all ways.", VARIANTS))
