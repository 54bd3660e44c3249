# SPDX-License-Identifier: Apache-2.0
"""The dashboard's list of programs, and the details of one program."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from rich.console import Console, ConsoleOptions
from rich.text import Text

from nvshared.control.snapshot import ClientSnapshot, Snapshot, Tenant
from nvshared.names import USUAL_TERMS
from nvshared.quantity import counted
from nvshared.tui import figures
from nvshared.tui.canvas import bar, fit, frame, grid, wrapped
from nvshared.tui.figures import TERM_FORMATS, duration, process, size, user
from nvshared.tui.panels import RESIDENT, SWAPPED, gpus, waited, waiting_for
from nvshared.tui.state import Hit, Opened, Past, Row, Sort, State, program_key, rows
from nvshared.tui.tables import CLIENT, LAYOUT, STATES, UNSHARED, Bar, Column, Part

LEAD = 3                                # characters before a row: the marks SELECTED and HOLDS
LONGEST_BAR = 40
COMMAND = 4                             # a program's command gets at least 1/COMMAND of the line
SELECTED, HOLDS = "›", "▶"

def _columns(snapshot: Snapshot, width: int) -> list[Column]:
    """The list's columns. The memory bar has no name, as the list cannot be sorted by it."""
    totals = {gpu.index: gpu.memory_total for gpu in snapshot.gpus}

    def memory(one: ClientSnapshot) -> Bar:
        return Bar(totals.get(one.gpu, 1), (
            Part(one.resident + one.pinned, RESIDENT, "green"),
            Part(one.swapped, SWAPPED, "yellow")))

    known = {**CLIENT, "": Column("", memory, drop_rank=4, max_width=LONGEST_BAR)}
    layout = LAYOUT | {"COMMAND": {
        "drop_rank": 1, "shrinks_to": max(len("COMMAND"), width // COMMAND)}}
    return [known[name]._replace(**more) for name, more in layout.items()
            if name != "GPU" or len(snapshot.gpus) > 1]


def listing(state: State, clients: Sequence[ClientSnapshot], first: int, page: int, width: int,
            line: int) -> tuple[list[Text], list[Hit]]:
    """The headings and `page` programs from `first` on. `line`: the headings' line on the screen.

    Table columns are as wide as for all programs, so that scrolling moves no column."""
    assert state.snapshot is not None
    columns = _columns(state.snapshot, width)
    holders = {id for gpu in state.snapshot.gpus for id in gpu.holders}
    descending = CLIENT[state.sort].descending is not state.reverse
    mark = "▼" if descending else "▲"
    titles = [
        Text(one.name + mark, style="bold underline") if one.name == state.sort else
        Text(one.name, style="bold")
        for one in columns]
    title, lines, spans = grid(
        columns, clients, width - LEAD, titles=titles, seen=range(first, first + page))
    found = [Text.assemble(" " * LEAD, title)]
    hits = [
        Hit(line, start + LEAD, end + LEAD, Sort(one.name))
        for one, (start, end) in zip(columns, spans, strict=True) if one.name and end > start]
    (memory,) = [span for one, span in zip(columns, spans, strict=True) if not one.name]
    for client, line_of_it in zip(clients[first:first + page], lines, strict=True):
        selected = program_key(client) == state.selected
        holds = client.id in holders
        row = Text.assemble(
            SELECTED if selected else " ", (HOLDS, "green") if holds else " ", " ", line_of_it)
        if client.state == UNSHARED:
            row.stylize("dim")
        if selected:
            row.stylize("reverse")
            # The memory bar is not reversed: a reversed full bar would look empty.
            row.stylize("not reverse", memory[0] + LEAD, memory[1] + LEAD)
        hits.append(Hit(line + len(found), 0, width, Row(program_key(client))))
        found.append(row)
    return found, hits


class Dashboard:
    def __init__(self, snapshot: Snapshot, past: Past | None = None) -> None:
        self._state = State(snapshot, past or Past())

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        width = options.max_width
        assert self._state.snapshot is not None
        yield from gpus(self._state.snapshot, self._state.past, width, None, 0)
        if shown := rows(self._state):
            lines, _ = listing(self._state, shown, 0, len(shown), width, 0)
            yield from lines


BESIDE = 120                            # least screen columns to draw turns beside terms, not below
LABEL = 12
PIN_REASONS = {
    "undrained": "its work does not end, or cannot be waited for",
    "unseen": "the library may not see all work that it submits",
    "given": "a device or another library may use its memory at any time",
    "kept": "it frees nothing when it is told to",
}


def details(snapshot: Snapshot, opened: Opened, width: int) -> list[Text]:
    client = opened.client
    inner = width - 4
    wide = width >= BESIDE
    half = (inner - 3) // 2 if wide else inner
    lines = []
    if opened.ended:
        lines = wrapped(
            "The program has ended. These are its last known figures.", inner, "bold yellow")
    lines += _about(snapshot, client, opened.tenants, inner)
    left, right = _memory(snapshot, client, half), list[Text]()
    if client.state != UNSHARED:
        left += _time(client, half) + _terms(client, opened.tenants, half)
        right = _turns(opened, inner - 3 - half if wide else inner)
    if wide:
        lines += [
            Text.assemble(fit(one, half), "   ", two)
            for one, two in zip_longest(left, right, fillvalue=Text())]
    else:
        lines += left + right
    title = Text.assemble((process(client), "bold"), f" on GPU {client.gpu}")
    state = Text("ended" if opened.ended else client.state)
    state.stylize("red" if opened.ended else STATES.get(client.state, ""))
    return frame(lines, width, title=title, note=state)


def _about(snapshot: Snapshot, client: ClientSnapshot, tenants: Sequence[Tenant],
           width: int) -> list[Text]:
    found = _field("Command", client.command, width)[:4]
    found += _field("User", f"{user(client.uid)}, uid {client.uid}", width)
    if client.state == UNSHARED:
        words = f"It uses {size(client.pinned)} of GPU memory without sharing the GPU."
        if client.unparkable:
            words += f" It cannot be suspended: {client.unparkable}."
        return found + _field("Sharing", words, width)
    within = tenants[0].within if tenants else ()
    words = f"{client.tenant}, in {', '.join(within)}" if within else client.tenant
    found += _field("Tenant", words, width)
    if client.gang:
        found += _field("Gang", f"{client.gang}, which runs on several GPUs at once", width)
    words = client.state
    if client.state == "idle":
        words += f", for {duration(client.idle_usec)}"
    if waits := waiting_for(snapshot, client):
        words = f"waits {waits}"
        if client.position:
            words += f"; number {client.position} in the queue"
        if client.waiting_usec:
            words += f"; {waited(client)}"
    return found + _field("State", words, width)


def _memory(snapshot: Snapshot, client: ClientSnapshot, width: int) -> list[Text]:
    whole = next((gpu.memory_total for gpu in snapshot.gpus if gpu.index == client.gpu), 1)
    picture = Bar(whole, (
        Part(client.resident, RESIDENT, "green"), Part(client.pinned, "▓", "cyan"),
        Part(client.swapped, SWAPPED, "yellow")), rest="░")
    away = f"swapped, {size(client.borrowed)} of it to another GPU" if client.borrowed else (
        f"swapped, {size(client.on_disk)} of it to disk" if client.on_disk else "in host memory")
    found = [Text(), Text("Memory", style="bold"), bar(picture, width)]
    for mark, style, amount, words in (
        (RESIDENT, "green", client.resident, "on the GPU"),
        (SWAPPED, "yellow", client.swapped, away),
        ("▓", "cyan", client.pinned, "on the GPU, pinned"),
    ):
        found.append(Text.assemble((mark, style), f" {size(amount):>6} ", (words, "dim")))
    found.append(Text(f"  {size(client.allocated + client.pinned):>6} in all"))
    if client.unparkable:
        found += wrapped(f"It cannot be parked or moved: {client.unparkable}.", width)
    if client.pin_reason:
        why = PIN_REASONS.get(client.pin_reason, client.pin_reason)
        found += wrapped(f"Its memory is pinned: {why}.", width)
    return found


def _time(client: ClientSnapshot, width: int) -> list[Text]:
    return [
        Text(), Text("Time", style="bold"),
        *wrapped(f"It held the GPU for {duration(client.held_usec)} in "
                 f"{counted(client.turns, 'turn')} and waited for {duration(client.waited_usec)}. "
                 f"Loaded {size(client.bytes_in)}, evicted {size(client.bytes_out)}.", width),
        *(wrapped(f"nvshared moved it here {client.moved}.", width) if client.moved else ())]


def _terms(client: ClientSnapshot, tenants: Sequence[Tenant], width: int) -> list[Text]:
    found = [Text(), Text("Terms", style="bold")]
    rows = [
        (name, TERM_FORMATS[name].value(value), "set for this program")
        for name, value in figures.program_terms(client).items() if value != USUAL_TERMS[name]]
    for one in tenants:
        rows += [
            (term.name, figures.term_value(term), f"{one.name}: {figures.term_source(term)}")
            for term in one.terms if term is one.holding(term.name)]
    if not rows:
        return [*found, Text("No terms are set for the program or its tenants.", style="dim")]
    wide = max(len(value) for _, value, _ in rows)
    return found + [
        line for name, value, source in rows
        for line in _indented(Text(f"{name:<16}{value:>{wide}}  "), source, width)]


def _turns(opened: Opened, width: int) -> list[Text]:
    found = [Text(), Text("Last turns", style="bold")]
    if not opened.turns:
        words = "The first turn began before nvshared was started." if opened.client.turns else \
            "The program has had no turn."
        return found + wrapped(words, width, "dim")
    found.append(fit(Text("    BEGAN   LASTED   WAITED      LOADED  ENDED", style="dim"), width))
    return found + [
        fit(Text(
            f"{duration(turn.ago_usec):>9} {duration(turn.held_usec):>8} "
            f"{duration(turn.waited_usec):>8}  {size(turn.bytes_in):>10}  "
            f"{turn.reason or 'not yet'}"), width)
        for turn in opened.turns]


def _field(label: str, words: str, width: int) -> list[Text]:
    return _indented(Text(f"{label:<{LABEL}}", style="dim"), words, width)


def _indented(lead: Text, words: str, width: int) -> list[Text]:
    first, *more = wrapped(words, max(8, width - lead.cell_len))
    blanks = " " * lead.cell_len
    return [Text.assemble(lead, first), *(Text.assemble(blanks, line) for line in more)]
