# SPDX-License-Identifier: Apache-2.0
"""Two copies of a program on one card, in one way of sharing after another.

The copies stay for all ways. What happens once in the life of a program (its
start, taking host memory when it leaves the card for the first time) is over
before any clock starts: in programs that run for a quarter of an hour it is
nothing, and in programs shortened to some seconds it would be all. Before each
measurement both fill their memory anew, so all of it has been written and
nothing can be left where it is for want of change.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from bench.colocation.card import Card
from bench.colocation.job import Done, Job, Rates, Work, calibrate, job
from bench.colocation.progress import Progress
from bench.colocation.service import Service, service
from bench.colocation.thesis import WITHOUT, Program, Way, words

SEEDS = (1, 2)                          # of the two copies, so that neither's memory is the other's
CALIBRATION = 0.5                       # seconds of each kind of work
LEAST_LIMIT = 120.0                     # seconds after which something is wrong,
LIMIT = 20                              # or so many times the two one after the other


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured of one program."""

    program: Program
    size: int                           # bytes of each copy
    work: Mapping[str, Work]            # of each copy, by shape
    ways: Sequence[Way]
    limit: float                        # seconds after which something is wrong


@dataclass(frozen=True, slots=True)
class Alone:
    """The copies without library and daemon, each with the card to itself."""

    seconds: tuple[float, ...]
    digests: tuple[str, ...]

    @property
    def serial(self) -> float:
        """Seconds of one after the other."""
        return sum(self.seconds)


@dataclass(frozen=True, slots=True)
class Trial:
    """Two copies together, once."""

    program: str
    shape: str
    way: Way
    seconds: float                      # from the beginning of both to the end of the last
    each: tuple[Done, ...]              # of the two copies
    serial: float                       # one after the other
    right: bool                         # the digests are those of the copies alone
    trace: dict[str, Any]               # bench.trace.summary's figures; empty without a daemon

    @property
    def over_serial(self) -> float:
        """Below 1: to share was faster."""
        return self.seconds / self.serial


async def rates(card: Card, size: int) -> Rates:
    """Of a program of `size` bytes that is alone."""
    async with job(size, SEEDS[0], card.environment) as one:
        return await calibrate(one, CALIBRATION)


def plan(
    card: Card, program: Program, pace: Rates, scale: float, shapes: Sequence[str],
    ways: Sequence[Way],
) -> Plan:
    """`pace`: of the program when it is alone."""
    work = {shape: program.work(card, pace, scale, shape) for shape in shapes}
    limit = max(LEAST_LIMIT, LIMIT * program.seconds(card, scale))
    return Plan(program, program.size(card), work, ways, limit)


async def alone(card: Card, plan: Plan, progress: Progress) -> Alone:
    """Each copy once. Where there are two shapes each copy has one, since that changes no sum."""
    shapes = [*plan.work]
    done: list[Done] = []
    for seed, shape in zip(SEEDS, (shapes[0], shapes[-1]), strict=True):
        progress.step(f"{plan.program.name}: copy {seed} alone, {shape}")
        async with job(plan.size, seed, card.environment) as one:
            await one.fill()
            done.append(await one.work(plan.work[shape], plan.limit))
    return Alone(tuple(one.seconds for one in done), tuple(one.digest for one in done))


async def together(
    card: Card, plan: Plan, before: Alone, folder: Path, progress: Progress,
    keep: Callable[[Trial], None],
) -> None:
    """Both copies in all shapes and ways; `keep` is given each trial. `folder` is made."""
    for library in (False, True):
        chosen = [way for way in plan.ways if (way != WITHOUT) == library]
        if not chosen:
            continue
        async with _copies(card, plan, folder, library=library) as (copies, daemon):
            for shape, way in ((shape, way) for shape in plan.work for way in chosen):
                progress.step(f"{plan.program.name}: two together, {shape}, {described(way)}")
                if daemon is not None:
                    await daemon.change(tq=way.setting(card.haste), anti_thrash=way.mode)
                keep(await _trial(card, plan, shape, way, before, copies, daemon))


@asynccontextmanager
async def _copies(
    card: Card, plan: Plan, folder: Path, *, library: bool
) -> AsyncIterator[tuple[list[Job], Service | None]]:
    async with AsyncExitStack() as stack:
        daemon = None
        environment = card.environment
        if library:
            daemon = await stack.enter_async_context(service(
                folder, card.environment, capacity=str(card.capacity), **card.settings
            ))
            environment = daemon.environment
        copies = [
            await stack.enter_async_context(job(plan.size, seed, environment)) for seed in SEEDS
        ]
        await _fill(copies)             # and again for each trial: so each has left the card once
        yield copies, daemon


async def _trial(
    card: Card, plan: Plan, shape: str, way: Way, before: Alone, copies: Sequence[Job],
    daemon: Service | None,
) -> Trial:
    await _fill(copies)
    known = 0 if daemon is None else len(daemon.trace())
    began = perf_counter()
    done = await asyncio.gather(*(copy.work(plan.work[shape], plan.limit) for copy in copies))
    seconds = perf_counter() - began
    return Trial(
        plan.program.name, shape, way, seconds, tuple(done), before.serial,
        tuple(one.digest for one in done) == before.digests,
        {} if daemon is None else daemon.figures(known, card.measurable),
    )


async def _fill(copies: Sequence[Job]) -> None:
    for copy in copies:
        await copy.fill()


def described(way: Way) -> str:
    """In words, for the progress."""
    if way == WITHOUT:
        return "without the library"
    return f"anti-thrash {way.mode}, TQ {words(way.tq)}"
