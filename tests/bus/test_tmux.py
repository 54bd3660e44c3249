# SPDX-License-Identifier: Apache-2.0
"""nvsharectl top in a real terminal: the text on the screen, not the bytes written to it."""

import asyncio
import contextlib
import os
import re
import shlex
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from nvshared.machine.nvml import Process
from nvshared.scheduler.actions import ClientState
from nvshared.scheduler.snapshot import Wait
from nvshared.sharing.manager import Manager
from nvshared.units import GIB, SECOND
from tests.bus.service import PrivateBus, a_client, decide, published
from tests.bus.test_commands import NVSHARECTL, ROOT
from tests.unit.scripted import Scripted

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not shutil.which("tmux"), reason="there is no tmux on this machine"),
]
PATIENCE = 600.0                        # seconds until a test that waits for the screen fails
LOOK = 0.1


class Tmux:
    def __init__(self, socket: Path) -> None:
        self._tmux = ("tmux", "-S", str(socket), "-f", "/dev/null")

    async def __call__(self, *words: str) -> str:
        environment = {name: text for name, text in os.environ.items() if name != "TMUX"}
        process = await asyncio.create_subprocess_exec(
            *self._tmux, *words, cwd=ROOT, stdout=asyncio.subprocess.PIPE,
            env={**environment, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"})
        said, _ = await process.communicate()
        return said.decode()

    async def lines(self) -> list[str]:
        return (await self("capture-pane", "-p")).splitlines()

    async def until(self, *words: str, first: str = "", last: str = "") -> list[str]:
        """The screen's lines, once all words are shown and its first and last lines begin so."""
        seen: list[str] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                while True:
                    seen = await self.lines()
                    text = "\n".join(seen)
                    if all(word in text for word in words) and seen[0].startswith(first) \
                            and seen[-1].startswith(last):
                        return seen
                    await asyncio.sleep(LOOK)
        raise AssertionError(f"{words} are not all seen:\n" + "\n".join(seen))

    async def strike(self, *keys: str) -> None:
        """Send keys by the names of tmux: Down, Enter, Escape, C-l, or characters."""
        for key in keys:
            await self("send-keys", key)

    async def size(self, width: int, height: int) -> None:
        await self("resize-window", "-x", str(width), "-y", str(height))


Start = Callable[..., Awaitable[Tmux]]


@pytest.fixture
async def start(private: PrivateBus, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts top in a window of a given size; a shell prints its exit status."""
    tmux = Tmux(tmp_path / "tmux")

    async def begin(width: int, height: int, environment: str = "") -> Tmux:
        top = shlex.join((*NVSHARECTL, "top", "-i", "0.3"))
        shell = f"{environment} NVSHARE_BUS={shlex.quote(private.address)} {top}; " \
                "echo ended: $?; stty -a | grep -o -- '-*icanon'; exec cat"
        await tmux("new-session", "-d", "-x", str(width), "-y", str(height),
            "bash", "-m", "-c", shell)
        await tmux("set", "-g", "window-size", "manual")
        await tmux.size(width, height)
        return tmux

    yield begin
    await tmux("kill-server")


def share(manager: Manager) -> None:
    """On the first GPU one client has a turn, one waits, and a process runs without the library."""
    gpu = manager.gpus[0]
    holder, waiter = a_client(manager, gpu, pid=4_000_001), a_client(manager, gpu, pid=4_000_002)
    gpu.sample = replace(gpu.sample, processes=(Process(os.getpid(), 3 * GIB),))
    scheduler = gpu.scheduler
    assert isinstance(scheduler, Scripted)
    scheduler.waits = {waiter.id: Wait(1, 600 * SECOND)}
    scheduler._clients[waiter.id] = replace(
        waiter.view, state=ClientState.WAITING, waiting=60 * SECOND)
    scheduler._clients[holder.id] = replace(holder.view, state=ClientState.RUNNING)
    decide(holder, holders=[holder])


@pytest.mark.parametrize("environment", ["", "NO_COLOR=1"])
async def test_top_fits_terminals_of_all_sizes_and_is_redrawn_when_the_window_is_resized(
        manager: Manager, private: PrivateBus, start: Start, environment: str) -> None:
    share(manager)
    async with published(manager, private.address):
        tmux = await start(130, 40, environment)
        for width, height in ((130, 40), (60, 12), (200, 50), (20, 24), (80, 24), (250, 80)):
            await tmux.size(width, height)
            if width == 20:
                await tmux.until("top needs 40", "columns")
                continue
            # The screen has not scrolled.
            seen = await tmux.until("4000001", "running", "4000002", "waiting", "9m",
                                    first="╭─ GPU 0 ", last="? help")
            assert len(seen) == height
            assert re.search("▶ +0 4000001 .*running", "\n".join(seen))
        await tmux.strike("Down", "Enter")
        await tmux.until("python[4000002] on GPU 0", "waits for python[4000001]")
        await tmux.strike("Escape", "?")
        await tmux.until("Help", "selects a program")
        await tmux.strike("q")
        assert "-icanon" not in await tmux.until("ended: 0", "icanon")
