# SPDX-License-Identifier: Apache-2.0
"""Processes of benchmarks that answer lines of their input by lines of JSON.

Each process has its own session, so that Ctrl-C in the terminal reaches only the benchmark, which
ends its processes before itself. If the benchmark is killed, the kernel kills its processes.
"""

import ctypes
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from nvshared.errors import NvshareError

PATIENCE = 300.0                        # seconds until an answer, at most
PR_SET_PDEATHSIG = 1
INTERRUPTS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}

_libc = ctypes.CDLL(None, use_errno=True)


class Program:
    """A running process that has printed its first line, which is `ready`."""

    def __init__(self, process: "subprocess.Popen[bytes]", errors: IO[bytes]) -> None:
        self._process = process
        self._errors = errors
        self._buffer = b""
        self.pid = process.pid
        self.ready = self.receive()

    def send(self, *words: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)).encode() + b"\n")
        self._process.stdin.flush()

    def conclude(self) -> dict[str, Any]:
        """Closes the process's input. Returns the last line, once the process has ended."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        last = self.receive()
        self._process.wait(PATIENCE)
        return last

    def receive(self) -> dict[str, Any]:
        """Returns the next line. Raises NvshareError if no line comes within PATIENCE."""
        assert self._process.stdout is not None
        limit, file = time.monotonic() + PATIENCE, self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([file], [], [], max(0.0, limit - time.monotonic()))
            if not ready:
                raise NvshareError(f"a program did not answer within {PATIENCE:.0f} s")
            more = os.read(file, 1 << 16)
            if not more:
                self._errors.seek(0)
                words = self._errors.read().decode(errors="replace").strip()
                raise NvshareError(f"a program ended with status {self._process.wait()}: {words}")
            self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        return said


@contextmanager
def started(command: Sequence[str], environment: Mapping[str, str],
            user: int | None = None) -> Iterator[Program]:
    """Runs a process as `user` while the `with` block runs; kills it at the end of the block."""
    with tempfile.TemporaryFile() as errors, subprocess.Popen(
        command, env={**os.environ, **environment}, stdin=subprocess.PIPE, user=user,
        stdout=subprocess.PIPE, stderr=errors, start_new_session=True, preexec_fn=die_with_us,
    ) as process:
        try:
            yield Program(process, errors)
        finally:
            process.kill()


def finish(command: Sequence[str | Path], environment: Mapping[str, str],
           limit: float) -> subprocess.CompletedProcess[str]:
    """Runs one of the benchmark's own programs to its end, with these variables added.

    Raises NvshareError if that takes more than `limit` seconds or the program is not built.
    """
    try:
        return subprocess.run(command, env={**os.environ, **environment}, capture_output=True,
                              text=True, check=False, timeout=limit, start_new_session=True,
                              preexec_fn=die_with_us)
    except subprocess.TimeoutExpired:
        raise NvshareError(f"{command[0]} did not end within {limit:.0f} s") from None
    except FileNotFoundError:
        raise NvshareError(f"{command[0]} is missing", "make bench-handover builds it") from None


def die_with_us() -> None:
    """Called in a child before execve(): the kernel will kill the child when its parent dies."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTS)
