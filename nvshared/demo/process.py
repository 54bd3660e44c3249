# SPDX-License-Identifier: Apache-2.0
"""Child processes that never outlive the demonstration.

Each is in a session of its own, so that a Ctrl-C in the terminal reaches only
us and we decide in which order things end; and each asks the kernel to be
killed when we die, should we be killed before we can.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import IO

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
            await _ask_to_end(process, stop)
        finally:
            await _end(process)


async def _ask_to_end(process: Process, stop: signal.Signals) -> None:
    if process.returncode is None and stop != signal.SIGKILL:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(stop)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), PATIENCE)


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
