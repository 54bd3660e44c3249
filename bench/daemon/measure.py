# SPDX-License-Identifier: Apache-2.0
"""Measures what the daemon costs: python -m bench.daemon.measure.

Prints tables and, below them, the same as JSON, which is also kept in
bench/results/. docs/internals/benchmarks.md says what is measured and how.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

from bench.daemon import command, handover
from bench.daemon.crowd import Crowd
from bench.daemon.service import Service, service
from bench.harness import ROOT
from bench.output import parser, publish
from bench.process import megabytes, wakeups
from nvshared.units import MIB

CARD = 8 * MIB                          # small, so that a thousand clients fit into host memory
LARGE = CARD * 11 // 16                 # bytes of a client; two do not fit together
CROWDS = (2, 100, 500, 1000)
HANDOVERS = 1000
WATCHED = 30.0                         # seconds for which wake-ups are counted
# Turns end because the holder is idle, never by the quantum.
SETTINGS = ("--anti-thrash", "on", "--tq", "3600")


@dataclass(frozen=True, slots=True)
class Idle:
    resident: float                     # MB of resident memory
    wakeups: float                      # per minute


def handovers() -> list[handover.Latency]:
    found = []
    for number in CROWDS:
        with service(CARD, *SETTINGS) as daemon:
            found.append(handover.measure(daemon, "turns", number, 0, HANDOVERS))
        with service(CARD, *SETTINGS) as daemon:
            found.append(handover.measure(daemon, "memory", number, LARGE, HANDOVERS))
        with service(CARD, *SETTINGS) as daemon, _asked(daemon):
            found.append(handover.measure(daemon, "asked", number, 0, HANDOVERS))
        with service(CARD, *SETTINGS, module="bench.daemon.stalled") as daemon:
            found.append(handover.measure(daemon, "stalled", number, 0, HANDOVERS))
    return found


def idle() -> Idle:
    with service(CARD, *SETTINGS) as daemon:
        time.sleep(2.0)                 # until the daemon has finished its start
        before = wakeups(daemon.pid)
        time.sleep(WATCHED)
        woken = wakeups(daemon.pid) - before
        return Idle(megabytes(daemon.pid), round(woken * 60 / WATCHED, 1))


def commands() -> list[command.Duration]:
    found = [command.interpreter()]
    for number in (2, 1000):
        with service(CARD, *SETTINGS) as daemon, Crowd(daemon.socket, daemon.uuid, number, LARGE):
            found.append(command.measure(daemon.bus, number, "status"))
            if number == CROWDS[0]:
                found.append(command.measure(daemon.bus, number, "--help"))
    return found


@contextmanager
def _asked(daemon: Service) -> Iterator[None]:
    asker = subprocess.Popen([sys.executable, "-m", "bench.daemon.asking", daemon.bus], cwd=ROOT,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert asker.stdin is not None
    assert asker.stdout is not None
    try:
        asker.stdout.readline()
        yield
    finally:
        asker.stdin.close()
        asker.stdout.close()
        asker.kill()
        asker.wait()


def tables(latencies: list[handover.Latency], alone: Idle,
           durations: list[command.Duration]) -> str:
    lines = [
        "hand-over, us    released -> next   stopped -> next     daemon's         peak",
        "clients  kind     median     99th   median     99th    work    wait        MB"]
    for one in latencies:
        lines.append(
            f"{one.clients:7}  {one.kind:7}{one.released:8.0f} {one.released_99th:8.0f} "
            f"{one.stopped:8.0f} {one.stopped_99th:8.0f} {one.worked:7.0f} {one.waited:7.0f} "
            f"{one.resident:9.1f}")
    lines += ["", f"idle: {alone.resident:.1f} MB, {alone.wakeups:.0f} wake-ups a minute", ""]
    lines.append("command                clients     ms   of which processor")
    for duration in durations:
        lines.append(
            f"{duration.command:20} {duration.clients:9} {duration.wall:6.0f} "
            f"{duration.processor:20.0f}")
    return "\n".join(line.rstrip() for line in lines)


def measure() -> tuple[dict[str, Any], str]:
    # Real-time priority, if permitted: delays by the kernel's scheduler are not to be measured.
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    latencies, alone, durations = handovers(), idle(), commands()
    return {
        "handovers": [asdict(one) for one in latencies],
        "idle": asdict(alone),
        "commands": [asdict(one) for one in durations]}, tables(latencies, alone, durations)


if __name__ == "__main__":
    given = parser("bench.daemon.measure", __doc__).parse_args()
    sys.exit(publish("daemon", measure, given.output))
