# SPDX-License-Identifier: Apache-2.0
"""The programs of the demonstration, as child processes that never outlive it.

Each child runs in its own session. So Ctrl-C in the terminal reaches only this
process, which ends its children in order. If this process is killed, the kernel
kills the children (PR_SET_PDEATHSIG).
"""

import asyncio
import contextlib
import ctypes
import os
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import IO, Any, NamedTuple

from nvshared import library

PR_SET_PDEATHSIG = 1
PATIENCE = 3.0                          # seconds between the signal `stop` and SIGKILL

_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.asynccontextmanager
async def running(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdin: int | IO[bytes] | None = asyncio.subprocess.DEVNULL,
    stdout: int | IO[bytes] | None = asyncio.subprocess.PIPE,
    stderr: int | IO[bytes] | None = asyncio.subprocess.PIPE,
    stop: signal.Signals = signal.SIGKILL,
) -> AsyncIterator[Process]:
    """Runs a process while the block runs. Then sends `stop`, and SIGKILL after PATIENCE."""
    parent = os.getpid()

    def prepare() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:      # the parent died before prctl()
            os.kill(os.getpid(), signal.SIGKILL)

    process = await asyncio.create_subprocess_exec(
        *command, env=dict(environment), stdin=stdin, stdout=stdout, stderr=stderr,
        start_new_session=True, preexec_fn=prepare)
    try:
        yield process
    finally:
        try:
            if process.returncode is None and stop != signal.SIGKILL:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(stop)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), PATIENCE)
        finally:
            await _end(process)


async def _end(process: Process) -> None:
    """Kills the process's group, and waits for the process, even if cancelled meanwhile."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    cancelled = False
    while process.returncode is None:
        try:
            await process.wait()
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError


async def errors_of(process: Process) -> str:
    """The text that the process writes to stderr until it ends."""
    assert process.stderr is not None
    return (await process.stderr.read()).decode(errors="replace").strip()


OUT_OF_MEMORY = 3                       # exit status of nvshare-workload when an allocation fails

Event = dict[str, Any]                  # one line of nvshare-workload --json


class Task(NamedTuple):
    """The parameters of a run of nvshare-workload; but for `name`, its options."""

    name: str                           # shown to the user
    memory: int                         # bytes
    chunk: int                          # bytes
    steps: int
    cpu_ms: int                         # CPU time after each step
    kernel_us: int                      # GPU time for each chunk and step, besides computing
    seed: int

    def command(self) -> list[str]:
        """The command line."""
        _, *options = self._asdict().items()
        words = [(f"--{name.replace('_', '-')}", str(value)) for name, value in options]
        return [str(library.workload()), "--json", *(word for pair in words for word in pair)]


class Outcome(NamedTuple):
    """The result of a run."""

    task: Task
    status: int                         # exit status, negative for a signal
    checksum: str                       # of all its memory; "": it did not finish
    right: bool                         # every chunk equals the CPU's result
    seconds: float                      # from its start to its results, without the check
    message: str                        # the last line on stderr

    @property
    def out_of_memory(self) -> bool:
        """The program ended because an allocation failed."""
        return self.status == OUT_OF_MEMORY

    @property
    def verdict(self) -> str:
        """The result in a few words."""
        if self.out_of_memory:
            return f"{self.task.name} out of memory"
        if self.right:
            return f"{self.task.name} right"
        if self.checksum and not self.message:
            return f"{self.task.name} WRONG"
        return f"{self.task.name} failed: {self.message or f'status {self.status}'}"
