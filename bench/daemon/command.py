# SPDX-License-Identifier: Apache-2.0
"""Duration of nvsharectl commands, from the start of the process to its end."""

import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from statistics import median

from bench.harness import ROOT

RUNS = 21                               # odd, so that the median is the value of a run
PAUSE = 0.3                             # seconds between runs: nvshared delays fast callers
PROGRAM = "import sys; from nvshared.cli.main import main; sys.exit(main())"
NOTHING = "import sys"                  # measures the interpreter's own start


@dataclass(frozen=True, slots=True)
class Duration:
    """Durations of one command; milliseconds, medians."""

    command: str
    clients: int
    wall: float
    processor: float                    # processor time of the command's process


def measure(bus: str, clients: int, *arguments: str) -> Duration:
    return _measure(" ".join(["nvsharectl", *arguments]), bus, clients, PROGRAM, *arguments)


def interpreter() -> Duration:
    return _measure("python", "", 0, NOTHING)


def _measure(name: str, bus: str, clients: int, program: str, *arguments: str) -> Duration:
    walls, processors = [], []
    for _ in range(RUNS):
        time.sleep(PAUSE)
        before, began = _spent(), time.perf_counter()
        subprocess.run([sys.executable, "-c", program, *arguments], cwd=ROOT, check=True,
                       env={**os.environ, "NVSHARE_BUS": bus}, stdout=subprocess.DEVNULL)
        walls.append((time.perf_counter() - began) * 1e3)
        processors.append((_spent() - before) * 1e3)
    return Duration(name, clients, round(median(walls), 1), round(median(processors), 1))


def _spent() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime
