# SPDX-License-Identifier: Apache-2.0
"""nvsharectl top at a terminal: keys, changes of terms, and the state of the terminal."""

import asyncio
import os
import pty
import re
import signal
import sys
import termios
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from dbus_next.constants import MessageType

from nvshared.errors import ExitCode
from nvshared.names import BUS_NAME
from nvshared.scheduler.events import Terms
from nvshared.sharing.manager import Manager
from nvshared.units import SECOND
from tests.bus.service import Peeper, PrivateBus, a_client, peeper, published
from tests.bus.test_authority import polkit_on
from tests.bus.test_commands import NVSHARECTL, ROOT, Run, ctl

__all__ = ["ctl"]                       # a fixture
TOP = (*NVSHARECTL, "top", "-i", "0.2")
LOOK = 0.02                             # seconds between two looks at the process state
GIVEN_BACK = "\x1b[?1006l\x1b[?1000l\x1b[?25h\x1b[?1049l"


def go_on(pid: int) -> None:
    while Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "T":
        time.sleep(LOOK)
    os.kill(pid, signal.SIGCONT)


async def test_top_without_a_daemon_says_that_nvshared_is_not_running(
        manager: Manager, private: PrivateBus) -> None:
    a_client(manager, manager.gpus[0])
    shown = await on_a_terminal(*TOP, NVSHARE_BUS=private.address, steps=[
        (b"Trying again", b"/"), (b"Filter", b"pyth\r"), (b"filter pyth", b"q")])
    assert "nvshared is not running" in shown
    async with published(manager, private.address):
        shown = await on_a_terminal(*TOP, NVSHARE_BUS=private.address, steps=[(b"python", b"q")])
    assert "not running" not in shown


async def test_top_suspended_by_ctrl_z_restores_the_terminal(
        manager: Manager, ctl: Run, private: PrivateBus) -> None:
    a_client(manager, manager.gpus[0])
    shown = await on_a_terminal(*TOP, NVSHARE_BUS=private.address, steps=[
        (b"python", signal.SIGTSTP), (b"\x1b[?1049l", go_on),
        (b"python", signal.SIGWINCH), (b"python", b"q")])
    assert shown.count("\x1b[?1049h") == shown.count(GIVEN_BACK) == 2


async def test_top_with_keys_pasted_before_its_question_takes_none_for_the_answer(
        manager: Manager, ctl: Run, private: PrivateBus) -> None:
    client = a_client(manager, manager.gpus[0])
    await on_a_terminal(*TOP, NVSHARE_BUS=private.address, steps=[
        (b"python", b"systemctl"), (b"y/n", b"n"), (b"Nothing was changed", b"q")])
    assert client.terms.in_force == Terms()


@pytest.mark.parametrize(("words", "key", "code"), [
    (b"waiting for nvshared", signal.SIGTERM, 143),
    (b"nvshared does not answer. Trying again.", b"q", 0),
])
async def test_top_says_that_a_silent_daemon_does_not_answer_and_quits_by_key_or_signal(
        private: PrivateBus, words: bytes, key: bytes | signal.Signals, code: int) -> None:
    async with peeper(private.address) as silent:
        silent.bus.add_message_handler(
            lambda message: message.message_type is MessageType.METHOD_CALL)
        await silent.bus.request_name(BUS_NAME)
        shown = await on_a_terminal(
            *TOP, NVSHARE_BUS=private.address, expected=code, steps=[(words, key)])
    assert GIVEN_BACK in shown


async def test_top_shows_polkits_denial_of_a_change_as_a_sentence(
        manager: Manager, private: PrivateBus, other_user: None,
        monkeypatch: pytest.MonkeyPatch) -> None:
    client = a_client(manager, manager.gpus[0])
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", private.address)
    async with published(manager, "system"), polkit_on(private.address):
        shown = await on_a_terminal(*TOP, NVSHARE_BUS="system", steps=[
            (b"python", b"s"), (b"y/n", b"y"), (b"is not permitted to uid", b"q")])
    assert "Traceback" not in shown
    assert client.terms.in_force == Terms()


PATIENCE = 600.0                        # seconds until a waiting test fails
COLOUR = re.compile(rb"\x1b\[[\d;]*m")


Act = bytes | signal.Signals | Callable[[int], None]


async def on_a_terminal(*command: str, keys: Act = b"", until: bytes = b"", expected: int = 0,
                        steps: Sequence[tuple[bytes, Act]] = (), **environment: str) -> str:
    """The output of a command on a terminal of 80 columns.

    Each of `steps`, with (`until`, `keys`) as the last, is a text and an action. Once the text is
    shown, the action types bytes, sends a signal, or calls a function with the process id.
    """
    ours, its = pty.openpty()
    modes = termios.tcgetattr(its)
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
    left = termios.tcgetattr(ours)
    os.close(ours)
    assert left == modes
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


async def test_status_and_top_on_a_terminal_of_unknown_size_print_their_tables(
        manager: Manager, ctl: Run, private: PrivateBus) -> None:
    bus = private.address
    assert "Memory-Usage" in await on_a_terminal(
        *NVSHARECTL, "status", NVSHARE_BUS=bus, COLUMNS="0", LINES="0")
    await on_a_terminal(*NVSHARECTL, "top", keys=b"q", until=b"q quit", NVSHARE_BUS=bus,
                        COLUMNS="0", LINES="0")


