# SPDX-License-Identifier: Apache-2.0
"""What the kernel says of a process."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Processor:
    """What all threads of a process had of the processors so far; seconds."""

    worked: float
    waited: float                       # could have worked, and others had the processors

    def since(self, earlier: "Processor") -> "Processor":
        """What was added."""
        return Processor(self.worked - earlier.worked, self.waited - earlier.waited)


def processor(pid: int) -> Processor:
    """To the nanosecond, where the kernel counts so finely."""
    worked = waited = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        figures = (thread / "schedstat").read_text().split()
        worked += int(figures[0])
        waited += int(figures[1])
    return Processor(worked / 1e9, waited / 1e9)


def megabytes(pid: int, *, peak: bool = False) -> float:
    """Memory that it occupies, or at most ever did; 10^6 bytes."""
    figure = _status(Path(f"/proc/{pid}"), "VmHWM" if peak else "VmRSS")
    return round(int(figure.split()[0]) * 1024 / 1e6, 1)


def wakeups(pid: int) -> int:
    """How often its threads have gone to sleep, and thus been woken, since they began."""
    return sum(
        int(_status(thread, "voluntary_ctxt_switches"))
        for thread in Path(f"/proc/{pid}/task").iterdir()
    )


def _status(folder: Path, name: str) -> str:
    for line in (folder / "status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return value.strip()
    raise LookupError(f"{folder}/status has no {name}")
