# SPDX-License-Identifier: Apache-2.0
"""Figures, tables and terms as text, for all verbs of nvsharectl.

One list of columns serves both ways of drawing: in colours and cut to the
width of the terminal, or as plain text with whole values, for a pipe. rich is
imported only for the former.
"""

import pwd
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from nvshared.control.tenants import Tenant, Term
from nvshared.names import PRIORITIES, USUAL_TERMS
from nvshared.quantity import sized
from nvshared.units import GIB, MIB, MILLISECOND, SECOND

if TYPE_CHECKING:
    from rich.table import Table

    from nvshared.control.snapshot import ClientSnapshot, GPUSnapshot, Snapshot
    from nvshared.control.tenants import Tenant

_STEP = 1024.0
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def size(count: float | None) -> str:
    """Bytes as 0, 512K, 1.5M, 97.3G; "-" when unknown."""
    if count is None:
        return "-"
    if count < _STEP:
        return f"{count:.0f}"
    for unit in "KMGT":
        count /= _STEP
        # 999.5 would be printed as 1000, which is a column too wide.
        if count < 999.5 or unit == "T":
            break
    return f"{count:.1f}{unit}" if count < 99.95 else f"{count:.0f}{unit}"


def of_whole(count: int | None, whole: int, between: str = "/") -> str:
    """Bytes of so many in all, as 97.3/139.7G or 40/256M; "-" for what is unknown."""
    unit, letter, digits = (GIB, "G", 1) if whole >= GIB else (MIB, "M", 0)
    used = "-" if count is None else f"{count / unit:.{digits}f}"
    return f"{used}{between}{whole / unit:.{digits}f}{' ' if ' ' in between else ''}{letter}"


def duration(microseconds: int) -> str:
    """Time as 0s, 4.2s, 59s, 3m20s, 2h05m, 3d04h."""
    seconds = microseconds / SECOND
    whole = int(seconds)
    if seconds < 9.95:
        return f"{seconds:.1f}s" if microseconds else "0s"
    if whole < _MINUTE:
        return f"{whole}s"
    if whole < _HOUR:
        return f"{whole // _MINUTE}m{whole % _MINUTE:02}s"
    if whole < _DAY:
        return f"{whole // _HOUR}h{whole % _HOUR // _MINUTE:02}m"
    return f"{whole // _DAY}d{whole % _DAY // _HOUR:02}h"


def quantum(microseconds: int) -> str:
    """A quantum as it is set: 30s, 250ms."""
    seconds, rest = divmod(microseconds, SECOND)
    return f"{microseconds / MILLISECOND:g}ms" if rest else f"{seconds}s"


def quantum_of(gpu: "GPUSnapshot") -> str:
    """A card's: 30s, 250ms, auto, and while turns are taken auto (1.2s)."""
    if not gpu.tq_auto:
        return quantum(gpu.tq_usec)
    if gpu.state not in ("turns", "busy"):
        return "auto"
    now = gpu.tq_usec
    return f"auto ({now // MILLISECOND}ms)" if now < 995_000 else f"auto ({duration(now)})"


def process(client: "ClientSnapshot") -> str:
    """A process as the journal writes it: python[4711]."""
    return f"{client.name}[{client.pid}]"


def command(client: "ClientSnapshot") -> str:
    """The command line without the folders of its program."""
    program, blank, rest = client.command.partition(" ")
    return (program.rpartition("/")[2] or program) + blank + rest


WIDE = 100                              # columns of a terminal from which there is room to spare
UNLIMITED = USUAL_TERMS["compute-limit"]
USUAL_WEIGHT = USUAL_TERMS["weight"]
LONG_ID, SHORT_ID = 32, 12              # digits of a pod's or container's, and as shown
NARROWEST = 4                           # characters that most flexible columns keep
PROCESS = 11                            # of a process: p…[4194304]

STATES = {
    "running": "green", "loading": "cyan", "waiting": "yellow", "draining": "magenta",
    "evicting": "magenta", "suspended": "red", "limited": "yellow", "idle": "dim", "turns": "green",
    "shared": "green", "busy": "green", "gathering": "yellow", "lost": "bold red", "crowded": "red",
}


