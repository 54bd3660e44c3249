# SPDX-License-Identifier: Apache-2.0
"""Measures the duration of requests to many models on a card: python -m bench.models.measure.

See docs/internals/benchmarks.md. Sizes are parts of the card; all ways of a case (ways.py)
are measured in one run. Exit status 1 if any weights were wrong.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from statistics import fmean, median

from bench.handover.card import Card, locks_too_much
from bench.handover.goal import Goal, Result
from bench.handover.measure import Variants, main
from bench.handover.neighbour import NEARLY_ALL, given_back_in, returns, two_cards
from bench.models import demand
from bench.models.demand import Demand, Request
from bench.models.parts import PARTS, Breakdown, breakdowns, moved
from bench.models.program import Answer, Weights, speed, wrong
from bench.models.ways import Shared, alone, anew, by_hand, fitting, shared, weights
from nvshared.units import GIB

LARGE, MIDDLE, SMALL = 0.394, 0.1435, 0.107     # of the card: 55 and 20 GiB, 16 GB
FILLER = 0.6                            # of the card: 83 of 139 GiB
SLOWER = 5                              # factor of the rate of requests on a simulated card
KINDS = ("resident", "partly", "absent")
SETTINGS: Mapping[str, tuple[str, ...]] = {
    "shared": ("--neighbour", "off"), "ahead": ("--neighbour", "off", "--prefetch", "on")}


@dataclass(frozen=True, slots=True)
class Case:
    """Models, the requests to them, and the limits of the requests' times."""

    sizes: tuple[float, ...]            # parts of the card, one for each model
    demand: Demand
    tight: bool = False                 # the capacity is the size of the first model,
    counted: frozenset[int] | None = None   # models with counted requests; None: all models
    median: float | None = None         # ms: limit of the median,
    slowest: float | None = None        # and the 99th percentile
    of_alone: float | None = None       # limit of the median, over the time of a request alone
    of_limit: float | None = None       # limit for an absent model, over the bus's time


def _turn_about(seconds: float) -> list[Request]:
    return [Request(float(second), second % 2) for second in range(int(seconds))]


CASES = {
    "three": Case((LARGE,) * 3, demand.each(3, 2.0, 2.5), median=700, slowest=1000),
    "eight-zipf": Case((MIDDLE,) * 8, demand.zipf(8, 1.0, 1.0), slowest=450, of_alone=1.1),
    "eight-uniform": Case((MIDDLE,) * 8, demand.zipf(8, 1.0, 0.0)),
    "eight-bursts": Case((MIDDLE,) * 8, demand.bursts(8, 4.0, 8, 0.1)),
    "absent": Case((FILLER, SMALL), _turn_about, tight=True, counted=frozenset({1}), of_limit=1.15),
}


@dataclass(frozen=True, slots=True)
class Scale:
    alone: float                        # ms of a request to a model that has the card to itself
    bus: dict[str, float]               # GB/s, one way at a time


def measured(card: Card, name: str) -> Iterator[Result]:
    case = CASES[name]
    models = [weights(card, size, number + 1) for number, size in enumerate(case.sizes)]
    slower = SLOWER if card.simulated else 1
    requests = [Request(one.due / slower, one.model) for one in case.demand(card.seconds * slower)]
    scale = _scale(card, models[-1])
    capacity = str(models[0].size + models[0].chunk) if case.tight else "100%"
    for setting, options in SETTINGS.items():
        found = shared(card, models, requests, capacity, options)
        yield _shared(name, setting, case, found, scale)
    # These ways have models of one size; in a tight case only one of two models is on the card.
    count, fit = (2, 1) if case.tight else (len(models), fitting(card, models[-1]))
    for setting, way in (("by hand", partial(by_hand, count=count)), ("anew", anew)):
        if setting == "by hand" and locks_too_much(count * models[-1].size, setting):
            continue
        answers = way(card, models[-1], fit=fit, requests=requests, seconds=card.seconds)
        took = [(one.ended - max(one.due, one.began)) / 1000 for one in answers]
        goals = (*_percentiles("", took), Goal("requests that fitted the time", len(took), ""))
        yield Result(name, setting, goals, {"milliseconds": took}, wrong(answers))


