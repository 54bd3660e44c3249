# SPDX-License-Identifier: Apache-2.0
"""A daemon of the benchmark's own, whose quantum and mode change while programs use it.

bench.harness has daemons whose settings stay. Here the programs stay: what happens once in a
program's life is paid once, and then the same two programs run under one setting after another.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness import ROOT
from bench.trace import Line, summary, written
from nvshared import library
from nvshared.demo.workload import running
from nvshared.errors import NvshareError

PATIENCE = 30.0                         # seconds for a start or for settings to be read
POLL = 0.02                             # seconds between looks at the daemon's log
REREAD = "the settings were read again"
REFUSED = "the settings stay as they are"


@dataclass(slots=True)
class Service:
    """A running daemon."""

    folder: Path
    settings: dict[str, str]            # of [gpu], as in the daemon's file
    process: asyncio.subprocess.Process
    environment: dict[str, str]         # of a program that shares the card

    async def change(self, **settings: str) -> None:
        """New values for some of [gpu]'s settings, in force when this returns. `_` stands for -."""
        changed = {**self.settings, **_named(settings)}
        if changed == self.settings:
            return
        self.settings = changed
        _write(self.folder, changed)
        before = self._said(REREAD)
        self.process.send_signal(signal.SIGHUP)
        await self._until(lambda: self._said(REREAD) > before)

    def trace(self) -> list[Line]:
        """What happened so far, oldest first."""
        return written(self.folder / "trace")

    def figures(self, known: int, least: int) -> dict[str, Any]:
        """bench.trace.summary of what happened since the trace had `known` lines.

        `least`: bytes of the moves that count.
        """
        trace = self.trace()
        # What each client had by then, lest host memory it has had for long counts as new.
        had = {line["client"]: line for line in trace[:known] if "memory" in line}
        before = [{**line, "event": "memory"} for line in had.values()]
        return summary([*before, *trace[known:]], least)

    async def started(self) -> None:
        """Returns when programs can connect."""
        await self._until((self.folder / "sock").exists)

    async def _until(self, true: Callable[[], bool]) -> None:
        deadline = asyncio.get_running_loop().time() + PATIENCE
        while not true():
            late = asyncio.get_running_loop().time() > deadline
            if late or self.process.returncode is not None or self._said(REFUSED):
                log = (self.folder / "log").read_text().strip().splitlines()
                raise NvshareError(
                    "the daemon of the benchmark failed" + (f": {log[-1]}" if log else "")
                )
            await asyncio.sleep(POLL)

    def _said(self, words: str) -> int:
        return (self.folder / "log").read_text(errors="replace").count(words)


@asynccontextmanager
async def service(
    folder: Path, environment: Mapping[str, str], **settings: str
) -> AsyncIterator[Service]:
    """A daemon with these settings of [gpu], ready, for as long as the block lasts.

    `folder`: one of its own, which is made. `environment`: of the card.
    """
    named = _named(settings)
    _write(folder, named)
    command = [
        sys.executable, "-m", "nvshared", "--config", str(folder / "conf"), "--bus", "none",
        "--socket", str(folder / "sock"), "--trace", str(folder / "trace"),
    ]
    others = {name: text for name, text in environment.items() if name != "NVSHARE_SOCKET"}
    paths = filter(None, [str(ROOT), others.get("PYTHONPATH", "")])
    preloaded = filter(None, [others.get("LD_PRELOAD", ""), str(library.hook())])
    with (folder / "log").open("wb") as log:
        async with running(
            command, {**others, "PYTHONPATH": os.pathsep.join(paths)},
            stdout=asyncio.subprocess.DEVNULL, stderr=log, stop=signal.SIGTERM,
        ) as process:
            one = Service(folder, named, process, {
                **others, "LD_PRELOAD": ":".join(preloaded),
                "NVSHARE_SOCKET": str(folder / "sock"),
            })
            await one.started()
            yield one


def _named(settings: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): text for name, text in settings.items()}


def _write(folder: Path, settings: Mapping[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    lines = [f"{name} = {text}" for name, text in settings.items()]
    (folder / "conf").write_text("\n".join(["[gpu]", *lines, ""]))
