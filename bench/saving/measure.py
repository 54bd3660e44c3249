# SPDX-License-Identifier: Apache-2.0
"""Measures saving and restoring programs by CRIU: python -m bench.saving.measure, as root.

A C program, and PyTorch and CuPy where they are installed: first some saves and restores that
nothing disturbs, then, for --seconds, some at random, while the daemon, nvshare-save and a
restoring CRIU are killed at random. Each checksum is compared with that of the same program alone.
Needs CRIU 4.0 or later in PATH, or NVSHARE_CRIU. Exit status 1 if a program is lost, does not
answer or answers wrongly.
"""

import contextlib
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from bench import output
from bench.harness import ROOT, machine
from bench.moving.measure import Daemon
from nvshared import caller, library, saver
from nvshared.errors import NvshareError
from nvshared.machine import checkpoint
from nvshared.machine.nvml import NVML

STEPS = 60                              # most steps of a program
ANSWER_WITHIN = 60.0                    # seconds, else a step counts as lost
KILLED_WITHIN = 3.0                     # seconds from the begin of an order to the kill
TRIES = 6                               # of a restore that a kill has interrupted


class Killed(NvshareError):
    """The daemon was killed before it answered."""


class Bench:
    def __init__(self, folder: Path, user: int | None) -> None:
        """`user`: uid of the programs; None: that of the caller."""
        self.folder, self.images, self.user = folder, folder / "saved", user
        folder.chmod(0o755)
        os.environ["NVSHARE_SAVED"] = str(self.images)
        self.daemon = Daemon(folder, "--debug")
        self.kills: Counter[str] = Counter()

    def order(self, *words: object) -> str:
        """Raises Killed; NvshareError with the daemon's reason."""
        process = self.daemon.process
        try:
            process.send(*words)
            answer = " ".join(process.receive()[1:])
        except (OSError, SystemExit):
            self.restart()
            raise Killed("the daemon was killed") from None
        if answer != "done" and not answer.startswith("saved "):
            raise NvshareError(answer)
        return answer.partition(" ")[2]

    def restart(self) -> None:
        self.daemon.process.popen.kill()
        self.daemon.process.popen.wait()
        self.daemon.socket.unlink(missing_ok=True)
        self.daemon = Daemon(self.folder, "--debug")

    def saved(self, pid: int) -> list[dict[str, Any]]:
        done = subprocess.run(
            [sys.executable, "-I", saver.__file__], input=b'{"order": "list"}\n',
            capture_output=True, check=True)
        return [one for one in json.loads(done.stdout)["entries"] if one["pid"] == pid]

    def helpers(self) -> list[int]:
        """The processes of nvshare-save."""
        mine, found = f"NVSHARE_SAVED={self.images}".encode(), []
        for path in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if b"saver.py" in (path / "cmdline").read_bytes() and mine in (
                        path / "environ").read_bytes().split(b"\0"):
                    found.append(int(path.name))
        return found

    def state(self, pid: int) -> str:
        """Where a program stands that does not answer, and what the daemon and CRIU said."""
        threads = Counter(
            " ".join([content(path / "stat")[:30], content(path / "wchan"),
                      content(path / "syscall")]).partition(" ")[2]
            for path in saver.threads(pid))
        driver = subprocess.run([*checkpoint.COMMAND, "state", str(pid)], capture_output=True,
                                text=True, check=False)
        logs = "".join(f"{path}:\n{content(path)[-2000:]}\n" for path in (
            self.daemon.log, *self.images.glob("*/*.log")))
        return "\n".join([*(f"{count} x {one}" for one, count in threads.items()), driver.stdout,
                          str(self.saved(pid)), logs])

    def end(self) -> None:
        self.daemon.end()
        while self.helpers():           # the last one may be removing a folder
            time.sleep(0.1)

    def kill(self, victim: str, after: float) -> None:
        time.sleep(after)
        if victim == "daemon":
            self.daemon.process.popen.kill()
            self.daemon.process.popen.wait()    # during() asks whether it has ended
            return
        found = self.helpers()
        if victim == "criu":
            found = [pid for folder in self.images.glob("*/") for pid in saver.workers(folder)]
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def during(self, work: Callable[[], object], victim: str, order: str) -> None:
        """Carries out an order, and kills a part meanwhile. Errors are left to the state that the
        program is in afterwards."""
        if not victim:
            work()
            return
        self.kills[f"{victim} in {order}"] += 1
        killer = threading.Thread(
            target=self.kill, args=(victim, random.uniform(0, KILLED_WITHIN)))
        killer.start()
        with contextlib.suppress(NvshareError):
            work()
        killer.join()
        if self.daemon.process.popen.poll() is not None:
            self.restart()


