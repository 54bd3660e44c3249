# SPDX-License-Identifier: Apache-2.0
"""Counts hand-overs and moved bytes from the daemon's trace, and shows the demonstration."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from nvshared.control.snapshot import Snapshot
from nvshared.demo.processes import Event, Task
from nvshared.tui.figures import size
from nvshared.tui.programs import Dashboard

Memory = dict[int, tuple[int, int]]     # by pid: resident and swapped bytes


@dataclass(slots=True)
class Handovers:
    """Reads nvshared's trace while it grows; counts hand-overs and moved bytes."""

    trace: TextIO
    handovers: int = 0                  # turns that follow a turn of another program
    bytes_in: int = 0
    bytes_out: int = 0
    memory: Memory = field(default_factory=dict)
    _holder: int = 0
    _cut: str = ""                      # the incomplete last line of the trace; "": none

    def new(self) -> Iterator[int]:
        """Reads the lines written since the last call; yields the pid of each turn that began."""
        *lines, self._cut = (self._cut + self.trace.read()).split("\n")
        for line in map(json.loads, lines):
            pid = line.get("pid", 0)
            if memory := line.get("memory"):
                # Memory that was never written is neither resident nor swapped.
                swapped = min(memory["allocated"] - memory["resident"], memory["host"])
                self.memory[pid] = memory["resident"] + memory["pinned"], swapped
            match line.get("event"), line.get("report"):
                case "evicted", _:
                    self.bytes_out += line["bytes"]
                case "loaded", _:
                    self.bytes_in += line["bytes"]
                case "left", _:
                    self.memory.pop(pid, None)
                case _, "turn-started":
                    self.handovers += self._holder not in (0, pid)
                    self._holder = pid
                    yield pid


ENDED = {"finished", "checked", "failed"}


@dataclass(slots=True)
class Progress:
    task: Task
    step: int = 0
    words: str = "starting"


class Show:
    """Shows the demonstration: a picture on a terminal (`live`), else a line for each event."""

    def __init__(self, file: TextIO, live: Live | None = None) -> None:
        self._file = file
        self._live = live
        self._programs: dict[int, Progress] = {}
        self._title = ""
        self._start = time.monotonic()
        self._snapshot: Snapshot | None = None

    def act(self, title: str) -> None:
        self._programs.clear()
        self._title, self._snapshot, self._start = title, None, time.monotonic()
        if self._live is None:
            print(f"\n{title}", file=self._file, flush=True)
        self._draw()

    def program_started(self, task: Task, pid: int) -> None:
        self._programs[pid] = Progress(task)
        self._draw()

    def program_event(self, pid: int, event: Event) -> None:
        """Shows an event that a program printed, or the event "failed" that the caller made."""
        progress = self._programs[pid]
        match event["event"]:
            case "allocated":
                progress.words = f"has {size(event['bytes'])} of GPU memory"
            case "step":
                progress.step = event["step"]
                progress.words = f"step {progress.step} of {progress.task.steps}"
            case "finished":
                progress.words = "checking every word on the CPU"
            case "checked":
                progress.words = "right" if event["right"] else "WRONG"
            case "failed":
                progress.words = event["message"]
        if event["event"] in ENDED:             # not at each step: too many lines
            self._print(f"{progress.task.name}: {progress.words}")
        self._draw()

    def turn_started(self, holder: int, memory: Memory) -> None:
        """Shows that a turn of the process `holder` began, and where the programs' memory is."""
        parts = []
        for pid, progress in self._programs.items():
            if pid in memory:
                resident, swapped = memory[pid]
                away = f" and {size(swapped)} in host memory" if swapped else ""
                parts.append(f"{progress.task.name} has {size(resident)} on it{away}")
        if program := self._programs.get(holder):
            self._print(f"{program.task.name} holds the GPU; {', '.join(parts)}")

    def snapshot_taken(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._draw()

    def _print(self, text: str) -> None:
        if self._live is None:
            seconds = time.monotonic() - self._start
            print(f"{seconds:6.1f} s  {text}", file=self._file, flush=True)

    def _draw(self) -> None:
        if self._live is None:
            return
        parts: list[RenderableType] = [Text(self._title, style="bold")]
        if self._snapshot is not None:
            parts.append(Dashboard(self._snapshot))
        bars = Table.grid(padding=(0, 2))
        for pid, progress in self._programs.items():
            bars.add_row(
                Text(progress.task.name), Text(f"[{pid}]", style="dim"),
                ProgressBar(total=progress.task.steps, completed=progress.step, width=30),
                Text(progress.words, style="bold red" if progress.words == "WRONG" else ""))
        self._live.update(Group(*parts, bars), refresh=True)


@contextmanager
def show_on(file: TextIO) -> Iterator[Show]:
    """A Show for `file`: a picture on a terminal, removed at the end; lines elsewhere."""
    if not file.isatty() or os.environ.get("TERM") == "dumb":
        yield Show(file)
        return
    with Live(console=Console(file=file), auto_refresh=False, transient=True) as live:
        yield Show(file, live)
