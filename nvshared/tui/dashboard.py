# SPDX-License-Identifier: Apache-2.0
"""The live view: who has each GPU, where everybody's memory lies, what moves.

    ╭─ GPU 0 H200 ─────────────────────────────────────────────────────────╮
    │ ████████████████████████████████░░░░░ 119.2 of 139.7 GiB  97%  61C   │
    │ 28 turns/min   in 9.8G/s   out 9.8G/s   1 waiting                    │
    │                                                                      │
    │ ▶ python[4711] alice running  ██████████████      70.2G    held 4.2s │
    │   python[4712] bob   waiting  ████▒▒▒▒▒▒▒▒▒▒      70.2G  waited 3.9s │
    ╰────────────────────────────────────────────── turns · auto · TQ 30s ─╯

A client's bar is as long as its memory is to the card's: solid on the card,
shaded in host memory. A pure function of the snapshot, so that anyone who has
one can show it.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from rich.box import ROUNDED
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from nvshared.control.snapshot import ClientSnapshot, GPUSnapshot, Snapshot
from nvshared.tui.arrangement import arranged
from nvshared.tui.bar import Bar, Part
from nvshared.tui.grid import Grid, Place
from nvshared.tui.quantities import duration, gibibytes, process, quantum_of, size
from nvshared.tui.rates import Rates
from nvshared.tui.tables import NARROWEST, PROCESS, STATES, Give, holder, tenant, user

_NOT_MOVING: Final[Mapping[int, Rates]] = {}
_RESIDENT, _SWAPPED = "█", "▒"
# Later ones are left out first.
_ORDER = {"idle": 2, "suspended": 2, "waiting": 1, "crowded": 1, "limited": 1}
WHO = 24                                # characters of a process,
WHOSE = 32                              # and of a tenant


def dashboard(
    snapshot: Snapshot, rates: Mapping[int, Rates] = _NOT_MOVING, height: int | None = None
) -> RenderableType:
    """Everything in a snapshot; `rates` by index of the GPU, where they are known.

    Where not all clients fit into `height` lines, those are shown that hold or want
    their GPU before those that are idle, and how many are left out. Where not even
    the frames of all GPUs fit, those have one where most goes on, and the others a line.
    """
    if not snapshot.gpus:
        return Text("nvshared manages no GPU.", style="yellow")
    shown = arranged(snapshot, height)
    parts: list[RenderableType] = [
        _gpu(snapshot, gpu, rates.get(gpu.index), most)
        for gpu, most in zip(shown.framed, shown.rooms, strict=True)
    ]
    if shown.lines:
        parts.append(_lines(snapshot, shown.lines))
    if shown.left_out:
        more = f"and {shown.left_out} more GPUs: nvsharectl status"
        parts.append(Text(more, style="dim", no_wrap=True, overflow="ellipsis"))
    return Group(*parts)


def _gpu(snapshot: Snapshot, gpu: GPUSnapshot, rates: Rates | None, most: int | None) -> Panel:
    clients = snapshot.of(gpu)
    parts: list[RenderableType] = [_memory(gpu, clients), _movement(gpu, rates)]
    if clients and (most is None or len(clients) <= most):
        parts += ["", _clients(gpu, clients)]
    elif clients and most is not None:
        shown = sorted(clients, key=lambda one: _ORDER.get(one.state, 0))[:most - 1]
        rest = f"and {len(clients) - len(shown)} more: nvsharectl clients"
        parts += ["", *([_clients(gpu, tuple(shown))] if shown else [])]
        parts.append(Text(rest, style="dim", no_wrap=True, overflow="ellipsis"))
    return Panel(
        Group(*parts),
        box=ROUNDED,
        title=Text.assemble((f"GPU {gpu.index}", "bold"), " ", gpu.name.removeprefix("NVIDIA ")),
        title_align="left",
        subtitle=Text.assemble(
            (gpu.state, STATES.get(gpu.state, "")), f" · {gpu.anti_thrash}",
            f" · TQ {quantum_of(gpu)}",
        ),
        subtitle_align="right",
        border_style="red" if gpu.state == "lost" else "bright_black",
        padding=(0, 1),
    )


def _used(gpu: GPUSnapshot, clients: tuple[ClientSnapshot, ...]) -> int:
    """How full the card is: as the driver says, or else as far as we know."""
    ours = sum(client.resident + client.pinned for client in clients)
    return gpu.outside + ours if gpu.memory_used is None else gpu.memory_used


def _memory(gpu: GPUSnapshot, clients: tuple[ClientSnapshot, ...]) -> Table:
    used = _used(gpu, clients)
    figures = [f"{gibibytes(used)} of {gibibytes(gpu.memory_total)} GiB"]
    if gpu.utilization is not None:
        figures.append(f"{gpu.utilization:.0%}")
    if gpu.temperature is not None:
        figures.append(f"{gpu.temperature:.0f}C")
    if gpu.power is not None:
        figures.append(f"{gpu.power:.0f}W")
    line = Table.grid(padding=(0, 1))
    line.add_column(ratio=1)
    line.add_column(no_wrap=True)
    line.add_row(
        Bar(gpu.memory_total, (Part(used, _RESIDENT, "green"),), rest="░"), "  ".join(figures)
    )
    return line


def _movement(gpu: GPUSnapshot, rates: Rates | None) -> Text:
    parts = [f"{gpu.turns} turns"]
    if rates is not None:
        parts = [
            f"{rates.turns * 60:.0f} turns/min",
            f"in {size(rates.bytes_in)}/s",
            f"out {size(rates.bytes_out)}/s",
        ]
    parts.append(f"{gpu.queue_length} waiting")
    if gpu.outside:
        parts.append(f"{size(gpu.outside)} outside")
    return Text("   ".join(parts), style="dim", no_wrap=True, overflow="ellipsis")


def _clients(gpu: GPUSnapshot, clients: tuple[ClientSnapshot, ...]) -> Grid:
    places = (
        Place(wide=1), Place(Give(0, PROCESS), most=WHO), Place(Give(4, NARROWEST), most=10),
        Place(Give(5, NARROWEST), most=WHOSE), Place(wide=9), Place(Give(2)),
        Place(Give(1), wide=5, right=True), Place(Give(3), wide=13, right=True),
    )
    lines: list[list[Text | Bar]] = []
    for client in clients:
        holds = client.id in gpu.holders
        time = f"waited {duration(client.waited_usec)}"
        if holds:
            time = f"held {duration(client.held_usec)}"
        bar = Bar(gpu.memory_total, (
            Part(client.resident + client.pinned, _RESIDENT, "green"),
            Part(client.swapped, _SWAPPED, "yellow"),
        ))
        lines.append([
            Text("▶" if holds else "", style="green"),
            Text(process(client), style="bold" if holds else ""),
            Text(user(client.uid), style="dim"),
            Text(tenant(client), style="dim"),      # of which there may be none at all
            Text(client.state, style=STATES.get(client.state, "")),
            bar,
            Text(size(client.allocated + client.pinned)),
            Text(time, style="dim"),
        ])
    return Grid(places, lines)


def _lines(snapshot: Snapshot, gpus: Sequence[GPUSnapshot]) -> Grid:
    """A line for each GPU that has no frame."""
    places = (
        Place(), Place(Give(5, NARROWEST), most=20), Place(Give(4)), Place(Give(2), right=True),
        Place(Give(6), wide=4, right=True), Place(wide=9), Place(Give(0, PROCESS), most=WHO),
        Place(Give(3), right=True),
    )
    lines: list[list[Text | Bar]] = []
    for gpu in gpus:
        used = _used(gpu, snapshot.of(gpu))
        lines.append([
            Text(f"GPU {gpu.index}", style="bold"),
            Text(gpu.name.removeprefix("NVIDIA ")),
            Bar(gpu.memory_total, (Part(used, _RESIDENT, "green"),), rest="░"),
            Text(f"{gibibytes(used)}/{gibibytes(gpu.memory_total)}G"),
            Text("" if gpu.utilization is None else f"{gpu.utilization:.0%}"),
            Text(gpu.state, style=STATES.get(gpu.state, "")),
            Text(holder(snapshot, gpu)),
            Text(f"{gpu.queue_length} waiting", style="dim"),
        ])
    return Grid(places, lines)
