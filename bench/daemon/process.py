# SPDX-License-Identifier: Apache-2.0
"""Figures of a process from /proc."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Processor:
    worked: float
    waited: float                       # seconds in which it was runnable but not running

    def since(self, earlier: "Processor") -> "Processor":
        return Processor(self.worked - earlier.worked, self.waited - earlier.waited)


def processor(pid: int) -> Processor:
    """Processor time of a process so far, from schedstat."""
    worked = waited = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        figures = (thread / "schedstat").read_text().split()
        worked += int(figures[0])
        waited += int(figures[1])
    return Processor(worked / 1e9, waited / 1e9)


def megabytes(pid: int, *, peak: bool = False) -> float:
    """Resident memory of a process now, or at its peak; 10^6 bytes."""
    figure = _status(Path(f"/proc/{pid}"), "VmHWM" if peak else "VmRSS")
    return round(int(figure.split()[0]) * 1024 / 1e6, 1)


def wakeups(pid: int) -> int:
    """Voluntary context switches of all threads since they began, as a count of wake-ups."""
    return sum(
        int(_status(thread, "voluntary_ctxt_switches"))
        for thread in Path(f"/proc/{pid}/task").iterdir())


def _status(folder: Path, name: str) -> str:
    for line in (folder / "status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return value.strip()
    raise LookupError(f"{folder}/status has no {name}")
