# SPDX-License-Identifier: Apache-2.0
"""A soak that kills programs and the daemon by SIGKILL at random moments. Programs that are not
killed compare every byte; at the end no memory of the card and no connection may be left.
"""

import json
import os
import random
import subprocess
import tempfile
import time
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any

from bench.harness import ROOT
from bench.soak.figures import FLOORS, MB, Samples, Trace, growth, of_process
from bench.soak.programs import PROGRAMS, SIZES, disk_options, start
from nvshared.errors import NvshareError
from nvshared.machine.nvml import NVML
from tests.integration.conftest import Site
from tests.integration.servicemanager import ServiceManager

BETWEEN = 0.3                           # seconds between two kills, on average
DAEMON = 0.15                           # probability that a kill hits the daemon
TOLD = 0.3                              # probability that a program gets SIGTERM, not SIGKILL
STALLED = 120.0                         # seconds within which some program must get a turn
PATIENCE = 600.0                        # seconds for a program to compare its memory and end
QUANTUM = "20ms"
SAMPLES = 400                           # fewer samples show no trend
LONG = 1_000_000.0                      # seconds for programs that a signal ends


@dataclass(slots=True)
class Program:
    process: subprocess.Popen[bytes]
    seed: int
    errors: Path


@dataclass(slots=True)
class Soak:
    manager: ServiceManager
    environment: dict[str, str]
    megabytes: int
    options: tuple[str, ...]
    build: Path
    dice: random.Random
    seeds: int = 0
    running: list[Program] = field(default_factory=list)        # the first is never killed
    ending: list[Program] = field(default_factory=list)
    killed_programs: int = 0
    killed_daemons: int = 0
    killed_early: int = 0               # daemons killed before they were ready
    ended: int = 0
    compared: int = 0
    wrong: list[str] = field(default_factory=list)
    turns_before: int = 0               # turns under earlier daemons
    most_disk: int = 0                  # most bytes on the disk at once, under earlier daemons
    most_borrowed: int = 0              # most bytes of other cards in a client, likewise
    samples: Samples = field(default_factory=lambda: defaultdict(list))
    daemon: subprocess.Popen[str] | None = None
    trace: Trace | None = None

    def new_program(self) -> Program:
        seed, self.seeds = self.seeds, self.seeds + 1
        errors = self.manager.site.folder / f"errors-{seed}"
        with errors.open("wb") as file:
            process = start(seed, self.environment, LONG, self.megabytes, self.build, file)
        return Program(process, seed, errors)

    def new_daemon(self) -> None:
        """Starts a daemon, which inherits the sockets of the clients; does not wait for READY."""
        self.turns_before = self.turns()
        if self.trace is not None:
            self.most_disk = max(self.most_disk, self.trace.most_disk)
            self.most_borrowed = max(self.most_borrowed, self.trace.most_borrowed)
            self.trace.file.close()
        path = self.manager.site.folder / f"trace-{self.killed_daemons}"
        path.touch()
        self.trace = Trace(path.open())
        self.daemon = self.manager.begin(*self.options, "--trace", str(path))

    def turns(self) -> int:
        if self.trace is None:
            return 0
        self.trace.read()
        return self.turns_before + self.trace.turns

    def kill(self) -> None:
        """Kills the daemon or a program by SIGKILL, or ends a program by SIGTERM."""
        if self.dice.random() < DAEMON:
            assert self.daemon is not None
            self.killed_early += not any("READY=1" in sent for sent in self.manager.notifications)
            self.daemon.kill()
            self.daemon.wait()
            self.killed_daemons += 1
            self.new_daemon()
            return
        place = self.dice.randrange(1, len(self.running))
        one = self.running[place]
        if self.dice.random() < TOLD and len(self.ending) < PROGRAMS:
            one.process.terminate()
            self.ending.append(one)
        else:
            one.process.kill()
            self.end(one, killed=True)
        self.running[place] = self.new_program()

    def end(self, one: Program, killed: bool = False) -> None:
        """Waits until a program ends, and records an unexpected exit status as wrong."""
        output, _ = one.process.communicate(timeout=PATIENCE)
        said = one.errors.read_text(errors="replace")
        if one.process.returncode == 0:
            self.compared += json.loads(output)["compared_bytes"]
            self.ended += 1
        elif one.process.returncode in ((-SIGKILL,) if killed else (-SIGTERM,)):
            # SIGTERM may come before the program has installed its handler.
            self.killed_programs += 1
        else:
            self.wrong.append(
                f"program {one.seed} ended with {one.process.returncode}: {said[-4000:]}")
        one.errors.unlink()

    def look(self, seconds: float) -> None:
        assert self.daemon is not None
        if self.daemon.poll() is not None:
            self.wrong.append(f"the daemon ended with {self.daemon.returncode}: "
                              f"{self.manager.site.log.read_text()[-4000:]}")
            return
        for one in [one for one in self.ending if one.process.poll() is not None]:
            self.ending.remove(one)
            self.end(one)
        for one in self.running:
            if one.process.poll() is not None:
                self.end(one)
                self.wrong.append(f"program {one.seed} ended by itself")
                return
        try:
            found = of_process("daemon", self.daemon.pid)
            found |= of_process("first program", self.running[0].process.pid)
        except (FileNotFoundError, ProcessLookupError):
            return                      # a process is ending: the next look() finds that
        found["connections", "files"] = len(self.manager.kept)
        for what, figure in found.items():
            self.samples[what].append((seconds, figure))

    def finish(self) -> None:
        for one in self.running:
            one.process.terminate()
        for one in (*self.running, *self.ending):
            self.end(one)
        self.manager.wait(lambda: not self.manager.kept)