class Give(NamedTuple):
    """How a column gives way when the terminal is narrow."""

    rank: int = 0                       # those of the highest rank are left out first; 0: never
    least: int | None = None            # characters to cut it to; None: it is whole, or left out


class Column(NamedTuple):
    """A heading and how a cell is made from a row."""

    name: str
    cell: Callable[[Any], str]
    right: bool = False
    give: Give = Give()
    style: Callable[[Any], str] = lambda _row: ""
    short: str = ""                     # the heading where there is little room


@cache
def user(uid: int) -> str:
    """A user's name, or the number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def shortened(text: str, width: int) -> str:
    """Cut to `width` characters at the end, but for a process, which keeps its number."""
    if len(text) <= width:
        return text
    name, bracket, number = text.partition("[")
    kept = width - len(number) - 2
    if not bracket or not number.endswith("]") or kept < 1:
        return text[:max(0, width - 1)] + "…"
    return f"{name[:kept]}…[{number}"


def holder(snapshot: "Snapshot", gpu: "GPUSnapshot") -> str:
    """Who has the card: one process, or how many."""
    names = [process(client) for client in snapshot.clients if client.id in gpu.holders]
    match len(names):
        case 0:
            return "-"
        case 1:
            return names[0]
        case many:
            return f"{many} programs"


def gpu_columns(snapshot: "Snapshot") -> list[Column]:
    """What nvidia-smi shows, in its order, then what only we know."""
    return [
        Column("GPU", lambda gpu: str(gpu.index), right=True),
        Column("Name", lambda gpu: gpu.name.removeprefix("NVIDIA "), give=Give(3, NARROWEST)),
        Column("Temp", lambda gpu: _or_dash(gpu.temperature, "{:.0f}C"), right=True, give=Give(6)),
        Column("Power", lambda gpu: _or_dash(gpu.power, "{:.0f}W"), right=True, give=Give(7)),
        Column("Memory-Usage", lambda gpu: of_whole(gpu.memory_used, gpu.memory_total), right=True,
               give=Give(1)),
        Column("GPU-Util", lambda gpu: _or_dash(gpu.utilization, "{:.0%}"), right=True,
               short="Util", give=Give(4)),
        Column("TQ", quantum_of, right=True, give=Give(2)),
        Column("Mode", lambda gpu: gpu.anti_thrash, give=Give(5)),
        Column("Holder", lambda gpu: "lost" if gpu.state == "lost" else holder(snapshot, gpu),
               give=Give(0, PROCESS), style=lambda gpu: STATES.get(gpu.state, "")),
        Column("Queue", lambda gpu: str(gpu.queue_length), right=True, give=Give(1)),
    ]


CLIENTS = [
    Column("GPU", lambda client: str(client.gpu), right=True),
    Column("PID", lambda client: str(client.pid), right=True),
    Column("USER", lambda client: user(client.uid), give=Give(5, NARROWEST)),
    Column("MEM", lambda client: size(client.allocated + client.pinned), right=True, give=Give(1)),
    Column("RESIDENT", lambda client: size(client.resident + client.pinned), right=True,
           give=Give(4)),
    # The difference of the two before, nearly: the first that can be spared.
    Column("SWAPPED", lambda client: size(client.swapped), right=True, give=Give(8)),
    Column("STATE", lambda client: client.state, style=lambda client: STATES.get(client.state, "")),
    Column("HELD", lambda client: duration(client.held_usec), right=True, give=Give(6)),
    Column("WAITED", lambda client: duration(client.waited_usec), right=True, give=Give(7)),
    Column("COMMAND", command, give=Give(2, len("COMMAND"))),
]


def tenant(client: "ClientSnapshot") -> str:
    """Whose it is, if that is more than its user."""
    kind = client.tenant.partition(":")[0]
    return "" if kind in ("user", "") else short_tenant(client.tenant)


def short_tenant(name: str) -> str:
    """A tenant's name, with as much of an id as people look at."""
    before, mark, id = name.rpartition("/" if "/" in name else ":")
    long = len(id) >= LONG_ID and set(id) <= set("0123456789abcdef-")
    return f"{before}{mark}{id[:SHORT_ID] if long else id}"


