# SPDX-License-Identifier: Apache-2.0
"""Measures each program's share of a shared card: python -m bench.shares.measure.

A share is a program's rate over its rate alone, without the library. The first SETTLED seconds, in
which a limit's window fills, do not count. See docs/internals/benchmarks.md. Exit status 1 for
wrong data.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from statistics import median

from bench.handover.card import Card
from bench.handover.goal import Goal, Result
from bench.handover.measure import main
from bench.handover.program import workload
from bench.harness import run
from bench.shares.load import CHUNK, Program, Shape, Work, serving, tenant, together, user_of, work
from bench.trace import Line, turn_changes

SMALL = Shape("500 kernels of 7 us, then a look", 500, 7)
LAUNCHES = Shape("500 kernels of 3 us, 10 us of the processor before each", 500, 3, host=10)
TINY = Shape("kernels of 10 us", 1000, 10)
MILLISECOND = Shape("kernels of 1 ms", 20, 1000)
LARGE = Shape("kernels of 100 ms", 2, 100_000)
LONGEST = Shape("kernels of 2 s", 1, 2_000_000)
GRAPH = Shape("graphs of 100 kernels of 20 us", 100, 20, graph=True)
TRAINING = Shape("a training", 16, 250, passes=8)
SERVICE = Shape("requests each 20 ms", 30, 100, period=20_000)
REQUESTS = Shape("requests each 250 ms", 30, 100, period=250_000)
CELL = Shape("a cell of 1 s each 5 s", 4000, 250, passes=1, part=0.57, period=5_000_000)
FILLING = Shape("a training that fills the card", 16, 250, passes=1, part=0.57)
SHAPES = (SMALL, LAUNCHES, TINY, MILLISECOND, LARGE, LONGEST, GRAPH, TRAINING)
PERCENTS = (25, 50, 75)
SETTLED = 2.0                           # seconds at the start that do not count
WINDOW = 5.0
TURNS = ("--anti-thrash", "on", "--tq", "auto")
IN_BACKGROUND = {"priority": "background"}
HIGH = {"priority": "high"}
DEADLINE = 100                          # ms


@cache
def alone(card: Card, shape: Shape) -> Work:
    return together(card, max(3.0, card.seconds / 4), [Program(shape, {})], None)[0]


def share(card: Card, program: Program, work: Work, begin: float, end: float | None) -> float:
    return 100 * work.rate(begin, end) / alone(card, program.shape).rate()


def limits(card: Card) -> Iterator[Result]:
    for shape in SHAPES:
        for percent in PERCENTS:
            program = Program(shape, {"compute-limit": f"{percent}%"})
            yield _shares(card, "limits", f"{shape.name}, {percent} %", [program], [percent], ())
    for shape in (LAUNCHES, MILLISECOND):
        programs = [Program(shape, {"compute-limit": "50%"})] * 2
        setting = f"two at once, {shape.name}, 50 % each"
        yield _shares(card, "limits", setting, programs, [50, 50], ())


def weights(card: Card) -> Iterator[Result]:
    for shapes in ((LARGE, LARGE), (MILLISECOND, MILLISECOND), (SMALL, LARGE),
                   (SMALL, MILLISECOND, TRAINING)):
        programs = [
            Program(shape, {"weight": str(100 << rank)}) for rank, shape in enumerate(shapes)]
        due = [100 * (1 << rank) / ((1 << len(shapes)) - 1) for rank in range(len(shapes))]
        words = ":".join(str(1 << rank) for rank in range(len(shapes)))
        setting = f"{words}, {', '.join(shape.name for shape in shapes)}"
        yield _shares(card, "weights", setting, programs, due, TURNS, least=97)


def request(card: Card) -> Iterator[Result]:
    programs = [Program(MILLISECOND, {"compute-request": "30%"})]
    programs += [Program(MILLISECOND, {"weight": "1000"})] * 4
    found = together(card, card.seconds, programs, TURNS)
    figures = [share(card, one, work, SETTLED, None)
               for one, work in zip(programs, found, strict=True)]
    goals = (
        Goal("of the one that requested 30 %", figures[0], "%", least=29),
        Goal("all together", sum(figures), "%", least=97))
    yield _result("request", "30 % against four of weight 1000", goals, found, shares=figures)


def pair(card: Card) -> Iterator[Result]:
    for shape in (MILLISECOND, TRAINING, SMALL):
        for words, options in (("no library", None), ("auto", ()), ("on, turns of 1 s",
                               ("--anti-thrash", "on", "--tq", card.quantum(1)))):
            programs = [Program(shape, {})] * 2
            found = together(card, card.seconds, programs, options)
            figures = [share(card, one, work, SETTLED, None)
                       for one, work in zip(programs, found, strict=True)]
            goal = Goal("both together", sum(figures), "%", least=99 if words == "auto" else None)
            yield _result("pair", f"{shape.name}, {words}", (goal,), found, shares=figures)


def service(card: Card) -> Iterator[Result]:
    quiet = alone(card, SERVICE)
    for words, options, terms in (
        ("no library", None, ({}, {})), ("auto", (), ({}, {})),
        ("high, the training in the background", (), (HIGH, IN_BACKGROUND)),
    ):
        programs = [Program(SERVICE, terms[0]), Program(TRAINING, terms[1])]
        found = together(card, card.seconds, programs, options)
        judged = terms[0] is HIGH
        rate = share(card, programs[1], found[1], SETTLED, None)
        goals = (
            Goal("median", found[0].late(0.5), "ms"),
            Goal("median alone", quiet.late(0.5), "ms"),
            Goal("99th percentile", found[0].late(0.99), "ms"),
            Goal("99th percentile alone", quiet.late(0.99), "ms"),
            Goal("99th percentile over alone", found[0].late(0.99) / quiet.late(0.99), "times",
                 most=1.1 if judged else None),
            Goal("the training, of alone", rate, "%", least=70 if judged else None))
        yield _result("service", words, goals, found, training=rate)


def deadline(card: Card) -> Iterator[Result]:
    """Requests beside two trainings, all of which take turns: the part that began in time."""
    quantum = ("--anti-thrash", "on", "--tq", card.quantum(1))
    for words, options, terms in (
        ("fair", (), ({}, {})),
        ("priority: high, the trainings in the background", (), (HIGH, IN_BACKGROUND)),
        ("deadline", ("--policy", "deadline"), ({"deadline": f"{DEADLINE}ms"}, {})),
    ):
        trace: list[Line] = []
        programs = [Program(REQUESTS, terms[0]), *[Program(TRAINING, terms[1])] * 2]
        found = together(card, card.seconds, programs, (*quantum, *options), trace)
        waits = waited(trace, all_of_first=True)
        late = sum(one > DEADLINE for one in waits)
        met = 100 * (1 - late / len(found[0].milliseconds))
        rates = [share(card, one, work, SETTLED, None)
                 for one, work in zip(programs[1:], found[1:], strict=True)]
        judged = words == "deadline"
        goals = (
            Goal(f"begun within {DEADLINE} ms", met, "%", least=95 if judged else None),
            Goal("the longest wait for a turn", max(waits, default=0), "ms"),
            Goal("a request, median", found[0].late(0.5), "ms"),
            Goal("99th percentile", found[0].late(0.99), "ms"),
            Goal("the trainings together, of alone", sum(rates), "%",
                 least=70 if judged else None))
        yield _result("deadline", words, goals, found, waits=waits, trainings=rates)


def cell(card: Card) -> Iterator[Result]:
    trace: list[Line] = []
    programs = [Program(CELL, HIGH), Program(FILLING, IN_BACKGROUND)]
    found = together(card, card.seconds, programs, ("--swap-budget", str(card.budget)), trace)
    quiet = alone(card, CELL).late(0.5)
    notebook = {
        line["client"] for line in trace
        if line.get("event") == "joined" and tenant(card, 0) in line["tenants"]}
    own = [one.ms for one in turn_changes(trace) if one.client in notebook]
    took, handover = found[0].late(0.5), median(own) if own else 0.0
    goals = (
        Goal("a cell alone, median", quiet, "ms"),
        Goal("a cell beside it, median", took, "ms"),
        Goal("STOP to RUN for it, median", handover, "ms"),
        Goal("longer than alone and a hand-over", 100 * (took - quiet - handover) / quiet, "%",
             most=2),
        Goal("the training, of alone", share(card, programs[1], found[1], SETTLED, None), "%"))
    yield _result("cell", "high, the training in the background", goals, found)


def urgent(card: Card) -> Iterator[Result]:
    """Starts programs of high priority one after the other beside a training in the background.

    Each program changes all of its memory, checks every word and ends. No two fit together.
    """
    command = workload(card.share(CELL.part), CHUNK * card.block, 1, "--steps", 1)
    plain = run([command], card.plain)[0].seconds
    programs = [Program(FILLING, IN_BACKGROUND), Program(CELL, HIGH)]
    with (
        serving(card, programs, ("--swap-budget", str(card.budget))) as daemon,
        ThreadPoolExecutor(1) as pool,
    ):
        training = pool.submit(work, card, programs[:1], daemon.environment, card.seconds)
        ended = []
        while not training.done():
            time.sleep(SETTLED)
            if not training.done():
                ended += run([command], daemon.environment, user=user_of(card, 1))
        found, trace = training.result(), daemon.trace()
    waits, lasted = waited(trace)[1:], [one.seconds for one in ended]
    goals = (
        Goal("programs of high priority", len(ended), "programs"),
        Goal("from the first launch to the turn, median", median(waits or [0]), "ms", most=500),
        Goal("the longest", max(waits, default=0), "ms"),
        Goal("from its start to its end, median", median(lasted or [0]), "s"),
        Goal("the same without the library", plain, "s"),
        Goal("the training, of alone", share(card, programs[0], found[0], SETTLED, None), "%"))
    codes = [one.code for one in ended]
    wrong = [f"exit status {code}: {one.errors}"
             for code, one in zip(codes, ended, strict=True) if code]
    yield _result("urgent", "high, beside a training in the background", goals, found, wrong,
                  waits=waits)


def waited(trace: Sequence[Line], all_of_first: bool = False) -> list[float]:
    """Returns for each client the ms from its first request for a turn until that turn began, or
    for the client that came first those of all its turns."""
    since: dict[int, int] = {}
    found: dict[int, list[float]] = {}
    for line in trace:
        if line.get("wants"):
            since.setdefault(line["client"], line["at"])
        elif line.get("report") == "turn-started" and line["client"] in since:
            waits = found.setdefault(line["client"], [])
            waits.append((line["at"] - since.pop(line["client"])) / 1000)
    of_first = found[min(found)] if found else []
    return of_first if all_of_first else [found[client][0] for client in sorted(found)]


ROWS = {"limits": limits, "weights": weights, "request": request, "pair": pair,
        "service": service, "deadline": deadline, "cell": cell, "urgent": urgent}


def _shares(card: Card, variant: str, setting: str, programs: Sequence[Program],
            due: Sequence[float], options: Sequence[str], least: float | None = None) -> Result:
    found = together(card, card.seconds, programs, options)
    shares = [share(card, one, work, SETTLED, None)
              for one, work in zip(programs, found, strict=True)]
    windows = [_windows(card, one, work) for one, work in zip(programs, found, strict=True)]
    wrong = max(abs(one - wanted) for one, wanted in zip(shares, due, strict=True))
    extreme = max(abs(one - wanted) for all_of_it,
                  wanted in zip(windows, due, strict=True) for one in all_of_it)
    goals = [Goal("had", one, "%") for one in shares] + [
        Goal("error", wrong, "points", most=1),
        Goal(f"error over {WINDOW:.0f} s", extreme, "points", most=3)]
    if least is not None:
        goals.append(Goal("all together", sum(shares), "%", least=least))
    return _result(variant, setting, tuple(goals), found, shares=shares, windows=windows)


def _windows(card: Card, program: Program, work: Work) -> list[float]:
    last = int(card.seconds - WINDOW)
    return [share(card, program, work, begin, begin + WINDOW)
            for begin in range(int(SETTLED), last + 1)] or [share(card, program, work, 0, None)]


def _result(variant: str, setting: str, goals: tuple[Goal, ...], found: Sequence[Work],
            errors: Sequence[str] = (), **figures: object) -> Result:
    wrong = (*errors, *(f"program {number} has wrong words" for number, one in enumerate(found)
                        if not one.right))
    done = [[round(one, 3) for one in work.done] for work in found]
    return Result(variant, setting, goals, {**figures, "done": done}, wrong)


if __name__ == "__main__":
    sys.exit(main("shares", "Measures what programs get of a card; without --variant, all of it.",
                  ROWS))
