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
from bench.colocation.thesis import PUBLISHED, words

SHARING = {"none": "free", "auto": "auto", "on": "turns"}
LEGEND = """\
free: without the library; turns: always; auto: if they do not fit together
on a P100: the thesis's figures, free with unified memory
=: the figure of another quantum, as neither of the two would end a turn
serial: seconds, one after the other; gap: ms from STOP to the other's turn"""


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
        console.print(LEGEND, style="dim", highlight=False)
    if report.day is not None:
        console.print(_notebooks(report.day))
        size = report.day.size
        if size.chosen != size.wanted:
            console.print(f"{size.wanted / 2**30:.2f} GiB were wanted: {size.why}.", style="dim")
    console.print()
    for failure in report.failures:
        console.print(f"[bold red]{failure.variant} failed:[/] {failure.reason}", highlight=False)
    wrong = [trial for trial in report.trials if not trial.right]
    for trial in wrong:
        console.print(
            f"[bold red]WRONG:[/] {trial.program}, {trial.shape}, {SHARING[trial.way.mode]}, "
            f"TQ {words(trial.way.tq)}: another result than alone", highlight=False,
        )
    if report.day is not None and not report.day.right:
        console.print("[bold red]WRONG:[/] a notebook's cell has another result than alone")
    if report.right:
        console.print("Every result has the bits of the run alone.")


def _thesis(report: Report) -> Table:
    table = _table("Two copies of a program, time together over one after the other")
    for heading in ("program", "CPU and GPU", "way"):
        table.add_column(heading, no_wrap=True)
    for heading in ("serial", *(f"TQ {words(tq)}" for tq in report.quanta), "gap"):
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


def _table(title: str) -> Table:
    return Table(
        title=f"\n{title}", title_justify="left", title_style="bold",
        box=SIMPLE, padding=(0, 1, 0, 0), show_edge=False,
    )


def _published(program: str, quanta: Sequence[float]) -> list[list[str]]:
    one = next(one for one in PUBLISHED if one.program == program)
    free = f"={_ratio(one.without / one.serial)}"
    turns = (one.turns.get(words(tq)) for tq in quanta)
    figures = [_ratio(seconds / one.serial) if seconds else "" for seconds in turns]
    return [
        [program, "on a P100", way, f"{one.serial:.0f}", *row, ""]
        for way, row in ((SHARING["none"], [free for _ in quanta]), (SHARING["on"], figures))
        if any(row)
    ]


def _figure(report: Report, of: list[Trial], tq: float) -> str:
    """`of`: those of one row. Where no quantum ends a turn there is one figure."""
    program, shape, mode = of[0].program, of[0].shape, of[0].way.mode
    if mode == "none":
        return f"={_ratio(median(trial.over_serial for trial in of))}"
    measured = report.over_serial(program, shape, mode, tq)
    if measured is None and mode == "auto":
        same = report.over_serial(program, shape, mode, report.measured_for(program, tq))
        return "" if same is None else f"={_ratio(same)}"
    return "" if measured is None else _ratio(measured)


def _ratio(value: float) -> str:
    """In four or five characters, up to a thousand."""
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def _stop_to_run(of: list[Trial]) -> str:
    times = [t.trace["stop_to_run_ms"]["median"] for t in of if t.trace.get("stop_to_run_ms")]
    return f"{median(times):.0f}" if times else ""


def _notebooks(day: Day) -> Table:
    table = _table("Notebooks: from submit to result over the cell alone")
    table.add_column("notebooks", no_wrap=True)
    for heading in ("GiB each", "cells", "alone s", "median", "99th", "hand-overs"):
        table.add_column(heading, justify="right")
    table.add_row(
        str(len({cell.notebook for cell in day.cells})), f"{day.size.chosen / 2**30:.2f}",
        str(len(day.cells)), f"{median(cell.alone for cell in day.cells):.2f}",
        _ratio(day.median), _ratio(day.percentile_99), str(day.trace.get("handovers", "")),
    )
    for label, figures in (("expected of card and bus", day.expected(fitting=False)),
                           ("if the card held all", day.expected(fitting=True))):
        if figures is not None:
            table.add_row(label, "", "", "", *map(_ratio, figures), "")
    return table
