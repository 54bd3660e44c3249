# SPDX-License-Identifier: Apache-2.0
"""Child processes that never outlive the demonstration.

Each is in a session of its own, so that a Ctrl-C in the terminal reaches only
us and we decide in which order things end; and each asks the kernel to be
killed when we die, should we be killed before we can.
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
PATIENCE = 3.0                          # seconds to end by itself once asked to

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
    """A process that is gone when the block is left: told by `stop` first, then killed."""
    parent = os.getpid()

    def prepare() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:      # we died before the kernel knew
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
    """Kills it with all that it started, and returns when it is gone, even if we are cancelled."""
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


OUT_OF_MEMORY = 3                       # nvshare-workload's exit status

Event = dict[str, Any]                  # one line of nvshare-workload --json


@dataclass(frozen=True, slots=True)
class Task:
    """What a program is to do."""

    name: str                           # for people
    memory: int                         # bytes
    chunk: int                          # bytes
    steps: int
    cpu_ms: int                         # on the CPU after each step
    kernel_us: int                      # on the GPU for each chunk and step, besides computing
    seed: int

    def command(self) -> list[str]:
        """As nvshare-workload is called."""
        return [
            str(library.workload()), "--json",
            "--memory", str(self.memory), "--chunk", str(self.chunk),
            "--steps", str(self.steps), "--cpu-ms", str(self.cpu_ms),
            "--kernel-us", str(self.kernel_us), "--seed", str(self.seed),
        ]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it went."""

    task: Task
    status: int                         # exit status, negative for a signal
    checksum: str                       # of all its memory, "" if it did not get that far
    right: bool                         # every chunk is what the CPU computes
    seconds: float                      # from its start to its results, the check left out
    message: str                        # its last words on stderr

    @property
    def out_of_memory(self) -> bool:
        """It was refused memory and ended for it."""
        return self.status == OUT_OF_MEMORY


async def perform(
    task: Task,
    environment: Mapping[str, str],
    began: Callable[[int], None],
    said: Callable[[Event], None],
) -> Outcome:
    """Runs the program to its end. `began` is told its pid, `said` everything it says."""
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
