# SPDX-License-Identifier: Apache-2.0
"""The list of programs below the GPUs.

A program's bar is as long as its memory is to its card's: solid on the card, shaded in host memory.
"""

from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions
from rich.text import Text

from nvshared.control.snapshot import ClientSnapshot, Snapshot
from nvshared.tui.canvas import grid
from nvshared.tui.figures import command, duration, size, user
from nvshared.tui.panels import RESIDENT, SWAPPED, gpus, time_left
from nvshared.tui.past import Past
from nvshared.tui.state import SORTS, UNSHARED, Hit, Row, Sort, State, rows, who
from nvshared.tui.tables import NARROWEST, STATES, Bar, Column, Give, Part, tenant
from nvshared.tui.terms import program_limits

LEAD = 3                                # what is selected, and who holds a GPU
LONGEST_BAR = 40
COMMAND = 4                             # so large a part of the line the command keeps
SELECTED, HOLDS = "›", "▶"
STYLE = {**STATES, UNSHARED: "dim"}


def _columns(snapshot: Snapshot, width: int) -> list[Column]:
    """Which there are does not depend on what the programs do, so that none jumps.

    One without a name, the bar of memory, cannot be sorted by.
    """
    totals = {gpu.index: gpu.memory_total for gpu in snapshot.gpus}

    def memory(one: ClientSnapshot) -> Bar:
        return Bar(totals.get(one.gpu, 1), (
            Part(one.resident + one.pinned, RESIDENT, "green"),
            Part(one.swapped, SWAPPED, "yellow"),
        ))

    def time(usec: int) -> str:
        return duration(usec) if usec else ""

    several = len(snapshot.gpus) > 1
    return [
        *([Column("GPU", lambda one: str(one.gpu), right=True, give=Give(3))] * several),
        Column("PID", lambda one: str(one.pid or "?"), right=True, wide=7),
        Column("USER", lambda one: user(one.uid), give=Give(5, NARROWEST), wide=8, most=16),
        Column("TENANT", tenant, give=Give(8, NARROWEST), wide=12, most=32),
        Column("STATE", lambda one: one.state, style=lambda one: STYLE.get(one.state, ""), wide=9),
        Column("", memory, give=Give(4), most=LONGEST_BAR),
        Column("MEM", lambda one: size(one.allocated + one.pinned), right=True, wide=5),
        Column("RESIDENT", lambda one: size(one.resident + one.pinned), right=True, give=Give(9)),
        Column("HELD", lambda one: "" if one.state == UNSHARED else duration(one.held_usec),
               right=True, give=Give(6), wide=6),
        Column("WAITS", lambda one: time(one.waiting_usec), right=True, give=Give(2), wide=6),
        Column("LEFT", time_left, right=True, give=Give(2), wide=6),
        Column("IDLE", lambda one: time(one.idle_usec), right=True, give=Give(7), wide=6),
        Column("LIMITS", program_limits, give=Give(7), wide=8),
        Column("COMMAND", command, give=Give(1, max(len("COMMAND"), width // COMMAND))),
    ]


def listing(
    state: State, clients: Sequence[ClientSnapshot], first: int, page: int, width: int, line: int
) -> tuple[list[Text], list[Hit]]:
    """A line of headings, and `page` programs from the `first` on. The first line is number `line`.

    Columns are as wide as all programs need, so that nothing moves when somebody scrolls.
    """
    assert state.snapshot is not None
    columns = _columns(state.snapshot, width)
    holders = {id for gpu in state.snapshot.gpus for id in gpu.holders}
    falling = SORTS[state.sort][1] is not state.reverse
    mark = "▼" if falling else "▲"
    titles = [
        Text(one.name + mark, style="bold underline") if one.name == state.sort else
        Text(one.name, style="bold")
        for one in columns
    ]
    title, lines, spans = grid(
        columns, clients, width - LEAD, titles=titles, seen=range(first, first + page))
    found = [Text.assemble(" " * LEAD, title)]
    hits = [
        Hit(line, start + LEAD, end + LEAD, Sort(one.name))
        for one, (start, end) in zip(columns, spans, strict=True) if one.name and end > start
    ]
    (bar,) = [span for one, span in zip(columns, spans, strict=True) if not one.name]
    for client, line_of_it in zip(clients[first:first + page], lines, strict=True):
        selected = who(client) == state.selected
        holds = client.id in holders
        row = Text.assemble(
            SELECTED if selected else " ", (HOLDS, "green") if holds else " ", " ",
            line_of_it,
        )
        if client.state == UNSHARED:
            row.stylize("dim")
        if selected:
            row.stylize("reverse")
            row.stylize("not reverse", bar[0] + LEAD, bar[1] + LEAD)    # else full would be empty
        hits.append(Hit(line + len(found), 0, width, Row(who(client))))
        found.append(row)
    return found, hits


class Dashboard:
    """GPUs and programs as one picture for rich, as high as they take."""

    def __init__(self, snapshot: Snapshot, past: Past | None = None) -> None:
        self._state = State(snapshot, past or Past())

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        width = options.max_width
        assert self._state.snapshot is not None
        yield from gpus(self._state.snapshot, self._state.past, width, None, 0)
        if shown := rows(self._state):
            lines, _ = listing(self._state, shown, 0, len(shown), width, 0)
            yield from lines
