# SPDX-License-Identifier: Apache-2.0
"""What a process, and the daemon's trace, say of what is held."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

MB = 1_000_000
# Below these nobody would notice that it grows: of an hour, in the unit of the figure.
FLOORS = {"resident MB": 4.0, "own MB": 4.0, "files": 2.0, "threads": 2.0, "host MB": 8.0,
          "card MB": 8.0}

# What is held: figures by (who, what).
Figures = dict[tuple[str, str], float]
Samples = dict[tuple[str, str], list[tuple[float, float]]]      # with the seconds of each


def of_process(who: str, pid: int) -> Figures:
    """Memory in 10^6 bytes, open files, threads.

    "own" is what belongs to the process alone: of the simulated card's memory, which is mapped
    into every program that uses it, "resident" has a part.
    Raises FileNotFoundError or ProcessLookupError when the process has ended.
    """
    folder = Path(f"/proc/{pid}")
    status = {
        name: figure for name, _, figure in
        (line.partition(":") for line in (folder / "status").read_text().splitlines())
    }

    if "VmRSS" not in status:           # a zombie's
        raise ProcessLookupError(f"process {pid} has ended")

    def memory(name: str) -> float:
        return int(status[name].split()[0]) * 1024 / MB

    return {
        (who, "resident MB"): memory("VmRSS"),
        (who, "own MB"): memory("RssAnon"),
        (who, "files"): len(list((folder / "fd").iterdir())),
        (who, "threads"): int(status["Threads"]),
    }


@dataclass(slots=True)
class Trace:
    """The daemon's trace as it grows. `file` is read on from where it was left."""

    file: IO[str]
    turns: int = 0
    saved: int = 0                      # answers to Writeback
    host: dict[int, int] = field(default_factory=dict)      # bytes, by client

    def read(self) -> None:
        """What came since."""
        while line := self.file.readline():
            if not line.endswith("\n"):
                self.file.seek(self.file.tell() - len(line.encode()))
                return
            entry = json.loads(line)
            self.turns += entry.get("report") == "turn-started"
            self.saved += entry.get("event") == "written-back"
            if "memory" in entry:
                self.host[entry["client"]] = entry["memory"]["host"]
