# SPDX-License-Identifier: Apache-2.0
"""A running program's speed while others are moved out and in, over its speed alone.

Three programs of 45 of 140 GiB take turns in three quarters of the card, one at
a time (the mode `on`: two would fit together, and take time from each other);
each time the first one runs, one of the others comes in and the other leaves.
Those two change all their memory in each turn. The first computes on a small part of
its own, so that one step takes a few milliseconds, and notes when each step
ended. A step counts as

    alone    before the others were started,
    quiet    in a turn, while nothing moved,
    moving   in a turn, while something moved from its beginning to its end.

Only steps that lie in one turn as a whole count. `quiet` is there to tell what
others that merely exist take from what their copies take.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from bench.handover.card import Card
from bench.handover.company import described, run, wrong
from bench.handover.goal import Goal, Result
from bench.handover.passage import Span, common, covered, spans
from bench.handover.program import Outcome, Task
from bench.trace import Line, moves

MIDDLE = 0.32                           # of the card: 45 of 140 GiB
CAPACITY = "75%"
QUANTUM = 2.0                           # seconds: the bus needs about one for what moves
ALONE = 0.2                             # of the time, before the others start
CHUNK = 256 << 20


@dataclass(frozen=True, slots=True)
class Load:
    """What the first program does."""

    name: str
    used: float                         # of the card, computed on in each step
    rounds: int                         # on each word


# 4 GiB read and written take the card's memory 2 ms; 500 rounds on 256 MiB, its processors 10 ms.
LOADS = (Load("memory-bound", 0.03, 1), Load("compute-bound", 0.0018, 500))


@dataclass(frozen=True, slots=True)
class Speeds:
    """Steps a second, None where there were none; and of how much time that tells."""

    alone: float | None
    quiet: float | None
    moving: float | None
    moving_ms: float


def undisturbed(card: Card, load: Load) -> Result:
    """One load."""
    memory, chunk = card.share(MIDDLE), min(CHUNK, card.total // 32)
    later = card.seconds * ALONE
    runner = Task(
        memory, card.seconds, 1, chunk, used=card.share(load.used), rounds=load.rounds
    )
    other = Task(memory, card.seconds - later, 2, chunk, after=later)
    tasks = [runner, other, replace(other, seed=3)]
    trace, outcomes = run(card, tasks, CAPACITY, QUANTUM, mode="on")
    found = speeds(trace, outcomes[0], min(one.started for one in outcomes[1:]))
    return Result(
        "undisturbed", load.name,
        (
            Goal("while others move, of alone", percent(found.moving, found.alone), "%", least=99),
            Goal("while others move, of quiet", percent(found.moving, found.quiet), "%"),
            Goal("steps while others move", found.moving, "/s"),
            Goal("time in which others moved", found.moving_ms, "ms"),
        ),
        {
            "alone_per_s": found.alone, "quiet_per_s": found.quiet,
            "moving_per_s": found.moving, "moving_ms": found.moving_ms,
            **described(tasks, outcomes),
        },
        wrong(outcomes),
    )


def speeds(trace: Sequence[Line], runner: Outcome, others_started: int) -> Speeds:
    """Of the steps of one program."""
    # Two orders to one client are a hundredth of a move apart: no step fits in between.
    moving = spans(move for move in moves(trace, least=1) if move.get("pid") != runner.pid)
    turns = list(_turns(trace, runner.pid))
    steps = list(zip(runner.steps, runner.steps[1:], strict=False))
    # The first half of the time alone is for the card's clock to rise.
    rise = (runner.steps[0] + others_started) / 2 if runner.steps else 0
    disturbed, quiet = [], []
    for step in steps:
        if step[0] < others_started or not _within(step, turns):
            continue
        share = covered(common([step], moving)) / max(1, step[1] - step[0])
        if share >= 0.95:
            disturbed.append(step)
        elif share == 0:
            quiet.append(step)
    return Speeds(
        _rate([step for step in steps if rise <= step[0] and step[1] <= others_started]),
        _rate(quiet), _rate(disturbed), round(covered(disturbed) / 1000, 1),
    )


def percent(one: float | None, other: float | None) -> float | None:
    """One over the other."""
    return None if one is None or other is None else 100 * one / other


def _turns(trace: Iterable[Line], pid: int) -> Iterable[Span]:
    """From a turn's start until STOP."""
    began: float | None = None
    for line in trace:
        if line.get("pid") != pid:
            continue
        if line.get("report") == "turn-started":
            began = line["at"]
        elif line.get("order") == "stop" and began is not None:
            yield began, line["at"]
            began = None


def _within(step: Span, turns: Iterable[Span]) -> bool:
    return any(begin <= step[0] and step[1] <= end for begin, end in turns)


def _rate(steps: Sequence[Span]) -> float | None:
    if not steps:
        return None
    return 1e6 / statistics.fmean(end - begin for begin, end in steps)
