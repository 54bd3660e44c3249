# SPDX-License-Identifier: Apache-2.0
"""Child processes that never outlive the demonstration.

Each child runs in its own session. So Ctrl-C in the terminal reaches only this
process, which ends its children in order. If this process is killed, the kernel
kills the children (PR_SET_PDEATHSIG).
"""

import asyncio
import contextlib
import ctypes
import json
import os
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

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
        *command,
        env=dict(environment),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        preexec_fn=prepare,
    )
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


OUT_OF_MEMORY = 3                       # exit status of nvshare-workload when an allocation fails

Event = dict[str, Any]                  # one line of nvshare-workload --json


@dataclass(frozen=True, slots=True)
class Task:
    """The parameters of a run of nvshare-workload."""

    name: str                           # shown to the user
    memory: int                         # bytes
    chunk: int                          # bytes
    steps: int
    cpu_ms: int                         # CPU time after each step
    kernel_us: int                      # GPU time for each chunk and step, besides computing
    seed: int

    def command(self) -> list[str]:
        """The command line."""
        return [
            str(library.workload()), "--json",
            "--memory", str(self.memory), "--chunk", str(self.chunk),
            "--steps", str(self.steps), "--cpu-ms", str(self.cpu_ms),
            "--kernel-us", str(self.kernel_us), "--seed", str(self.seed),
        ]


@dataclass(frozen=True, slots=True)
class Outcome:
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


async def perform(
    task: Task,
    environment: Mapping[str, str],
    began: Callable[[int], None],
    said: Callable[[Event], None],
) -> Outcome:
    """Runs the program to its end. Calls `began` with its pid, and `said` with each event."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    seconds = 0.0
    checksum = ""
    right = False
    async with running(task.command(), environment) as process:
        began(process.pid)
        assert process.stdout is not None
        assert process.stderr is not None
        errors = asyncio.create_task(process.stderr.read())
        async for line in process.stdout:
            event: Event = json.loads(line)
            if event["event"] == "finished":
                seconds = loop.time() - start
                checksum = event["checksum"]
            elif event["event"] == "checked":
                right = event["right"]
            said(event)
        status = await process.wait()
        words = (await errors).decode(errors="replace").strip().splitlines()
    return Outcome(
        task=task,
        status=status,
        checksum=checksum,
        right=right and status == 0,
        seconds=seconds,
        message=words[-1].removeprefix("nvshare-workload: ") if words else "",
    )
