# SPDX-License-Identifier: Apache-2.0
"""nvsharectl at a terminal: its output, and the state of the terminal after its end."""

import asyncio
import os
import pty
import re
import signal
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from nvshared.errors import ExitCode
from nvshared.sharing.manager import Manager
from tests.bus.service import PrivateBus, a_client
from tests.bus.test_commands import NVSHARECTL, ROOT, Run, ctl

PATIENCE = 600.0                        # seconds until a waiting test fails
COLOUR = re.compile(rb"\x1b\[[\d;]*m")
__all__ = ["ctl"]                       # a fixture


Act = bytes | signal.Signals | Callable[[int], None]


async def on_a_terminal(*command: str, keys: Act = b"", until: bytes = b"", expected: int = 0,
                        steps: Sequence[tuple[bytes, Act]] = (), **environment: str) -> str:
    """The output of a command on a terminal of 80 columns.

    Each of `steps`, of which (`until`, `keys`) is the last, acts once its text was shown since
    the step before: bytes are typed, a signal is sent, a function is called with the process id.
    """
    ours, its = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *command, stdin=its, stdout=its, stderr=its, cwd=ROOT,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24", **environment},
        process_group=0,  # a process group that ^Z can stop: the parent is in another group
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL))
    os.close(its)
    loop = asyncio.get_running_loop()
    shown = bytearray()

    def more() -> bytes:
        try:
            return os.read(ours, 4096)
        except OSError:                 # Linux returns EIO once the other end is closed
            return b""

    waiting = [*steps, *([(until, keys)] if keys else [])]
    since = 0
    # A program that never shows the expected text is killed; the exit status below then differs.
    bound = loop.call_later(PATIENCE, process.kill)
    while data := await loop.run_in_executor(None, more):
        shown += data
        while waiting and waiting[0][0] in COLOUR.sub(b"", shown[since:]):
            since = len(shown)
            _, keys = waiting.pop(0)
            if isinstance(keys, bytes):
                os.write(ours, keys)
            elif callable(keys):
                keys(process.pid)
            else:
                process.send_signal(keys)
    ended = await process.wait()
    bound.cancel()
    os.close(ours)
    assert ended == expected, f"{waiting[:1]} to come: {shown[since:].decode(errors='replace')}"
    return shown.decode()


async def test_top_on_an_ascii_terminal_prints_no_traceback(manager: Manager,
                                                            private: PrivateBus) -> None:
    shown = await on_a_terminal(*NVSHARECTL, "top", "-i", "0.1", keys=b"q", until=b"not running",
                                NVSHARE_BUS=private.address, PYTHONIOENCODING="ascii")
    assert "Traceback" not in shown


@pytest.mark.parametrize(
    ("keys", "code"),
    [(b"q", 0), (signal.SIGINT, 0), (signal.SIGTERM, 128 + 15), (signal.SIGHUP, 128 + 1)])
async def test_top_that_ends_restores_screen_and_cursor(
        manager: Manager, ctl: Run, private: PrivateBus, keys: Act, code: int) -> None:
    shown = await on_a_terminal(*NVSHARECTL, "top", "-i", "5", keys=keys, until=b"q quit",
                                expected=code, NVSHARE_BUS=private.address)
    assert shown.rindex("\x1b[?1049l") > shown.index("\x1b[?1049h")
    assert shown.rindex("\x1b[?25h") > shown.index("\x1b[?25l")   # the cursor is shown
    assert "Traceback" not in shown


async def test_top_on_a_dumb_terminal_prints_plain_tables(
        manager: Manager, ctl: Run, private: PrivateBus) -> None:
    a_client(manager, manager.gpus[0])
    shown = await on_a_terminal(*NVSHARECTL, "top", "-i", "0.1", keys=signal.SIGINT,
                                until=b"turns/min", expected=ExitCode.INTERRUPTED,
                                NVSHARE_BUS=private.address, TERM="dumb")
    assert shown.count("GPU 1") > 1
    assert "idle" in shown
    assert "\x1b" not in shown


async def test_clients_table_on_a_terminal_without_colours_fits_the_width(
        manager: Manager, ctl: Run, private: PrivateBus) -> None:
    program = await asyncio.create_subprocess_exec("sleep", "1h", *["0"] * 100)
    a_client(manager, manager.gpus[0], pid=program.pid)
    shown = await on_a_terminal(*NVSHARECTL, "clients", NVSHARE_BUS=private.address, NO_COLOR="1")
    program.kill()
    await program.wait()
    bare = shown.replace("\x1b[1m", "").replace("\x1b[0m", "").replace("\x1b[2m", "")
    assert all(len(line) <= 80 for line in bare.splitlines())
    assert "RESIDENT" in bare
    assert "\x1b[2midle" in shown       # \x1b[2m is dim, which is no colour
    assert "…" in bare
