# SPDX-License-Identifier: Apache-2.0
"""Measures another user's delay while a user attacks the daemon: python -m bench.daemon.attacked.

During each attack, clients of another user send HELLO one after the other until the time is over.
The attacking process must live meanwhile, and an attack that keeps its connections must have all
of them. Prints a table and the same as JSON, which is also stored in bench/results/. Exit status 1
if an attack ended early or a goal is missed. Needs root, to run programs as two other users.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.daemon.crowd import Client
from bench.daemon.service import Service, service
from bench.harness import ROOT
from bench.output import parser, publish
from nvshared.errors import NvshareError
from nvshared.hook.protocol import Type
from nvshared.units import MIB

ATTACKER, ATTACKED_USER = 65_534, 65_533     # user ids
PAUSE = 0.05                            # seconds between two HELLOs
UP_WITHIN = 60.0                        # seconds for an attack to make its connections
HELLO_MOST = 200.0                      # ms: goal for the longest HELLO
LOOP_MOST = 100.0                       # ms: goal for the longest pass of the event loop
# By attack: number of connections at a time, and whether the attack keeps connections open.
ATTACKS = {
    "hold": (800, True), "change": (800, True), "gang": (200, True), "promise": (200, True),
    "claim_host_memory": (200, True), "answer_nothing": (200, False), "come_and_go": (200, False),
    "garbage": (200, False), "descriptors": (200, False), "swarm": (50, False),
}
STOOD = re.compile(r"the event loop stood for ([\d.]+) s at most, of which it ran for ([\d.]+) s")


@dataclass(frozen=True, slots=True)
class Attacked:
    """Delays of another user's HELLO and of the event loop during one attack; ms."""

    attack: str
    connections: int                    # fewest connections of the attacker at a HELLO
    hellos: int
    median: float
    most: float
    loop_stood: float                   # ms of the longest pass of the event loop
    loop_ran: float                     # ms of processor time in that pass

    @property
    def is_good(self) -> bool:
        return self.most <= HELLO_MOST and self.loop_stood <= LOOP_MOST


def sockets(pid: int) -> int:
    number = 0
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):       # the descriptor is closed now
            number += str(one.readlink()).startswith("socket:")
    return number


@contextmanager
def attacker(daemon: Service, name: str, width: int) -> Iterator["subprocess.Popen[str]"]:
    popen = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.attacker", name, str(daemon.socket), "--gpu",
         ",".join(uuid.hex() for uuid in daemon.uuids), "--uid", str(ATTACKER),
         "--width", str(width)],
        cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with popen:
        assert popen.stdin is not None
        assert popen.stdout is not None
        popen.stdout.readline()
        popen.stdin.write("go\n")
        popen.stdin.flush()
        try:
            yield popen
        finally:
            popen.kill()


def hello(daemon: Service) -> float:
    """Returns ms from the connection of a client of another user to the answer to its HELLO."""
    began = time.perf_counter()
    os.seteuid(ATTACKED_USER)
    try:
        client = Client(daemon.socket, daemon.uuid, 0)
    finally:
        os.seteuid(0)
    client.say(Type.HELLO)
    while client.listen() is not Type.LIMITS:
        continue
    client.socket.close()
    return (time.perf_counter() - began) * 1e3


def measure(name: str, width: int, holds: bool, seconds: float, log: Path) -> Attacked:
    """Measures during one attack. Raises NvshareError if the attack ended early."""
    options = ("--max-clients-per-user", "1024", "--debug")
    with service(MIB * 64, *options, cards=2, log=log, has_bus=False,
                 module="bench.daemon.patient") as daemon:
        before = sockets(daemon.pid)
        with attacker(daemon, name, width) as process:
            end = time.monotonic() + UP_WITHIN
            while holds and sockets(daemon.pid) < before + width:
                if time.monotonic() > end:
                    raise NvshareError(f"{name}: it has not come within {UP_WITHIN:.0f} s")
                time.sleep(PAUSE)
            taken, fewest = [], width
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                taken.append(hello(daemon))
                fewest = min(fewest, sockets(daemon.pid) - before)
                if process.poll() is not None or (holds and fewest < width):
                    raise NvshareError(f"{name}: it has gone; {fewest} connections were left")
                time.sleep(PAUSE)
    found = STOOD.search(log.read_text())
    if found is None:
        raise NvshareError(f"{name}: the daemon did not say for how long its event loop stood")
    stood, ran = (float(one) * 1e3 for one in found.groups())
    return Attacked(name, fewest, len(taken), round(median(taken), 1), round(max(taken), 1),
                    round(stood, 1), round(ran, 1))


def main() -> int:
    made = parser("bench.daemon.attacked", __doc__)
    made.add_argument("--seconds", type=float, default=15.0, help="of each attack")
    given = made.parse_args()
    if os.geteuid() != 0:
        print("an attacker must be another user: run it as root", file=sys.stderr)
        return 1
    found: list[Attacked] = []

    def attacks() -> tuple[dict[str, Any], str]:
        with tempfile.TemporaryDirectory() as folder:
            for name, (width, holds) in ATTACKS.items():
                found.append(measure(name, width, holds, given.seconds, Path(folder) / name))
        lines = ["attack             connections  HELLOs  median     most  loop stood   ran, ms"]
        lines += [
            f"{one.attack:18} {one.connections:11} {one.hellos:7} {one.median:7.1f} "
            f"{one.most:8.1f} {one.loop_stood:11.1f} {one.loop_ran:9.1f}" for one in found]
        return {"attacks": [asdict(one) for one in found]}, "\n".join(lines)

    return publish("attacked", attacks, given.output) or int(not all(one.is_good for one in found))


if __name__ == "__main__":
    sys.exit(main())
