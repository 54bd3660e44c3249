# SPDX-License-Identifier: Apache-2.0
"""The demonstration: runs two programs in three acts, and reports their times and results.

The acts: together under nvshared, one after the other, together without nvshared. A program needs
70 % of the GPU's memory, and computes the same from its seed in each act. So its results must be
the same in all acts. Each program checks every word of them against the CPU's results.

Ctrl-C, a closed terminal and `kill` end the demonstration in the same way. The signal cancels the
main task, which is interrupted only where it waits. So each resource is already known to the block
that removes it. Further signals are ignored.
"""

import asyncio
import contextlib
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from nvshared import library
from nvshared.control import Daemon
from nvshared.demo.gpu import DemoGPU, find
from nvshared.demo.service import service
from nvshared.demo.show import Handovers, Show, show_on
from nvshared.demo.workload import Event, Outcome, Task, perform, running
from nvshared.errors import NvshareError
from nvshared.tui.figures import size
from nvshared.tui.tables import NARROWEST, Column, Give
from nvshared.units import GIB, MIB

SHARE = 0.7                             # of the GPU's memory, for each program
STEPS = 4
STEP_GPU_US = 700_000                   # GPU time of a step, besides the computation
STEP_CPU_MS = 700                       # CPU time of a step
CHUNKS = 12
BLOCK = 2 * MIB                         # granularity of device memory: multiples are not rounded
LOOK = 0.2                              # seconds between two polls of the daemon
HOLD_CHUNK = GIB


@dataclass(frozen=True, slots=True)
class Act:
    """The result of one act."""

    name: str
    outcomes: tuple[Outcome, ...]
    seconds: float                      # until the last program had its results
    handovers: int = 0
    bytes_moved: int = 0                # in both directions


