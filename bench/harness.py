# SPDX-License-Identifier: Apache-2.0
"""Runs programs on one GPU, alone or together under a private daemon, for benchmarks and the tests
on a real card. Collects the JSON results of the programs and the daemon's trace.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from bench.trace import Line, written
from nvshared.errors import NvshareError

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = ROOT / "libhook" / "build" / "libnvshare.so"


@dataclass(frozen=True, slots=True)
class Result:
    command: tuple[str, ...]
    code: int
    seconds: float                      # from start to end, imports included
    output: dict[str, Any]              # its last line as JSON; empty: the line is no JSON
    errors: str                         # the end of its stderr


@dataclass(slots=True)
class Sharing:
    socket: Path
    trace_file: Path
    process: subprocess.Popen[bytes]
    environment: dict[str, str] = field(default_factory=dict)

    def trace(self) -> list[Line]:
        return written(self.trace_file)


@contextmanager
def sharing(*options: str, environment: dict[str, str] | None = None,
            log: IO[bytes] | None = None) -> Iterator[Sharing]:
    """Runs a daemon with these options while the `with` block runs; `log` gets its stderr."""
    with tempfile.TemporaryDirectory(prefix="nvshare-") as folder:
        socket, trace = Path(folder, "nvshare.sock"), Path(folder, "trace.jsonl")
        process = subprocess.Popen(
            [sys.executable, "-m", "nvshared", "--bus", "none", "--socket", str(socket),
             "--trace", str(trace), *options],
            cwd=ROOT, env={**os.environ, **(environment or {})}, stderr=log)
        try:
            deadline = time.monotonic() + 30
            while not socket.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise NvshareError("the daemon did not start", "its log says why")
                time.sleep(0.02)
            yield Sharing(socket, trace, process, {
                "LD_PRELOAD": str(LIBRARY), "NVSHARE_SOCKET": str(socket), **(environment or {})})
        finally:
            process.terminate()
            process.wait(30)
            if kept := os.environ.get("NVSHARE_RESULTS"):
                target = Path(kept).with_name(f"trace-{time.time_ns()}.jsonl")
                target.write_bytes(trace.read_bytes())


def run(commands: Sequence[Sequence[str]], environment: dict[str, str] | None = None,
        limit: float = 600.0, user: int | None = None) -> list[Result]:
    """Runs programs at the same time, as `user`. Kills programs that run after `limit` seconds."""
    started = [_start(command, environment, user=user) for command in commands]
    deadline = time.monotonic() + limit
    while any(one.running() for one in started) and time.monotonic() < deadline:
        time.sleep(0.01)
    return [one.end() for one in started]


@contextmanager
def rival(command: Sequence[str], environment: dict[str, str] | None = None,
          limit: float = 60.0) -> Iterator[list[Result]]:
    """Runs a program that ends at the end of its stdin, which is at the end of the `with` block.

    Then its result is appended to the yielded list. `limit`: seconds that it may take to end.
    """
    results: list[Result] = []
    one = _start(command, environment, has_stdin=True)
    try:
        yield results
        assert one.process.stdin is not None
        one.process.stdin.close()
        deadline = time.monotonic() + limit
        while one.running() and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        results.append(one.end())


@dataclass(slots=True)
class _Running:
    command: tuple[str, ...]
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    errors: IO[bytes]
    began: float
    ended: float = 0.0

    def running(self) -> bool:
        if self.process.poll() is None:
            return True
        self.ended = self.ended or time.monotonic()
        return False

    def end(self) -> Result:
        if self.running():
            self.process.kill()
            self.process.wait()
            self.ended = time.monotonic()
        texts = []
        for file in (self.output, self.errors):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
            file.close()
        if self.process.stdin is not None:
            self.process.stdin.close()
        return Result(self.command, self.process.returncode, self.ended - self.began,
                      _last_json(texts[0]), texts[1][-2000:])


def _start(command: Sequence[str], environment: dict[str, str] | None, has_stdin: bool = False,
           user: int | None = None) -> _Running:
    # _Running.end() closes both files.
    output, errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE if has_stdin else None,
                               stdout=output, stderr=errors,
                               env={**os.environ, **(environment or {})}, user=user)
    return _Running(tuple(command), process, output, errors, time.monotonic())


def _last_json(text: str) -> dict[str, Any]:
    lines = text.strip().splitlines()
    if not lines or not lines[-1].startswith("{"):
        return {}
    parsed: dict[str, Any] = json.loads(lines[-1])
    return parsed


def machine() -> dict[str, Any]:
    with Path("/proc/cpuinfo").open() as lines:
        models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpu": _gpu(),
        "cpu": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version()}


def _gpu() -> str:
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"],
            capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "none"
    return listed.stdout.strip()


def program(name: str, *options: str) -> list[str]:
    return [sys.executable, "-m", f"tests.gpu.programs.{name}", *options]
