# SPDX-License-Identifier: Apache-2.0
"""What a daemon's trace says of its hand-overs: how often, how much, how fast."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

Line = dict[str, Any]
MEASURABLE = 256 << 20                  # bytes; smaller moves say more of latency than of speed


def summary(trace: Sequence[Line]) -> dict[str, Any]:
    """Figures of one GPU's trace. Times in ms, speeds in GB/s (10**9)."""
    moves = list(_moves(trace))
    out = [move for move in moves if move["event"] == "evicted"]
    back = [move for move in moves if move["event"] == "loaded"]
    handovers = list(_handovers(trace))
    drains = [line["microseconds"] / 1000 for line in trace if line.get("event") == "stopped"]
    return {
        "turns": sum(line.get("report") == "turn-started" for line in trace),
        "handovers": len(handovers),
        "moved_out_gib": sum(move["bytes"] for move in out) / 2**30,
        "moved_in_gib": sum(move["bytes"] for move in back) / 2**30,
        "out_gbps": _speed(out),
        "in_gbps": _speed(back),
        "out_gbps_first": _speed(out[:1]),
        "drain_ms": _spread(drains),
        "stop_to_run_ms": _spread([handover["ms"] for handover in handovers]),
        "reopened": sum(line.get("event") == "reopened" for line in trace),
    }


def _moves(trace: Iterable[Line]) -> Iterable[Line]:
    """Answers that moved bytes over the bus. A load before a client's first eviction only maps."""
    evicted = set()
    for line in trace:
        if line.get("event") == "evicted" and line["bytes"]:
            evicted.add(line["client"])
            yield line
        elif line.get("event") == "loaded" and line["bytes"] and line["client"] in evicted:
            yield line


def _handovers(trace: Iterable[Line]) -> Iterable[Line]:
    """From STOP to one client to the start of another's turn."""
    stopped: Line | None = None
    for line in trace:
        if line.get("order") == "stop":
            stopped = stopped or line
        elif line.get("report") == "turn-started" and stopped is not None:
            if line["client"] != stopped["client"]:
                yield {"ms": (line["at"] - stopped["at"]) / 1000}
            stopped = None


def _speed(moves: Sequence[Line]) -> float | None:
    large = [move for move in moves if move["bytes"] >= MEASURABLE and move["microseconds"]]
    if not large:
        return None
    moved, took = sum(m["bytes"] for m in large), sum(m["microseconds"] for m in large)
    return float(moved / took / 1000)


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {"median": statistics.median(values), "largest": max(values), "smallest": min(values)}
