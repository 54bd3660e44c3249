# SPDX-License-Identifier: Apache-2.0
"""Notebooks that together have more memory than the card, and run a cell now and then.

People run cells when they like: the times at which a notebook's cells are
submitted are those of a Poisson process, that is, with exponential pauses, one
in 40 s on average. Each notebook has the same number of them in the same time,
which such a process has too if one looks only at those outcomes, so that the
card is busy for exactly the share that was asked for and the end is known
beforehand. A cell whose time comes while its notebook still runs the one before
is submitted when that has ended. Between cells a notebook does nothing.
"""

import asyncio
import math
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any

from bench.colocation.card import Card
from bench.colocation.expected import Times, expected
from bench.colocation.job import Job, calibrate, job
from bench.colocation.progress import Progress
from bench.colocation.service import service
from bench.colocation.thesis import Way
from nvshared.errors import NvshareError
from nvshared.machine.capacity import Capacity
from nvshared.scheduler.domains import margin
from nvshared.units import MIB

NOTEBOOKS = 10
SHARE = 20 / 139                        # of the card, each: 20 GiB of an H200
CELL = 1.0                              # seconds of the GPU that a cell takes alone
EVERY = 40.0                            # seconds from cell to cell in one notebook, on average
CELLS = 3                               # of each notebook: two minutes
TQ = 2.0                                # seconds
SEED = 40                               # of the pauses
SPARE = 0.97                            # of what the host can take; the rest is for their contexts
CALIBRATION = 0.5                       # seconds
LIMIT = 300.0                           # seconds for one cell, after which something is wrong


@dataclass(frozen=True, slots=True)
class Size:
    """How much memory each notebook has, in bytes, and why."""

    wanted: int
    chosen: int
    card: int                           # what of the card is left for them beside their contexts
    host: int                           # what the daemon may take of the host's

    @property
    def why(self) -> str:
        """In words."""
        if self.chosen == self.wanted:
            return "as wanted"
        return f"{NOTEBOOKS} of the size wanted need more than the card and the host's budget"


def size(total: int, host: int, number: int = NOTEBOOKS) -> Size:
    """What `number` notebooks can have so that all of it lies somewhere.

    `total`: bytes of the card; `host`: of host memory for what is swapped. The rule is that of
    nvshared/scheduler/promises.py, with every notebook's context still to come.
    """
    wanted = int(total * SHARE) // MIB * MIB
    card = Capacity(total)
    for notebook in range(number):
        card.joined(notebook)
    most = int(SPARE * (card.bytes + host - margin(host, number)) / number) // MIB * MIB
    if most < MIB:
        raise NvshareError(
            f"{number} notebooks need more than a card of {total >> 20} MiB and {host >> 20} MiB "
            "of host memory", "give more with --swap-budget",
        )
    return Size(wanted, min(wanted, most), card.bytes, host)


def schedule(
    number: int, cells: int, every: float = EVERY, seed: int = SEED
) -> list[tuple[float, ...]]:
    """When each notebook's cells are submitted, in seconds from the start, in order."""
    chance = random.Random(seed)
    times = []
    for _ in range(number):
        pauses = [chance.expovariate(1.0) for _ in range(cells + 1)]
        stretch = cells * every / sum(pauses)
        times.append(tuple(stretch * when for when in accumulate(pauses[:-1])))
    return times


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that so much of all is not above: the largest where there are few."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell; seconds."""

    notebook: int
    submitted: float                    # from the start
    took: float                         # from submit to result
    alone: float                        # the same cell's time when the card is free
    right: bool                         # the result is the same, too

    @property
    def over_alone(self) -> float:
        """1: as if there were nobody else."""
        return self.took / self.alone


@dataclass(frozen=True, slots=True)
class Day:
    """What came of it."""

    size: Size
    tq: float                           # seconds
    writeback: bool
    turns: bool                         # also where those that run fit together
    times: Times                        # when cells were to be submitted
    cells: tuple[Cell, ...]
    trace: dict[str, Any]               # bench.trace.summary's figures

    @property
    def right(self) -> bool:
        """Whether every cell's result was."""
        return all(cell.right for cell in self.cells)

    @property
    def median(self) -> float:
        """Of submit to result over alone."""
        return median(cell.over_alone for cell in self.cells)

    @property
    def percentile_99(self) -> float:
        """Likewise."""
        return percentile([cell.over_alone for cell in self.cells], 0.99)

    def expected(self, *, fitting: bool) -> tuple[float, float] | None:
        """The same two figures of expected.py's model, with the card and bus that were measured.

        `fitting`: of a card that holds all of them. None: no way in was measured.
        """
        alone = median(cell.alone for cell in self.cells)
        places, way_in = float(len(self.times)), 0.0
        if not fitting:
            speed = self.trace.get("in_alone_gbps")
            if not speed:
                return None
            places = max(1.0, self.size.card / self.size.chosen)
            way_in = self.size.chosen / (speed * 1e9)
        took = [cell / alone for cells in expected(self.times, alone, way_in, places)
                for cell in cells]
        return median(took), percentile(took, 0.99)


async def measure(
    card: Card, cells: int, folder: Path, progress: Progress, *, writeback: bool = True,
    turns: bool = False,
) -> Day:
    """Ten notebooks, first each for itself, then together. `folder` is made for the daemon.

    `writeback`: as the daemon's setting of that name. `turns`: its `anti-thrash` is on, not auto.
    """
    each = size(card.total, card.budget)
    plain = card.environment
    async with job(each.chosen, 1, plain) as first:
        work = (await calibrate(first, CALIBRATION)).work(0.0, CELL * card.haste)
    alone = []
    for seed in range(1, NOTEBOOKS + 1):
        progress.step(f"notebooks: number {seed} alone")
        async with job(each.chosen, seed, plain) as one:
            await one.fill()
            alone.append([await one.work(work, LIMIT) for _ in range(cells)])
    async with AsyncExitStack() as stack:
        progress.step("notebooks: starting them together")
        way = Way("on" if turns else "auto", TQ)
        daemon = await stack.enter_async_context(service(
            folder, plain, tq=way.setting(card.haste), anti_thrash=way.mode,
            writeback="on" if writeback else "off", **card.settings,
        ))
        notebooks = [
            await stack.enter_async_context(job(each.chosen, seed, daemon.environment))
            for seed in range(1, NOTEBOOKS + 1)
        ]
        for notebook in notebooks * 2:  # each has left the card before the first cell
            await notebook.fill()
        progress.step(f"notebooks: {NOTEBOOKS * cells} cells")
        known = len(daemon.trace())
        start = asyncio.get_running_loop().time()

        async def use(number: int, notebook: Job, times: Sequence[float]) -> list[Cell]:
            mine: list[Cell] = []
            for when, before in zip(times, alone[number], strict=True):
                await asyncio.sleep(start + when - asyncio.get_running_loop().time())
                submitted = asyncio.get_running_loop().time() - start
                cell = await notebook.work(work, LIMIT)
                right = cell.digest == before.digest
                mine.append(Cell(number + 1, submitted, cell.seconds, before.seconds, right))
            return mine

        times = [
            tuple(when * card.haste for when in due) for due in schedule(NOTEBOOKS, cells)
        ]
        used = await asyncio.gather(*(
            use(number, notebook, times[number]) for number, notebook in enumerate(notebooks)
        ))
        figures = daemon.figures(known, card.measurable)
    done = tuple(cell for one in used for cell in one)
    return Day(each, TQ * card.haste, writeback, turns, times, done, figures)
