# SPDX-License-Identifier: Apache-2.0
"""Parts of the time between a request and its result, from the daemon's trace.

    due    began   want              STOP        stopped                    RUN          ended
    |-queue--|-ask---|-----turn--------|-stop|drain-|--out--|-----in-----|-order-|-start|-result-|

A request waits for earlier requests to its model (`queue`); its first launch reaches the gate and
the daemon learns of that (`ask`); turns of other programs end (`turn`); the last of these programs
gets STOP and drains (`stop`, `drain`); others' memory is evicted (`out`) and the model is loaded
(`in`); the gate opens. Time that no part covers is `order`: messages on their way and decisions.
`result` is the duration of a request to a resident model, `start` the rest. Time with moves in both
directions counts as `in`, all time before STOP as `turn`. A request that finds its gate open has
only `start` and `result`. The sum of all parts is the time from due to ended.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bench.handover.passage import Span, common, covered, union
from bench.models.program import Answer
from bench.trace import Line

PARTS = ("queue", "ask", "turn", "stop", "drain", "out", "in", "order", "start", "result")
ABSENT = 0.9                            # missing part of a model from which it counts as absent


class Breakdown(NamedTuple):
    """A request, the bytes of its model that were not resident at its beginning, and its parts."""

    answer: Answer
    missing: int                        # bytes that were not resident
    size: int                           # bytes of the model
    parts: dict[str, float]             # microseconds by part

    @property
    def took(self) -> int:
        """Microseconds from the due time until the result."""
        return self.answer.ended - self.answer.due

    @property
    def kind(self) -> str:
        if self.missing >= ABSENT * self.size:
            return "absent"
        return "partly" if self.missing else "resident"


def breakdowns(answers: Iterable[Answer], trace: Sequence[Line], pids: Sequence[int],
               alone: float) -> list[Breakdown]:
    """Divides each request's time. `alone`: us of a request to a model alone on the card."""
    return [_breakdown(one, trace, pids[one.model], alone) for one in answers]


def moved(trace: Iterable[Line], answers: Sequence[Answer]) -> tuple[int, int]:
    """Returns the evicted and the loaded bytes. An eviction copies only what the host lacks."""
    begin, end = min(one.due for one in answers), max(one.ended for one in answers)
    found = [line for line in trace if begin <= line["at"] <= end]
    evicted, loaded = (
        sum(line["bytes"] for line in found if line.get("event") == event)
        for event in ("evicted", "loaded"))
    return evicted, loaded


def _breakdown(answer: Answer, trace: Sequence[Line], pid: int, alone: float) -> Breakdown:
    mine = [line for line in trace if line.get("pid") == pid and line["at"] <= answer.ended]
    known = [line["memory"] for line in mine if "memory" in line and line["at"] <= answer.began]
    memory = known[-1] if known else {"allocated": 1, "resident": 1}
    parts = dict.fromkeys(PARTS, 0.0)
    parts["queue"] = answer.began - answer.due
    runs = [line["at"] for line in mine
            if line.get("report") == "turn-started" and line["at"] >= answer.began]
    run = runs[-1] if runs else answer.began
    parts["result"] = min(alone, answer.ended - run)
    parts["start"] = answer.ended - run - parts["result"]
    left: list[Span] = [(answer.began, run)] if runs else []
    for name, covering in _covering(answer, trace, pid, mine, run):
        parts[name] += covered(common(left, covering))
        left = _less(left, covering)
    parts["order"] = covered(left)
    return Breakdown(
        answer, memory["allocated"] - memory["resident"], memory["allocated"],
        {name: round(value, 3) for name, value in parts.items()})


def _covering(answer: Answer, trace: Sequence[Line], pid: int, mine: Iterable[Line],
              run: float) -> list[tuple[str, list[Span]]]:
    """Returns spans by part, for the time before RUN; of two parts in a moment the first counts."""
    wanted = min(
        (line["at"] for line in mine if line.get("wants") and line["at"] >= answer.began),
        default=answer.began)
    others = [line for line in trace if line.get("pid") != pid and line["at"] >= answer.began]
    stops = [line["at"] for line in others if line.get("order") == "stop"]
    stop = max((at for at in stops if wanted <= at <= run), default=wanted)
    drained = [
        line for line in others if line.get("event") == "stopped" and stop <= line["at"] <= run]
    return [
        ("ask", [(answer.began, min(wanted, run))]),
        ("turn", [(wanted, stop)]),
        ("drain", _spans(drained)),
        ("stop", union((stop, line["at"]) for line in drained)),
        ("in", _spans(line for line in mine if line.get("event") == "loaded")),
        ("out", _spans(line for line in others if line.get("event") == "evicted"))]


def _spans(answers: Iterable[Line]) -> list[Span]:
    """Returns the spans of the answered orders, also of orders that copied nothing."""
    return union((line["at"] - line["microseconds"], line["at"]) for line in answers)


def _less(some: Sequence[Span], gone: Iterable[Span]) -> list[Span]:
    left = list(some)
    for begin, end in gone:
        left = [
            piece for one in left
            for piece in ((one[0], min(one[1], begin)), (max(one[0], end), one[1]))
            if piece[0] < piece[1]]
    return left
