# SPDX-License-Identifier: Apache-2.0
"""The part of the dashboard about GPUs: memory, graphs, and the waiting programs, in words."""

from collections.abc import Callable, Sequence
from itertools import zip_longest

from rich.text import Text

from nvshared.control.snapshot import ClientSnapshot, GPUSnapshot, Snapshot
from nvshared.tui import tables
from nvshared.tui.canvas import NARROWEST_BAR, WIDE, bar, fit, frame, graph, grid
from nvshared.tui.figures import duration, of_whole, process, shortened, size
from nvshared.tui.state import SPAN, Past, Rates
from nvshared.tui.tables import NARROWEST, PROCESS, STATES, Bar, Column, Part, holder, holders
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
            names = holders(snapshot, gpu) if gpu is not None else []
            return f"for the turns of {len(names)} programs to end" if len(names) > NAMED else (
                f"for {' and '.join(names) or 'its turn'}")
        case "loading":
            if client.on_disk:
                loaded, whole = max(0, client.loading - client.swapped), client.loading
                return f"for its memory, loading from disk: {size(loaded)} of {size(whole)}"
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
    if len(whole) <= width:
        return whole
    room = max(PROCESS, width - len(f" waits: {behind}"))
    return f"{shortened(name, room)} waits: {behind}"


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
PART = 3                                # on lower screens, 1/PART at most is for large graphs
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
    note = Text(f" · {gpu.anti_thrash} · TQ {tables.quantum_of(gpu)}")
    if height:
        lines.append(Text(
            waiting_sentence(snapshot, gpu, inner), style="yellow" if gpu.queue_length else "dim"))
        note.append(f" · {turns} · graphs: last {SPAN / 60:.0f} min")
    return frame(
        lines, width,
        title=Text.assemble((f"GPU {gpu.index}", "bold"), " ", gpu.name.removeprefix("NVIDIA ")),
        note=Text.assemble((gpu.state, STATES.get(gpu.state, "")), note),
        style="red" if gpu.state == "lost" else "bright_black")


def _used(gpu: GPUSnapshot, clients: Sequence[ClientSnapshot]) -> int:
    ours = sum(client.resident + client.pinned for client in clients)
    return gpu.outside + ours if gpu.memory_used is None else gpu.memory_used


def _memory(gpu: GPUSnapshot, clients: Sequence[ClientSnapshot], width: int) -> Text:
    used = _used(gpu, clients)
    figures = f" {of_whole(used, gpu.memory_total, ' of ')}iB"
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
    now: dict[str, float | None] = {"use": gpu.utilization, "waiting": gpu.queue_length}
    if past.samples and gpu.index in past.samples[-1].gpus:
        now = past.samples[-1].gpus[gpu.index]._asdict()
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
        for label, number, line in zip_longest(
                labels, numbers, graph(values[figure], most, height)):
            if line is not None:
                found.append(Text.assemble(
                    fit(label or "", LABEL), (line, style), fit(number or "", FIGURE, right=True)))
    return found


def _lines(snapshot: Snapshot, some: Sequence[GPUSnapshot], width: int) -> list[Text]:
    def used(gpu: GPUSnapshot) -> int:
        return _used(gpu, snapshot.of(gpu))

    columns = (
        Column("", lambda gpu: f"GPU {gpu.index}", style=lambda _: "bold"),
        Column("", lambda gpu: gpu.name.removeprefix("NVIDIA "), drop_rank=5, shrinks_to=NARROWEST,
               max_width=20),
        Column("", lambda gpu: Bar(
            gpu.memory_total, (Part(used(gpu), RESIDENT, "green"),), rest=EMPTY), drop_rank=4),
        Column("", lambda gpu: of_whole(used(gpu), gpu.memory_total), right=True, drop_rank=2),
        Column("", lambda gpu: "" if gpu.utilization is None else f"{gpu.utilization:.0%}",
               right=True, drop_rank=6, min_width=4),
        Column("", lambda gpu: gpu.state, style=lambda gpu: STATES.get(gpu.state, ""), min_width=9),
        Column("", lambda gpu: holder(snapshot, gpu), shrinks_to=PROCESS, max_width=PROCESS_WIDTH),
        Column("", lambda gpu: f"{gpu.queue_length} waiting", right=True, drop_rank=3,
               style=lambda _: "dim"))
    return grid(columns, some, width).lines
