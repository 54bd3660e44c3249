# SPDX-License-Identifier: Apache-2.0
"""Number, bytes and durations of hand-overs, from a daemon's trace."""

import json
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Line = dict[str, Any]
MEASURABLE = 256 << 20                  # bytes; latency dominates the time of smaller moves


@dataclass(frozen=True, slots=True)
class TurnChange:
    """A change of turns between two clients; times in microseconds of CLOCK_MONOTONIC."""

    client: int                         # id of the client that gets the turn
    began: float
    drained: float | None               # the other client had no work left; None: it did not tell
    ended: float                        # the turn starts

    @property
    def ms(self) -> float:
        return (self.ended - self.began) / 1000


def written(path: Path) -> list[Line]:
    """The events of the trace so far, oldest first.

    The daemon may be writing the last line: even of one write(), a reader may see only a part.
    """
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def summary(trace: Sequence[Line], least: int = MEASURABLE) -> dict[str, Any]:
    """Returns figures of one GPU's trace, by moves of at least `least` bytes.

    Times are in ms, speeds in 10**9 bytes per second; speeds are medians.
    """
    found = list(moves(trace, least))
    out = [move for move in found if move["event"] == "evicted"]
    back = [move for move in found if move["event"] == "loaded"]
    # A client's first eviction allocates host memory, which later evictions use again.
    first = [move for move in out if move["host_grew"]]
    again = [move for move in out if not move["host_grew"]]
    times = [one.ms for one in turn_changes(trace)]
    drains = [line["microseconds"] / 1000 for line in trace if line.get("event") == "stopped"]
    return {
        "turns": sum(line.get("report") == "turn-started" for line in trace),
        "handovers": len(times),
        "moved_out_gib": sum(move["bytes"] for move in out) / 2**30,
        "moved_in_gib": sum(move["bytes"] for move in back) / 2**30,
        "out_gbps": _speed(again),
        "out_making_host_memory_gbps": _speed(first),
        "in_gbps": _speed(back),
        "out_alone_gbps": _speed([move for move in again if not _overlaps(move, back)]),
        "in_alone_gbps": _speed([move for move in back if not _overlaps(move, out)]),
        "drain_ms": _spread(drains),
        "stop_to_run_ms": _spread(times),
        "reopened": sum(line.get("event") == "reopened" for line in trace)}


def moves(trace: Iterable[Line], least: int = MEASURABLE) -> Iterable[Line]:
    """Yields answers to EVICT and LOAD of at least `least` bytes, with `began`, the start time.

    A load before a client's first eviction copies nothing, and is left out. `host_grew`: the
    client's host memory grew during the move.
    """
    host: dict[int, list[tuple[int, int]]] = {}     # by client: times, and host bytes from then on
    for line in trace:
        if "memory" not in line:
            continue
        held = line["memory"]["host"]
        history = host.setdefault(line["client"], [])
        if line.get("event") in ("evicted", "loaded") and line["bytes"] >= max(1, least):
            began = line["at"] - line["microseconds"]
            before = next((size for at, size in reversed(history) if at <= began), 0)
            if line["event"] == "evicted" or held > 0:
                yield {**line, "host_grew": held > before, "began": began}
        if not history or held != history[-1][1]:
            history.append((line["at"], held))


def _overlaps(move: Line, others: Iterable[Line]) -> bool:
    return any(
        other["began"] < move["at"] and move["began"] < other["at"]
        and other["client"] != move["client"]
        for other in others)


def turn_changes(trace: Iterable[Line]) -> Iterator[TurnChange]:
    """Yields changes of turns in order of time.

    Each begins at STOP, or when the next client wants the GPU: a client that has become idle may be
    stopped seconds before that.
    """
    wanted: dict[int, float] = {}       # by client that waits: since when
    stopped: Line | None = None
    drained: float | None = None
    for line in trace:
        if "wants" in line and line.get("client") is not None:
            if not line["wants"]:
                wanted.pop(line["client"], None)
            else:
                wanted.setdefault(line["client"], line["at"])
        if line.get("order") == "stop":
            stopped, drained = stopped or line, None
        elif line.get("event") == "reopened":
            stopped = None
        elif line.get("event") == "stopped" and stopped and line["client"] == stopped["client"]:
            drained = stopped["at"] + line["microseconds"]
        elif line.get("report") == "turn-started" and stopped is not None:
            client = line["client"]
            if client != stopped["client"]:
                began = max(stopped["at"], wanted.get(client, stopped["at"]))
                yield TurnChange(client, began, None if drained is None else max(began, drained),
                                 line["at"])
            stopped = None


def _speed(moves: Sequence[Line]) -> float | None:
    timed = [move["bytes"] / move["microseconds"] / 1000 for move in moves if move["microseconds"]]
    return statistics.median(timed) if timed else None


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {"median": statistics.median(values), "largest": max(values), "smallest": min(values)}