_TENANT = Column("TENANT", lambda client: tenant(client) or "-", give=Give(4, NARROWEST))
_IDLE = Column("IDLE", lambda client: duration(client.idle_usec) if client.idle_usec else "-",
               right=True, give=Give(6))
_GANG = Column("GANG", lambda client: short_tenant(client.gang) or "-", give=Give(5, NARROWEST))
_STAYS = Column("STAYS", lambda client: client.stays or "-", give=Give(3))
_LIMITS = Column("LIMITS", lambda client: limits(client) or "-", give=Give(3))


def client_columns(clients: Iterable["ClientSnapshot"]) -> list[Column]:
    """CLIENTS, and what else there is to say of one of them: whose it is, what is set for it."""
    more = {
        _IDLE: any(client.idle_usec for client in clients),
        _TENANT: any(tenant(client) for client in clients),
        _GANG: any(client.gang for client in clients),
        _STAYS: any(client.stays for client in clients),
        _LIMITS: any(limits(client) for client in clients),
    }
    return [*CLIENTS[:-1], *(column for column in more if more[column]), CLIENTS[-1]]


def limits(client: "ClientSnapshot") -> str:
    """What is set for a program, as in 20.0G,50%,w200; empty where nothing is."""
    return _limits(client.memory_limit, client.compute_limit, client.weight)


def _limits(
    memory: int, compute: int, weight: int, host: int = 0, request: int = 0,
    priority: int = USUAL_TERMS["priority"], suspended: int = 0,
) -> str:
    parts = []
    if memory:
        parts.append(size(memory))
    if host:
        parts.append(f"h{size(host)}")
    if compute < UNLIMITED:
        parts.append(f"{compute}%")
    if request:
        parts.append(f"r{request}%")
    if weight != USUAL_WEIGHT:
        parts.append(f"w{weight}")
    if priority != USUAL_TERMS["priority"]:
        parts.append(named(priority))
    if suspended:
        parts.append("suspended")
    return ",".join(parts)


def named(priority: int) -> str:
    """As people write it."""
    return next((name for name, value in PRIORITIES.items() if value == priority), "?")


def sources(tenant: "Tenant") -> str:
    """Where the terms of a tenant that hold come from, each source once."""
    found = {"rule" if term.rule else term.place or "hand" for term in tenant.terms
             if term is tenant.holding(term.name)}
    return ",".join(sorted(found))


TENANT_COLUMNS = [
    Column("TENANT", lambda tenant: tenant.name, give=Give(0, 2 * PROCESS)),
    Column("PROGRAMS", lambda tenant: str(tenant.programs), right=True, short="PROGS",
           give=Give(3)),
    Column("MEM", lambda tenant: size(tenant.allocated + tenant.pinned), right=True),
    Column("RESIDENT", lambda tenant: size(tenant.resident + tenant.pinned), right=True,
           give=Give(5)),
    Column("HELD", lambda tenant: duration(tenant.held_usec), right=True, give=Give(4)),
    Column("LIMITS", lambda tenant: _limits(
        tenant.value("memory-limit"), tenant.value("compute-limit"), tenant.value("weight"),
        tenant.value("host-memory-limit"), tenant.value("compute-request"),
        tenant.value("priority"), tenant.value("suspended")) or "-"),
    Column("FROM", lambda tenant: sources(tenant) or "-", give=Give(6)),
]


def plain(columns: list[Column], rows: Iterable[Any]) -> str:
    """Lines of text; nothing is cut off, and a blank separates what an `awk` might want."""
    lines = [[column.name for column in columns]]
    lines += [[column.cell(row) for column in columns] for row in rows]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(cells, widths, columns, strict=True)
        ).rstrip()
        for cells in lines
    )