def neighbour(card: Card) -> Iterator[Result]:
    """Measures the case `three` with and without the memory of a second card.

    At the end, while the models are idle, a program allocates most of the second card.
    """
    case, card = CASES["three"], two_cards(card)
    models = [weights(card, size, number + 1) for number, size in enumerate(case.sizes)]
    slower = SLOWER if card.simulated else 1
    requests = [Request(one.due / slower, one.model) for one in case.demand(card.seconds * slower)]
    for mode in ("auto", "off"):
        late = card.share(NEARLY_ALL) if mode == "auto" else 0
        found = shared(card, models, requests, "100%", ("--neighbour", mode), late)
        took = [(one.ended - one.due) / 1000 for one in found.answers]
        most = (100, 250) if mode == "auto" else (None, None)
        given = returns(found.trace)
        yield Result(
            "neighbour", f"neighbour {mode}",
            (*_percentiles("", took, *most), Goal("requests", len(took), ""),
             *(given_back_in(given) if late else ())),
            {"milliseconds": took, "returns": given}, found.wrong)


ROWS: Variants = {**{name: partial(measured, name=name) for name in CASES}, "neighbour": neighbour}


@cache
def _scale(card: Card, model: Weights) -> Scale:
    answers: Sequence[Answer] = alone(card, model)
    return Scale(
        median(one.ended - one.due for one in answers) / 1000,
        speed(model.chunk, card.plain))


def _shared(name: str, setting: str, case: Case, found: Shared, scale: Scale) -> Result:
    counted = [one for one in found.answers if case.counted is None or one.model in case.counted]
    requests = breakdowns(counted, found.trace, found.pids, 1000 * scale.alone)
    evicted, loaded = moved(found.trace, found.answers)
    took = [one.took / 1000 for one in requests]
    goals = [*_percentiles("", took, case.median, case.slowest)]
    of_kind = {kind: [one for one in requests if one.kind == kind] for kind in KINDS}
    for kind, some in of_kind.items():
        if some:
            goals += _percentiles(f"{kind} ({len(some)}): ", [one.took / 1000 for one in some])
    goals += [
        Goal("alone", scale.alone, "ms"),
        Goal("median over alone", median(took) / scale.alone, "times", most=case.of_alone),
        *(Goal(f"{kind}: over the bus's limit", _of_limit(of_kind[kind], scale), "times",
               most=case.of_limit if kind == "absent" else None)
          for kind in KINDS[1:] if of_kind[kind]),
        Goal("evicted", evicted / GIB, "GiB"), Goal("loaded", loaded / GIB, "GiB"),
        Goal("the bus alone, in", scale.bus["in_gbps"], "GB/s")]
    means = {part: fmean(one.parts[part] for one in requests) / 1000 for part in PARTS}
    goals += [Goal(f"where it goes: {part}", mean, "ms") for part, mean in means.items() if mean]
    documented = [
        {**one.answer._asdict(), "missing": one.missing, "parts": one.parts} for one in requests]
    figures = {
        "models": len(found.pids), "evicted_bytes": evicted, "loaded_bytes": loaded,
        "alone_ms": scale.alone, "bus": scale.bus, "mean_ms": means, "requests": documented}
    return Result(name, setting, tuple(goals), figures, found.wrong, drawing(requests), marks(took))


def _percentiles(words: str, took: Sequence[float], most: float | None = None,
                 slowest: float | None = None) -> Iterator[Goal]:
    for percent, goal in ((50, most), (90, None), (99, slowest)):
        label = "median" if percent == 50 else f"{percent}th percentile"
        yield Goal(words + label, percentile(took, percent), "ms", most=goal)


def percentile(took: Sequence[float], percent: int) -> float | None:
    """Returns this percentile of the times; None if there are no times."""
    return sorted(took)[min(len(took) - 1, len(took) * percent // 100)] if took else None


def _of_limit(some: Sequence[Breakdown], scale: Scale) -> float:
    """Returns the median of requests' times over the times to load their missing bytes."""
    return median(one.took / (one.missing / scale.bus["in_gbps"] / 1000) for one in some)


def drawing(requests: Sequence[Breakdown]) -> dict[str, list[float]]:
    """Returns each part's shares of the longest request's time; requests sorted by duration."""
    ordered = sorted(requests, key=lambda one: one.took)
    longest = max((one.took for one in ordered), default=1)
    return {
        part: values for part in PARTS
        if any(values := [one.parts[part] / longest for one in ordered])}


def marks(took: Sequence[float]) -> list[tuple[float, str]]:
    """Labels of a drawing: the median, the 90th percentile and the longest duration."""
    return [
        (percent / 100, f"{percent} %: {percentile(took, percent):.0f} ms")
        for percent in (50, 90, 100) if took]


if __name__ == "__main__":
    sys.exit(main(
        "models", "Measures requests to many models; without --variant, all of it.", ROWS))