def tasks(gpu: DemoGPU) -> tuple[Task, Task]:
    """The two programs, sized for the GPU."""
    memory = int(gpu.capacity * SHARE) // BLOCK * BLOCK
    chunk = (memory // CHUNKS // BLOCK + 1) * BLOCK
    chunks = -(-memory // chunk)

    def task(name: str, seed: int) -> Task:
        return Task(name, memory, chunk, STEPS, STEP_CPU_MS, STEP_GPU_US // chunks, seed)

    return task("A", 1), task("B", 2)


async def together(gpu: DemoGPU, folder: Path, show: Show) -> Act:
    """Act 1: both programs at once, with nvshared."""
    environment = gpu.with_sharing()
    async with service(gpu, folder) as started:
        with (
            started.trace.open(encoding="utf-8") as trace,
            Daemon(started.bus) if started.bus else contextlib.nullcontext() as daemon,
        ):
            handovers = Handovers(trace)
            performing = asyncio.gather(
                *(_perform(task, environment, show) for task in tasks(gpu))
            )
            try:
                while not performing.done():
                    await _look(handovers, daemon, show)
                    await asyncio.wait([performing], timeout=LOOK)
                outcomes = tuple(await performing)
            finally:
                performing.cancel()
                await asyncio.gather(performing, return_exceptions=True)
            await _look(handovers, daemon, show)
    seconds = max(outcome.seconds for outcome in outcomes)
    moved = handovers.bytes_in + handovers.bytes_out
    return Act("together, with nvshared", outcomes, seconds, handovers.handovers, moved)


async def in_turn(gpu: DemoGPU, show: Show) -> Act:
    """Act 2: one program after the other, without nvshared."""
    environment = gpu.without_sharing()
    outcomes = tuple([await _perform(task, environment, show) for task in tasks(gpu)])
    return Act("one after the other", outcomes, sum(outcome.seconds for outcome in outcomes))


async def unshared(gpu: DemoGPU, show: Show) -> Act:
    """Act 3: both without nvshared; the second starts once the first has its memory."""
    environment = gpu.without_sharing()
    first, second = tasks(gpu)
    async with contextlib.AsyncExitStack() as stack:
        if gpu.ballast >= GIB:
            await stack.enter_async_context(_ballast(gpu))
        allocated = asyncio.Event()
        one = asyncio.create_task(_perform(first, environment, show, allocated))
        has_memory = asyncio.create_task(allocated.wait())
        try:
            await asyncio.wait([one, has_memory], return_when=asyncio.FIRST_COMPLETED)
            two = await _perform(second, environment, show)
            outcomes = (await one, two)
        finally:
            for task in (one, has_memory):
                task.cancel()
            await asyncio.gather(one, has_memory, return_exceptions=True)
    seconds = max(outcome.seconds for outcome in outcomes)
    return Act("together, without nvshared", outcomes, seconds)


async def _perform(
    task: Task, environment: dict[str, str], show: Show, allocated: asyncio.Event | None = None
) -> Outcome:
    def said(event: Event) -> None:
        if allocated is not None and event["event"] == "allocated":
            allocated.set()
        show.said(task, event)

    outcome = await perform(task, environment, lambda pid: show.began(task, pid), said)
    if outcome.status != 0:
        words = outcome.message or f"ended with status {outcome.status}"
        show.said(task, {"event": "failed", "message": words})
    return outcome


async def _look(handovers: Handovers, daemon: Daemon | None, show: Show) -> None:
    for turn in handovers.new():
        show.turned(turn)
    if daemon is not None:
        # In a thread: a slow reply of the daemon must not delay the handling of a signal.
        show.looked(await asyncio.to_thread(daemon.snapshot))


@contextlib.asynccontextmanager
async def _ballast(gpu: DemoGPU) -> AsyncIterator[None]:
    """Occupies the part of a large card's memory that the programs shall not use."""
    command = [
        str(library.workload()), "--json", "--hold",
        "--memory", str(gpu.ballast), "--chunk", str(HOLD_CHUNK),
    ]
    async with running(command, gpu.without_sharing(), stdin=asyncio.subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        if not await process.stdout.readline():
            words = (await process.stderr.read()).decode(errors="replace").strip()
            raise NvshareError(f"the rest of the GPU's memory cannot be held back: {words}")
        yield


def verdict(outcome: Outcome) -> str:
    """One program's result in a few words."""
    if outcome.out_of_memory:
        return f"{outcome.task.name} out of memory"
    if outcome.right:
        return f"{outcome.task.name} right"
    if outcome.checksum and not outcome.message:
        return f"{outcome.task.name} WRONG"
    return f"{outcome.task.name} failed: {outcome.message or f'status {outcome.status}'}"


COLUMNS = [
    Column("TWO PROGRAMS", lambda act: act.name),
    Column("SECONDS", lambda act: f"{act.seconds:.1f}", right=True),
    Column("HAND-OVERS", lambda act: str(act.handovers or ""), right=True),
    Column("MOVED", lambda act: size(act.bytes_moved) if act.bytes_moved else "", right=True),
    Column("RESULTS", lambda act: ", ".join(map(verdict, act.outcomes)), give=Give(0, NARROWEST)),
]


@dataclass(frozen=True, slots=True)
class Report:
    """The results of all three acts."""

    gpu: DemoGPU
    shared: Act
    in_turn: Act
    unshared: Act

    @property
    def acts(self) -> tuple[Act, ...]:
        """In the order of the table."""
        return (self.shared, self.in_turn, self.unshared)

    def faults(self) -> list[str]:
        """The unexpected results, a sentence each; empty if there are none."""
        found = [
            f"{act.name}: {verdict(outcome)}"
            for act in (self.shared, self.in_turn) for outcome in act.outcomes if not outcome.right
        ]
        # Without nvshared the second program may run out of memory; the first must succeed.
        first, second = self.unshared.outcomes
        if not first.right:
            found.append(f"{self.unshared.name}: {verdict(first)}")
        if not second.right and not second.out_of_memory:
            found.append(f"{self.unshared.name}: {verdict(second)}")
        for one, other in zip(self.shared.outcomes, self.in_turn.outcomes, strict=True):
            if one.checksum != other.checksum:
                found.append(
                    f"{one.task.name} has the checksum {one.checksum or 'none'} together and "
                    f"{other.checksum or 'none'} alone"
                )
        return found

    def as_dict(self) -> dict[str, Any]:
        """The report as --json prints it, in bytes and seconds."""
        return {
            "gpu": self.gpu.name,
            "simulated": self.gpu.simulated,
            "note": self.gpu.why,
            "memory": self.gpu.capacity,
            "faults": self.faults(),
            "acts": [
                {
                    "name": act.name,
                    "seconds": round(act.seconds, 3),
                    "hand_overs": act.handovers,
                    "bytes_moved": act.bytes_moved,
                    "programs": [_program(outcome) for outcome in act.outcomes],
                }
                for act in self.acts
            ],
        }


def _program(outcome: Outcome) -> dict[str, Any]:
    return {
        "name": outcome.task.name,
        "memory": outcome.task.memory,
        "seconds": round(outcome.seconds, 3),
        "right": outcome.right,
        "out_of_memory": outcome.out_of_memory,
        "checksum": outcome.checksum,
        "status": outcome.status,
        "message": outcome.message,
    }


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LONGEST_TMPDIR = 60                     # characters; the path of a socket has 107 at most


def run(*, simulate: bool, file: TextIO = sys.stdout) -> Report:
    """Runs the demonstration. Raises NvshareError; SystemExit after a signal and the clean-up."""
    received: list[signal.Signals] = []

    async def main() -> Report:
        task = asyncio.current_task()
        assert task is not None

        def interrupt(number: signal.Signals) -> None:
            if not received:
                task.cancel()
            received.append(number)

        for number in SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, interrupt, number)
        return await play(simulate=simulate, file=file)

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        if received:
            raise SystemExit(128 + received[0]) from None
        raise


async def play(*, simulate: bool, file: TextIO = sys.stdout) -> Report:
    """Runs the three acts and shows them in `file`. Raises NvshareError if one cannot run.

    `simulate`: use a simulated GPU even if the machine has a real one.
    """
    place = "/tmp" if len(tempfile.gettempdir()) > LONGEST_TMPDIR else None
    with tempfile.TemporaryDirectory(prefix="nvshare-demo-", dir=place) as name:
        folder = Path(name)
        gpu = await find(folder, simulate)
        print(_opening(gpu), file=file, flush=True)
        with show_on(file) as show:
            show.act("Together, with nvshared: they take turns.")
            first = await together(gpu, folder, show)
            show.act("One after the other.")
            second = await in_turn(gpu, show)
            show.act("Together, without nvshared: the second finds no memory.")
            third = await unshared(gpu, show)
        return Report(gpu, first, second, third)


def _opening(gpu: DemoGPU) -> str:
    memory = tasks(gpu)[0].memory
    if gpu.simulated:
        where = f"The GPU is simulated: {gpu.why}."
    else:
        where = f"The GPU is {gpu.name}; {gpu.why}."
    return (
        f"{where}\n"
        f"Two programs share it. Each needs {memory // MIB} of {gpu.capacity // MIB} MiB of its "
        f"memory, {memory / gpu.capacity:.0%}."
    )
