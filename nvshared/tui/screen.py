# SPDX-License-Identifier: Apache-2.0
"""The screen of `nvsharectl top`: GPUs, programs, one program's details, help, the bottom line."""

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.text import Text

from nvshared.control.snapshot import ClientSnapshot, GPUSnapshot, Snapshot, TenantSnapshot
from nvshared.quantity import counted
from nvshared.terms import TERMS
from nvshared.tiers import TIERS
from nvshared.tui import state as model
from nvshared.tui import tables
from nvshared.tui.canvas import NARROWEST_BAR, WIDE, bar, fit, frame, graph, grid, wrapped
from nvshared.tui.state import Frame, Hit, Opened, Past, Rates, RowTarget, Screen, Sort, View, rows
from nvshared.tui.tables import CLIENT, STATES, UNSHARED, Bar, Column, Part, duration, process, size
from nvshared.tui.terminal import Key
from nvshared.units import MIB

NAMED = 2                               # most holders that a sentence names
WAITS_FOR = {"limited": "until its time limit permits a turn", "suspended": "to be resumed",
             "restoring": "for its context to be restored"}


def waiting_for(snapshot: Snapshot, client: ClientSnapshot) -> str:
    """The reason of the client's wait, to follow the word "waits"; "" if it does not wait."""
    # gpu is None if a restarted daemon lacks the GPU of a program that is still shown in detail.
    gpu = next((one for one in snapshot.gpus if one.index == client.gpu), None)
    match client.state:
        case "waiting" if client.gang and not client.position:
            return "for its turn on several GPUs at once"
        case "waiting":
            names = tables.holders(snapshot, gpu) if gpu is not None else []
            return f"for the turns of {len(names)} programs to end" if len(names) > NAMED else (
                f"for {' and '.join(names) or 'its turn'}")
        case "loading":
            if slow := [tier for tier in TIERS if tier.slow and tier.name in client.tiers]:
                loaded, whole = max(0, client.loading - client.swapped), client.loading
                return (f"for its memory, loading from {slow[-1].slow}: {size(loaded)} of "
                        f"{size(whole)}")
            return "for its memory to be loaded"
        case "crowded":
            held = [f"{one.name}[{one.pid}] has {size(one.memory)}"
                    for one in (gpu.unshared if gpu is not None else ())[:NAMED]]
            return "for memory of programs that do not share the GPU" + (
                f" ({', '.join(held)})" if held else "")
    return WAITS_FOR.get(client.state, "for its turn" if client.waiting_usec else "")


def waited(client: ClientSnapshot) -> str:
    """How long a waiting client has waited and will wait: 3.9s, about 26s more."""
    left = client.expected_usec
    return duration(client.waiting_usec) + (
        "" if left is None else f", about {duration(left)} more")


def waiting_sentence(snapshot: Snapshot, gpu: GPUSnapshot, width: int) -> str:
    """Names the next waiting client of a GPU, and the number of others.

    If it exceeds `width`, first the reason of the wait is left out, then the name is shortened."""
    waiting = [one for one in snapshot.of(gpu) if one.waiting_usec]
    if not waiting:
        return "no program waits"
    # Clients in the queue precede clients that wait for time or memory.
    waiting.sort(key=lambda one: (one.position == 0, one.position))
    first, *others = waiting
    name, behind = process(first), f"{waited(first)}{f'; {len(others)} more' if others else ''}"
    whole = f"{name} waits {waiting_for(snapshot, first)}: {behind}"
    if cell_len(whole) <= width:
        return whole
    room = max(tables.PROCESS, width - len(f" waits: {behind}"))
    return f"{tables.shortened(name, room)} waits: {behind}"


