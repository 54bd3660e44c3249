# SPDX-License-Identifier: Apache-2.0
"""Measured figures, their goals, and the table that shows both to users."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from nvshared.cli.history import terminal


@dataclass(frozen=True, slots=True)
class Goal:
    what: str
    value: float | None                 # None: nothing was measured
    unit: str
    least: float | None = None          # lower bound of the goal
    most: float | None = None           # upper bound; without both: only shown for comparison

    @property
    def met(self) -> bool | None:
        """True if the goal is met; None: there is no goal."""
        if self.least is None and self.most is None:
            return None
        if self.value is None:
            return False
        return (
            (self.least is None or self.value >= self.least)
            and (self.most is None or self.value <= self.most))

    def report(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.met}


@dataclass(frozen=True, slots=True)
class Result:
    variant: str
    setting: str                        # the variant's setting, in words; "": only one variant
    goals: tuple[Goal, ...]
    figures: dict[str, Any]
    wrong: tuple[str, ...]              # messages of programs with wrong data
    drawing: Mapping[str, Sequence[float]] = field(default_factory=dict)    # see cli/history.py
    marks: Sequence[tuple[float, str]] = ()     # marks on the drawing's time axis

    def report(self) -> dict[str, Any]:
        return {
            "variant": self.variant, "setting": self.setting, "right": not self.wrong,
            "wrong": list(self.wrong), "goals": [goal.report() for goal in self.goals],
            "figures": self.figures}


def show(results: Sequence[Result], where: dict[str, Any], complete: bool,
         console: Console) -> None:
    """Prints a table with a line for each goal, and the errors below the table."""
    name = where["card"]
    console.print(f"{name}, {where['cpu']}, {where['cores']} cores, {where['date']}")
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("what", overflow="fold")
    table.add_column("figure", justify="right")
    table.add_column("goal", justify="right")
    table.add_column("")
    for result in results:
        table.add_row()
        words = f"{result.variant}, {result.setting}" if result.setting else result.variant
        right = "[red]WRONG DATA[/red]" if result.wrong else "[green]data right[/green]"
        table.add_row(f"[bold]{words}[/bold]", "", "", right)
        for goal in result.goals:
            table.add_row(f"  {goal.what}", _figure(goal), _wanted(goal), _verdict(goal, where))
    console.print(table)
    console.print()
    for result in results:
        if result.drawing:
            at = ", ".join(words for _, words in result.marks)
            console.print(f"{result.variant}, {result.setting} ({at})", style="bold")
            console.print(terminal(result.drawing), markup=False)
    for result in results:
        for words in result.wrong:
            console.print(f"[red]{result.variant}, {result.setting}[/red]: {words}")
    if not complete:
        console.print("Cut short: what is missing was not measured.")
    if where["simulated"]:
        console.print("The card is simulated: its data means something, its figures do not.")


def _figure(goal: Goal) -> str:
    if goal.value is None:
        return "nothing happened"
    digits = 0 if goal.value >= 1000 else 1 if goal.value >= 10 else 2
    return f"{goal.value:.{digits}f} {goal.unit}"


def _wanted(goal: Goal) -> str:
    if goal.least is not None:
        return f"≥ {goal.least:g} {goal.unit}"
    return f"≤ {goal.most:g} {goal.unit}" if goal.most is not None else ""


def _verdict(goal: Goal, where: dict[str, Any]) -> str:
    if where["simulated"] or goal.met is None:
        return ""
    return "[green]met[/green]" if goal.met else "[yellow]missed[/yellow]"
