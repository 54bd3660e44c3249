# SPDX-License-Identifier: Apache-2.0
"""What somebody wants measured."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.colocation import notebooks
from bench.colocation.thesis import AUTO, PROGRAMS, QUANTA, SCALE, SHAPES
from nvshared import quantity

NOTEBOOKS = "notebooks"
VARIANTS = (*PROGRAMS, NOTEBOOKS)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the command line asks for."""

    variants: tuple[str, ...]
    shapes: tuple[str, ...]
    quanta: tuple[float, ...]           # seconds, ascending
    scale: float
    rounds: int
    cells: int
    writeback: bool                     # what notebooks that lie idle have is copied beforehand
    turns: bool                         # they take turns even where all that run fit together
    budget: int | None                  # bytes of host memory; None: what is safe
    simulate: bool
    json: bool
    output: Path | None


def parse(arguments: Sequence[str]) -> Wanted:
    """Ends the program with one line if something makes no sense."""
    parser = argparse.ArgumentParser(
        prog="bench.colocation.measure",
        description="Measures how long programs take that share a card, and checks their results.",
    )
    parser.add_argument("--variant", action="append", choices=VARIANTS, metavar="NAME",
                        help="only this one, or these: " + ", ".join(VARIANTS))
    parser.add_argument("--shape", action="append", choices=SHAPES,
                        help="only this order of CPU and GPU work")
    parser.add_argument("--tq", action="append", type=_quantum, metavar="SECONDS",
                        help="these quanta, or auto (default: 1, 2, 5, 30, 1000)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--scale", type=_positive, default=SCALE, metavar="X",
                        help=f"length of the thesis's programs over the thesis's ({SCALE:g})")
    length.add_argument("--full", action="store_const", const=1.0, dest="scale",
                        help="as long as in the thesis: a day")
    parser.add_argument("--rounds", type=_count, default=1, metavar="N",
                        help="how often the thesis's programs are measured; medians (1)")
    parser.add_argument("--cells", type=_count, default=notebooks.CELLS, metavar="N",
                        help=f"of each notebook ({notebooks.CELLS})")
    parser.add_argument("--writeback", type=_switch, default=True, metavar="SWITCH",
                        help="on, or off: idle notebooks are copied when others come (on)")
    parser.add_argument("--turns", action="store_true",
                        help="notebooks take turns even if they fit: anti-thrash on, not auto")
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
        given.writeback, given.turns, given.swap_budget, given.simulate, given.json, given.output,
    )


def _chosen(given: list[str] | None, of: Sequence[str]) -> tuple[str, ...]:
    return tuple(one for one in of if given is None or one in given)


def _quantum(text: str) -> float:
    return AUTO if text == "auto" else _positive(text)


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


def _switch(text: str) -> bool:
    try:
        return quantity.switch(text)
    except ValueError as wrong:
        raise argparse.ArgumentTypeError(f"{text!r}: {wrong}") from None


def _size(text: str) -> int:
    try:
        return quantity.size(text)
    except ValueError as wrong:
        raise argparse.ArgumentTypeError(f"{text!r}: {wrong}") from None
