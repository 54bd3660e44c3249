# SPDX-License-Identifier: Apache-2.0
"""Measures what the gate adds to each cuLaunchKernel: python -m bench.gate.measure.

Prints a table and, below it, the same as JSON, which is also kept in
bench/results/. docs/internals/benchmarks.md says what is measured and how.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from bench.harness import ROOT
from bench.output import publish, rounds
from nvshared.errors import NvshareError
from nvshared.units import MIB
from tests.integration.conftest import Site
from tests.integration.fakedaemon import PLENTY, FakeDaemon

BUILD = ROOT / "build" / "bench-gate"
FEWEST = 2                              # fewest rounds for which percentiles are computed
ROUNDS = 61                             # batches of each way; odd, so that one is the median


@dataclass(frozen=True, slots=True)
class Figure:
    """One way of launching under one load; nanoseconds a launch."""

    way: str
    threads: int
    pace_us: int                        # us from launch to launch; 0: a tight loop
    median: float
    tenth: float                        # ns: 10th percentile of the batches
    ninetieth: float                    # ns: 90th percentile of the batches
    added: float                        # median minus the median of "direct"


def batches(number: int) -> dict[tuple[int, int, str], list[float]]:
    """Runs the program. Returns ns per launch of its batches, by threads, pace and way."""
    if not (BUILD / "launch").exists():
        raise NvshareError(f"there is no {BUILD / 'launch'}", "compile it with: make -C bench/gate")
    found = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="nvshare-bench-") as folder:
        site = Site(Path(folder), {**os.environ, "LD_LIBRARY_PATH": str(BUILD)}, [])
        daemon = FakeDaemon(site, PLENTY, host_slab=MIB)
        launch = site.program([BUILD / "launch", number], stderr=subprocess.PIPE)
        daemon.accept()                 # opens the gate, which stays open
        output, errors = launch.communicate()
        site.close()
    if launch.returncode != 0:
        raise NvshareError(f"launch ended with {launch.returncode}: {errors.strip()}")
    if errors:                     # a message of the library: it is not attached
        raise NvshareError(f"the gate was not measured: {errors.strip()}")
    for line in output.splitlines():
        batch = json.loads(line)
        found[batch["threads"], batch["pace_us"], batch["way"]].append(batch["ns"])
    return found


def figures(found: dict[tuple[int, int, str], list[float]]) -> list[Figure]:
    result = []
    for (threads, pace, way), values in sorted(found.items()):
        tenths = quantiles(values, n=10)
        direct = median(found[threads, pace, "direct"])
        result.append(Figure(way, threads, pace, round(median(values), 1), round(tenths[0], 1),
                             round(tenths[-1], 1), round(median(values) - direct, 1)))
    return result


def table(results: list[Figure]) -> str:
    lines = ["threads  load           way       ns a launch   10% to 90%            added"]
    for one in results:
        load = f"every {one.pace_us} us" if one.pace_us else "tight loop"
        spread = f"{one.tenth:.1f} to {one.ninetieth:.1f}"
        added = f"{one.added:+.1f}" if one.way != "direct" else ""
        lines.append(
            f"{one.threads:7}  {load:13}  {one.way:8}  {one.median:11.1f}   {spread:18}  {added:>8}"
        )
    return "\n".join(lines)


def main() -> int:
    given = rounds("bench.gate.measure", __doc__, ROUNDS, FEWEST)

    def measure() -> tuple[dict[str, Any], str]:
        found = figures(batches(given.rounds))
        return {"rounds": given.rounds, "figures": [asdict(one) for one in found]}, table(found)

    return publish("gate", measure, given.output)


if __name__ == "__main__":
    sys.exit(main())
