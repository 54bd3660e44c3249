# SPDX-License-Identifier: Apache-2.0
"""Four programs, hand-overs every 100 ms, for an hour: python -m bench.soak.measure.

The programs are libhook/tests/stress, each with four threads, which compare every byte; two of the
four fit on the card. Each is idle for a second every few seconds, so that its memory is written
back. Every few seconds the benchmark samples memory, files and threads of the daemon and of each
program, the swapped memory that programs report, and the used memory of the card. It fails if a
program fails (a byte was wrong), or if a figure grows (see figures.py). Prints a table and JSON,
which is also stored in bench/results/. --simulate uses a simulated card, as happens without a real
card. --kills also kills programs and the daemon at random moments (see kills.py).
"""

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import asdict

from bench.harness import ROOT, Sharing, machine, sharing
from bench.output import kept
from bench.soak.figures import (
    FLOORS,
    MB,
    Figures,
    Growth,
    Samples,
    Trace,
    growth,
    of_process,
)
from bench.soak.kills import killing
from bench.soak.programs import PROGRAMS, SIZES, disk_options, start
from nvshared import library
from nvshared.errors import NvshareError
from nvshared.machine.nvml import NVML

QUANTUM = "100ms"
LEAST_TURNS = 1.0                       # turns per second that a valid run must have
STALLED = 60.0                          # seconds in which a program must have got a turn
PATIENCE = 600.0                        # seconds for the programs to compare everything at the end
SIMULATED = "NVSHARE_SOAK_SIMULATED"    # set in the process that uses the simulated driver


def has_card() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def look(daemon: Sharing, programs: list[subprocess.Popen[bytes]], trace: Trace, nvml: NVML,
         uuid: str) -> Figures:
    """Samples all figures now. Raises NvshareError if a process has ended."""
    found: Figures = {}
    if daemon.process.poll() is not None:
        raise NvshareError(f"the daemon ended with {daemon.process.returncode}")
    found |= of_process("daemon", daemon.process.pid)
    for number, program in enumerate(programs):
        if program.poll() is not None:
            raise NvshareError(
                f"program {number} ended with {program.returncode}: {program.communicate()[1]!r}")
        found |= of_process(f"program {number}", program.pid)
    trace.read()
    found["all programs", "host MB"] = sum(trace.host.values()) / MB
    found["all programs", "disk MB"] = sum(trace.disk.values()) / MB
    used = nvml.sample(uuid).memory_used
    if used is not None:
        found["card", "card MB"] = used / MB
    return found


def watch(daemon: Sharing, minutes: float, every: float, megabytes: int) -> tuple[Samples, Trace]:
    """Runs the programs. Returns samples of them, and counts from the daemon's trace.

    Raises NvshareError if a program or the daemon ends early, or a program fails.
    """
    samples: Samples = defaultdict(list)
    nvml = NVML()
    uuid = nvml.find()[0].uuid
    began = time.monotonic()
    programs = [start(seed, daemon.environment, minutes * 60 + 5, megabytes)
                for seed in range(PROGRAMS)]
    try:
        with daemon.trace_file.open() as file:
            trace, seen, moved = Trace(file), 0, 0.0
            while (at := time.monotonic() - began) < minutes * 60:
                for what, figure in look(daemon, programs, trace, nvml, uuid).items():
                    samples[what].append((at, figure))
                if trace.turns != seen:
                    seen, moved = trace.turns, at
                if at - moved > STALLED:
                    raise NvshareError(f"nobody has had a turn for {STALLED:g} seconds")
                time.sleep(every)
            for number, program in enumerate(programs):
                _, errors = program.communicate(timeout=PATIENCE)
                if program.returncode != 0:
                    raise NvshareError(
                        f"program {number} ended with {program.returncode}: {errors!r}")
            trace.read()
    finally:
        for program in programs:
            program.kill()
            program.wait()
    return samples, trace


