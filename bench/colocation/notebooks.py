# SPDX-License-Identifier: Apache-2.0
"""Notebooks that together have more memory than the card, and run cells at random times.

The times are a Poisson process with a fixed number of cells for each notebook, so the card's load
is exact. A cell that is due while its notebook runs another cell is submitted at that cell's end.
"""

import math
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from itertools import accumulate
from statistics import median
from typing import Any

from bench.colocation.expected import Times, expected
from bench.colocation.job import calibrate, job
from bench.colocation.thesis import HASTE, moved
from bench.handover.card import Card
from bench.handover.goal import Goal, Result
from bench.handover.measure import Variants
from nvshared.errors import NvshareError
from nvshared.machine.capacity import Capacity
from nvshared.scheduler.domains import margin
from nvshared.units import GIB, MIB

NOTEBOOKS = 10
SHARE = 20 / 139                        # part of the card for each notebook: 20 GiB of an H200
CELL = 1.0                              # seconds of the GPU that a cell takes alone
EVERY = 40.0                            # seconds between the cells of a notebook, on average
CELLS = 3                               # cells of each notebook, in two minutes
TQ = 2.0                                # seconds
SEED = 40                               # seed of the random pauses between cells
SPARE = 0.97                            # part of the memory to fill; the rest is spare
CALIBRATION = 0.5                       # seconds of calibrating work


@dataclass(frozen=True, slots=True)
class Size:
    wanted: int
    chosen: int
    card: int                           # bytes of the card without the notebooks' contexts
    host: int                           # bytes of host memory that the daemon may use

    @property
    def why(self) -> str:
        if self.chosen == self.wanted:
            return "as wanted"
        return f"{NOTEBOOKS} of the size wanted need more than the card and the host's budget"


def size(total: int, host: int, number: int = NOTEBOOKS) -> Size:
    """Returns a size at which card and host together can hold the memory of `number` notebooks.

    `total`: bytes of the card; `host`: bytes of host memory for swapped blocks. Like
    nvshared/scheduler/promises.py, it reserves memory for each notebook's context.
    """
    wanted = int(total * SHARE) // MIB * MIB
    card = Capacity(total)
    for notebook in range(number):
        card.joined(notebook)
    most = int(SPARE * (card.bytes + host - margin(host, number)) / number) // MIB * MIB
    if most < MIB:
        raise NvshareError(
            f"{number} notebooks need more than a card of {total >> 20} MiB and {host >> 20} MiB "
            "of host memory", "give more with --swap-budget")
    return Size(wanted, min(wanted, most), card.bytes, host)


def schedule(number: int, cells: int, every: float = EVERY,
             seed: int = SEED) -> list[tuple[float, ...]]:
    """Returns the times in seconds at which each notebook's cells are due, in ascending order."""
    chance = random.Random(seed)
    times = []
    for _ in range(number):
        pauses = [chance.expovariate(1.0) for _ in range(cells + 1)]
        stretch = cells * every / sum(pauses)
        times.append(tuple(stretch * when for when in accumulate(pauses[:-1])))
    return times


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the least value that is at or above this share (0 to 1) of all values."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


@dataclass(frozen=True, slots=True)
class Cell:
    notebook: int
    submitted: float                    # seconds since the start
    took: float                         # seconds from submit to result
    alone: float                        # seconds of the same cell on a free card
    right: bool                         # the result equals the result of the cell alone

    @property
    def over_alone(self) -> float:
        return self.took / self.alone


def measure(card: Card, mode: str = "auto", writeback: str = "on") -> Iterator[Result]:
    """Measures ten notebooks, each alone, then together under a daemon with these settings."""
    each, haste = size(card.total, card.budget), HASTE if card.simulated else 1.0
    cells = max(CELLS, round(card.seconds * CELLS / 25))
    with job(each.chosen, 1, card.plain) as first:
        work = calibrate(first, CALIBRATION).work(0.0, CELL * haste)
    alone = []
    for seed in range(1, NOTEBOOKS + 1):
        with job(each.chosen, seed, card.plain) as one:
            one.fill()
            alone.append([one.work(work) for _ in range(cells)])
    times = [tuple(when * haste for when in due) for due in schedule(NOTEBOOKS, cells)]
    with card.sharing(
        "--tq", f"{round(1000 * TQ * haste)}ms", "--anti-thrash", mode, "--writeback", writeback,
    ) as daemon, ExitStack() as stack, ThreadPoolExecutor(NOTEBOOKS) as pool:
        notebooks = [stack.enter_context(job(each.chosen, seed, daemon.environment))
                     for seed in range(1, NOTEBOOKS + 1)]
        for notebook in notebooks * 2:  # each notebook has been evicted before its first cell
            notebook.fill()
        known = len(daemon.trace())
        start = time.monotonic()

        def use(number: int) -> list[Cell]:
            used = []
            for when, before in zip(times[number], alone[number], strict=True):
                time.sleep(max(0.0, start + when - time.monotonic()))
                submitted = time.monotonic() - start
                cell = notebooks[number].work(work)
                used.append(Cell(number + 1, submitted, cell.seconds, before.seconds,
                                 cell.digest == before.digest))
            return used

        found = [cell for used in pool.map(use, range(NOTEBOOKS)) for cell in used]
        trace = moved(daemon, known, card)
    yield _result(each, found, times, trace, f"{mode}, writeback {writeback}")


def _result(each: Size, cells: list[Cell], times: Times, trace: dict[str, Any],
            setting: str) -> Result:
    alone = median(cell.alone for cell in cells)
    figures = {"over alone": [cell.over_alone for cell in cells]}
    if speed := trace["in_alone_gbps"]:
        places = max(1.0, each.card / each.chosen)
        figures["expected of card and bus"] = [
            cell / alone for used in expected(times, alone, each.chosen / (speed * 1e9), places)
            for cell in used]
    figures["if the card held all"] = [
        cell / alone for used in expected(times, alone, 0.0, float(len(times))) for cell in used]
    return Result(
        "notebooks", setting,
        (Goal("memory of each", each.chosen / GIB, "GiB"), Goal("a cell alone", alone, "s"), *(
            Goal(f"{name}, {words}", value, "times") for name, values in figures.items()
            for words, value in (("median", median(values)),
                                 ("99th percentile", percentile(values, 0.99))))),
        {"size": {**asdict(each), "why": each.why}, "trace": trace,
         "cells": [asdict(cell) for cell in cells]},
        tuple(f"notebook {cell.notebook}: another result than alone"
              for cell in cells if not cell.right))


VARIANTS: Variants = {
    "notebooks": measure, "notebooks-turns": partial(measure, mode="on"),
    "notebooks-no-writeback": partial(measure, writeback="off"),
}
