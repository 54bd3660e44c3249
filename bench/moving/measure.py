# SPDX-License-Identifier: Apache-2.0
"""Measures parking, waking and moving of a PyTorch program: python -m bench.moving.measure.

Prints a table, and writes JSON with --output. Needs PyTorch and driver 570 or later; with two cards
it also measures moves. Exit status 1 if a result differs from the result before the move.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from signal import SIGTERM
from statistics import median
from typing import IO, Any

from bench.harness import ROOT
from nvshared import library
from nvshared.machine.nvml import NVML, Facts
from nvshared.units import MIB


class LineProcess:
    def __init__(self, command: Sequence[str], log: IO[str] | None = None,
                 variables: Mapping[str, str] | None = None) -> None:
        self.popen = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **(variables or {})}, text=True, bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        self.pid = self.popen.pid

    def receive(self) -> list[str]:
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        if not line:
            raise SystemExit(f"{self.popen.args!r} ended with {self.popen.wait()}")
        return line.split()

    def send(self, *words: object) -> None:
        assert self.popen.stdin is not None
        print(*words, file=self.popen.stdin, flush=True)

    def ask(self, *words: object) -> tuple[list[str], float]:
        """Sends a line. Returns the words of the answer, and the seconds until it came."""
        began = time.monotonic()
        self.send(*words)
        return self.receive(), time.monotonic() - began

    def end(self, signal: int = 0) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.close()        # ends the thread of the daemon that reads it
        if signal:
            self.popen.send_signal(signal)
        self.popen.wait()


class Daemon:
    def __init__(self, folder: Path, *options: str) -> None:
        self.log = folder / "log"
        self.socket = folder / "sock"
        with self.log.open("a") as log:
            self.process = LineProcess(
                [sys.executable, "-m", "bench.moving.daemon", "--bus", "none", "--socket",
                 str(self.socket), *options], log)
        while not self.socket.exists():
            if self.process.popen.poll() is not None:
                raise SystemExit(self.log.read_text())
            time.sleep(0.05)

    def answer(self) -> tuple[int, str]:
        """Returns the pid and the result of the order that ends next."""
        pid, *words = self.process.receive()
        return int(pid), " ".join(words)

    def order(self, *words: object) -> str:
        self.process.send(*words)
        return self.answer()[1]

    def end(self) -> None:
        self.process.end(SIGTERM)


def start(module: str, socket: Path, *words: object, shared: bool = True) -> LineProcess:
    variables = {"NVSHARE_SOCKET": str(socket), "LD_PRELOAD": str(library.hook())}
    command = [sys.executable, "-m", module, *map(str, words)]
    return LineProcess(command, variables=variables if shared else None)


class Bench:
    def __init__(self, folder: Path, gib: float) -> None:
        self._nvml = NVML()
        self.cards: tuple[Facts, ...] = tuple(self._nvml.find())
        self.daemon = Daemon(folder)
        self.program = start("bench.moving.program", self.daemon.socket, gib)
        self.right = self.program.receive()[1]
        self.wrong = 0

    def held(self) -> list[int | None]:
        """Returns the program's MiB on each card by NVML; None: it has no context on that card."""
        found: list[int | None] = []
        for card in self.cards:
            processes = self._nvml.sample(card.uuid).processes or ()
            mine = [one.memory for one in processes if one.pid == self.program.pid]
            found.append(None if not mine else (mine[0] or 0) // MIB)
        return found

    def order(self, *words: object) -> float:
        began = time.monotonic()
        answer = self.daemon.order(*words)
        if answer != "done":
            raise SystemExit(f"{words}: {answer}")
        return time.monotonic() - began

    def step(self) -> float:
        answer, took = self.program.ask("step")
        self.wrong += answer[0] != self.right
        return took

    def park(self) -> dict[str, Any]:
        park = self.order("park", self.program.pid)
        held = self.held()
        return {"park_s": park, "held_mib": held, "wake_s": self.step(), "step_s": self.step()}

    def move(self, to: int) -> dict[str, Any]:
        began = time.monotonic()
        move = self.order("move", self.program.pid, to)
        step = self.step()
        return {"to": to, "move_s": move, "to_next_step_s": time.monotonic() - began,
                "step_s": step, "held_mib": self.held()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=10.0, help="of the program's memory")
    parser.add_argument("--move-gib", type=float, default=24.0, help="of the one that is moved")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["parks", "moves"])
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    result: dict[str, Any] = {"parks": [], "moves": []}
    wrong = 0
    kinds = [("parks", options.gib)]
    if len(NVML().find()) > 1:
        kinds.append(("moves", options.move_gib))
    for kind, gib in kinds:
        if options.only not in (None, kind):
            continue
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(Path(folder), gib)
            result |= {"card": bench.cards[0].name, f"{kind}_gib": gib}
            for one in range(options.rounds):
                figures = bench.park() if kind == "parks" else bench.move((one + 1) % 2)
                result[kind].append(figures)
                print(kind, json.dumps(figures), flush=True)
            wrong += bench.wrong
            bench.program.end()
            bench.daemon.end()
    result["wrong"] = wrong
    for kind, name in (("parks", "park_s"), ("parks", "wake_s"), ("moves", "to_next_step_s")):
        if times := [one[name] for one in result[kind]]:
            print(f"{name}: {median(times):.2f} s (median), {times[0]:.2f} s at first")
    print(f"wrong results: {wrong}")
    if options.output is not None:
        options.output.write_text(json.dumps(result, indent=1) + "\n")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
