# SPDX-License-Identifier: Apache-2.0
"""The demonstration: two programs together under nvshared, one after the other, and without it.

A program computes from the same seed in each act, so its results must be the same. Hand-overs and
moved bytes are counted from the daemon's trace. A signal cancels the main task, but only where it
waits, in blocks that at their end remove processes and files."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from nvshared import library
from nvshared.control import Daemon
from nvshared.control.snapshot import Snapshot
from nvshared.demo import processes
from nvshared.demo.processes import LEAST, DemoGPU, Event, Outcome, Task, errors_of, running
from nvshared.errors import NvshareError
from nvshared.quantity import rounded
from nvshared.tui.screen import Dashboard
from nvshared.tui.tables import NARROWEST, Column, size
from nvshared.units import GIB, MIB

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
        if event["event"] in ENDED:             # a line at each step would be too many
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


@contextlib.contextmanager
def show_on(file: TextIO) -> Iterator[Show]:
    """A Show for `file`: a picture on a terminal, removed at the end; lines elsewhere."""
    if not file.isatty() or os.environ.get("TERM") == "dumb":
        yield Show(file)
        return
    with Live(console=Console(file=file), auto_refresh=False, transient=True) as live:
        yield Show(file, live)


SHARE = 0.7                             # part of the GPU's memory that each program needs
STEPS = 4
STEP_GPU_US = 700_000                   # microseconds that a step's kernels spin besides computing
STEP_CPU_MS = 700                       # milliseconds of CPU time of a step
CHUNKS = 12                             # most allocations that a program makes
BLOCK = 2 * MIB                         # granularity of device memory; the driver rounds sizes up
POLL = 0.2                              # seconds between two polls of the daemon
HOLD_CHUNK = GIB                        # bytes of one allocation of the ballast


class Act(NamedTuple):
    name: str
    outcomes: tuple[Outcome, Outcome]
    seconds: float                      # from the act's start until all programs had results
    handovers: int = 0
    bytes_moved: int = 0                # sum of the bytes copied onto and off the GPU


def tasks(gpu: DemoGPU) -> tuple[Task, Task]:
    memory = int(gpu.capacity * SHARE) // BLOCK * BLOCK
    chunk = (memory // CHUNKS // BLOCK + 1) * BLOCK
    chunks = -(-memory // chunk)

    def task(name: str, seed: int) -> Task:
        return Task(name, memory, chunk, STEPS, STEP_CPU_MS, STEP_GPU_US // chunks, seed)

    return task("A", 1), task("B", 2)


async def together(gpu: DemoGPU, folder: Path, show: Show) -> Act:
    async with processes.service(gpu, folder) as bus:
        with (
            (folder / processes.TRACE).open(encoding="utf-8") as trace,
            Daemon(bus) if bus else contextlib.nullcontext() as daemon,
        ):
            handovers = Handovers(trace)
            first, second = (_perform(task, gpu.sharing(), show) for task in tasks(gpu))
            performing = asyncio.gather(first, second)
            try:
                while not performing.done():
                    await _update(handovers, daemon, show)
                    await asyncio.wait([performing], timeout=POLL)
                outcomes = await performing
            finally:
                performing.cancel()
                await asyncio.gather(performing, return_exceptions=True)
            await _update(handovers, daemon, show)
    moved = handovers.bytes_in + handovers.bytes_out
    return Act("together, with nvshared", outcomes, max(one.seconds for one in outcomes),
               handovers.handovers, moved)


async def in_turn(gpu: DemoGPU, show: Show) -> Act:
    first, second = [await _perform(task, gpu.environment, show) for task in tasks(gpu)]
    return Act("one after the other", (first, second), first.seconds + second.seconds)


async def unshared(gpu: DemoGPU, show: Show) -> Act:
    """Act 3, without nvshared: program 2 starts once program 1 has allocated its memory."""
    first, second = tasks(gpu)
    async with contextlib.AsyncExitStack() as stack:
        if gpu.ballast >= GIB:
            await stack.enter_async_context(_ballast(gpu))
        allocated = asyncio.Event()
        performing = asyncio.create_task(_perform(first, gpu.environment, show, allocated))
        try:
            await allocated.wait()
            two = await _perform(second, gpu.environment, show)
            outcomes = (await performing, two)
        finally:
            performing.cancel()
            await asyncio.gather(performing, return_exceptions=True)
    return Act("together, without nvshared", outcomes, max(one.seconds for one in outcomes))


async def _perform(task: Task, environment: Mapping[str, str], show: Show,
                   allocated: asyncio.Event | None = None) -> Outcome:
    """Runs the program to its end. Sets `allocated` once the program has its memory, or ends."""
    allocated = allocated or asyncio.Event()
    loop = asyncio.get_running_loop()
    start = loop.time()
    seconds, checksum, right = 0.0, "", False
    try:
        async with running(task.command(), environment) as process:
            show.program_started(task, process.pid)
            assert process.stdout is not None
            errors = asyncio.create_task(errors_of(process))
            async for line in process.stdout:
                event = json.loads(line)
                match event["event"]:
                    case "allocated":
                        allocated.set()
                    case "finished":
                        seconds, checksum = loop.time() - start, event["checksum"]
                    case "checked":
                        right = event["right"]
                show.program_event(process.pid, event)
            status = await process.wait()
            *_, words = (await errors).splitlines() or [""]
    finally:
        allocated.set()
    message = words.removeprefix("nvshare-workload: ")
    if status != 0:
        show.program_event(process.pid, {
            "event": "failed", "message": message or f"ended with status {status}"})
    return Outcome(task, status, checksum, right and status == 0, seconds, message)


async def _update(handovers: Handovers, daemon: Daemon | None, show: Show) -> None:
    for holder in handovers.new():
        show.turn_started(holder, handovers.memory)
    if daemon is not None:
        # In another thread, as a slow reply of the daemon must not delay the handling of a signal.
        show.snapshot_taken(await asyncio.to_thread(daemon.snapshot))


@contextlib.asynccontextmanager
async def _ballast(gpu: DemoGPU) -> AsyncIterator[None]:
    """Occupies the part of a large card's memory that the two programs shall not use."""
    command = [
        str(library.workload()), "--json", "--hold",
        "--memory", str(gpu.ballast), "--chunk", str(HOLD_CHUNK)]
    async with running(command, gpu.environment, stdin=asyncio.subprocess.PIPE) as process:
        assert process.stdout is not None
        if not await process.stdout.readline():
            words = await errors_of(process)
            raise NvshareError(f"the rest of the GPU's memory cannot be occupied: {words}")
        yield