def killing(kills: int, minutes: float, simulated: bool, seed: int, sanitize: str) -> dict[
        str, Any]:
    """Kills `kills` times, for at most `minutes`. Returns counts; the list "wrong" must be empty.

    Raises NvshareError if no program gets a turn for STALLED seconds.
    """
    megabytes, capacity = SIZES[simulated]
    build = ROOT / "libhook" / f"build{'-' * bool(sanitize)}{sanitize}"
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="nvshare-kills-") as name:
        site = Site(Path(name), dict(os.environ), [])
        (site.folder / "nvshared.conf").touch()
        soak = Soak(
            ServiceManager(site),
            {"LD_PRELOAD": str(build / "libnvshare.so"), "NVSHARE_SOCKET": str(site.socket),
             "ASAN_OPTIONS": "verify_asan_link_order=0:detect_leaks=0:halt_on_error=1",
             "TSAN_OPTIONS": "halt_on_error=1:exitcode=66",
             **({"LD_LIBRARY_PATH": str(build / "simulator")} if simulated else {})},
            megabytes,
            ("--tq", QUANTUM, "--capacity", capacity, "--reserve", "0", "--context-reserve", "0",
             "--swap-budget", "4GiB", "--neighbour", "on", *disk_options()),
            build, random.Random(seed))
        nvml = NVML()
        uuid = nvml.find()[0].uuid

        def used() -> float:
            return (nvml.sample(uuid).memory_used or 0) / MB

        before = used()
        try:
            soak.new_daemon()
            soak.running = [soak.new_program() for _ in range(PROGRAMS)]
            seen, moved = 0, began
            while (not soak.wrong and soak.killed_programs + soak.killed_daemons < kills
                   and time.monotonic() < began + minutes * 60):
                time.sleep(min(soak.dice.expovariate(1 / BETWEEN), 10 * BETWEEN))
                soak.look(time.monotonic() - began)
                if soak.turns() != seen:
                    seen, moved = soak.turns(), time.monotonic()
                if time.monotonic() - moved > STALLED:
                    raise NvshareError(f"nobody has had a turn for {STALLED:g} seconds",
                                       site.log.read_text()[-4000:])
                if not soak.wrong:
                    soak.kill()
            if not soak.wrong:
                soak.finish()
        finally:
            for one in (*soak.running, *soak.ending):
                one.process.kill()
                one.process.wait()
            site.close()
            soak.manager.close()
        after = used()
    if after > before and not soak.wrong:
        soak.wrong.append(f"{after - before:.1f} MB of the card are not given back")
    grown = {what: growth(taken, FLOORS[what[1]]) for what, taken in soak.samples.items()
             if len(taken) >= SAMPLES}
    soak.wrong += [f"{what} of {who} grows" for (who, what), one in grown.items() if one.grows]
    return {
        "seconds": round(time.monotonic() - began), "simulated": simulated, "sanitize": sanitize,
        "driver": os.environ.get("NVSHARE_SIM_DRIVER", ""), "seed": seed,
        "killed_programs": soak.killed_programs, "killed_daemons": soak.killed_daemons,
        "killed_before_ready": soak.killed_early, "hand_overs": soak.turns(),
        "ended_whole": soak.ended, "compared_bytes": soak.compared,
        "most_disk_bytes": max(soak.most_disk, soak.trace.most_disk if soak.trace else 0),
        "most_borrowed_bytes": max(
            soak.most_borrowed, soak.trace.most_borrowed if soak.trace else 0),
        "connections_stored": soak.manager.stored, "programs": soak.seeds, "wrong": soak.wrong,
        "figures": [{"who": who, "what": what, **asdict(one)}
                    for (who, what), one in grown.items()]}
