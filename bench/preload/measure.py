# SPDX-License-Identifier: Apache-2.0
"""Measures what the library adds to the start of a small program: python -m bench.preload.measure.

/bin/true is started, and waited for, again and again: with nothing preloaded,
with libnvshare.so, and for scale with libm.so.6, a library of the system that
does nothing either when it is loaded. Prints a table and, below it, the same as
JSON, which is also kept in bench/results/.
"""

import ctypes.util
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles

from bench.harness import machine
from nvshared import library
from nvshared.errors import NvshareError

RESULTS = Path(__file__).resolve().parents[1] / "results"
PROGRAM = "/bin/true"
ROUNDS = 2001                           # odd, so that a median is one of them


@dataclass(frozen=True, slots=True)
class Figure:
    """One way of starting the program; microseconds from before the start to after the end."""

    way: str
    median: float
    tenth: float                        # of ten starts, one took less than this
    ninetieth: float                    # and one more than this
    added: float                        # median less that of "nothing"


def start(preload: str) -> float:
    """Microseconds that one start and end take."""
    environment = {"LD_PRELOAD": preload} if preload else {}
    began = time.perf_counter_ns()
    pid = os.posix_spawn(PROGRAM, [PROGRAM], environment)
    _, status = os.waitpid(pid, 0)
    elapsed = time.perf_counter_ns() - began
    if status != 0:
        raise NvshareError(f"{PROGRAM} with LD_PRELOAD={preload!r} ended with status {status}")
    return elapsed / 1000


def measure(ways: dict[str, str]) -> list[Figure]:
    """Starts it in all ways in turns; medians and spread, "nothing" first."""
    taken: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, preload in ways.items():
            taken[way].append(start(preload))
    figures = []
    for way, values in taken.items():
        tenths = quantiles(values, n=10)
        figures.append(Figure(
            way, round(median(values), 1), round(tenths[0], 1), round(tenths[-1], 1),
            round(median(values) - median(taken["nothing"]), 1),
        ))
    return figures


def table(figures: list[Figure]) -> str:
    """For people."""
    lines = ["preloaded        us a start   10% to 90%           added"]
    for one in figures:
        spread = f"{one.tenth:.1f} to {one.ninetieth:.1f}"
        added = f"{one.added:+.1f}" if one.way != "nothing" else ""
        lines.append(f"{one.way:15}  {one.median:10.1f}   {spread:18}  {added:>6}")
    return "\n".join(lines)


def main() -> int:
    """Measures, prints and keeps the results."""
    try:
        ways = {
            "nothing": "", "libnvshare.so": str(library.hook()),
            "libm.so.6": ctypes.util.find_library("m") or "libm.so.6",
        }
        figures = measure(ways)
    except NvshareError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    where = machine()
    text = json.dumps(
        {"machine": where, "rounds": ROUNDS, "figures": [asdict(one) for one in figures]}, indent=1
    )
    print(f"{where['cpu']}, {where['cores']} cores, Linux {where['kernel']}, {where['date']}\n")
    print(table(figures))
    print(f"\n{text}")
    stamp = str(where["date"]).replace(":", "").replace("-", "")[:15]
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"preload-{stamp}.json").write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
