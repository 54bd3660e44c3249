# SPDX-License-Identifier: Apache-2.0
"""The list of programs below the GPUs.

A program's bar is as long as its memory is to its card's: solid on the card, shaded in host memory.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rich.console import Console, ConsoleOptions
from rich.text import Text

from nvshared.control.snapshot import ClientSnapshot, Snapshot
from nvshared.tui.canvas import Bar, Part, Place, grid
from nvshared.tui.panels import RESIDENT, SWAPPED, gpus, time_left
from nvshared.tui.past import Past
from nvshared.tui.state import SORTS, UNSHARED, Hit, Row, Sort, State, rows, who
from nvshared.tui.tables import (
    NARROWEST,
    STATES,
    Give,
    command,
    duration,
    limits,
    size,
    tenant,
    user,
)

LEAD = 3                                # what is selected, and who holds a GPU
LONGEST_BAR = 40
COMMAND = 4                             # so large a part of the line the command keeps
SELECTED, HOLDS = "›", "▶"
STYLE = {**STATES, UNSHARED: "dim"}


class Heading(NamedTuple):
    """A column."""

    name: str                           # one of SORTS; "": it cannot be sorted by
    cell: Callable[[ClientSnapshot], str | Bar]
    place: Place


def _headings(snapshot: Snapshot, width: int) -> list[Heading]:
    """Which columns there are does not depend on what the programs do, so that none jumps."""
    totals = {gpu.index: gpu.memory_total for gpu in snapshot.gpus}

    def memory(one: ClientSnapshot) -> Bar:
        return Bar(totals.get(one.gpu, 1), (
            Part(one.resident + one.pinned, RESIDENT, "green"),
            Part(one.swapped, SWAPPED, "yellow"),
        ))

    several = len(snapshot.gpus) > 1
    return [
        *([Heading("GPU", lambda one: str(one.gpu), Place(Give(3), right=True))] * several),
        Heading("PID", lambda one: str(one.pid or "?"), Place(wide=7, right=True)),
        Heading("USER", lambda one: user(one.uid), Place(Give(5, NARROWEST), most=16, wide=8)),
        Heading("TENANT", tenant, Place(Give(8, NARROWEST), most=32, wide=12)),
        Heading("STATE", lambda one: one.state, Place(wide=9)),
        Heading("", memory, Place(Give(4), most=LONGEST_BAR)),
        Heading("MEM", lambda one: size(one.allocated + one.pinned), Place(wide=5, right=True)),
        Heading("RESIDENT", lambda one: size(one.resident + one.pinned),
                Place(Give(9), right=True)),
        Heading("HELD", _held, Place(Give(6), wide=6, right=True)),
        Heading("WAITS", _waits, Place(Give(2), wide=6, right=True)),
        Heading("LEFT", time_left, Place(Give(2), wide=6, right=True)),
        Heading("IDLE", _idle, Place(Give(7), wide=6, right=True)),
        Heading("LIMITS", limits, Place(Give(7), wide=8)),
        Heading("COMMAND", command, Place(Give(1, max(len("COMMAND"), width // COMMAND)))),
    ]


def _held(client: ClientSnapshot) -> str:
    return "" if client.state == UNSHARED else duration(client.held_usec)


def _waits(client: ClientSnapshot) -> str:
    return duration(client.waiting_usec) if client.waiting_usec else ""


def _idle(client: ClientSnapshot) -> str:
    return duration(client.idle_usec) if client.idle_usec else ""


def listing(
    state: State, clients: Sequence[ClientSnapshot], first: int, page: int, width: int, line: int
) -> tuple[list[Text], list[Hit]]:
    """A line of headings, and `page` programs from the `first` on. The first line is number `line`.

    Columns are as wide as all programs need, so that nothing moves when somebody scrolls.
    """
    assert state.snapshot is not None
    headings = _headings(state.snapshot, width)
    holders = {id for gpu in state.snapshot.gpus for id in gpu.holders}
    falling = SORTS[state.sort][1] is not state.reverse
    mark = "▼" if falling else "▲"
    titles: list[Text | Bar] = [
        Text(one.name + (mark if one.name == state.sort else ""),
             style="bold underline" if one.name == state.sort else "bold")
        for one in headings
    ]
    cells = [[_cell(one, client) for one in headings] for client in clients]
    seen = {0, *range(first + 1, first + page + 1)}     # the headings, and these programs
    (title, *lines), spans = grid(
        [one.place for one in headings], [titles, *cells], width - LEAD, seen)
    found = [Text.assemble(" " * LEAD, title)]
    hits = [
        Hit(line, start + LEAD, end + LEAD, Sort(one.name))
        for one, (start, end) in zip(headings, spans, strict=True) if one.name and end > start
    ]
    (bar,) = [span for one, span in zip(headings, spans, strict=True) if not one.name]
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


def _cell(heading: Heading, client: ClientSnapshot) -> Text | Bar:
    cell = heading.cell(client)
    if isinstance(cell, Bar):
        return cell
    return Text(cell, style=STYLE.get(client.state, "") if heading.name == "STATE" else "")


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
