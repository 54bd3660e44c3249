# SPDX-License-Identifier: Apache-2.0
"""Measures how long programs take that share a card: python -m bench.colocation.measure.

Prints a table, or JSON, which is also kept in bench/results/ where the card is
a real one. bench/README.md says what is measured and how. Ends with 1 if a
result is not that of the run alone, or something could not be measured.
"""

import argparse
import asyncio
import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from bench.colocation import notebooks, pair, table
from bench.colocation.card import Card, find
from bench.colocation.job import Rates
from bench.colocation.progress import Progress, progress
from bench.colocation.report import Failure, Report, name
from bench.colocation.thesis import PROGRAMS, QUANTA, SCALE, SHAPES, Program, ways
from bench.harness import ROOT, machine
from nvshared import quantity
from nvshared.errors import NvshareError

NOTEBOOKS = "notebooks"
VARIANTS = (*PROGRAMS, NOTEBOOKS)
RESULTS = ROOT / "bench" / "results"
INTERRUPTED = 130                       # exit status, as shells give it


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the command line asks for."""

    variants: tuple[str, ...]
    shapes: tuple[str, ...]
    quanta: tuple[float, ...]           # seconds, ascending
    scale: float
    rounds: int
    cells: int
    budget: int | None                  # bytes of host memory; None: what is safe
    simulate: bool
    json: bool
    output: Path | None


def parse(arguments: Sequence[str]) -> Wanted:
    """Ends the program with one line if something makes no sense."""
    parser = argparse.ArgumentParser(
        prog="bench.colocation.measure", description=__doc__.split("\n")[0].split(":")[0] + ".",
    )
    parser.add_argument("--variant", action="append", choices=VARIANTS, metavar="NAME",
                        help="only this one, or these: " + ", ".join(VARIANTS))
    parser.add_argument("--shape", action="append", choices=SHAPES,
                        help="only this order of CPU and GPU work")
    parser.add_argument("--tq", action="append", type=_positive, metavar="SECONDS",
                        help="these quanta (default: 1, 2, 5, 30, 1000)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--scale", type=_positive, default=SCALE, metavar="X",
                        help=f"length of the thesis's programs over the thesis's ({SCALE:g})")
    length.add_argument("--full", action="store_const", const=1.0, dest="scale",
                        help="as long as in the thesis: a day")
    parser.add_argument("--rounds", type=_count, default=1, metavar="N",
                        help="how often the thesis's programs are measured; medians (1)")
    parser.add_argument("--cells", type=_count, default=notebooks.CELLS, metavar="N",
                        help=f"of each notebook ({notebooks.CELLS})")
    parser.add_argument("--swap-budget", type=_size, metavar="SIZE",
                        help="host memory the daemon may take (80%% of what is free)")
    parser.add_argument("--simulate", action="store_true",
                        help="use a simulated card, even if there is a real one")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--output", type=Path, metavar="FILE",
                        help="keep the JSON there (default: in bench/results/, of a real card)")
    given = parser.parse_args(arguments)
    return Wanted(
        _chosen(given.variant, VARIANTS), _chosen(given.shape, SHAPES),
        tuple(sorted(set(given.tq or QUANTA))), given.scale, given.rounds, given.cells,
        given.swap_budget, given.simulate, given.json, given.output,
    )


def _chosen(given: list[str] | None, of: Sequence[str]) -> tuple[str, ...]:
    return tuple(one for one in of if given is None or one in given)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def _count(text: str) -> int:
    try:
        return quantity.positive(text)
    except ValueError as wrong:
        raise argparse.ArgumentTypeError(f"{text!r}: {wrong}") from None


def _size(text: str) -> int:
    try:
        return quantity.size(text)
    except ValueError as wrong:
        raise argparse.ArgumentTypeError(f"{text!r}: {wrong}") from None


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
    rates: dict[int, Rates] = {}        # by size
    with progress(steps(wanted, card)) as shown:
        for number in range(wanted.rounds):
            for program in _programs(wanted):
                place = folder / f"{program.name}-{number}"
                try:
                    await _thesis(wanted, card, program, rates, report, place, shown)
                except NvshareError as error:
                    report.failures.append(Failure(program.name, str(error)))
                _keep(report, output)
        if NOTEBOOKS in wanted.variants:
            try:
                report.day = await notebooks.measure(card, wanted.cells, folder / NOTEBOOKS, shown)
            except NvshareError as error:
                report.failures.append(Failure(NOTEBOOKS, str(error)))
            _keep(report, output)
    return report


async def _thesis(
    wanted: Wanted, card: Card, program: Program, rates: dict[int, Rates], report: Report,
    place: Path, shown: Progress,
) -> None:
    size = program.size(card)
    if size not in rates:
        rates[size] = await pair.rates(card, size)
    plan = pair.plan(
        card, program, rates[size], wanted.scale, wanted.shapes,
        ways(program, card, wanted.quanta, wanted.scale),
    )
    before = await pair.alone(card, plan, shown)
    await pair.together(card, plan, before, place, shown, report.trials.append)


def _keep(report: Report, output: Path | None) -> None:
    if output is not None:
        report.keep(output)


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
        print("interrupted; what was measured until then is kept", file=sys.stderr)
        return INTERRUPTED
    if wanted.json:
        print(json.dumps(report.document(), indent=1))
    else:
        table.show(report, Console())
    return 0 if report.right else 1


if __name__ == "__main__":
    sys.exit(main())