def content(path: Path) -> str:
    """The text of a file, "" if it is gone."""
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace").strip()
    return ""


class Program:
    def __init__(self, bench: Bench, name: str, *command: object) -> None:
        self.bench, self.name, self.steps = bench, name, 0
        self.folder = bench.folder / name
        self.times: dict[str, list[float]] = defaultdict(list)
        self.wrong: list[str] = []
        self.counts: list[tuple[int, int, int]] = []
        self.cycles, self.image = 0, 0
        self.right = [] if name == "c" else self.alone(command)
        log = (bench.folder / f"{name}.log").open("wb")
        self.popen = self.start(command, self.folder, log=log, LD_PRELOAD=str(library.hook()),
                                NVSHARE_SOCKET=str(bench.daemon.socket))
        self.pid = self.popen.pid

    def start(self, command: tuple[object, ...], folder: Path, log: Any = subprocess.DEVNULL,
              **variables: str) -> "subprocess.Popen[bytes]":
        folder.mkdir()
        if self.bench.user is not None:
            os.chown(folder, self.bench.user, -1)
            variables |= {"HOME": str(folder)}      # for the caches of CUDA and CuPy
        words = [str(folder) if word is Path else str(word) for word in command]
        return subprocess.Popen(
            words, cwd=ROOT, env={**os.environ, **variables}, stdin=subprocess.DEVNULL, stdout=log,
            stderr=log, start_new_session=True, user=self.bench.user)

    def alone(self, command: tuple[object, ...]) -> list[str]:
        """The checksums of the same program without the library."""
        folder = self.bench.folder / f"{self.name}-alone"
        popen = self.start(command, folder)
        for step in range(STEPS):
            (folder / f"step-{step}").touch()
        while not (folder / f"out-{STEPS - 1}").exists() and popen.poll() is None:
            time.sleep(0.1)
        popen.kill()
        popen.wait()
        return [(folder / f"out-{step}").read_text() for step in range(STEPS)]

    @property
    def is_alive(self) -> bool:
        self.popen.poll()
        return caller.started(self.pid) is not None

    def step(self) -> float:
        """Returns the seconds of a step. Its mistake, if any, is added to `wrong`."""
        began, step = time.monotonic(), self.steps
        self.steps += 1
        (self.folder / f"step-{step}").touch()
        out = self.folder / f"out-{step}"
        while not out.exists():
            if not self.is_alive or time.monotonic() > began + ANSWER_WITHIN:
                self.wrong.append(f"step {step}: no answer, alive: {self.is_alive}\n"
                                  + self.bench.state(self.pid))
                return 0.0
            time.sleep(0.01)
        took, right = time.monotonic() - began, self.right[step] if self.right else "0"
        if out.read_text() != right:
            self.wrong.append(f"step {step}: {out.read_text()!r}, must be {right!r}")
        return took

    def timed(self, name: str, *words: object) -> str:
        began = time.monotonic()
        answer = self.bench.order(name, *words)
        self.times[name].append(time.monotonic() - began)
        return answer

    def cycle(self) -> None:
        """A save, a restore and a step that nothing disturbs."""
        image = Path(self.timed("save", self.pid))
        assert not self.is_alive        # also reaps it, so that its number is free
        self.image = sum(one.stat().st_size for one in image.iterdir())
        self.timed("restore", image)
        self.times["step"].append(self.step())
        self.cycles += 1
        self.count()

    def count(self) -> None:
        """Notes what must not grow with the restores."""
        process = Path(f"/proc/{self.pid}")
        with contextlib.suppress(OSError):
            self.counts.append((len([*saver.threads(self.pid)]), len([*(process / "fd").iterdir()]),
                                len(content(process / "maps").splitlines())))

    def disturbed_cycle(self) -> None:
        bench = self.bench
        victim = random.choice(["", "helper", "daemon"])
        with contextlib.suppress(NvshareError):
            bench.during(partial(bench.order, "save", self.pid), victim, "save")
        while any(one["state"] in ("saving", "restoring") for one in bench.saved(self.pid)):
            time.sleep(0.1)
        for attempt in range(TRIES):
            if self.is_alive:
                break
            rows = [one for one in bench.saved(self.pid) if one["state"] == "saved"]
            if not rows:
                self.wrong.append(f"lost in cycle {self.cycles}")
                return
            victim = random.choice(["", "helper", "criu", "daemon"]) if attempt == 0 else ""
            with contextlib.suppress(NvshareError):
                bench.during(
                    partial(bench.order, "restore", rows[-1]["folder"]), victim, "restore")
            while any(one["state"] == "restoring" for one in bench.saved(self.pid)):
                time.sleep(0.1)
        self.step()
        self.cycles += 1
        self.count()

    def figures(self) -> dict[str, Any]:
        return {"program": self.name, "cycles": self.cycles, "image_bytes": self.image,
                "wrong": self.wrong, "alive": self.is_alive,
                "mean_s": {name: round(mean(all_), 2) for name, all_ in self.times.items()},
                "times_s": dict(self.times), "threads_files_mappings": self.counts}


