# SPDX-License-Identifier: Apache-2.0
"""What was measured, as JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench.colocation.card import Card
from bench.colocation.notebooks import Day
from bench.colocation.pair import Trial
from bench.colocation.thesis import (
    AUTO,
    PROGRAMS,
    WITHOUT,
    Way,
    measured_for,
    published,
    words,
)

MEANINGLESS = (
    "The card is simulated: the figures say that the benchmark works, and nothing else."
)


@dataclass(frozen=True, slots=True)
class Failure:
    """Something that could not be measured."""

    variant: str
    reason: str


@dataclass(slots=True)
class Report:
    """Grows as the benchmark goes on."""

    machine: dict[str, Any]
    card: Card
    scale: float
    quanta: tuple[float, ...]           # seconds
    trials: list[Trial] = field(default_factory=list)
    day: Day | None = None
    failures: list[Failure] = field(default_factory=list)
    complete: bool = False              # all that was wanted has been measured, or has failed

    @property
    def right(self) -> bool:
        """Whether every result is that of the run alone, and nothing failed."""
        trials = all(trial.right for trial in self.trials)
        return trials and not self.failures and (self.day is None or self.day.right)

    def over_serial(self, program: str, shape: str, mode: str, tq: float) -> float | None:
        """Median over the rounds; None if it was not measured."""
        found = [trial.over_serial for trial in self._of(program, shape, Way(mode, tq))]
        return median(found) if found else None

    def serial(self, program: str) -> float:
        """Seconds of the two copies one after the other, median over the rounds."""
        return median(trial.serial for trial in self.trials if trial.program == program)

    def measured_for(self, program: str, tq: float) -> float:
        """The quantum whose figure under anti-thrash auto is that of `tq` too."""
        return measured_for(PROGRAMS[program], self.card, self.quanta, self.scale, tq)

    def _of(self, program: str, shape: str, way: Way) -> list[Trial]:
        return [
            trial for trial in self.trials
            if (trial.program, trial.shape, trial.way) == (program, shape, way)
        ]

    def document(self) -> dict[str, Any]:
        """All of it."""
        card = self.card
        return {
            "machine": self.machine,
            "complete": self.complete,
            "right": self.right,
            "simulated": card.simulated,
            **({"note": MEANINGLESS} if card.simulated else {}),
            "card": {
                "name": card.name, "why": card.why, "total": card.total,
                "capacity": card.capacity, "swap_budget": card.budget,
                "bytes_times": card.shrunk, "seconds_times": card.haste,
            },
            "thesis": {
                "scale": self.scale,
                "quanta": [_quantum(tq) for tq in self.quanta],
                "same_as": {
                    name: {
                        words(tq): _quantum(self.measured_for(name, tq)) for tq in self.quanta
                    }
                    for name in {trial.program: 0 for trial in self.trials}
                },
                "trials": [_trial(trial) for trial in self.trials],
                "published": published(),
            },
            "notebooks": None if self.day is None else _notebooks(self.day),
            "failures": [asdict(failure) for failure in self.failures],
        }

    def keep(self, path: Path | None) -> None:
        """Writes it, if there is anything, so that a run that is cut short leaves what it has."""
        if path is None or not (self.trials or self.day or self.failures):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.document(), indent=1) + "\n")


def _trial(trial: Trial) -> dict[str, Any]:
    tq = None if trial.way == WITHOUT else _quantum(trial.way.tq)
    way = {"mode": trial.way.mode, "tq": tq}
    return {**asdict(trial), "way": way, "over_serial": trial.over_serial}


def _quantum(tq: float) -> float | str:
    """Seconds, or auto."""
    return words(tq) if tq == AUTO else tq


def _notebooks(day: Day) -> dict[str, Any]:
    return {
        "notebooks": len({cell.notebook for cell in day.cells}),
        "bytes": {**asdict(day.size), "why": day.size.why},
        "tq": day.tq,
        "writeback": day.writeback,
        "anti_thrash": "on" if day.turns else "auto",
        "over_alone_median": day.median,
        "over_alone_99th": day.percentile_99,
        "expected": {
            name: None if figures is None else {"median": figures[0], "99th": figures[1]}
            for name, figures in (("card_and_bus", day.expected(fitting=False)),
                                  ("all_on_the_card", day.expected(fitting=True)))
        },
        "right": day.right,
        "trace": day.trace,
        "cells": [{**asdict(cell), "over_alone": cell.over_alone} for cell in day.cells],
    }


def name(machine: dict[str, Any], variants: Sequence[str]) -> str:
    """Of the file that keeps it."""
    stamp = str(machine["date"]).replace(":", "").replace("-", "")[:15]
    return "-".join(["colocation", *(variants if len(variants) == 1 else ()), f"{stamp}.json"])