RESIDENT, SWAPPED, EMPTY = "█", "▒", "░"
BETWEEN = " │ "                         # separates two graphs
LABEL = len("resident ")                 # characters of the label before a graph
FIGURE = 10                             # characters of the present value beside a graph
# For each graph: its style, and the formatter of its values.
GRAPHED: dict[str, tuple[str, Callable[[float], str]]] = {
    "use": ("green", "{:.0%}".format), "waiting": ("yellow", "{:.0f}".format),
    "bytes_in": ("cyan", lambda rate: f"{size(rate)}/s"),
    "bytes_out": ("magenta", lambda rate: f"{size(rate)}/s"),
    "resident": ("green", size), "swapped": ("yellow", size),
}
PAIRS = (("use", "waiting"), ("bytes_in", "bytes_out"), ("resident", "swapped"))
THREE_PAIRS_WIDTH = 110                 # characters of a line from which on all PAIRS are drawn
PROCESS_WIDTH = 24                      # most characters of a process's name
FRAME = 4                               # lines of a GPU's frame without graphs
WITH_GRAPHS = 4                         # lines of a GPU's frame with graphs, besides the graphs
GRAPHS = 2                              # graphs in a frame, one above the other
HEIGHTS = (20, 16, 12, 8, 5, 3, 2, 1)   # lines of a graph; the largest number that fits is used
HIGH = 40                               # screen lines from which on GPUs take all free lines
PART = 3                                # on screens below HIGH, large graphs take 1/PART at most
ROWS = 5                                # rows that graphs leave to the list of programs
QUIET = frozenset({"idle", "suspended", "parked"})


