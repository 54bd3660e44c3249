# SPDX-License-Identifier: Apache-2.0
"""Programs that change a small part of their memory: the number of bytes that cross the bus.

A program's moves count from its second stop on, when memory that never changes was copied once.
docs/internals/benchmarks.md describes the programs of `one block`, `weights` and `both`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from bench.handover.card import Card
from bench.handover.company import described, run, wrong
from bench.handover.goal import Goal, Result
from bench.handover.program import Task
from bench.trace import Line, summary

UNCOUNTED = 2                           # first stops of each program, which do not count
BLOCK = 0.75                            # part of the card; so are the next three
USED = 0.03                             # 4 of 140 GiB
WEIGHTS = 0.286                         # 40 of 140 GiB
STATE = 0.007                           # 1 of 140 GiB
ROOM = "43%"                            # part of the card: 60 of 140 GiB
QUANTUM = 1.0                           # seconds
CHUNK = 256 << 20


@dataclass(frozen=True, slots=True)
class Absence:
    """Moves of one client's memory from one of its stops to the next; bytes."""

    out: int                            # copied off the card
    into: int
    left: int                           # resident at the first stop, and evicted after it
    resident: int                       # resident at the next stop


def little_used(card: Card) -> Iterator[Result]:
    block, state = card.share(BLOCK), card.share(STATE)
    reserved = Task(block, card.seconds, 1, block, used=card.share(USED))
    serving = Task(card.share(WEIGHTS) + state, card.seconds, 2, min(CHUNK, state), changed=state)
    yield _measure(card, "one block", (reserved, replace(reserved, seed=3)), "100%")
    yield _measure(card, "weights", (serving, replace(serving, seed=4)), ROOM)
    yield _measure(card, "both", (reserved, serving), "100%")


def _measure(card: Card, name: str, tasks: Sequence[Task], capacity: str) -> Result:
    trace, outcomes = run(card, tasks, capacity, QUANTUM)
    found = absences(trace)
    out, into, left = (
        _percent(found, size) for size in (lambda x: x.out, lambda x: x.into, lambda x: x.left))
    return Result(
        "little-used", name,
        (
            Goal("crossed the bus, of resident",
                 None if out is None or into is None else out + into, "%", most=10),
            Goal("on the way out", out, "%"),
            Goal("on the way in", into, "%"),
            Goal("left the card in all", left, "%")),
        {
            "absences": [asdict(one) for one in found],
            "moves": summary(trace, 8 * card.block), **described(tasks, outcomes)},
        wrong(outcomes))


def absences(trace: Sequence[Line]) -> list[Absence]:
    """Returns the absences of all clients; the first UNCOUNTED of each client are left out."""
    found: list[Absence] = []
    events = [line for line in trace if "event" in line and "memory" in line]
    for client in sorted({line["client"] for line in events}):
        stops = out = into = left = resident = 0
        for line in events:
            if line["client"] != client:
                continue
            now = line["memory"]["resident"]
            if line["event"] == "evicted":
                out += line["bytes"]
                left += max(0, resident - now)
            elif line["event"] == "loaded":
                into += line["bytes"]
            elif line["event"] == "stopped":
                stops += 1
                if stops > UNCOUNTED:
                    found.append(Absence(out, into, left, now))
                out = into = left = 0
            resident = now
    return found


def _percent(found: Sequence[Absence], size: Callable[[Absence], int]) -> float | None:
    resident = sum(one.resident for one in found)
    return 100 * sum(size(one) for one in found) / resident if resident else None
