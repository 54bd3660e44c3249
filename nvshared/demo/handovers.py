# SPDX-License-Identifier: Apache-2.0
"""What the daemon's trace says of hand-overs: who holds the GPU, and what moved for it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO


@dataclass(frozen=True, slots=True)
class Place:
    """Where a program's memory is; bytes."""

    resident: int = 0
    swapped: int = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """A program has just been let onto the GPU."""

    at: int                             # microseconds, on a clock of the daemon's
    pid: int
    places: dict[int, Place]            # of all programs, by pid


@dataclass(slots=True)
class Handovers:
    """Reads a trace as it grows."""

    trace: TextIO
    turns: int = 0
    handovers: int = 0                  # turns that another program had before
    bytes_in: int = 0
    bytes_out: int = 0
    _holder: int = 0
    _places: dict[int, Place] = field(default_factory=dict)
    _cut: str = ""                      # a line of which only the beginning is there yet

    @classmethod
    def of(cls, path: Path) -> "Handovers":
        """From the beginning of this file."""
        return cls(path.open(encoding="utf-8"))

    def close(self) -> None:
        """Reads no more."""
        self.trace.close()

    def new(self) -> Iterator[Turn]:
        """Counts what was written since the last call; the turns that began."""
        *lines, self._cut = (self._cut + self.trace.read()).split("\n")
        for line in lines:
            yield from self._count(json.loads(line))

    def _count(self, line: dict[str, Any]) -> Iterator[Turn]:
        pid = line.get("pid", 0)
        if memory := line.get("memory"):
            # What was never written is neither here nor there.
            swapped = min(memory["allocated"] - memory["resident"], memory["host"])
            self._places[pid] = Place(memory["resident"] + memory["pinned"], swapped)
        match line.get("event"), line.get("report"):
            case "evicted", _:
                self.bytes_out += line["bytes"]
            case "loaded", _:
                self.bytes_in += line["bytes"]
            case "left", _:
                self._places.pop(pid, None)
            case _, "turn-started":
                self.turns += 1
                if self._holder not in (0, pid):
                    self.handovers += 1
                self._holder = pid
                yield Turn(line["at"], pid, dict(self._places))
