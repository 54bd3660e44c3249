# SPDX-License-Identifier: Apache-2.0
"""nvsharectl top at a terminal: keys, changes of terms, and the state of the terminal."""

import os
import signal
import time
from pathlib import Path

import pytest
from dbus_next.constants import MessageType

from nvshared.names import BUS_NAME
from nvshared.scheduler.events import Terms
from nvshared.sharing.manager import Manager
from tests.bus.service import PrivateBus, a_client, peeper, published
from tests.bus.test_authority import polkit_on
from tests.bus.test_commands import NVSHARECTL, Run, ctl
from tests.bus.test_terminal import on_a_terminal

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


async def test_top_shows_a_change_that_polkit_denies_as_a_sentence(
        manager: Manager, private: PrivateBus, other_user: None,
        monkeypatch: pytest.MonkeyPatch) -> None:
    client = a_client(manager, manager.gpus[0])
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", private.address)
    async with published(manager, "system"), polkit_on(private.address):
        shown = await on_a_terminal(*TOP, NVSHARE_BUS="system", steps=[
            (b"python", b"s"), (b"y/n", b"y"), (b"is not permitted to uid", b"q")])
    assert "Traceback" not in shown
    assert client.terms.in_force == Terms()
