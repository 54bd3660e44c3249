# SPDX-License-Identifier: Apache-2.0
"""Measures what the library adds to the start of a small program: python -m bench.preload.measure.

/bin/true runs again and again: with nothing preloaded, with libnvshare.so, and for comparison with
libm.so.6, a system library that does nothing when it is loaded. The processor time of a start is
the result, since other processes of the machine affect the elapsed time. Prints a table and, below
it, the same as JSON, which is also stored in bench/results/.
"""

import ctypes.util
import os
import sys
import time
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from bench.output import publish, rounds
from nvshared import library
from nvshared.errors import NvshareError

PROGRAM = "/bin/true"
ROUNDS = 2001                           # starts of each way; odd, so that one is the median


@dataclass(frozen=True, slots=True)
class Start:
    """Durations of one start and end, in microseconds."""

    processor: float                    # processor time of the program, execve() included
    elapsed: float                      # from before the start until wait4() returns


@dataclass(frozen=True, slots=True)
class Figure:
    """One way to start the program: medians in us, and their excess over the way "nothing"."""

    way: str
    processor: float
    added: float
    elapsed: float
    added_elapsed: float


def start(preload: str) -> Start:
    """Starts the program and waits for its end. Raises NvshareError if its status is not 0."""
    environment = {"LD_PRELOAD": preload} if preload else {}
    began = time.perf_counter_ns()
    pid = os.posix_spawn(PROGRAM, [PROGRAM], environment)
    _, status, used = os.wait4(pid, 0)
    elapsed = time.perf_counter_ns() - began
    if status != 0:
        raise NvshareError(f"{PROGRAM} with LD_PRELOAD={preload!r} ended with status {status}")
    return Start((used.ru_utime + used.ru_stime) * 1e6, elapsed / 1000)


def measure(ways: dict[str, str], number: int) -> list[Figure]:
    """Starts the program in all ways alternately. Returns the figures, "nothing" first."""
    starts: dict[str, list[Start]] = {way: [] for way in ways}
    for _ in range(number):
        for way, preload in ways.items():
            starts[way].append(start(preload))
    medians = {
        way: (median(one.processor for one in taken), median(one.elapsed for one in taken))
        for way, taken in starts.items()}
    processor_alone, elapsed_alone = medians["nothing"]
    return [
        Figure(way, round(processor, 1), round(processor - processor_alone, 1), round(elapsed, 1),
               round(elapsed - elapsed_alone, 1))
        for way, (processor, elapsed) in medians.items()]


def table(figures: list[Figure]) -> str:
    lines = ["us a start       processor   added   elapsed   added"]
    lines += [
        f"{one.way:15}  {one.processor:9.1f}  {one.added:+6.1f}  {one.elapsed:8.1f}  "
        f"{one.added_elapsed:+6.1f}"
        for one in figures]
    return "\n".join(lines)


def main() -> int:
    given = rounds("bench.preload.measure", __doc__, ROUNDS)

    def measured() -> tuple[dict[str, Any], str]:
        figures = measure({
            "nothing": "", "libnvshare.so": str(library.hook()),
            "libm.so.6": ctypes.util.find_library("m") or "libm.so.6"}, given.rounds)
        document = {"rounds": given.rounds, "figures": [asdict(one) for one in figures]}
        return document, table(figures)

    return publish("preload", measured, given.output)


if __name__ == "__main__":
    sys.exit(main())
