# SPDX-License-Identifier: Apache-2.0
"""Hand-overs as the daemon's trace tells them: how long each took, and what crossed the bus.

    STOP to A        A has drained            B's turn starts
    |---- drain ------|-------- passage --------|
                           A's blocks out
                             B's blocks in

A move is one answer to an order: it has the bytes copied, and the microseconds that this took. A
move may begin before a passage or end after it; then the same part of its bytes counts as of its
time. `both` is the time with an eviction and a load at the same moment.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from bench.trace import Line, moves, turn_changes
from nvshared.units import GIB

Span = tuple[float, float]              # from, until; microseconds of CLOCK_MONOTONIC


@dataclass(frozen=True, slots=True)
class Handover:
    """The time from STOP to one program until the turn of another program starts, without time in
    which no program wanted the GPU."""

    stop_to_run_ms: float
    drain_ms: float
    out_bytes: float                    # bytes that crossed the bus in the passage
    in_bytes: float
    both_ms: float                      # ms of the passage with moves in both directions
    both_out_bytes: float               # bytes evicted in that time
    both_in_bytes: float
    warmed_up: bool                     # no host memory was allocated since the last passage

    @property
    def less_drain_ms(self) -> float:
        return self.stop_to_run_ms - self.drain_ms


def shared(trace: Iterable[Line]) -> list[Line]:
    """Returns the trace until the first program ended: later hand-overs move less memory."""
    return list(takewhile(lambda line: line.get("event") != "left", trace))


def handovers(trace: Sequence[Line]) -> list[Handover]:
    """Returns hand-overs in order of time, without programs that did not stop at once."""
    # A hook may move fewer bytes than the order asked for, so moves of all sizes count.
    found = list(moves(trace, least=1))
    out = [move for move in found if move["event"] == "evicted"]
    into = [move for move in found if move["event"] == "loaded"]
    both = common(spans(out), spans(into))
    made, before = [], 0.0
    for one in turn_changes(trace):
        if one.drained is None:
            continue
        passage = [(one.drained, one.ended)] if one.ended > one.drained else []
        together = common(both, passage)
        made.append(Handover(
            stop_to_run_ms=one.ms, drain_ms=(one.drained - one.began) / 1000,
            out_bytes=_bytes(out, passage), in_bytes=_bytes(into, passage),
            both_ms=covered(together) / 1000, both_out_bytes=_bytes(out, together),
            both_in_bytes=_bytes(into, together),
            warmed_up=not any(
                move["host_grew"] for move in out if before < move["at"] <= one.ended)))
        before = one.ended
    return made


def union(spans: Iterable[Span], gap: float = 0.0) -> list[Span]:
    """Merges spans that overlap, or that are at most `gap` microseconds apart."""
    merged: list[Span] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1] + gap:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def common(one: Sequence[Span], other: Sequence[Span]) -> list[Span]:
    pairs = ((max(a[0], b[0]), min(a[1], b[1])) for a in one for b in other)
    return [(begin, end) for begin, end in pairs if begin < end]


def covered(spans: Iterable[Span]) -> float:
    """Returns the total length of disjoint spans in microseconds."""
    return sum(end - begin for begin, end in spans)


def spans(found: Iterable[Line]) -> list[Span]:
    return union((move["began"], move["at"]) for move in found)


def figures(found: Sequence[Handover]) -> dict[str, Any]:
    """Returns medians and spreads of the hand-overs that allocated no host memory."""
    warm = [one for one in found if one.warmed_up]
    moved = [one for one in warm if one.both_ms > 0]
    return {
        "handovers": len(found),
        "warmed_up": len(warm),
        "stop_to_run_less_drain_ms": spread([one.less_drain_ms for one in warm]),
        "drain_ms": spread([one.drain_ms for one in warm]),
        "out_gib": spread([one.out_bytes / GIB for one in warm]),
        "in_gib": spread([one.in_bytes / GIB for one in warm]),
        "both_ms": spread([one.both_ms for one in warm]),
        "out_gbps_both": spread([one.both_out_bytes / one.both_ms / 1e6 for one in moved]),
        "in_gbps_both": spread([one.both_in_bytes / one.both_ms / 1e6 for one in moved]),
        "out_gbps_passage": spread(
            [one.out_bytes / one.less_drain_ms / 1e6 for one in warm if one.less_drain_ms > 0]),
        "in_gbps_passage": spread(
            [one.in_bytes / one.less_drain_ms / 1e6 for one in warm if one.less_drain_ms > 0])}


def spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {
        "median": round(statistics.median(values), 4),
        "least": round(min(values), 4), "most": round(max(values), 4)}


def median(found: dict[str, Any], name: str) -> float | None:
    return None if found[name] is None else float(found[name]["median"])


def most(found: dict[str, Any], name: str) -> float | None:
    return None if found[name] is None else float(found[name]["most"])


def _bytes(found: Iterable[Line], during: Sequence[Span]) -> float:
    total = 0.0
    for move in found:
        span = (move["began"], move["at"])
        share = covered(common([span], during)) / max(1, move["microseconds"])
        total += move["bytes"] * share
    return total
