# SPDX-License-Identifier: Apache-2.0
"""Two programs with all memory in allocations of 2 MiB ("pieces"), first few, then many: the time
to evict or load a piece must not grow with their number.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from bench.handover.card import Card
from bench.handover.company import described, run, wrong
from bench.handover.goal import Goal, Result
from bench.handover.program import Task
from bench.trace import Line, moves, summary

PIECE = 2 << 20
FEW, MANY = 0.0352, 0.281               # parts of the card: 2,500 and 20,000 pieces of 139 GiB
ROOM = 1.3                              # capacity, in multiples of a program's memory
QUANTUM = 1.0                           # seconds
MORE = 1.2                              # largest ratio of the times per piece, MANY over FEW


def pieces(card: Card) -> Result:
    figures: dict[str, Any] = {}
    said: tuple[str, ...] = ()
    taken: list[Mapping[str, float | None]] = []
    for share in (FEW, MANY):
        tasks = [Task(card.share(share), card.seconds, seed, PIECE) for seed in (1, 2)]
        trace, outcomes = run(card, tasks, str(round(ROOM * tasks[0].memory)), QUANTUM)
        found = list(moves(trace, least=1))
        taken.append({way: _microseconds(found, way) for way in ("evicted", "loaded")})
        said += wrong(outcomes)
        figures[f"pieces of {tasks[0].memory // PIECE}"] = {
            "microseconds": dict(taken[-1]), "moves": summary(trace, 1),
            **described(tasks, outcomes)}
    few, many = taken
    return Result(
        "pieces", "",
        (
            Goal("a piece out, of few", few["evicted"], "us"),
            Goal("a piece out, of many", many["evicted"], "us"),
            Goal("out, times as long", _ratio(few, many, "evicted"), "", most=MORE),
            Goal("a piece in, of few", few["loaded"], "us"),
            Goal("a piece in, of many", many["loaded"], "us"),
            Goal("in, times as long", _ratio(few, many, "loaded"), "", most=MORE)),
        figures, said)


def _microseconds(found: Iterable[Line], way: str) -> float | None:
    counted = [move for move in found if move["event"] == way and not move["host_grew"]]
    size = sum(move["bytes"] for move in counted)
    return sum(move["microseconds"] for move in counted) * PIECE / size if size else None


def _ratio(few: Mapping[str, float | None], many: Mapping[str, float | None],
           way: str) -> float | None:
    one, other = few[way], many[way]
    return None if one is None or other is None else other / one
