# SPDX-License-Identifier: Apache-2.0
"""The results for people."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.handover.goal import Goal, Result
from nvshared.cli.history import terminal


def show(
    results: Sequence[Result], where: dict[str, Any], complete: bool, console: Console
) -> None:
    """A table with a line for each goal; what was wrong below it."""
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
