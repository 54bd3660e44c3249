# SPDX-License-Identifier: Apache-2.0
"""What nvsharectl shows on a terminal, or not on a pipe, while nvshared works on programs."""

import asyncio
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from nvshared.bus import Publication
from nvshared.errors import ExitCode
from nvshared.machine.saving import Saved
from nvshared.sharing.gpu import GPU, Client
from nvshared.sharing.manager import Manager
from nvshared.units import GIB
from tests.bus.service import PrivateBus, a_client
from tests.bus.test_cli_waits import leave
from tests.bus.test_commands import NVSHARECTL, run
from tests.bus.test_top import Act, on_a_terminal

CONTROL = re.compile(r"\x1b\[[\d;?]*[A-Za-z]|\r")
ERASED = "\x1b[2K"
LONG_ENOUGH = 1.0                       # seconds of work after which a terminal shows it
PARKED = "Process 11 is parked: its memory and context are off the GPU."


class Work:
    """nvshared parks a client for as long as the test lets it."""

    def __init__(self, manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_end = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        monkeypatch.setattr(manager.moving, "park", self._park)

    async def _park(self, client: Client) -> None:
        client.parking.enter("parking")
        await self.may_end.wait()
        client.parking.enter("parked")

    def end(self, _pid: int) -> None:
        self.may_end.set()


@pytest.fixture
async def work(manager: Manager, publication: Publication,
               monkeypatch: pytest.MonkeyPatch) -> Work:
    return Work(manager, monkeypatch)


@pytest.fixture
def terminal(private: PrivateBus) -> "Callable[..., asyncio.Task[str]]":
    """nvsharectl on a terminal; `steps` as for on_a_terminal()."""
    def start(words: str, *steps: tuple[bytes, Act], **more: Any) -> "asyncio.Task[str]":
        return asyncio.ensure_future(on_a_terminal(
            *NVSHARECTL, *words.split(), steps=steps, NVSHARE_BUS=private.address, **more))

    return start


Terminal = Callable[..., "asyncio.Task[str]"]


def plain(shown: str) -> list[str]:
    return [line.rstrip() for line in CONTROL.sub("", shown).split("\n")]


async def test_park_while_memory_leaves_shows_its_bytes_on_a_terminal_and_erases_them_at_the_end(
        manager: Manager, work: Work, terminal: Terminal) -> None:
    client = a_client(manager, manager.gpus[0], pid=11)
    shown = await terminal(
        "park 11",
        (b" 0.0 of 20.0 G ", lambda _: leave(client, resident=5 * GIB)),
        (b" 15.0 of 20.0 G ", lambda _: leave(client, resident=0)),
        (b"python[11]  parking   ", lambda _: None), (b"s", work.end))
    last = shown.rindex("parking")
    assert ERASED in shown[last:]
    assert plain(shown[last:])[-2:] == [PARKED, ""]
    assert "\x1b[?25l" not in shown     # a signal could end nvsharectl while the cursor is hidden


async def test_park_on_a_dumb_terminal_prints_a_line_for_each_change_without_control_characters(
        manager: Manager, work: Work, terminal: Terminal) -> None:
    a_client(manager, manager.gpus[0], pid=11)
    shown = await terminal(
        "park 11", (b"python[11]: parking, 0.0 of 20.0 G, 0s", work.end), TERM="dumb")
    assert "\x1b" not in shown
    assert plain(shown)[1:] == [PARKED, ""]


@pytest.mark.parametrize("json", [False, True])
async def test_park_on_a_pipe_or_with_json_shows_its_result_alone(
        manager: Manager, work: Work, private: PrivateBus, terminal: Terminal, json: bool) -> None:
    a_client(manager, manager.gpus[0], pid=11)
    asyncio.get_running_loop().call_later(LONG_ENOUGH, work.may_end.set)
    if json:
        shown = await terminal("park 11 --json")
        assert plain(shown) == ["{", '  "pid": 11', "}", ""]
    else:
        ended = await run(*NVSHARECTL, "park", "11", NVSHARE_BUS=private.address)
        assert (ended.code, ended.out, ended.err) == (0, f"{PARKED}\n", "")


async def test_drain_of_a_gpu_while_programs_leave_shows_how_many_have_left(
        manager: Manager, publication: Publication, terminal: Terminal,
        monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, _ = (a_client(manager, manager.gpus[0], pid=pid) for pid in (11, 12, 13))
    may_end = asyncio.Event()

    async def drain(_gpu: GPU) -> Sequence[tuple[Client, str]]:
        first.parking.enter("parking")
        await may_end.wait()
        return []

    def go_on(_pid: int) -> None:
        first.parking.enter("parked")
        second.parking.enter("parking")

    monkeypatch.setattr(manager.moving, "drain", drain)
    shown = await terminal(
        "drain --gpu 0", (b"0 of 3 programs", lambda _: None), (b"python[11]  ", go_on),
        (b"1 of 3 programs", lambda _: None), (b"python[12]  ", lambda _: may_end.set()))
    assert plain(shown)[-2] == "No program is on GPU 0 any more."


async def test_suspend_wait_while_memory_leaves_shows_its_bytes(
        manager: Manager, publication: Publication, terminal: Terminal) -> None:
    client = a_client(manager, manager.gpus[0], pid=11)
    shown = await terminal(
        "suspend --wait 11", (b"python[11]  idle ", lambda _: leave(client, resident=5 * GIB)),
        (b" 15.0 of 20.0 G ", lambda _: leave(client, resident=0)))
    assert plain(shown)[-1] == ""


async def test_suspend_wait_while_no_memory_leaves_prints_the_wait_once(
        manager: Manager, publication: Publication, private: PrivateBus) -> None:
    """As where host memory is full, or the program's work does not end."""
    client = a_client(manager, manager.gpus[0], pid=11)
    shown = await on_a_terminal(
        sys.executable, "-c", "import sys; from nvshared.cli import main, settings; "
        "settings.STALLED = 0.01; sys.exit(main.main())", "suspend", "--wait", "11",
        steps=[(b"waits until memory can leave the GPU", lambda _: None),
               (b"python[11]  idle ", lambda _: leave(client, resident=0))],
        NVSHARE_BUS=private.address)
    assert shown.count("waits until") == 1


def saved(state: str, size: int) -> Saved:
    return Saved(
        "/saved/python-11", state, size, "", 0, 11, 0, "python-11", 8 * GIB, 1, {})


async def test_save_and_restore_show_the_program_that_nvshared_works_on(
        manager: Manager, publication: Publication, terminal: Terminal,
        monkeypatch: pytest.MonkeyPatch) -> None:
    a_client(manager, manager.gpus[0], pid=11)
    rows, may_end = [saved("saving", 2 * GIB)], asyncio.Event()

    async def listed(_to: str) -> list[Saved]:
        return rows

    async def save(_client: Client, _to: str) -> Saved:
        await may_end.wait()
        return rows[0]

    async def restore(_saved: Saved) -> int:
        rows[:] = [saved("restoring", 8 * GIB)]
        await may_end.wait()
        return 11

    monkeypatch.setattr(manager.saving, "_list", listed)
    monkeypatch.setattr(manager.saving, "save", save)
    monkeypatch.setattr(manager.saving, "restore", restore)
    shown = await terminal("save 11", (b" 2.0 of 8.0 G ", lambda _: may_end.set()))
    assert plain(shown)[-2] == "python[11] is saved: /saved/python-11"
    may_end.clear()
    rows[:] = [saved("saved", 8 * GIB)]
    shown = await terminal("restore --all", (b"restoring", lambda _: may_end.set()))
    assert plain(shown)[-2] == "Process 11 is back, from /saved/python-11."


async def test_park_after_the_daemon_has_ended_prints_one_sentence(
        manager: Manager, work: Work, publication: Publication, private: PrivateBus,
        terminal: Terminal) -> None:
    a_client(manager, manager.gpus[0], pid=11)
    loop = asyncio.get_running_loop()
    closing: list[asyncio.Task[None]] = []
    shown = await terminal(
        "park 11",
        (b"parking", lambda _: closing.append(loop.create_task(publication.close()))),
        expected=ExitCode.NOT_RUNNING)
    await asyncio.gather(*closing)
    work.may_end.set()
    assert "Traceback" not in shown
    assert CONTROL.sub("", shown[shown.rindex(ERASED):]).startswith("nvsharectl: nvshared ")