def table(columns: list[Column], rows: Iterable[Any], width: int) -> "Table":
    """A table for a terminal of this width; what is too wide is cut, or left out, by columns."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    narrow = width < WIDE
    gap = 1 if narrow else 2
    names = [column.short if narrow and column.short else column.name for column in columns]
    cells = [[(column.cell(row), column.style(row)) for column in columns] for row in rows]
    natural = [
        max([len(name), *(len(line[at][0]) for line in cells)]) for at, name in enumerate(names)
    ]
    drawn = Table(
        box=box.SIMPLE_HEAD, header_style="bold", show_edge=False, pad_edge=False,
        padding=(0, gap - 1, 0, 0),     # the box has a blank of its own between columns
    )
    widths = fitted([column.give for column in columns], natural, width, gap)
    for column, name, wide in zip(columns, names, widths, strict=True):
        if wide:
            drawn.add_column(
                name, justify="right" if column.right else "left", width=wide,
                no_wrap=True, overflow="ellipsis",
            )
    for line in cells:
        drawn.add_row(*(
            Text(shortened(text, wide), style=style)
            for (text, style), wide in zip(line, widths, strict=True) if wide
        ))
    return drawn


def fitted(gives: Sequence[Give], natural: Sequence[int], width: int, gap: int) -> list[int]:
    """Widths of columns that fit into `width` with `gap` between them, as far as they give way.

    The widest of those that can be cut is cut first. Where that is not enough, the column
    of the highest rank is left out: its width is 0.
    """
    there = {at for at, wide in enumerate(natural) if wide}
    while True:
        widths = [wide if at in there else 0 for at, wide in enumerate(natural)]
        excess = sum(widths) + gap * (len(there) - 1) - width
        while excess > 0:
            least = {at: gives[at].least for at in there}
            able = [at for at, few in least.items() if few is not None and widths[at] > few]
            if not able:
                break
            widths[max(able, key=lambda at: (widths[at], -at))] -= 1
            excess -= 1
        spare = [at for at in there if gives[at].rank]
        if excess <= 0 or not spare:
            return widths
        there.remove(max(spare, key=lambda at: (gives[at].rank, at)))


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def term_value(term: Term) -> str:
    """What is set."""
    if term.name in ("memory-limit", "host-memory-limit"):
        return sized(term.value) if term.value else "no limit"
    if term.name == "priority":
        return named(term.value)
    if term.name == "suspended":
        return "yes" if term.value else "no"
    if term.name == "compute-request":
        return f"{term.value} %" if term.value else "none"
    if term.name == "compute-limit":
        return f"{term.value} %" if term.value < USUAL_TERMS[term.name] else "no limit"
    return str(term.value)


def term_source(term: Term) -> str:
    """Where it comes from."""
    if term.rule:
        return f"[tenant {term.rule}] in {term.place}"
    return f"set by {term.place or 'hand'}"


TERMS = [
    Column("TERM", lambda term: term.name),
    Column("VALUE", term_value, right=True),
    Column("FROM", term_source),
]


def term_sentence(tenant: Tenant, term: str) -> str:
    """What holds for a tenant now, and which rule says so."""
    holds = tenant.holding(term)
    because = f", as {term_source(holds)} says" if holds is not None and holds.rule else ""
    return f"{_SENTENCES[term](tenant.name, tenant.value(term))}{because}."


def tighter_limit(outer: Tenant, term: str) -> str:
    """That a limit of a tenant around it is tighter."""
    return f"A tighter limit holds: {term_sentence(outer, term)}"


def _memory(name: str, limit: int) -> str:
    what = sized(limit) if limit else "as much as there is"
    return f"The programs of {name} together may allocate {what} on each GPU"


def _host(name: str, limit: int) -> str:
    what = sized(limit) if limit else "as much as there is"
    return f"The programs of {name} together may need {what} of host memory for what may leave GPUs"


def _compute(name: str, limit: int) -> str:
    what = f"at most {limit} % of the time"
    if limit == USUAL_TERMS["compute-limit"]:
        what = "all of the time that others leave them"
    return f"The programs of {name} together may use each GPU {what}"


def _request(name: str, percent: int) -> str:
    what = "what their weight gives them of the time"
    if percent:
        what = f"{percent} % of the time of each GPU, whenever they want it"
    return f"The programs of {name} together get {what}"


_SENTENCES: dict[str, Callable[[str, int], str]] = {
    "memory-limit": _memory,
    "host-memory-limit": _host,
    "compute-limit": _compute,
    "compute-request": _request,
    "priority": lambda name, priority: f"The priority of {name} is {named(priority)}",
    "weight": lambda name, weight: f"The weight of {name} is {weight}",
    "suspended": lambda name, on: f"The programs of {name} are {'' if on else 'not '}suspended",
}
