# SPDX-License-Identifier: Apache-2.0
"""Runs programs that need card, host memory and a disk together: python -m bench.tiers.notebooks.

All programs start at once. Each changes all of its memory in each step and compares every word at
its end, so each is evicted and loaded several times. Prints JSON, which --output also writes to a
file. Exit status 1 if a program failed or a word was wrong.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.handover.card import unshared
from bench.handover.program import calibrated, workload
from bench.harness import machine, run, sharing
from bench.soak.figures import Trace
from nvshared.units import GIB, MIB


def command(gib: float, steps: int, rounds: int, seed: int) -> list[str]:
    return workload(round(gib * GIB), 256 * MIB, seed, "--steps", steps, "--rounds", rounds)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--programs", type=int, default=10)
    parser.add_argument("--gib", type=float, default=20.0, help="of each program's memory")
    parser.add_argument("--capacity", default="73GiB", help="of the card; 73GiB")
    parser.add_argument("--swap-budget", default="40GiB", help="of host memory; 40GiB")
    parser.add_argument("--disk", default="/var/tmp,101GiB", metavar="DIR,SIZE")
    parser.add_argument("--tq", default="4s", help="quantum; 4s, so that each moves several times")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--step-seconds", type=float, default=0.5)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds until all are ended")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    rounds = calibrated(lambda steps, rounds: command(options.gib, steps, rounds, 1),
                        options.step_seconds, unshared())
    commands = [command(options.gib, options.steps, rounds, seed + 1)
                for seed in range(options.programs)]
    with tempfile.TemporaryFile() as log, sharing(
            "--capacity", options.capacity, "--swap-budget", options.swap_budget, "--disk",
            options.disk, "--tq", options.tq, "--park-after", "1min", "--neighbour", "off",
            log=log) as daemon:
        ended = run(commands, daemon.environment, options.limit)
        trace = daemon.trace()
        with daemon.trace_file.open() as file:
            totals = Trace(file)
            totals.read()
        log.seek(0)
        if any(one.code for one in ended):
            print(log.read().decode(errors="replace"), file=sys.stderr)
    turns: dict[int, int] = {}
    for line in trace:
        if line.get("report") == "turn-started":
            turns[line["client"]] = turns.get(line["client"], 0) + 1
    disk = subprocess.run(["findmnt", "-no", "SOURCE,FSTYPE", "-T", options.disk.split(",")[0]],
                          capture_output=True, text=True, check=False).stdout.strip()
    result = {
        "machine": machine(), "programs": options.programs, "gib": options.gib,
        "capacity": options.capacity, "swap_budget": options.swap_budget, "disk": disk,
        "tq": options.tq, "steps": options.steps, "rounds": rounds,
        "codes": [one.code for one in ended],
        "seconds": [round(one.seconds, 1) for one in ended], "turns": sorted(turns.values()),
        "most_on_disk_gib": round(totals.most_disk / GIB, 2),
        "errors": [one.errors for one in ended if one.code]}
    text = json.dumps(result, indent=1)
    print(text)
    if options.output is not None:
        options.output.write_text(text + "\n")
    return int(any(one.code for one in ended))


if __name__ == "__main__":
    sys.exit(main())
