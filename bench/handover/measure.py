# SPDX-License-Identifier: Apache-2.0
"""Measures what hand-overs take: python -m bench.handover.measure.

See docs/internals/benchmarks.md. Exit status 1 if any program ended with wrong data.
"""

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from bench.handover.allocation import allocation
from bench.handover.bus import bus
from bench.handover.card import Card, find
from bench.handover.first import first_out
from bench.handover.goal import Result, show
from bench.handover.neighbour import beside, neighbour
from bench.handover.pieces import pieces
from bench.handover.swapping import three_ahead, two_large
from bench.handover.undisturbed import LOADS, undisturbed
from bench.handover.unused import little_used
from bench.harness import machine
from bench.output import checked, kept
from nvshared import quantity
from nvshared.cli.history import svg
from nvshared.errors import NvshareError

INTERRUPTED = 128

Variants = Mapping[str, Callable[[Card], Iterator[Result]]]
VARIANTS: Variants = {
    "bus": lambda card: iter([bus(card)]),
    "two-large": lambda card: (two_large(card, examined) for examined in (False, True)),
    "first-out": lambda card: (first_out(card, writeback) for writeback in (True, False)),
    "neighbour": neighbour,
    "beside": beside,
    "three-ahead": lambda card: iter([three_ahead(card)]),
    "undisturbed": lambda card: (undisturbed(card, load) for load in LOADS),
    "little-used": little_used,
    "pieces": lambda card: iter([pieces(card)]),
    "allocation": lambda card: iter([allocation(card)]),
}


def arguments(name: str, description: str, variants: Variants) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m bench.{name}.measure", allow_abbrev=False,
                                     description=description)
    parser.add_argument("--variant", action="append", choices=list(variants),
                        help="this one; more than once: these")
    parser.add_argument(
        "--simulate", action="store_true",
        help="on a simulated card, to try the benchmark itself; its figures mean nothing")
    parser.add_argument(
        "--seconds", type=checked(quantity.positive, 2), metavar="N",
        help="that programs compute for in each run (default: 25, on a simulated card 6)")
    parser.add_argument(
        "--swap-budget", type=checked(quantity.size), metavar="SIZE",
        help="host memory for the daemon (default: 86%% of the host's, at most 108GiB)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="where to keep the JSON (default: a file in "
        "bench/results/, and none if the card is simulated)")
    return parser


def main(name: str, description: str, variants: Variants) -> int:
    """Measures, prints the results and stores them in a file, also if the run is interrupted."""
    options = arguments(name, description, variants).parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupted)
    card: Card | None = None
    results: list[Result] = []
    status = 0
    try:
        with tempfile.TemporaryDirectory(prefix="nvshare-bench-") as folder:
            card = find(Path(folder), options.simulate, options.seconds, options.swap_budget)
            _measure(card, variants, options.variant or list(variants), results)
    except NvshareError as error:
        print(error, file=sys.stderr)
        status = int(error.exit_code)
    except KeyboardInterrupt:
        status = INTERRUPTED + signal.SIGINT
    except SystemExit as end:
        status = int(end.code or 0)
    if card is not None and results:
        _report(name, card, results, status == 0, options.json, options.output)
    return status or int(any(result.wrong for result in results))


def _measure(card: Card, variants: Variants, names: Sequence[str], results: list[Result]) -> None:
    """Appends to `results`. Prints the daemons' log if a measurement fails or data are wrong."""
    try:
        for name in names:
            print(f"{name} ...", file=sys.stderr, flush=True)
            for result in variants[name](card):
                results.append(result)  # results before a failing benchmark are kept
    except NvshareError:
        if card.log.exists():
            print(card.log.read_text(), file=sys.stderr)
        raise
    if any(result.wrong for result in results):
        print(card.log.read_text(), file=sys.stderr)


def _report(name: str, card: Card, results: list[Result], complete: bool, only_json: bool,
            output: Path | None) -> None:
    where = {
        **machine(), "card": card.name, "card_bytes": card.total, "simulated": card.simulated,
        "swap_budget": card.budget, "seconds": card.seconds}
    report = {
        "machine": where, "complete": complete, "results": [result.report() for result in results]}
    text = json.dumps(report, indent=1)
    if only_json:
        print(text)
    else:
        show(results, where, complete, Console(highlight=False))
    if output is None and not card.simulated:
        output = kept(name, where)
    if output is not None:
        output.write_text(text + "\n")
        print(f"kept in {output}", file=sys.stderr)
    for result in results:
        if output is not None and result.drawing:
            drawing_name = f"{output.stem}-{result.variant}-{result.setting}.svg".replace(" ", "-")
            output.with_name(drawing_name).write_text(svg(result.drawing, result.marks))


def _interrupted(number: int, _: object) -> NoReturn:
    sys.exit(INTERRUPTED + number)


if __name__ == "__main__":
    sys.exit(main(
        "handover", "Measures what hand-overs take; without --variant, all of it.", VARIANTS))
