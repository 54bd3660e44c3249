# SPDX-License-Identifier: Apache-2.0
"""Speed of a running program while other programs' memory moves, over its speed alone.

A step counts as `alone` before the other programs start, as `quiet` in a turn without moves, and
as `moving` if moves cover it (MOVING; MOVING_SHARED if the program copies). See
docs/internals/benchmarks.md.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

from bench.handover.card import Card
from bench.handover.company import described, run, wrong
from bench.handover.goal import Goal, Result
from bench.handover.passage import Span, common, covered, spans
from bench.handover.program import Outcome, Task
from bench.trace import Line, moves

MIDDLE = 0.32                           # part of the card: 45 of 140 GiB
CAPACITY = "75%"
QUANTUM = 2.0                           # seconds; the moves of a hand-over take about one
ALONE = 0.2                             # part of the time, before the other programs start
CHUNK = 256 << 20


@dataclass(frozen=True, slots=True)
class Load:
    name: str
    used: float                         # part of the card that each step computes on
    rounds: int                         # rounds of computing on each word in a step
    copied: float = 0.0                 # part of the card: host memory copied in each step
    gives_way: bool = True              # moves yield to the program's own copies


# Time of a step: 2 ms to read and write 4 GiB of card memory; 10 ms for 500 rounds on 256 MiB;
# 20 ms to copy 1 GiB over the bus, beside 60 ms of computing.
COPYING = Load("copying, moves give way", 0.0018, 3000, copied=0.0072)
LOADS = (
    Load("memory-bound", 0.03, 1), Load("compute-bound", 0.0018, 500),
    COPYING, replace(COPYING, name="copying, moves do not", gives_way=False),
)
COPIED_LEAST = 16 << 20                 # bytes; a smaller copy does not load the bus
MOVING = 0.95                           # part of a step with moves, so that it counts as moving,
MOVING_SHARED = 1 / 3                   # and if the program also copies
LONG = 1.25                             # times the median: a longer step was disturbed


@dataclass(frozen=True, slots=True)
class Pace:
    """Durations of the steps; milliseconds."""

    steps: int
    mean: float
    median: float
    most: float
    long: int                           # steps that took a quarter more than the median,
    longer: float                       # and the sum of their excess, in ms


@dataclass(frozen=True, slots=True)
class Paces:
    """Durations of steps, by activity of the other programs; None: there were no such steps."""

    alone: Pace | None
    quiet: Pace | None
    moving: Pace | None
    turns: Pace | None = None           # all steps in turns, once the other programs ran


def undisturbed(card: Card, load: Load) -> Result:
    memory, chunk = card.share(MIDDLE), min(CHUNK, card.total // 32)
    later = card.seconds * ALONE
    runner = Task(memory, card.seconds, 1, chunk, used=card.share(load.used), rounds=load.rounds,
                  copied=max(card.share(load.copied), COPIED_LEAST) if load.copied else 0)
    other = Task(memory, card.seconds - later, 2, chunk, after=later)
    tasks = [runner, other, replace(other, seed=3)]
    trace, outcomes = run(card, tasks, CAPACITY, QUANTUM, mode="on", gives_way=load.gives_way)
    least = MOVING_SHARED if load.copied else MOVING
    found = paces(trace, outcomes[0], min(one.started for one in outcomes[1:]), least)
    speeds = {
        f"steps_per_second_{name}": None if pace is None else round(1000 / pace.mean, 3)
        for name, pace in (("alone", found.alone), ("moving", found.moving), ("turns", found.turns))
    }
    moved = None if found.moving is None else found.moving.steps * found.moving.mean
    return Result(
        "undisturbed", load.name,
        (
            Goal("while others move, of alone", percent(found, "alone", "mean"), "%",
                 least=99 if load.gives_way else None),
            Goal("the same, by the median step", percent(found, "alone", "median"), "%"),
            Goal("while others move, of quiet", percent(found, "quiet", "mean"), "%"),
            Goal("the same, by the median step", percent(found, "quiet", "median"), "%"),
            Goal("in so much time", moved, "ms"),
            Goal("in all its turns, of alone", percent(found, "alone", "mean", of="turns"), "%")),
        {"step_ms": asdict(found), **speeds, **described(tasks, outcomes)},
        wrong(outcomes))


def paces(trace: Sequence[Line], runner: Outcome, others_started: int,
          least: float = MOVING) -> Paces:
    """Returns the paces of a program. `least`: part of a `moving` step that moves must cover."""
    # Two orders to one client are 1/100 of a move apart: no step fits between the two.
    moving = spans(move for move in moves(trace, least=1) if move.get("pid") != runner.pid)
    turns = list(_turns(trace, runner.pid))
    steps = list(zip(runner.steps, runner.steps[1:], strict=False))
    # The card's clock rises at first, so steps in the first half of the time alone do not count.
    rise = (runner.steps[0] + others_started) / 2 if runner.steps else 0
    disturbed, quiet, seen = [], [], []
    for step in steps:
        if step[0] < others_started or not _within(step, turns):
            continue
        seen.append(step)
        share = covered(common([step], moving)) / max(1, step[1] - step[0])
        if share >= least:
            disturbed.append(step)
        elif share == 0:
            quiet.append(step)
    return Paces(_pace([step for step in steps if rise <= step[0] and step[1] <= others_started]),
                 _pace(quiet), _pace(disturbed), _pace(seen))


def percent(found: Paces, other: str, figure: str, of: str = "moving") -> float | None:
    """Speed in the state `of` in percent of the speed in `other`, by this figure of Pace."""
    slow, fast = getattr(found, of), getattr(found, other)
    return None if slow is None or fast is None else (
        100 * getattr(fast, figure) / getattr(slow, figure))


def _turns(trace: Iterable[Line], pid: int) -> Iterable[Span]:
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


def _pace(steps: Sequence[Span]) -> Pace | None:
    if not steps:
        return None
    took = [(end - begin) / 1000 for begin, end in steps]
    median = statistics.median(took)
    late = [time - median for time in took if time > LONG * median]
    return Pace(len(took), round(statistics.fmean(took), 4), round(median, 4), max(took), len(late),
                round(sum(late), 3))
