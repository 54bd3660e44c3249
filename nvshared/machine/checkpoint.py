# SPDX-License-Identifier: Apache-2.0
"""The driver's checkpoints of processes, by nvshare-checkpoint (nvshared/checkpointer.py).

The daemon has neither CUDA nor privileges. systemd offers the program on a socket, as root, or the
daemon starts it. A command takes only steps that the process's state lacks: it can be repeated."""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from nvshared import caller
from nvshared.errors import NvshareError

PROGRAM = str(Path(caller.__file__).with_name("checkpointer.py"))
COMMAND: tuple[str, ...] = (sys.executable, "-I", PROGRAM)      # without systemd
SOCKET = Path("/run/nvshare-checkpoint/checkpoint.sock")
READY_WITHIN = 30.0                     # most seconds until a helper answers; cuInit() takes 10
PATIENCE = 120.0                        # most seconds of a command; a 100 GiB checkpoint takes 40
NOT_ORDERED = "not ordered"             # Answer.state: `lacks` had a reason, so nothing was done
KEPT_FOR = 300.0                        # seconds in which a helper gets commands; with the patience
                                        # less than RuntimeMaxSec= of nvshare-checkpoint@.service
LONGEST = 1 << 16                       # most bytes of an answer


class HelperProcess:
    """A process that this program started. Not asyncio's, which complains of processes that end
    after the event loop: these may outlast the daemon."""

    def __init__(self, command: Sequence[str | Path], descriptor: int) -> None:
        """`descriptor`: its standard input and output. Raises OSError."""
        self._popen = subprocess.Popen(
            command, start_new_session=True, stdin=descriptor, stdout=descriptor)
        self._pidfd = os.pidfd_open(self._popen.pid)
        self._loop, self.ended = asyncio.get_running_loop(), asyncio.Event()
        self._loop.add_reader(self._pidfd, self._reap)

    def kill(self) -> None:
        self._popen.kill()

    def _reap(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._popen.wait()
        self.ended.set()


# The third: the process that this program started; None: systemd started one.
Connected = tuple[asyncio.StreamReader, asyncio.StreamWriter, HelperProcess | None]


class NotSent(NvshareError):
    """The command was not sent to nvshare-checkpoint, so nothing was done."""


class Step(NamedTuple):
    name: str
    code: int                           # CUresult; -1: the driver was not called
    took: int                           # microseconds
    words: str


class Answer(NamedTuple):
    state: str                          # running, locked, checkpointed, failed, none; NOT_ORDERED
    steps: tuple[Step, ...] = ()

    @property
    def trouble(self) -> str:
        """The first step that failed, in the driver's words; "": none did."""
        return next((f"{one.name}: {one.words} ({one.code})" for one in self.steps if one.code), "")

    @property
    def reason(self) -> str:
        if self.state == "none" and not self.trouble:
            return "the driver has no state of its process to save, as under MPS"
        return self.trouble or f"for the driver its process is {self.state}"


def parse(output: str) -> Answer:
    """Parses the lines of nvshare-checkpoint. Without the last line the state is "none".

    Raises ValueError if a number is malformed."""
    steps, state = [], "none"
    for line in output.splitlines():
        match line.split(" ", 4):
            case ["step", name, code, took, words]:
                steps.append(Step(name, int(code), int(took), words))
            case ["state", word]:
                state = word
    return Answer(state, tuple(steps))


async def ask(command: str, pid: int, pairs: Iterable[tuple[str, str]] = (),
              lacks: Callable[[], Awaitable[str]] | None = None) -> Answer:
    """Sends a command of nvshare-checkpoint for a process.

    `pairs`: UUIDs of the old and the new card. `lacks`: awaited when the helper is ready, right
    before the command is sent; if it returns a reason, the command is not sent. Raises NotSent if
    no helper got the command, NvshareError if the answer is late or malformed."""
    line = " ".join([command, str(pid), *(f"{old}={new}" for old, new in pairs)])
    first = f"state {pid}"
    helper: _Helper | None = None
    asked, patience = False, READY_WITHIN
    try:
        # systemd's socket accepts data even if no helper can be started, and an idle helper may
        # have ended. So a helper must answer a harmless command before it gets `command`.
        async with asyncio.timeout(patience):
            said = ""
            if _idle:
                helper = _idle.pop()
                if time.monotonic() < helper.began + KEPT_FOR:
                    said = await helper.ask(first)
            if helper is None or not said:
                _end(helper)
                connected = await start(SOCKET, *COMMAND)
                helper = _Helper(*connected, time.monotonic())
                said = await helper.ask(first)
        if first != line:
            if not said:
                raise NotSent("nvshare-checkpoint has ended without an answer")
            if lacks is not None and (why := await lacks()):
                _put_back(helper)
                return Answer(NOT_ORDERED, (Step(command, -1, 0, why),))
            asked, patience = True, PATIENCE
            async with asyncio.timeout(patience):
                said = await helper.ask(line)
        if "state " not in said:
            raise NvshareError("nvshare-checkpoint has ended without an answer")
        answer = parse(said)
    except (OSError, ValueError) as error:
        _end(helper)
        if isinstance(error, TimeoutError):
            fault = f"has not answered for {patience:.0f} s"
        elif isinstance(error, OSError):
            fault = f"cannot be used: {error.strerror}"
        else:                           # from parse(), or from readline() for an overlong line
            fault = f"answers nonsense: {error}"
        raise (NvshareError if asked else NotSent)(f"nvshare-checkpoint {fault}") from error
    except BaseException:
        _end(helper)
        raise
    if answer.state == "none":          # this helper failed
        _end(helper)
    else:
        _put_back(helper)
    return answer


class _Helper(NamedTuple):
    """A running nvshare-checkpoint, which initialises CUDA once for all of its commands."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    process: HelperProcess | None       # None: systemd started the helper
    began: float                        # by time.monotonic()

    async def ask(self, line: str) -> str:
        """Sends a line and returns the answer. Raises ValueError if that exceeds LONGEST bytes."""
        self.writer.write(line.encode() + b"\n")
        said = ""
        with suppress(ConnectionError):     # it has ended without reading the line
            while answer := (await self.reader.readline()).decode(errors="replace"):
                said += answer
                if len(said) > LONGEST:
                    raise ValueError(f"more than {LONGEST} bytes")
                if answer.startswith("state "):
                    break
        return said


_idle: list[_Helper] = []               # at most one helper, for the next command


def _put_back(helper: _Helper) -> None:
    """Keeps the helper for the next command; one idle helper suffices."""
    if _idle:
        _end(helper)
    else:
        _idle.append(helper)


async def start(path: Path, *command: str | Path, longest: int = LONGEST) -> Connected:
    """Connects to the program that systemd offers on a socket, or starts it as `command`."""
    if path.is_socket():  # noqa: ASYNC240
        return *await asyncio.open_unix_connection(path, limit=longest), None
    ours, theirs = socket.socketpair()
    with theirs:
        process = HelperProcess(command, theirs.fileno())
    return *await asyncio.open_unix_connection(sock=ours, limit=longest), process


def _end(helper: _Helper | None) -> None:
    """Ends the helper by closing its input; a helper that hangs in the driver is killed."""
    if helper is None:
        return
    helper.writer.close()
    if helper.process is not None:
        helper.process.kill()