def table(found: dict[tuple[str, str], Growth]) -> str:
    lines = ["                              second half: first    last  added  spread      most"]
    for (who, what), one in found.items():
        lines.append(
            f"{who:14} {what:12} {one.first:20.1f} {one.last:8.1f} {one.added:+7.1f} "
            f"{one.spread:6.1f} {one.most:9.1f}{'   grows' if one.grows else ''}")
    return "\n".join(lines)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.soak.measure", description=__doc__)
    parser.add_argument("--minutes", type=float, help="how long; 60, on a card 10")
    parser.add_argument("--every", type=float, default=3.0, help="seconds between two looks; 3")
    parser.add_argument("--simulate", action="store_true", help="even if there is a card")
    parser.add_argument("--kills", type=int, metavar="N",
                        help="kill programs and the daemon, so often or until the time is over")
    parser.add_argument("--seed", type=int, default=1, help="of what is killed and when; 1")
    parser.add_argument("--sanitize", default="", metavar="WHAT",
                        help="programs and library as made with SANITIZE=thread or address")
    return parser.parse_args()


def soak(minutes: float, every: float, simulated: bool) -> int:
    """Measures, prints the results and stores them in a file. Returns the exit status."""
    megabytes, capacity = SIZES[simulated]
    with sharing("--tq", QUANTUM, "--capacity", capacity, "--reserve", "0", "--context-reserve",
                 "0", "--swap-budget", "4GiB", *disk_options()) as daemon:
        samples, trace = watch(daemon, minutes, every, megabytes)
    found = {what: growth(taken, FLOORS[what[1]]) for what, taken in samples.items()}
    where = machine()
    text = json.dumps({
        "machine": where, "simulated": simulated, "minutes": minutes, "turns": trace.turns,
        "saved": trace.saved, "most_disk_bytes": trace.most_disk,
        "figures": [{"who": who, "what": what, **asdict(one)}
                    for (who, what), one in found.items()]}, indent=1)
    card = "simulated card" if simulated else where["gpu"]
    print(f"{where['cpu']}, {where['cores']} cores, {card}, Linux {where['kernel']}, "
          f"{where['date']}\n{minutes:g} minutes, {trace.turns} turns, {trace.saved} times "
          f"written back, {trace.most_disk / MB:.0f} MB on the disk at most, "
          "every byte right\n")
    print(table(found))
    print(f"\n{text}")
    kept("soak", where).write_text(text + "\n")
    growing = [f"{what} of {who}" for (who, what), one in found.items() if one.grows]
    if growing:
        raise NvshareError(f"grows: {', '.join(growing)}")
    if trace.turns < LEAST_TURNS * minutes * 60:
        raise NvshareError(f"only {trace.turns} turns in {minutes:g} minutes",
                           "run it on a machine with nothing else to do")
    return 0


def main() -> int:
    """Measures on the real card, or starts this module again with the simulated driver."""
    chosen = options()
    simulated = SIMULATED in os.environ
    if not simulated and (chosen.simulate or not has_card()):
        with tempfile.TemporaryDirectory(prefix="nvshare-soak-") as folder:
            return subprocess.call(
                [sys.executable, "-m", "bench.soak.measure", *sys.argv[1:]], cwd=ROOT,
                env={**os.environ, SIMULATED: "1", "LD_LIBRARY_PATH": str(library.simulator()),
                     "NVSHARE_SIM_DIR": folder, "NVSHARE_SIM_MEMORY": "512M",
                     "NVSHARE_SIM_COPY_RATE": "0"})
    try:
        if chosen.kills is not None:
            found = killing(chosen.kills, chosen.minutes or 60, simulated, chosen.seed,
                            chosen.sanitize)
            print(json.dumps({"machine": machine(), **found}, indent=1))
            return 1 if found["wrong"] else 0
        return soak(chosen.minutes or (60 if simulated else 10), chosen.every, simulated)
    except NvshareError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)


if __name__ == "__main__":
    sys.exit(main())
