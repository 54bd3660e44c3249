# SPDX-License-Identifier: Apache-2.0
"""Evictions to the memory of a second card: hand-overs, the return of the loan when a program
starts on that card (`neighbour`), and the loss of a program that runs there (`beside`).
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from bench.handover.card import Card
from bench.handover.company import described, run, wrong
from bench.handover.goal import Goal, Result
from bench.handover.passage import figures, handovers, median, spread
from bench.handover.program import Outcome, Task
from bench.handover.swapping import LARGE, QUANTUM, tasks
from bench.handover.undisturbed import ALONE, LOADS, Load
from bench.trace import Line
from nvshared.units import GIB

NEARLY_ALL = 0.85                       # part of the second card in use
PER_32_GIB = 100                        # ms to return 32 GiB of a loan, at most
MODES = ("auto", "off")
LOSS = {"memory-bound": 2.0, "compute-bound": 0.5}      # largest loss of speed in percent


def neighbour(card: Card) -> Iterator[Result]:
    for mode in MODES:
        yield handed_over(card, mode)
    yield given_back(card)


def beside(card: Card) -> Iterator[Result]:
    for load in LOADS[:2]:
        for mode in MODES:
            yield felt(card, load, mode)


def two_cards(card: Card) -> Card:
    """The card, with a second simulated card if it is simulated."""
    more = {"NVSHARE_SIM_GPUS": "2", "NVSHARE_SIM_NVLINK": "1"} if card.simulated else {}
    return replace(card, environment={**card.environment, **more})


def handed_over(card: Card, mode: str) -> Result:
    programs = tasks(card, 2, LARGE)
    trace, outcomes = run(
        two_cards(card), programs, "100%", QUANTUM, examined=False, neighbour=mode)
    found = figures(handovers(trace))
    return Result(
        "neighbour", f"neighbour {mode}",
        (
            Goal("STOP to RUN, less the drain", median(found, "stop_to_run_less_drain_ms"), "ms",
                 most=150 if mode == "auto" else None),
            Goal("out, while both move", median(found, "out_gbps_both"), "GB/s"),
            Goal("in, while both move", median(found, "in_gbps_both"), "GB/s"),
            Goal("lent at most", _most_borrowed(trace) / GIB, "GiB")),
        {**found, **described(programs, outcomes)}, wrong(outcomes))


def given_back(card: Card) -> Result:
    programs = tasks(card, 2, LARGE)
    late = replace(
        programs[0], memory=card.share(NEARLY_ALL), seed=9, visible="1",
        after=card.seconds / 2, seconds=card.seconds / 4)
    programs.append(late)
    trace, outcomes = run(
        two_cards(card), programs, "100%", QUANTUM, examined=False, neighbour="auto")
    given = returns(trace)
    return Result(
        "neighbour", "its memory is given back",
        (
            *given_back_in(given),
            Goal("HELLO to first step there", _first_step(trace, outcomes[-1]), "ms")),
        {"orders_ms": spread([one[1] / 1000 for one in given]), **described(programs, outcomes)},
        wrong(outcomes))


def felt(card: Card, load: Load, mode: str) -> Result:
    """Measures the slowdown by `load` of a program on the second card. `mode`: of `neighbour`."""
    later = card.seconds * ALONE
    used = card.share(load.used)
    runner = Task(used, card.seconds, 9, used, rounds=load.rounds, visible="1")
    others = [
        replace(one, after=later, seconds=card.seconds - later) for one in tasks(card, 2, LARGE)]
    trace, outcomes = run(
        two_cards(card), [runner, *others], "100%", 2 * QUANTUM, examined=False, neighbour=mode)
    first = min(one.started for one in outcomes[1:])
    others_pids = {one.pid for one in outcomes[1:]}
    moved = next((line["at"] for line in trace if line.get("pid") in others_pids
                  and line.get("event") == "evicted" and line["bytes"]), first)
    alone, disturbed = (
        _rate([at for at in outcomes[0].steps if begin <= at < end])
        for begin, end in ((0, first), (moved, outcomes[0].steps[-1])))
    loss = 100 * (1 - disturbed / alone) if alone and disturbed else None
    return Result(
        "beside", f"a neighbour that is {load.name}, neighbour {mode}",
        (Goal("it loses", loss, "%", most=LOSS[load.name] if mode == "auto" else None),
         Goal("lent at most", _most_borrowed(trace) / GIB, "GiB")),
        {"steps_per_second_alone": alone, "steps_per_second_beside": disturbed,
         **described([runner, *others], outcomes)},
        wrong(outcomes))


def _rate(steps: list[int]) -> float | None:
    return (len(steps) - 1) * 1e6 / (steps[-1] - steps[0]) if len(steps) > 1 else None


def _most_borrowed(trace: list[Line]) -> int:
    held: dict[int, int] = {}
    most = 0
    for line in trace:
        if "memory" in line:
            held[line["client"]] = line["memory"]["borrowed"]
            most = max(most, sum(held.values()))
    return most


def given_back_in(given: list[tuple[int, int]]) -> tuple[Goal, Goal]:
    size, took = (sum(one[i] for one in given) for i in (0, 1))
    pace = took / 1000 / (size / (32 * GIB)) if size else None
    return (
        Goal("given back, for 32 GiB", pace, "ms", most=PER_32_GIB),
        Goal("given back", size / GIB, "GiB"))


def returns(trace: Iterable[Line]) -> list[tuple[int, int]]:
    """Returns bytes and microseconds of each EVICT order by which a loan shrank."""
    held: dict[int, int] = {}
    loans: dict[Any, int] = {}
    found = []
    for line in trace:
        if line.get("order") == "evict":
            loans[line["gpu"], line["number"]] = line["loan"]
        if "memory" not in line:
            continue
        before, now = held.get(line["client"], 0), line["memory"]["borrowed"]
        held[line["client"]] = now
        if line.get("event") == "evicted" and loans[line["gpu"], line["number"]] < before:
            found.append((before - now, line["microseconds"]))
    return found


def _first_step(trace: list[Line], late: Outcome) -> float | None:
    """Milliseconds from the program's HELLO to the end of its first step."""
    came = [line["at"] for line in trace
            if line.get("event") == "joined" and line.get("pid") == late.pid]
    return (late.steps[0] - came[0]) / 1000 if came and late.steps else None
