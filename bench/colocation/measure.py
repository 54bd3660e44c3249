# SPDX-License-Identifier: Apache-2.0
"""Measures how long programs take that share a card: python -m bench.colocation.measure.

Prints a table, or JSON, which is also kept in bench/results/ where the card is
a real one. bench/README.md says what is measured and how. Ends with 1 if a
result is not that of the run alone, or something could not be measured.
"""

import asyncio
import json
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from bench.colocation import notebooks, pair, table
from bench.colocation.card import Card, find
from bench.colocation.job import Rates
from bench.colocation.options import NOTEBOOKS, Wanted, parse
from bench.colocation.progress import Progress, progress
from bench.colocation.report import Failure, Report, name
from bench.colocation.thesis import PROGRAMS, Program, ways
from bench.harness import ROOT, machine
from nvshared.errors import NvshareError

RESULTS = ROOT / "bench" / "results"
INTERRUPTED = 130                       # exit status, as shells give it


def steps(wanted: Wanted, card: Card) -> int:
    """How many the progress will count."""
    together = sum(
        len(ways(program, card, wanted.quanta, wanted.scale)) for program in _programs(wanted)
    )
    alone = len(pair.SEEDS) * len(_programs(wanted))
    count = wanted.rounds * (alone + len(wanted.shapes) * together)
    return count + (notebooks.NOTEBOOKS + 2 if NOTEBOOKS in wanted.variants else 0)


def _programs(wanted: Wanted) -> list[Program]:
    return [PROGRAMS[variant] for variant in wanted.variants if variant in PROGRAMS]


async def measure(wanted: Wanted, folder: Path) -> Report:
    """All that is wanted; what fails is in the report, too. `folder`: an empty one."""
    card = await find(folder, simulate=wanted.simulate, budget=wanted.budget)
    report = Report(machine(), card, wanted.scale, wanted.quanta)
    output = wanted.output
    if output is None and not card.simulated:
        output = RESULTS / name(report.machine, wanted.variants)
    try:
        with progress(steps(wanted, card)) as shown:
            await _all(wanted, report, folder, shown, lambda: report.keep(output))
        report.complete = True
    finally:
        report.keep(output)
    return report


async def _all(
    wanted: Wanted, report: Report, folder: Path, shown: Progress, keep: Callable[[], None]
) -> None:
    rates: dict[int, Rates] = {}        # by size
    for number in range(wanted.rounds):
        for program in _programs(wanted):
            place = folder / f"{program.name}-{number}"
            try:
                await _thesis(wanted, program, rates, report, place, shown)
            except NvshareError as error:
                report.failures.append(Failure(program.name, str(error)))
            keep()
    if NOTEBOOKS in wanted.variants:
        place = folder / NOTEBOOKS
        try:
            report.day = await notebooks.measure(
                report.card, wanted.cells, place, shown, writeback=wanted.writeback,
                turns=wanted.turns)
        except NvshareError as error:
            report.failures.append(Failure(NOTEBOOKS, str(error)))


async def _thesis(
    wanted: Wanted, program: Program, rates: dict[int, Rates], report: Report, place: Path,
    shown: Progress,
) -> None:
    card = report.card
    size = program.size(card)
    if size not in rates:
        rates[size] = await pair.rates(card, size)
    plan = pair.plan(
        card, program, rates[size], wanted.scale, wanted.shapes,
        ways(program, card, wanted.quanta, wanted.scale),
    )
    before = await pair.alone(card, plan, shown)
    await pair.together(card, plan, before, place, shown, report.trials.append)


async def _until_told(wanted: Wanted, folder: Path) -> Report:
    """SIGTERM ends everything as Ctrl-C does."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await measure(wanted, folder)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints and keeps the results."""
    wanted = parse(sys.argv[1:] if arguments is None else arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="nvshare-bench-") as folder:
            report = asyncio.run(_until_told(wanted, Path(folder)))
    except NvshareError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("interrupted, and everything that was started is ended", file=sys.stderr)
        return INTERRUPTED
    if wanted.json:
        print(json.dumps(report.document(), indent=1))
    else:
        table.show(report, Console())
    return 0 if report.right else 1


if __name__ == "__main__":
    sys.exit(main())
