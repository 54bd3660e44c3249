# SPDX-License-Identifier: Apache-2.0
"""What was measured, for people."""

from collections.abc import Sequence
from statistics import median

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from bench.colocation.notebooks import Day
from bench.colocation.pair import Trial
from bench.colocation.report import MEANINGLESS, Report
from bench.colocation.thesis import PUBLISHED

SHARING = {"none": "free", "auto": "auto", "on": "turns"}
CAPTION = """\
free: without the library; auto: turns if they do not fit together; turns: always.
on a P100: the thesis's, where free is unified memory.
=: another quantum's figure, as neither of the two would end a turn.
serial: seconds one after the other. gap: ms from STOP to one until the other's
turn, the median of the quanta's medians."""


def show(report: Report, console: Console) -> None:
    """Prints all of it."""
    where, card = report.machine, report.card
    console.print(
        f"{card.name if card.simulated else where['gpu']}; {where['cpu']}, {where['cores']} cores, "
        f"Linux {where['kernel']}, {where['date']}", highlight=False,
    )
    if card.simulated:
        console.print(f"[bold yellow]{MEANINGLESS}[/]")
    if report.trials:
        console.print(_thesis(report))
    if report.day is not None:
        console.print(_notebooks(report.day))
    for failure in report.failures:
        console.print(f"[bold red]{failure.variant} failed:[/] {failure.reason}", highlight=False)
    wrong = [trial for trial in report.trials if not trial.right]
    for trial in wrong:
        console.print(
            f"[bold red]WRONG:[/] {trial.program}, {trial.shape}, {SHARING[trial.way.mode]}, "
            f"TQ {trial.way.tq:g} s: another result than alone", highlight=False,
        )
    if report.day is not None and not report.day.right:
        console.print("[bold red]WRONG:[/] a notebook's cell has another result than alone")
    if report.right:
        console.print("Every result has the bits of the run alone.")


def _thesis(report: Report) -> Table:
    table = _table("Two copies of a program, time together over one after the other", CAPTION)
    for heading in ("program", "CPU and GPU", "way"):
        table.add_column(heading, no_wrap=True)
    for heading in ("serial", *(f"TQ {tq:g}" for tq in report.quanta), "gap"):
        table.add_column(heading, justify="right")
    rows = dict.fromkeys((t.program, t.shape, t.way.mode) for t in report.trials)
    for program in dict.fromkeys(program for program, _, _ in rows):
        for shape, mode in ((s, m) for name, s, m in rows if name == program):
            of = [t for t in report.trials
                  if (t.program, t.shape, t.way.mode) == (program, shape, mode)]
            table.add_row(
                program, shape, SHARING[mode], f"{report.serial(program):.1f}",
                *(_figure(report, of, tq) for tq in report.quanta), _stop_to_run(of),
            )
        for row in _published(program, report.quanta):
            table.add_row(*row, style="dim")
        table.add_section()
    return table


def _table(title: str, caption: str) -> Table:
    return Table(
        title=f"\n{title}", caption=caption, title_justify="left", caption_justify="left",
        box=SIMPLE, padding=(0, 1, 0, 0), show_edge=False,
        title_style="bold", caption_style="dim",
    )


def _published(program: str, quanta: Sequence[float]) -> list[list[str]]:
    one = next(one for one in PUBLISHED if one.program == program)
    free = f"={one.without / one.serial:.2f}"
    turns = (one.turns.get(f"{tq:g}") for tq in quanta)
    figures = [f"{seconds / one.serial:.2f}" if seconds else "" for seconds in turns]
    return [
        [program, "on a P100", way, f"{one.serial:.0f}", *row, ""]
        for way, row in ((SHARING["none"], [free for _ in quanta]), (SHARING["on"], figures))
        if any(row)
    ]


def _figure(report: Report, of: list[Trial], tq: float) -> str:
    """`of`: those of one row. Where no quantum ends a turn there is one figure."""
    program, shape, mode = of[0].program, of[0].shape, of[0].way.mode
    if mode == "none":
        return f"={median(trial.over_serial for trial in of):.2f}"
    measured = report.over_serial(program, shape, mode, tq)
    if measured is None and mode == "auto":
        same = report.over_serial(program, shape, mode, report.measured_for(program, tq))
        return "" if same is None else f"={same:.2f}"
    return "" if measured is None else f"{measured:.2f}"


def _stop_to_run(of: list[Trial]) -> str:
    times = [t.trace["stop_to_run_ms"]["median"] for t in of if t.trace.get("stop_to_run_ms")]
    return f"{median(times):.0f}" if times else ""


def _notebooks(day: Day) -> Table:
    caption = ""
    if day.size.chosen != day.size.wanted:
        caption = f"{day.size.wanted / 2**30:.2f} GiB were wanted: {day.size.why}."
    table = _table("Notebooks: a cell's time from submit to result over its time alone", caption)
    for heading in ("notebooks", "GiB each", "cells", "alone s", "median", "99th", "hand-overs"):
        table.add_column(heading, justify="right")
    table.add_row(
        str(len({cell.notebook for cell in day.cells})), f"{day.size.chosen / 2**30:.2f}",
        str(len(day.cells)), f"{median(cell.alone for cell in day.cells):.2f}",
        f"{day.median:.2f}", f"{day.percentile_99:.2f}", str(day.trace.get("handovers", "")),
    )
    return table
