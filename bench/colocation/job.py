# SPDX-License-Identifier: Apache-2.0
"""One run of job.c's program, which does what it is told, and how fast it is."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from bench.harness import ROOT
from nvshared.demo.workload import running
from nvshared.errors import NvshareError

PROGRAM = ROOT / "build" / "bench-colocation" / "job"
NAME_IN_ERRORS = "nvshare-workload: "   # that program's and ours use the GPU by the same code
START = 120.0                           # seconds that a start may take, on a card that is shared


@dataclass(frozen=True, slots=True)
class Work:
    """What a program is to do: fixed amounts, however long they take."""

    units: int                          # on the CPU
    steps: int                          # on the GPU, each over all of its memory
    bursts: int                         # it changes from the one to the other so often


@dataclass(frozen=True, slots=True)
class Done:
    """How it went."""

    seconds: float                      # from the order until the answer
    cpu: float                          # of these, for work on the CPU,
    gpu: float                          # and on the GPU; the rest is the digest
    digest: str                         # of all that was computed since it was filled


@dataclass(frozen=True, slots=True)
class Rates:
    """What one program does in a second when it is alone."""

    units: float                        # on the CPU
    steps: float                        # on the GPU

    def work(self, cpu: float, gpu: float, bursts: int = 1) -> Work:
        """What takes so many seconds on each."""
        return Work(round(cpu * self.units), max(1, round(gpu * self.steps)), bursts)


class Job:
    """A program that has allocated its memory."""

    def __init__(self, process: asyncio.subprocess.Process, errors: "asyncio.Task[bytes]") -> None:
        self._process = process
        self._errors = errors

    async def fill(self) -> float:
        """Starts anew. Returns the seconds that took."""
        return (await self._ask("fill", START)).seconds

    async def work(self, work: Work, limit: float) -> Done:
        """Raises NvshareError if it fails, or takes longer than `limit` seconds."""
        return await self._ask(f"work {work.units} {work.steps} {work.bursts}", limit)

    async def answer(self, limit: float) -> dict[str, Any]:
        """The next line it says."""
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(limit):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise NvshareError(f"a program did not answer within {limit:.0f} seconds") from None
        if not line:
            raise NvshareError(await self._how_it_ended())
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def ended(self, limit: float) -> None:
        """Returns when it has ended by itself, which it does once nobody can tell it anything."""
        try:
            await asyncio.wait_for(self._process.wait(), limit)
        except TimeoutError:
            raise NvshareError(f"a program did not end within {limit:.0f} seconds") from None
        if self._process.returncode != 0:
            raise NvshareError(await self._how_it_ended())

    async def _how_it_ended(self) -> str:
        status = await self._process.wait()
        if status < 0:
            return f"a program was ended by signal {-status}"
        said = (await self._errors).decode(errors="replace").strip().splitlines()
        last = said[-1].removeprefix(NAME_IN_ERRORS) if said else "it said nothing"
        return f"a program ended with status {status}: {last}"

    async def _ask(self, order: str, limit: float) -> Done:
        assert self._process.stdin is not None
        began = perf_counter()
        self._process.stdin.write(f"{order}\n".encode())
        answer = await self.answer(limit)
        return Done(
            perf_counter() - began, float(answer["cpu"]), float(answer["gpu"]),
            str(answer["digest"]),
        )


@asynccontextmanager
async def job(size: int, seed: int, environment: Mapping[str, str]) -> AsyncIterator[Job]:
    """A program with `size` bytes on the card, gone when the block is left.

    Raises NvshareError if it cannot start, or does not end well.
    """
    if not PROGRAM.is_file():
        raise NvshareError(f"{PROGRAM} is missing", "build it with: make -C bench/colocation")
    command = [str(PROGRAM), str(size), str(seed)]
    async with running(command, environment, stdin=asyncio.subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        errors = asyncio.create_task(process.stderr.read())
        try:
            one = Job(process, errors)
            await one.answer(START)
            yield one
            process.stdin.close()
            await one.ended(START)
        finally:
            errors.cancel()


async def calibrate(one: Job, seconds: float) -> Rates:
    """Measures for about so long on each of CPU and GPU, after less of it for warming up."""
    await one.fill()
    units = steps = 1
    while (done := await one.work(Work(units, 0, 1), START)).cpu < seconds / 2:
        units *= 2
    on_cpu = units / done.cpu
    while (done := await one.work(Work(0, steps, 1), START)).gpu < seconds / 2:
        steps *= 2
    return Rates(on_cpu, steps / done.gpu)