def disk(folder: Path, size: int = 4 << 30, piece: int = 16 << 20) -> dict[str, float]:
    """Bytes per second that a plain loop writes to the folder's disk, synced, and reads back."""
    path, data = folder / "disk", os.urandom(piece)
    began = time.monotonic()
    with path.open("wb", buffering=0) as file:
        for _ in range(size // piece):
            file.write(data)
        os.fsync(file.fileno())
        written = time.monotonic()
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with path.open("rb", buffering=0) as file:
        while file.read(piece):
            pass
    read = time.monotonic()
    path.unlink()
    return {"write": size / (written - began), "read": size / (read - written)}


def measure(mib: int, rounds: int, seconds: float, user: int | None) -> dict[str, Any]:
    """`mib`: memory of each program on the GPU, besides a PyTorch model of 0.6 GiB."""
    with tempfile.TemporaryDirectory(prefix="nvshare-saving-") as name:
        folder = Path(name)
        bench, steps = Bench(folder, user), folder / "steps"
        libcuda = subprocess.run(
            ["gcc", f"-DBYTES=((size_t){mib}<<20)", ROOT / "tests/integration/steps.c", "-o", steps,
             "-l:libcuda.so.1", *(f"-L{one}" for one in os.environ.get(
                 "LD_LIBRARY_PATH", "").split(":") if one)], check=False)
        programs = [Program(bench, "c", steps, Path)] if libcuda.returncode == 0 else []
        for kind in ("torch", "cupy"):
            if importlib.util.find_spec(kind) is not None:
                programs.append(Program(bench, kind, sys.executable, "-m", "bench.saving.program",
                                        kind, Path, mib / 1024))
        for program in programs:
            program.step()              # all have their memory
        for program in programs:
            for _ in range(rounds):
                program.cycle()
        until = time.monotonic() + seconds
        while time.monotonic() < until and (live := [
                one for one in programs if not one.wrong and one.steps < STEPS]):
            random.choice(live).disturbed_cycle()
        rows = [program.figures() for program in programs]
        for program in programs:
            with contextlib.suppress(ProcessLookupError):
                os.kill(program.pid, signal.SIGKILL)
        bench.end()
        rate = disk(folder)
    return {"disk_bytes_per_s": rate, "programs": rows, "kills": dict(bench.kills), "mib": mib,
            "user": user,
            "card": next(iter(NVML().find())).name}


def main() -> int:
    parser = output.parser("bench.saving.measure", __doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=1024, help="of each program on the GPU")
    parser.add_argument("--rounds", type=int, default=3, help="saves that nothing disturbs")
    parser.add_argument("--seconds", type=float, default=120.0, help="of random kills")
    parser.add_argument("--user", type=int, help="the user's number; default: root's programs")
    options = parser.parse_args()
    try:
        saver.criu()
    except saver.Refused as refused:
        print(refused, file=sys.stderr)
        return 1
    found = measure(options.mib, options.rounds, options.seconds, options.user)
    for row in found["programs"]:
        print(f"{row['program']:6} {row['cycles']} saves and restores, image "
              f"{row['image_bytes'] >> 20} MiB, mean s {row['mean_s']}, wrong {row['wrong']}")
    print(f"the disk writes {found['disk_bytes_per_s']['write'] / 1e9:.2f} GB/s and reads "
          f"{found['disk_bytes_per_s']['read'] / 1e9:.2f}")
    where = machine()
    text = json.dumps({"machine": where, **found}, indent=1)
    (options.output or output.kept("saving", where)).write_text(text + "\n")
    return int(any(row["wrong"] or not row["alive"] for row in found["programs"]))


if __name__ == "__main__":
    sys.exit(main())