def gpus(snapshot: Snapshot, past: Past, width: int, height: int | None, below: int) -> list[Text]:
    """Draws the GPUs in 1 to `height` lines (None: any): with graphs, in frames, or a line each.

    `below`: lines of the list of programs. If lines lack for all, only busy GPUs get a frame."""
    def rank(gpu: GPUSnapshot) -> tuple[bool, int, int]:
        clients = snapshot.of(gpu)
        busy = gpu.state == "lost" or any(client.state not in QUIET for client in clients)
        return not busy, -len(clients), gpu.index

    framed, shown = list(snapshot.gpus), list(snapshot.gpus)
    graphs = 0 if height is None else _graph_height(len(shown), height, below)
    if height is not None and not graphs:
        room = max(1, height - min(below, max(ROWS, height // 2)))
        shown.sort(key=rank)
        if len(shown) > room:
            shown = shown[:room - 1]
        framed = shown[:max(0, room - len(shown)) // (FRAME - 1)]
    found: list[Text] = []
    for gpu in snapshot.gpus:
        if gpu in framed:
            found += _framed(snapshot, gpu, past, width, graphs)
    lines = [gpu for gpu in snapshot.gpus if gpu in shown and gpu not in framed]
    found += _lines(snapshot, lines, width)
    if left_out := len(snapshot.gpus) - len(shown):
        found.append(fit(Text(f"and {left_out} more GPUs", style="dim"), width))
    return found


def _graph_height(number: int, height: int, below: int) -> int:
    """Lines of each graph such that all GPUs fit; 0: no graphs fit."""
    for graphs in HEIGHTS:
        # Graphs of several lines are drawn only if the whole list of programs still fits.
        needed = below if graphs > 1 else min(below, max(ROWS, height * 2 // 3))
        lines = number * (WITH_GRAPHS + GRAPHS * graphs)
        is_too_high = graphs > 1 and height < HIGH and lines > -(-height // PART)
        if lines + needed <= height and not is_too_high:
            return graphs
    return 0


def _framed(snapshot: Snapshot, gpu: GPUSnapshot, past: Past, width: int,
            height: int) -> list[Text]:
    inner = width - 4
    rates = past.rates(gpu.index)
    turns = f"{gpu.turns} turns" if rates is None else f"{rates.turns * 60:.0f} turns/min"
    lines = [_memory(gpu, snapshot.of(gpu), inner)]
    lines += _graphs(gpu, past, rates, inner, height) if height else [
        _movement(snapshot, gpu, past, rates, turns, inner)]
    note = Text(f" · {tables.mode_of(gpu)} · TQ {tables.quantum_of(gpu)}")
    if height:
        lines.append(Text(
            waiting_sentence(snapshot, gpu, inner), style="yellow" if gpu.queue_length else "dim"))
        note.append(f" · {turns} · graphs: last {model.SPAN / 60:.0f} min")
    return frame(
        lines, width,
        title=Text.assemble((f"GPU {gpu.index}", "bold"), " ", gpu.name.removeprefix("NVIDIA ")),
        note=Text.assemble((gpu.state, STATES.get(gpu.state, "")), note),
        style="red" if gpu.state == "lost" or any(
            fault.severity == "critical" for fault in gpu.faults) else "bright_black")


def _used(gpu: GPUSnapshot, clients: Sequence[ClientSnapshot]) -> int:
    ours = sum(client.resident + client.pinned for client in clients)
    return gpu.outside + ours if gpu.memory_used is None else gpu.memory_used


def _memory(gpu: GPUSnapshot, clients: Sequence[ClientSnapshot], width: int) -> Text:
    used = _used(gpu, clients)
    figures = f" {tables.of_whole(used, gpu.memory_total, ' of ')}iB"
    for value, form in (
        (gpu.utilization, "  {:.0%}"), (gpu.temperature, "  {:.0f}C"), (gpu.power, "  {:.0f}W"),
    ):
        figures += "" if value is None else form.format(value)
    room = max(NARROWEST_BAR, width - len(figures))
    whole = Bar(gpu.memory_total, (Part(used, RESIDENT, "green"),), rest=EMPTY)
    return bar(whole, room).append(figures)


def _movement(snapshot: Snapshot, gpu: GPUSnapshot, past: Past, rates: Rates | None, turns: str,
              width: int) -> Text:
    before = f"{turns}   "
    if rates is not None:
        before += f"in {size(rates.bytes_in)}/s   out {size(rates.bytes_out)}/s   "
    room = width - (width // 4 + len(" use ") if width >= WIDE else 0) - len(before)
    words = Text(before + waiting_sentence(snapshot, gpu, room), style="dim")
    if width < WIDE:
        return words
    (line,) = graph(past.series(gpu.index, "use", width // 4), 1.0)
    use = Text.assemble(" use ", (line, GRAPHED["use"][0]))
    return Text.assemble(fit(words, width - use.cell_len), use)


def _graphs(gpu: GPUSnapshot, past: Past, rates: Rates | None, width: int,
            height: int) -> list[Text]:
    now: dict[str, float | None] = past.samples[-1].gpus[gpu.index]._asdict()
    now |= {"bytes_in": None, "bytes_out": None} if rates is None else rates._asdict()
    columns = PAIRS if width >= THREE_PAIRS_WIDTH else PAIRS[:-1]
    rooms = [(width - len(BETWEEN) * (len(columns) - 1)) // len(columns)] * len(columns)
    rooms[-1] = width - sum(rooms[:-1]) - len(BETWEEN) * (len(columns) - 1)
    pictures = [
        _pair(gpu, past, pair, now, room, height)
        for pair, room in zip(columns, rooms, strict=True)]
    return [Text(BETWEEN, style="bright_black").join(row) for row in zip(*pictures, strict=True)]


def _pair(gpu: GPUSnapshot, past: Past, pair: tuple[str, str], now: dict[str, float | None],
          room: int, height: int) -> list[Text]:
    """Two graphs, one above the other, with the same scale if both show bytes.

    Each character is a mean over time; the present value may be more, so the scale includes it."""
    cells = max(1, room - LABEL - FIGURE)
    values = {figure: past.series(gpu.index, figure, cells) for figure in pair}
    highest = {
        figure: max(now.get(figure) or 0, *(value or 0 for value in values[figure]))
        for figure in pair}
    both = max(float(MIB), *highest.values())
    found = []
    for figure in pair:
        style, form = GRAPHED[figure]
        most = {"use": 1.0, "waiting": max(1.0, highest[figure])}.get(figure, both)
        value = now.get(figure)
        labels = [figure.removeprefix("bytes_")]
        numbers = ["-" if value is None else form(value), f"of {form(most).removesuffix('/s')}"]
        for line, label, number in zip_longest(
                graph(values[figure], most, height), labels, numbers[:height], fillvalue=""):
            found.append(Text.assemble(
                fit(label, LABEL), (line, style), fit(number, FIGURE, right=True)))
    return found


def _lines(snapshot: Snapshot, some: Sequence[GPUSnapshot], width: int) -> list[Text]:
    def used(gpu: GPUSnapshot) -> int:
        return _used(gpu, snapshot.of(gpu))

    columns = (
        Column("", lambda gpu: f"GPU {gpu.index}", style=lambda _: "bold"),
        Column("", lambda gpu: gpu.name.removeprefix("NVIDIA "), drop_rank=5,
               shrinks_to=tables.NARROWEST, max_width=20),
        Column("", lambda gpu: Bar(
            gpu.memory_total, (Part(used(gpu), RESIDENT, "green"),), rest=EMPTY), drop_rank=4),
        Column("", lambda gpu: tables.of_whole(used(gpu), gpu.memory_total), right=True,
               drop_rank=2),
        Column("", lambda gpu: "" if gpu.utilization is None else f"{gpu.utilization:.0%}",
               right=True, drop_rank=6, min_width=4),
        Column("", lambda gpu: gpu.state, style=lambda gpu: STATES.get(gpu.state, ""), min_width=9),
        Column("", lambda gpu: tables.holder(snapshot, gpu), shrinks_to=tables.PROCESS,
               max_width=PROCESS_WIDTH),
        Column("", lambda gpu: f"{gpu.queue_length} waiting", right=True, drop_rank=3,
               style=lambda _: "dim"))
    return grid(columns, some, width).lines


LEAD = 3                                # characters before a row: the marks SELECTED and HOLDS
LONGEST_BAR = 40
SEVERITIES = {"critical": "bold red", "warning": "yellow"}
COMMAND = 4                             # a program's command gets at least 1/COMMAND of the line
SELECTED, HOLDS = "›", "▶"


def _columns(snapshot: Snapshot, width: int) -> list[Column]:
    """The list's columns. The memory bar has no name, as the list cannot be sorted by it."""
    totals = {gpu.index: gpu.memory_total for gpu in snapshot.gpus}

    def memory(one: ClientSnapshot) -> Bar:
        return Bar(totals.get(one.gpu, 1), (
            Part(one.resident + one.pinned, RESIDENT, "green"),
            Part(one.swapped, SWAPPED, "yellow")))

    known = {**CLIENT, "": Column("", memory, drop_rank=5, max_width=LONGEST_BAR)}
    layout = tables.LAYOUT | {"COMMAND": {
        "drop_rank": 1, "shrinks_to": max(len("COMMAND"), width // COMMAND)}}
    return [known[name]._replace(**more) for name, more in layout.items()
            if name != "GPU" or len(snapshot.gpus) > 1]


def listing(state: View, clients: Sequence[ClientSnapshot], first: int, page: int, width: int,
            line: int) -> tuple[list[Text], list[Hit]]:
    """The headings and `page` programs from `first` on. `line`: the headings' line on the screen.

    Table columns are as wide as for all programs, so that scrolling moves no column."""
    assert state.snapshot is not None
    columns = _columns(state.snapshot, width)
    holders = {id for gpu in state.snapshot.gpus for id in gpu.holders}
    marks = {state.sort: "▼" if CLIENT[state.sort].descending is not state.reverse else "▲"}
    titles = [Text(one.name + marks.get(one.name, ""),
                   style="bold underline" if one.name in marks else "bold") for one in columns]
    title, lines, spans = grid(
        columns, clients, width - LEAD, titles=titles, seen=range(first, first + page))
    found = [Text.assemble(" " * LEAD, title)]
    hits = [
        Hit(line, start + LEAD, end + LEAD, Sort(one.name))
        for one, (start, end) in zip(columns, spans, strict=True) if one.name and end > start]
    (memory,) = [span for one, span in zip(columns, spans, strict=True) if not one.name]
    for client, line_of_it in zip(clients[first:first + page], lines, strict=True):
        selected = model.program_key(client) == state.selected
        holds = client.id in holders
        row = Text.assemble(
            SELECTED if selected else " ", (HOLDS, "green") if holds else " ", " ", line_of_it)
        if client.state == UNSHARED:
            row.stylize("dim")
        if selected:
            row.stylize("reverse")
            # The memory bar is not reversed: a reversed full bar would look empty.
            row.stylize("not reverse", memory[0] + LEAD, memory[1] + LEAD)
        hits.append(Hit(line + len(found), 0, width, RowTarget(model.program_key(client))))
        found.append(row)
    return found, hits


FAULTS_SHOWN = 3                        # most faults on the screen, a line each


def faults(snapshot: Snapshot, width: int) -> list[Text]:
    """A line for each fault; nvsharectl status has the whole sentences, with remedies."""
    found = [fit(Text(f"{fault.severity}: {fault.words}", style=SEVERITIES[fault.severity]), width)
             for fault in snapshot.all_faults]
    if len(found) > FAULTS_SHOWN:
        more = f"and {counted(len(found) - FAULTS_SHOWN + 1, 'more fault')}: nvsharectl status"
        found[FAULTS_SHOWN - 1:] = [fit(Text(more, style=SEVERITIES["warning"]), width)]
    return found


class Dashboard(NamedTuple):
    snapshot: Snapshot
    past: Past = Past()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        state, width = View(self.snapshot), options.max_width
        yield from gpus(self.snapshot, self.past, width, None, 0)
        yield from faults(self.snapshot, width)
        if shown := rows(state):
            lines, _ = listing(state, shown, 0, len(shown), width, 0)
            yield from lines


BESIDE = 120                            # least screen columns to draw turns beside terms, not below
FIELD = 12                              # characters of a field's name and the blanks behind it
PIN_REASONS = {
    "undrained": "its work does not end, or cannot be waited for",
    "unseen": "the library may not see all work that it submits",
    "given": "a device or another library may use its memory at any time",
    "kept": "it frees nothing when it is told to",
}


def details(snapshot: Snapshot, opened: Opened, width: int) -> list[Text]:
    client = opened.client
    ended = model.in_snapshot(snapshot, client) is None
    inner = width - 4
    wide = width >= BESIDE
    half = (inner - 3) // 2 if wide else inner
    lines = []
    if ended:
        lines = wrapped(
            "The program has ended. These are its last known figures.", inner, "bold yellow")
    lines += _about(snapshot, client, opened.tenants, inner)
    left, right = _memory_of_program(snapshot, client, half), list[Text]()
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
    state = Text("ended" if ended else client.state)
    state.stylize("red" if ended else STATES.get(client.state, ""))
    return frame(lines, width, title=title, note=state)


def _about(snapshot: Snapshot, client: ClientSnapshot, tenants: Sequence[TenantSnapshot],
           width: int) -> list[Text]:
    found = _field("Command", client.command, width)[:4]
    found += _field("User", f"{tables.user(client.uid)}, uid {client.uid}", width)
    if client.state == UNSHARED:
        words = f"It uses {size(client.pinned)} of GPU memory without sharing the GPU."
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


def _memory_of_program(snapshot: Snapshot, client: ClientSnapshot, width: int) -> list[Text]:
    whole = next((gpu.memory_total for gpu in snapshot.gpus if gpu.index == client.gpu), 1)
    picture = Bar(whole, (
        Part(client.resident, RESIDENT, "green"), Part(client.pinned, "▓", "cyan"),
        Part(client.swapped, SWAPPED, "yellow")), rest="░")
    away = next((f"swapped, {size(client.tiers[tier.name])} of it {tier.place}" for tier in TIERS
                 if tier.place and client.tiers.get(tier.name)), "in host memory")
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


def _terms(client: ClientSnapshot, tenants: Sequence[TenantSnapshot], width: int) -> list[Text]:
    found = [Text(), Text("Terms", style="bold")]
    rows = [
        (name, TERMS[name].value(value), "set for this program")
        for name, value in client.terms.items() if value != TERMS[name].default]
    for one in tenants:
        rows += [
            (term.name, TERMS[term.name].value(term.value),
             f"{one.name}: {tables.term_source(term)}")
            for term in one.terms if term is one.holding(term.name)]
    if not rows:
        return [*found, Text("No terms are set for the program or its tenants.", style="dim")]
    wide = max(len(value) for _, value, _ in rows)
    return found + [
        line for name, value, source in rows
        for line in indented(Text(f"{name:<16}{value:>{wide}}  "), source, width)]


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
    return indented(Text(f"{label:<{FIELD}}", style="dim"), words, width)


def indented(lead: Text, words: str, width: int) -> list[Text]:
    first, *more = wrapped(words, max(8, width - lead.cell_len))
    blanks = " " * lead.cell_len
    return [Text.assemble(lead, first), *(Text.assemble(blanks, line) for line in more)]


# For each screen: keys of the bottom line, (key, label, effect). A narrow line has the first keys.
_BASIC = (("?", "?", "help"), ("q", "q", "quit"))
_CHANGES = tuple((kind.key, kind.key, verb) for verb, kind in model.COMMANDS.items())
KEYS: dict[Screen, Sequence[tuple[str, str, str]]] = {
    Screen.MAIN: (
        *_BASIC, ("down", "↑↓", "select"), ("enter", "Enter", "open"), ("/", "/", "filter"),
        (">", "<>", "sort"), ("i", "i", "order"), *_CHANGES),
    Screen.DETAILS: (*_BASIC, ("escape", "Esc", "back"), ("down", "↑↓", "scroll"), *_CHANGES),
    Screen.HELP: (*_BASIC, ("escape", "Esc", "back"), ("down", "↑↓", "scroll")),
}

_HELP: tuple[tuple[str, str], ...] = (
    ("The list", ""),
    ("↑ ↓ j k", "selects a program; PgUp, PgDn, Home and End go farther"),
    ("Enter d", "shows its details: tenants, memory, terms, last turns"),
    ("/", "filters: each word must occur in the program's GPU (gpu0), tenant (user:alice), state "
          "or command; Esc removes the filter"),
    ("< >", "selects the column to sort by; i reverses the order"),
    ("Mouse", "a click selects, a second click opens; a click on a heading sorts; the wheel "
              "scrolls. To select text as usual, hold Shift"),
    ("", ""),
    ("Commands, each of which asks for confirmation", ""),
    *((kind.key, f"{verb}: {kind.label}" if verb not in kind.label else kind.label)
      for verb, kind in model.COMMANDS.items()),
    ("Tab", "in a question: applies the command to all programs of its tenant together, such as a "
            "job or user; in the details also to the tenants around that one"),
    ("", ""),
    ("Symbols and columns", ""),
    ("▶", "the program holds the GPU"),
    ("█ ▒", "its memory: on the card, and swapped; a full bar would be the whole card"),
    ("STATE", "waiting: for its turn; loading: its memory is loaded; idle: it needs no turn; "
              "limited: it has used its share of the time; crowded: programs that do not share "
              "the GPU leave too little memory; unshared: it uses the GPU without nvshare"),
    ("HELD", "how long it has held the GPU in total"),
    ("WAITS, LEFT", "how long it has been waiting, and the estimated time left"),
    ("Graphs", "the last minutes, the present on the right; graphs of bytes have one scale. Beside "
               "each: the present figure, and below it the value of a full column, as in "
               "9.8G/s of 12.0G"),
    ("LIMITS", "its terms: memory, share of the time, weight, as in 20.0G,50%,w200"),
    ("TQ", "the time quantum: how long a program may keep the GPU while others wait"),
    ("", ""),
    ("Anywhere", ""),
    ("? q F10", "this page; quits. Ctrl-L redraws the screen"),
)


def page(width: int) -> list[Text]:
    label = max(len(key) for key, words in _HELP if words) + 4
    found: list[Text] = []
    for key, words in _HELP:
        lead = fit(Text(f"  {key}", style="bold cyan"), label)
        found += indented(lead, words, width) if words else [Text(key, style="bold")]
    return [fit(line, width) for line in found]


def keys(screen: Screen, width: int, line: int, lead: Text) -> tuple[Text, list[Hit]]:
    """The keys of a screen, after `lead`, and the areas that can be clicked.

    If the line is too narrow, keys that sort or change settings have no description."""
    found, hits = fit(lead, min(lead.cell_len, width)), []
    whole = sum(len(written) + len(label) + 3 for _, written, label in KEYS[screen]) - 2
    narrow = found.cell_len + whole > width
    for key, written, label in KEYS[screen]:
        words = " " if narrow and (key in (">", "i") or label in model.COMMANDS) else f" {label}  "
        end = found.cell_len + len(written) + len(words.rstrip())
        if end > width:
            break
        hits.append(Hit(line, found.cell_len, end, Key(key)))
        found.append(written, "bold cyan").append(words, "dim")
    found.rstrip()
    return fit(found, width), hits


NARROWEST, LOWEST = 40, 8               # columns and lines of the smallest usable terminal
MESSAGE_LINES = 4                          # most lines of a message


def draw(state: View, width: int, height: int) -> Frame:
    if width < NARROWEST or height < LOWEST:
        words = f"top needs {NARROWEST} columns and {LOWEST} lines; here are {width} and {height}. "
        words += "q quits."
        return Frame(_padded(wrapped(words, max(1, width)), width, height))
    below, hits = _bottom(state, width)
    room = height - len(below)
    found = _body(state, width, room)
    if found.last and state.screen is Screen.MAIN:
        note = f" {found.first + 1}-{found.first + found.page} of {found.last + found.page}"
        below, hits = _bottom(state, width, note)
    if state.daemon_error:
        for line in found.lines:
            line.stylize("dim")         # the snapshot drawn is outdated
    hits = [hit._replace(line=hit.line + height) for hit in hits]
    lines = (*_padded(found.lines, width, room), *below)
    return Frame(lines, (*found.hits, *hits), found.page, found.first, found.last)


def _body(state: View, width: int, height: int) -> Frame:
    if state.screen is Screen.HELP:
        lines = frame(page(width - 4), width, title=Text("Help", style="bold"))
        return _scrolled(lines, state, height)
    if state.snapshot is None:
        return Frame((fit("" if state.daemon_error else "waiting for nvshared …", width),))
    if state.opened is not None:
        return _scrolled(details(state.snapshot, state.opened, width), state, height)
    if not state.snapshot.gpus:
        return Frame((fit(Text("nvshared manages no GPU.", style="yellow"), width),
                      *faults(state.snapshot, width)))
    shown = rows(state)
    wrong = faults(state.snapshot, width)
    above = [*gpus(state.snapshot, state.past, width, max(1, height - len(wrong)),
                   len(shown) + 1 if shown else 1), *wrong]
    if not shown:
        words = "No program uses a GPU through nvshare. Start one with: nvsharectl run COMMAND"
        if state.filter:
            words = f"No program matches {state.filter!r}. Esc removes the filter."
        return Frame((*above, *wrapped(words, width)))
    visible = max(1, height - len(above) - 1)
    last = max(0, len(shown) - visible)
    first = min(last, max(state.at - visible + 1, min(state.first, state.at)))
    lines, hits = listing(state, shown, first, visible, width, len(above))
    return Frame((*above, *lines), tuple(hits), visible, first, last)


def _scrolled(lines: list[Text], state: View, height: int) -> Frame:
    last = max(0, len(lines) - height)
    first = min(last, state.scroll)
    seen = lines[first:first + height]
    if first < last and seen:
        more = f"  … {len(lines) - first - height + 1} more lines: ↓"
        seen[-1] = fit(Text(more, style="dim"), seen[-1].cell_len)
    return Frame(tuple(seen), (), height, first, last)


def _bottom(state: View, width: int, note: str = "") -> tuple[list[Text], list[Hit]]:
    """The lines at the bottom: a question, an input line, a message, or the keys with `note`.

    The field `line` of these hits is negative: -1 is the screen's last line."""
    if state.unconfirmed is not None:
        pending = f"{state.unconfirmed.question()} y/n"
        if not model.COMMANDS[state.unconfirmed.verb].prompt:
            pending += model.tab_hint(state, state.unconfirmed)
        return _message_lines(pending, width, "bold yellow"), []
    typed: list[Text] = []
    if state.in_filter:
        typed = _message_lines(f"Filter: {state.filter}▏", width, "bold")
    elif (prompt := state.prompt) is not None:
        hint = model.tab_hint(state, prompt)
        label = f"{model.target_name(prompt)}{hint}: {model.COMMANDS[prompt.verb].prompt}"
        typed = _message_lines(f"{label}: {prompt.text}▏", width, "bold")
    found = _message_lines(state.message, width, "yellow") if state.message else []
    if state.daemon_error:
        found += _message_lines(f"{state.daemon_error}. Trying again.", width, "bold red")
    if typed:
        return [*found, *typed], []
    lead = Text()
    if state.filter and state.screen is Screen.MAIN:
        lead = Text.assemble(
            ("filter ", "dim"), (state.filter, "bold yellow"), ("  Esc off  ", "dim"))
    line, hits = keys(state.screen, width - len(note), -1, lead)
    return [*found, line.append(note)], hits


def _message_lines(text: str, width: int, style: str) -> list[Text]:
    return [fit(line, width) for line in wrapped(text, width, style)[:MESSAGE_LINES]]


def _padded(lines: tuple[Text, ...] | list[Text], width: int, height: int) -> tuple[Text, ...]:
    shown = [fit(line, width) for line in lines[:height]]
    return (*shown, *(Text(" " * width) for _ in range(height - len(shown))))