async def test_top_on_a_dumb_terminal_prints_plain_tables(
        manager: Manager, ctl: Run, private: PrivateBus) -> None:
    a_client(manager, manager.gpus[0])
    shown = await on_a_terminal(*NVSHARECTL, "top", "-i", "0.1", keys=signal.SIGINT,
                                until=b"turns/min", expected=ExitCode.INTERRUPTED,
                                NVSHARE_BUS=private.address, TERM="dumb")
    assert shown.count("GPU 1") > 1
    assert "idle" in shown
    assert "\x1b" not in shown


AGENT = """#!{python}
import os, signal, sys
from pathlib import Path

there = Path({there!r})
there.write_text(" ".join(sys.argv[1:]))

def end(*_):
    there.rename(there.with_name("ended"))
    os._exit(0)

signal.signal(signal.SIGTERM, end)
os.close(int(sys.argv[2]))
signal.pause()
"""


def seen(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


@pytest.fixture
def environment(private: PrivateBus, tmp_path: Path) -> dict[str, Any]:
    """Variables with the private bus as system bus, and a PATH that has only pkttyagent."""
    agent = tmp_path / "pkttyagent"
    agent.write_text(AGENT.format(python=sys.executable, there=str(tmp_path / "there")))
    agent.chmod(0o755)
    return {
        "DBUS_SYSTEM_BUS_ADDRESS": private.address, "NVSHARE_BUS": "system",
        "PATH": str(tmp_path)}


async def test_nvsharectl_at_a_terminal_asks_for_the_password_that_polkit_requires(
        manager: Manager, caller: Peeper, private: PrivateBus, tmp_path: Path,
        environment: dict[str, Any]) -> None:
    async with polkit_on(private.address) as polkit:
        polkit.challenge, polkit.agent = True, tmp_path / "there"
        shown = await on_a_terminal(*NVSHARECTL, "set-tq", "5", **environment)
        assert shown == "The quantum of all GPUs is 5 seconds.\r\n"
        assert [flags for _, _, flags in polkit.asked] == [0, 1]
    assert manager.tq == 5 * SECOND
    arguments = (tmp_path / "ended").read_text().split()
    assert (arguments[0], arguments[2:]) == ("--notify-fd", ["--fallback"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_nvsharectl_that_a_signal_ends_ends_the_polkit_agent_that_asks_for_a_password(
        manager: Manager, caller: Peeper, private: PrivateBus, tmp_path: Path,
        environment: dict[str, Any], number: signal.Signals) -> None:
    """The agent has switched the echo off. A second signal, as of an impatient user, comes while it
    ends."""
    agent = tmp_path / "pkttyagent"
    agent.write_text(agent.read_text().replace(
        "os.close(int(sys.argv[2]))", "import tty; tty.setraw(0); print('Password:', flush=True)"
    ).replace("    os._exit(0)", f"    os.kill(os.getppid(), {number:d}); os._exit(0)"))
    async with polkit_on(private.address) as polkit:
        polkit.challenge = True
        shown = await on_a_terminal(*NVSHARECTL, "set-tq", "5", **environment,
                                    expected=128 + number, steps=[(b"Password:", number)])
    assert "Traceback" not in shown
    assert sorted(seen(tmp_path)) == ["ended", "pkttyagent"]


@pytest.mark.parametrize(("granted", "agent"), [
    (True, AGENT), (False, None), (False, "#!/bin/sh\nexit 1\n")])
async def test_nvsharectl_asks_no_password_where_polkit_grants_or_no_polkit_agent_runs(
        manager: Manager, caller: Peeper, private: PrivateBus, tmp_path: Path,
        environment: dict[str, Any], granted: bool, agent: str | None) -> None:
    if agent is None:
        (tmp_path / "pkttyagent").unlink()
    elif not granted:
        (tmp_path / "pkttyagent").write_text(agent)
    async with polkit_on(private.address) as polkit:
        polkit.granted, polkit.challenge, polkit.agent = granted, True, tmp_path / "there"
        shown = await on_a_terminal(
            *NVSHARECTL, "set-tq", "5", expected=0 if granted else ExitCode.NOT_PERMITTED,
            **environment)
    assert granted or "com.nvshare.set-tq is not permitted to uid" in " ".join(shown.split())
    assert manager.tq == (5 if granted else 30) * SECOND
    assert seen(tmp_path) == ["pkttyagent"] * (agent is not None)


async def test_top_leaves_the_terminal_to_the_polkit_agent_that_asks_for_a_password(
        manager: Manager, caller: Peeper, private: PrivateBus, tmp_path: Path,
        environment: dict[str, Any]) -> None:
    client = a_client(manager, manager.gpus[0])
    async with polkit_on(private.address) as polkit:
        polkit.challenge, polkit.agent = True, tmp_path / "there"
        shown = await on_a_terminal(*NVSHARECTL, "top", "-i", "0.3", **environment, steps=[
            (b"python", b"s"), (b"y/n", b"y"), (b"is suspended on GPU 0.", b"q")])
    assert client.terms.in_force.suspended
    assert (tmp_path / "ended").exists()
    assert shown.count("\x1b[?1049h") == shown.count("\x1b[?1049l") == 2
