# SPDX-License-Identifier: Apache-2.0
"""The driver's checkpoints of processes, by nvshare-checkpoint (libhook/checkpoint).

It is a program of its own, since the daemon has no CUDA and no rights. Where systemd offers it on a
socket, it runs there as root; otherwise the daemon starts it, with the rights it has itself. Each
command does what is missing from the state in which it finds the process, so it can be repeated
after anything.
"""

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nvshared import library
from nvshared.errors import NvshareError

SOCKET = Path("/run/nvshare/checkpoint.sock")
PATIENCE = 120.0                        # seconds; a checkpoint of 100 GiB takes 40


@dataclass(frozen=True, slots=True)
class Step:
    """One call of the driver."""

    name: str
    code: int                           # CUresult; -1: it was not called
    took: int                           # microseconds
    words: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a command."""

    state: str                          # running, locked, checkpointed, failed, none
    steps: tuple[Step, ...] = ()

    @property
    def trouble(self) -> str:
        """The first step that failed, in the driver's words; "": none did."""
        return next(
            (f"{one.name}: {one.words} ({one.code})" for one in self.steps if one.code), "")


def parse(said: str) -> Answer:
    """The lines of nvshare-checkpoint; without its last one the state is none."""
    steps, state = [], "none"
    for line in said.splitlines():
        match line.split(" ", 4):
            case ["step", name, code, took, words]:
                steps.append(Step(name, int(code), int(took), words))
            case ["state", word]:
                state = word
    return Answer(state, tuple(steps))


async def ask(command: str, pid: int, pairs: Iterable[tuple[str, str]] = ()) -> Answer:
    """Has `command` (state, park or wake) carried out; `pairs`: UUIDs of cards, old and new.

    Raises NvshareError if nothing can carry it out, or it does not end.
    """
    words = [command, str(pid), *(f"{old}={new}" for old, new in pairs)]
    try:
        async with asyncio.timeout(PATIENCE):
            said = await (_by_socket if _is_offered() else _by_program)(words)
    except TimeoutError:
        raise NvshareError(f"nvshare-checkpoint has not answered for {PATIENCE:.0f} s") from None
    except OSError as error:
        raise NvshareError(f"nvshare-checkpoint cannot be used: {error.strerror}") from error
    return parse(said)


def _is_offered() -> bool:
    return SOCKET.is_socket()


async def _by_socket(words: list[str]) -> str:
    reader, writer = await asyncio.open_unix_connection(SOCKET)
    try:
        writer.write(" ".join(words).encode() + b"\n")
        writer.write_eof()
        return (await reader.read()).decode(errors="replace")
    finally:
        writer.close()


async def _by_program(words: list[str]) -> str:
    process = await asyncio.create_subprocess_exec(
        library.checkpoint(), *words, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE)
    try:
        said, _ = await process.communicate()
        return said.decode(errors="replace")
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
