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


def megabytes(pid: int, name: str = "VmRSS") -> float:
    """A process's memory of a kind in /proc/PID/status, in 10^6 bytes."""
    return round(size(pid, name) / 1e6, 1)


def size(pid: int, name: str) -> int:
    """The same in bytes."""
    return int(status(Path(f"/proc/{pid}"))[name].split()[0]) * 1024


def wakeups(pid: int) -> int:
    """Voluntary context switches of all threads since they began, as a count of wake-ups."""
    return sum(int(status(thread)["voluntary_ctxt_switches"])
               for thread in Path(f"/proc/{pid}/task").iterdir())


def status(folder: Path) -> dict[str, str]:
    """The fields of the status of a process or a thread. A zombie has no fields of memory."""
    lines = (folder / "status").read_text().splitlines()
    return {name: figure.strip() for name, _, figure in (line.partition(":") for line in lines)}
