# SPDX-License-Identifier: Apache-2.0
"""The three acts: together under nvshared, one after the other, together without nvshared.

Each program does the same in all three and needs 70 % of the GPU's memory. Its
numbers follow from its seed, so its results must be the same in all three, and
are checked word for word against what the CPU computes.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from nvshared import library
from nvshared.control import Daemon
from nvshared.demo.gpu import DemoGPU
from nvshared.demo.handovers import Handovers
from nvshared.demo.process import running
from nvshared.demo.service import service
from nvshared.demo.show import Show
from nvshared.demo.workload import Event, Outcome, Task, perform
from nvshared.errors import NvshareError
from nvshared.units import GIB, MIB

SHARE = 0.7                             # of the GPU's memory, for each of two programs
STEPS = 4
STEP_GPU_US = 700_000                   # a step's time on the GPU, besides computing
STEP_CPU_MS = 700                       # and on the CPU
CHUNKS = 12
BLOCK = 2 * MIB                         # what memory is backed with, so nothing is rounded
LOOK = 0.2                              # seconds between two looks at the daemon
HOLD_CHUNK = GIB


@dataclass(frozen=True, slots=True)
class Act:
    """How one of them went."""

    name: str
    outcomes: tuple[Outcome, ...]
    seconds: float                      # until the last results were there
    handovers: int = 0
    bytes_moved: int = 0                # in both directions


def tasks(gpu: DemoGPU) -> tuple[Task, Task]:
    """The two programs."""
    memory = int(gpu.capacity * SHARE) // BLOCK * BLOCK
    chunk = (memory // CHUNKS // BLOCK + 1) * BLOCK
    chunks = -(-memory // chunk)

    def task(name: str, seed: int) -> Task:
        return Task(name, memory, chunk, STEPS, STEP_CPU_MS, STEP_GPU_US // chunks, seed)

    return task("A", 1), task("B", 2)


async def together(gpu: DemoGPU, folder: Path, show: Show) -> Act:
    """Both at once, with nvshared."""
    environment = gpu.with_sharing()
    async with service(gpu, folder) as started:
        with (
            contextlib.closing(Handovers.of(started.trace)) as handovers,
            Daemon(started.bus) if started.bus else contextlib.nullcontext() as daemon,
        ):
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
    """One after the other, without nvshared."""
    environment = gpu.without_sharing()
    outcomes = tuple([await _perform(task, environment, show) for task in tasks(gpu)])
    return Act("one after the other", outcomes, sum(outcome.seconds for outcome in outcomes))


async def unshared(gpu: DemoGPU, show: Show) -> Act:
    """Both at once without nvshared: the second starts when the first has its memory."""
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
        # In a thread: a daemon that is slow to answer must not keep a signal waiting.
        show.looked(await asyncio.to_thread(daemon.snapshot))


@contextlib.asynccontextmanager
async def _ballast(gpu: DemoGPU) -> AsyncIterator[None]:
    """Takes the part of a large card that the programs shall not see."""
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
