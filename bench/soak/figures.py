# SPDX-License-Identifier: Apache-2.0
"""Resources held by a process, from the kernel and the daemon's trace, and whether they grow.

`growth` fits the Theil-Sen slope to the second half of a run, after one-time allocations; a figure
grows if the rise exceeds its floor and twice the scaled median absolute deviation, and if all of
the last fifth is above all of the first. The last condition is for figures that wander within
bounds, such as the sum of a program's buffers: a line through two or three swings has a slope.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import IO

from bench.process import size, status

MB = 1_000_000
# Growth over the second half of a run that is tolerated, in the unit of the figure.
FLOORS = {"resident MB": 4.0, "own MB": 4.0, "files": 2.0, "threads": 2.0, "host MB": 8.0,
          "disk MB": 8.0, "card MB": 8.0}

SPREADS = 2.0
NORMAL = 1.4826                         # standard deviation over median absolute deviation
MOST_SAMPLES = 240                      # most samples of the second half that are used

# Figures by (process, kind of resource).
Figures = dict[tuple[str, str], float]
Samples = dict[tuple[str, str], list[tuple[float, float]]]      # (seconds, value)


def of_process(process: str, pid: int) -> Figures:
    """Returns a process's memory in 10^6 bytes, and its numbers of open files and threads.

    "own" is private memory; "resident" also counts pages of the simulated card, which all
    programs map. Neither counts the library's host memory, which the daemon orders, and the
    program's copies of its buffers: both rise and fall over minutes, and a short run would take
    that for growth. Raises FileNotFoundError or ProcessLookupError if the process has ended.
    """
    folder = Path(f"/proc/{pid}")
    try:
        ordered = _not_inherited(folder)
        return {
            (process, "resident MB"): (size(pid, "VmRSS") - ordered) / MB,
            (process, "own MB"): (size(pid, "RssAnon") - ordered) / MB,
            (process, "files"): len(list((folder / "fd").iterdir())),
            (process, "threads"): int(status(folder)["Threads"])}
    except KeyError:                    # a zombie has no memory
        raise ProcessLookupError(f"process {pid} has ended") from None


def _not_inherited(folder: Path) -> int:
    """Resident bytes of mappings with MADV_DONTFORK and MADV_DONTDUMP (tier/host.c, stress.c)."""
    found = resident = 0
    for line in (folder / "smaps").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "Rss":
            resident = int(rest.split()[0]) * 1024
        elif name == "VmFlags" and {"dc", "dd"} <= {*rest.split()}:
            found += resident
    return found


@dataclass(slots=True)
class Trace:
    """Counts from the daemon's growing trace; read() adds the lines since the last read()."""

    file: IO[str]
    turns: int = 0
    saved: int = 0                      # number of writebacks
    host: dict[int, int] = field(default_factory=dict)      # bytes of host memory by client
    disk: dict[int, int] = field(default_factory=dict)      # bytes on the disk by client
    most_disk: int = 0                  # bytes on the disk: the largest sum over clients
    most_borrowed: int = 0              # bytes of other cards: the most of a client

    def read(self) -> None:
        while line := self.file.readline():
            if not line.endswith("\n"):
                self.file.seek(self.file.tell() - len(line.encode()))
                return
            entry = json.loads(line)
            self.turns += entry.get("report") == "turn-started"
            self.saved += entry.get("event") == "written-back"
            if "memory" in entry:
                self.host[entry["client"]] = entry["memory"]["host"]
                self.disk[entry["client"]] = entry["memory"]["disk"]
                self.most_disk = max(self.most_disk, sum(self.disk.values()))
                self.most_borrowed = max(self.most_borrowed, entry["memory"]["borrowed"])


@dataclass(frozen=True, slots=True)
class Growth:
    """The growth of a figure over a run, in the figure's own unit."""

    first: float                        # medians of the second half's first and last fifth
    last: float
    most: float                         # maximum over the run
    added: float                        # rise of the fitted line over the second half
    spread: float                       # standard deviation around the fitted line
    grows: bool


def growth(samples: Sequence[tuple[float, float]], floor: float) -> Growth:
    """Fits a line to (seconds, figure) pairs in order of time. Raises ValueError below 10 pairs."""
    if len(samples) < 10:
        raise ValueError(f"{len(samples)} samples say nothing about growth; take 10 or more")
    half = list(samples[len(samples) // 2:])
    step = -(-len(half) // MOST_SAMPLES)
    thinned = half[::step]
    slope = median((b - a) / (later - earlier)
                   for (earlier, a), (later, b) in combinations(thinned, 2))
    level = median(value - slope * at for at, value in half)
    spread = NORMAL * median(abs(value - level - slope * at) for at, value in half)
    added = slope * (half[-1][0] - half[0][0])
    fifth = max(1, len(half) // 5)
    first, last = ([value for _, value in part] for part in (half[:fifth], half[-fifth:]))
    return Growth(first=median(first), last=median(last),
                  most=max(value for _, value in samples), added=added, spread=spread,
                  grows=added > max(floor, SPREADS * spread) and min(last) > max(first))