COLUMNS = [
    Column("TWO PROGRAMS", lambda act: act.name),
    Column("SECONDS", lambda act: f"{act.seconds:.1f}", right=True),
    Column("HAND-OVERS", lambda act: str(act.handovers or ""), right=True),
    Column("MOVED", lambda act: size(act.bytes_moved) if act.bytes_moved else "", right=True),
    Column("RESULTS", lambda act: ", ".join(one.verdict for one in act.outcomes),
           shrinks_to=NARROWEST),
]


class Report(NamedTuple):
    gpu: DemoGPU
    shared: Act
    in_turn: Act
    unshared: Act

    def faults(self) -> list[str]:
        found = [
            f"{act.name}: {outcome.verdict}"
            for act in self[1:] for number, outcome in enumerate(act.outcomes)
            # Without nvshared the second program may run out of memory; the first must succeed.
            if not outcome.right and not (act is self.unshared and number and outcome.out_of_memory)
        ]
        found += [
            f"{one.task.name} has the checksum {one.checksum or 'none'} together and "
            f"{other.checksum or 'none'} alone"
            for one, other in zip(self.shared.outcomes, self.in_turn.outcomes, strict=True)
            if one.checksum != other.checksum]
        return found

    def as_dict(self) -> dict[str, Any]:
        """The report as --json prints it, in bytes and seconds."""
        return {
            "gpu": self.gpu.name, "simulated": self.gpu.simulated, "note": self.gpu.why,
            "memory": self.gpu.capacity, "faults": self.faults(), "acts": [{
                "name": act.name, "seconds": round(act.seconds, 3), "hand_overs": act.handovers,
                "bytes_moved": act.bytes_moved, "programs": [{
                    "name": one.task.name, "memory": one.task.memory,
                    "seconds": round(one.seconds, 3), "right": one.right,
                    "out_of_memory": one.out_of_memory, "checksum": one.checksum,
                    "status": one.status, "message": one.message} for one in act.outcomes],
            } for act in self[1:]]}


LONGEST_TMPDIR = 60                     # characters; a path of a socket below it has at most 107


def run(*, simulate: bool, file: TextIO = sys.stdout) -> Report:
    """Runs the demonstration. Raises NvshareError, or SystemExit after a signal."""
    received: list[signal.Signals] = []

    async def main() -> Report:
        task = asyncio.current_task()
        assert task is not None

        def interrupt(number: signal.Signals) -> None:
            if not received:
                task.cancel()
            received.append(number)

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, interrupt, number)
        return await play(simulate=simulate, file=file)

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        if received:
            raise SystemExit(128 + received[0]) from None
        raise


async def play(*, simulate: bool, file: TextIO = sys.stdout) -> Report:
    """Runs and prints the three acts. `simulate`: on a simulated GPU, even beside a real one.

    Raises NvshareError if an act cannot run."""
    parent = "/tmp" if len(tempfile.gettempdir()) > LONGEST_TMPDIR else None
    with tempfile.TemporaryDirectory(prefix="nvshare-demo-", dir=parent) as name:
        folder = Path(name)
        gpu = await processes.find(folder, simulate)
        if gpu.capacity < LEAST:
            raise NvshareError(
                f"{gpu.name} is too small for a demonstration: {rounded(gpu.capacity)} of memory "
                f"can be used, and {rounded(LEAST)} are needed", "try again with --simulate")
        memory = tasks(gpu)[0].memory
        is_what = "is simulated: " if gpu.simulated else f"is {gpu.name}; "
        print(f"The GPU {is_what}{gpu.why}.\nTwo programs share it. Each needs {memory // MIB} of "
              f"{gpu.capacity // MIB} MiB of its memory, {memory / gpu.capacity:.0%}.", file=file,
              flush=True)
        with show_on(file) as show:
            show.act("Together, with nvshared: they take turns.")
            first = await together(gpu, folder, show)
            show.act("One after the other.")
            second = await in_turn(gpu, show)
            show.act("Together, without nvshared: the second finds no memory.")
            third = await unshared(gpu, show)
        return Report(gpu, first, second, third)
