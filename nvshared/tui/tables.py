# SPDX-License-Identifier: Apache-2.0
"""Writes the daemon's data as short text, sentences, columns and plain tables.

This module does not import rich, so that plain output starts faster."""

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from nvshared import names
from nvshared.control.snapshot import ClientSnapshot, GPUSnapshot, SetTerm, Snapshot, TenantSnapshot
from nvshared.quantity import brief, timed
from nvshared.terms import TERMS
from nvshared.tiers import TIERS
from nvshared.units import GIB, MIB, MILLISECOND, SECOND

size = brief
LONG_ID, SHORT_ID = 32, 12              # an id of at least LONG_ID digits is cut to SHORT_ID


def of_whole(count: int | None, whole: int, between: str = "/") -> str:
    """`count` of `whole` bytes, as 97.3/139.7G or 40/256M; "-": `count` is unknown."""
    unit, letter, digits = (GIB, "G", 1) if whole >= GIB else (MIB, "M", 0)
    used = "-" if count is None else f"{count / unit:.{digits}f}"
    return f"{used}{between}{whole / unit:.{digits}f}{' ' if ' ' in between else ''}{letter}"


def duration(microseconds: int) -> str:
    """A duration as 0s, 4.2s, 59s, 3m20s, 2h05m, 3d04h."""
    seconds = microseconds / SECOND
    whole = int(seconds)
    if seconds < 9.95:
        return f"{seconds:.1f}s" if microseconds else "0s"
    for unit, letter, part, part_letter in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"),
                                            (60, "m", 1, "s")):
        if whole >= unit:
            return f"{whole // unit}{letter}{whole % unit // part:02}{part_letter}"
    return f"{whole}s"


def short_tenant(name: str) -> str:
    before, mark, id = name.rpartition("/" if "/" in name else ":")
    long = len(id) >= LONG_ID and set(id) <= set("0123456789abcdef-")
    return f"{before}{mark}{id[:SHORT_ID] if long else id}"


def shortened(text: str, width: int) -> str:
    """Cuts `text` at its end to `width` columns of a terminal. A process keeps its [pid]."""
    cells = len(text)
    if not text.isascii():              # a character may take two columns, or none
        from rich.cells import cell_len, set_cell_size

        cells = cell_len(text)
    if cells <= width:
        return text
    name, bracket, number = text.rpartition("[")
    kept = width - len(number) - 2
    if not bracket or not number.endswith("]") or kept < 1:
        name, bracket, number, kept = text, "", "", max(0, width - 1)
    name = name[:kept] if name.isascii() else set_cell_size(name, kept)
    return f"{name}…{bracket}{number}"


def process(client: ClientSnapshot) -> str:
    """A process as the journal writes it: python[4711]."""
    return f"{client.name}[{client.pid}]"


def command(client: ClientSnapshot) -> str:
    """The command without its program's folder. A name that the program chose may have slashes."""
    if client.name and client.command.startswith(client.name):
        return client.command
    program, blank, rest = client.command.partition(" ")
    return (program.rpartition("/")[2] or program) + blank + rest


PATIENCE = 0.5                          # seconds for the name of a user


class _Users:
    """Names of users. One that the directory of users does not tell in time is shown by number."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {}
        self._asked: dict[int, threading.Thread] = {}
        self._is_slow = False

    def __call__(self, uid: int) -> str:
        if uid not in self._asked:
            # A daemon thread, so that the process can end before the directory replies.
            self._asked[uid] = threading.Thread(target=self._ask, args=(uid,), daemon=True)
            self._asked[uid].start()
            self._asked[uid].join(0 if self._is_slow else PATIENCE)
            self._is_slow = self._is_slow or uid not in self._known
        return self._known.get(uid, str(uid))

    def _ask(self, uid: int) -> None:
        self._known[uid] = names.user(uid)


user = _Users()


def limits(values: Mapping[str, int]) -> str:
    """Terms for the column LIMITS: 20.0G,50%,w200; "" if all have their usual values."""
    return ",".join(
        term.prefix + term.unit.short(values[name]) for name, term in TERMS.items()
        if values.get(name, term.default) != term.default)


def program_limits(client: ClientSnapshot) -> str:
    """The program's terms for the column LIMITS, without `suspended`, which STATE shows."""
    return limits({**client.terms, "suspended": 0})


def tenant_limits(tenant: TenantSnapshot) -> str:
    return limits({name: tenant.value(name) for name in TERMS})


def sources(tenant: TenantSnapshot) -> str:
    """The sources of the terms in force for a tenant, for the column FROM."""
    found = {"rule" if term.rule else term.place or "hand" for term in tenant.terms
             if term is tenant.holding(term.name)}
    return ",".join(sorted(found))


def term_source(term: SetTerm) -> str:
    """Where the term was set: a rule, or by hand, pod or job."""
    if term.rule:
        return f"[tenant {term.rule}] in {term.place}"
    return f"set by {term.place or 'hand'}"


def program_sentence(name: str, term: str, value: int, gpu: str | int | None) -> str:
    """A sentence about a program's term on the GPU `gpu`; None: on all GPUs that it uses."""
    meaning = TERMS[term]
    place = "" if gpu is None else f" on GPU {gpu}"
    return (meaning.of_client or "").format(name=name, value=meaning.in_words(value), on=place,
                                            gpu="the GPU" if gpu is None else f"GPU {gpu}") + "."


def term_sentence(tenant: TenantSnapshot, term: str) -> str:
    """A sentence with the value in force of a tenant's term, and the rule, if any, that set it."""
    holds, meaning = tenant.holding(term), TERMS[term]
    because = f", as {term_source(holds)} says" if holds is not None and holds.rule else ""
    text = meaning.in_words(tenant.value(term))
    return meaning.of_tenant.format(name=tenant.name, value=text) + because + "."


def quantum_of(gpu: GPUSnapshot) -> str:
    """The quantum of a card: 30s, 250ms, auto; while clients take turns, auto with its value."""
    if not gpu.tq_auto:
        return timed(gpu.tq_usec)
    if gpu.state not in ("turns", "busy"):
        return "auto"
    now = gpu.tq_usec
    return f"auto ({now // MILLISECOND}ms)" if now < 995_000 else f"auto ({duration(now)})"


def mode_of(gpu: GPUSnapshot) -> str:
    """The anti-thrash mode of a card, and its policy, if that is not fair: auto; auto, fifo."""
    return gpu.anti_thrash if gpu.policy == "fair" else f"{gpu.anti_thrash}, {gpu.policy}"


NARROWEST = 4                           # least characters to which most columns can be shortened
PROCESS = 11                            # characters that a column of processes keeps: p…[4194304]

STATES = {
    "running": "green", "loading": "cyan", "waiting": "yellow", "draining": "magenta",
    "evicting": "magenta", "suspended": "red", "limited": "yellow", "idle": "dim", "parked": "dim",
    "saving": "magenta", "parking": "magenta", "restoring": "cyan", "turns": "green",
    "shared": "green", "busy": "green", "gathering": "yellow", "lost": "bold red", "crowded": "red",
}


class Part(NamedTuple):
    """A part of a bar. Parts differ by their character, since the terminal may have no colours."""

    amount: int
    character: str
    style: str


class Bar(NamedTuple):
    """Parts of a whole. Parts that exceed the whole are not drawn."""

    whole: int
    parts: tuple[Part, ...]
    rest: str = " "                     # character for the remainder of the whole

    def characters(self, width: int) -> list[int]:
        """How many of `width` characters each part gets; at least 1 unless its amount is 0."""
        found: list[int] = []
        reached, drawn = 0, 0
        for part in self.parts:
            reached += part.amount
            end = min(width, round(width * reached / max(1, self.whole)))
            count = max(end - drawn, 1 if part.amount else 0)
            found.append(min(count, width - drawn))
            drawn += found[-1]
        return found


class Column(NamedTuple):
    """A column: its heading, and how its cells are made. Tables show an empty cell as "-"."""

    name: str
    cell: Callable[[Any], str | Bar]
    right: bool = False
    drop_rank: int = 0                  # a column with a higher rank is dropped earlier; 0: never
    shrinks_to: int | None = None       # shortest width, in characters; None: never shortened
    style: Callable[[Any], str] = lambda _row: ""
    short: str = ""                     # the heading on a narrow terminal
    min_width: int = 0                  # least width in characters, unless the column is shortened
    max_width: int = 1 << 30            # most characters of the column
    # A table has the column only if this function is true of at least one row; None: always.
    shown_if: Callable[[Any], object] | None = None
    sort: Callable[[Any], Any] | None = None        # the key by which the dashboard sorts
    descending: bool = False            # whether `sort` puts the largest key first


def figure(name: str, value: Callable[[Any], Any], form: Callable[[Any], str] = str, *,
           optional: bool = False, **more: Any) -> Column:
    """A column of figures, the largest first; `optional`: not shown if all are 0."""
    return Column(name, lambda row: form(value(row)), right=True, sort=value, descending=True,
                  shown_if=value if optional else None, **more)


def chosen(columns: Sequence[Column], rows: Sequence[Any]) -> list[Column]:
    return [one for one in columns if one.shown_if is None or any(map(one.shown_if, rows))]


def holders(snapshot: Snapshot, gpu: GPUSnapshot) -> list[str]:
    return [process(client) for client in snapshot.clients if client.id in gpu.holders]


def holder(snapshot: Snapshot, gpu: GPUSnapshot) -> str:
    """The name of the program that holds the card, or the number of holders; "-": none."""
    names = holders(snapshot, gpu)
    return f"{len(names)} programs" if len(names) > 1 else "".join(names) or "-"


def _or_dash(form: str, value: float | None) -> str:
    return "-" if value is None else form.format(value)


def gpu_columns(snapshot: Snapshot) -> list[Column]:
    """The columns of GPUs: those of nvidia-smi, in its order, then nvshared's own."""
    return [
        Column("GPU", lambda gpu: str(gpu.index), right=True),
        Column("Name", lambda gpu: gpu.name.removeprefix("NVIDIA "), drop_rank=3,
               shrinks_to=NARROWEST),
        figure("Temp", lambda gpu: gpu.temperature, partial(_or_dash, "{:.0f}C"), drop_rank=6),
        figure("Power", lambda gpu: gpu.power, partial(_or_dash, "{:.0f}W"), drop_rank=7),
        Column("Memory-Usage", lambda gpu: of_whole(gpu.memory_used, gpu.memory_total),
               right=True, drop_rank=1),
        figure("Lent", lambda gpu: gpu.lent, size, optional=True, drop_rank=4),
        figure("GPU-Util", lambda gpu: gpu.utilization, partial(_or_dash, "{:.0%}"), short="Util",
               drop_rank=4),
        Column("TQ", quantum_of, right=True, drop_rank=2),
        Column("Mode", mode_of, drop_rank=5),
        Column("Holder", lambda gpu: "lost" if gpu.state == "lost" else holder(snapshot, gpu),
               shrinks_to=PROCESS, style=lambda gpu: STATES.get(gpu.state, "")),
        figure("Queue", lambda gpu: gpu.queue_length, drop_rank=1)]


UNSHARED = "unshared"                   # the state of a program that uses a GPU without nvshare
# By state, the first sort key of a GPU's clients; 2 for the other states, in which clients wait.
_RANKS = {"running": 0, "draining": 0, "loading": 1, "idle": 3, "suspended": 4, "parked": 4,
          UNSHARED: 5}


def age(client: ClientSnapshot) -> tuple[int, bool, int]:
    """Sort key: by GPU, unshared programs last, the others in the order of their ids."""
    return client.gpu, client.state == UNSHARED, client.id


def tenant(client: ClientSnapshot) -> str:
    """The client's tenant, shortened; "" if the tenant is its user."""
    kind = client.tenant.partition(":")[0]
    return "" if kind in ("user", "") else short_tenant(client.tenant)


def _in_tier(name: str, client: ClientSnapshot) -> int:
    held: int = client.tiers.get(name, 0)
    return held


def _time(usec: int) -> str:
    return duration(usec) if usec else ""


# Columns of clients, for `status`, `clients` and the dashboard, for which LAYOUT changes widths.
CLIENT = {one.name: one for one in (
    Column("GPU", lambda client: str(client.gpu), right=True, sort=age),
    Column("PID", lambda client: str(client.pid or "?"), right=True, sort=lambda one: one.pid),
    Column("USER", lambda client: user(client.uid), drop_rank=5, shrinks_to=NARROWEST,
           sort=lambda client: user(client.uid)),
    figure("MEM", lambda client: client.allocated + client.pinned, size, drop_rank=1),
    figure("RESIDENT", lambda client: client.resident + client.pinned, size, drop_rank=4),
    # Left out first: a reader can estimate SWAPPED as MEM minus RESIDENT.
    figure("SWAPPED", lambda client: client.swapped, size, drop_rank=8),
    Column("STATE", lambda client: client.state, style=lambda client: STATES.get(client.state, ""),
           sort=lambda one: (one.gpu, _RANKS.get(one.state, 2), one.position, one.id)),
    Column("HELD", lambda client: "" if client.state == UNSHARED else duration(client.held_usec),
           right=True, drop_rank=6, sort=lambda client: client.held_usec, descending=True),
    figure("WAITED", lambda client: client.waited_usec, duration, drop_rank=7),
    figure("WAITS", lambda client: client.waiting_usec, _time, drop_rank=2),
    Column("LEFT", lambda client: "" if not client.waiting_usec else "?" if
           client.expected_usec is None else f"~{duration(client.expected_usec)}",
           right=True, drop_rank=2, descending=True,
           sort=lambda client: (client.expected_usec is None, client.expected_usec or 0)),
    *(figure(tier.column, partial(_in_tier, tier.name), size, optional=True, drop_rank=7)
      for tier in TIERS if tier.column),
    figure("IDLE", lambda client: client.idle_usec, _time, optional=True, drop_rank=6),
    Column("TENANT", tenant, drop_rank=4, shrinks_to=NARROWEST, shown_if=tenant, sort=tenant),
    Column("GANG", lambda client: short_tenant(client.gang), drop_rank=5, shrinks_to=NARROWEST,
           shown_if=lambda client: client.gang),
    Column("PIN-REASON", lambda client: client.pin_reason, drop_rank=3,
           shown_if=lambda client: client.pin_reason),
    Column("LIMITS", program_limits, drop_rank=3, shown_if=program_limits, sort=program_limits,
           descending=True),
    Column("COMMAND", command, drop_rank=2, shrinks_to=len("COMMAND"),
           sort=command),
)}
CLIENTS = [one for name, one in CLIENT.items() if name not in ("WAITS", "LEFT")]
# Changes of CLIENT for the dashboard: minimum widths that fit all values, so columns do not move.
LAYOUT: dict[str, dict[str, Any]] = {
    "GPU": {"drop_rank": 3}, "PID": {"min_width": 7},
    "USER": {"drop_rank": 4, "min_width": 8, "max_width": 16},
    "TENANT": {"drop_rank": 8, "shrinks_to": NARROWEST, "min_width": 12, "max_width": 32},
    "STATE": {"min_width": 9}, "": {}, "MEM": {"min_width": 5, "drop_rank": 0},
    "RESIDENT": {"drop_rank": 9}, "HELD": {"min_width": 6}, "WAITS": {"min_width": 6},
    "LEFT": {"min_width": 6}, "IDLE": {"drop_rank": 7, "min_width": 6},
    "LIMITS": {"drop_rank": 7, "min_width": 8}, "COMMAND": {},
}
SORTS = [name for name in LAYOUT if name]

TENANT_COLUMNS = [
    Column("TENANT", lambda tenant: tenant.name, shrinks_to=2 * PROCESS),
    figure("PROGRAMS", lambda tenant: tenant.programs, short="PROGS", drop_rank=3),
    figure("MEM", lambda tenant: tenant.allocated + tenant.pinned, size),
    figure("RESIDENT", lambda tenant: tenant.resident + tenant.pinned, size, drop_rank=5),
    figure("HELD", lambda tenant: tenant.held_usec, duration, drop_rank=4),
    Column("LIMITS", tenant_limits),
    Column("FROM", sources, drop_rank=6),
]


def plain(columns: Sequence[Column], rows: Sequence[Any]) -> str:
    """Lines of text for scripts: no cell is shortened, and blanks separate the columns."""
    columns = chosen(columns, rows)
    lines = [[column.name for column in columns]]
    lines += [[str(column.cell(row) or "-") for column in columns] for row in rows]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(cells, widths, columns, strict=True)).rstrip()
        for cells in lines)


def fitted(columns: Sequence[Column], natural: Sequence[int], width: int, gap: int) -> list[int]:
    """Widths of columns, so that the line with `gap` blanks between them fits into `width`.

    The widest column that may be shortened is shortened first, down to `shrinks_to`. Then the
    column with the highest `drop_rank` is left out (width 0). The line is too long if none can be
    left out."""
    there = {at for at, wide in enumerate(natural) if wide}
    while True:
        widths = [wide if at in there else 0 for at, wide in enumerate(natural)]
        excess = sum(widths) + gap * (len(there) - 1) - width
        while excess > 0:
            least = {at: columns[at].shrinks_to for at in there}
            able = [at for at, few in least.items() if few is not None and widths[at] > few]
            if not able:
                break
            widths[max(able, key=lambda at: (widths[at], -at))] -= 1
            excess -= 1
        spare = [at for at in there if columns[at].drop_rank]
        if excess <= 0 or not spare:
            return widths
        there.remove(max(spare, key=lambda at: (columns[at].drop_rank, at)))


TERM_COLUMNS = [
    Column("TERM", lambda term: term.name),
    Column("VALUE", lambda term: TERMS[term.name].value(term.value), right=True),
    Column("FROM", term_source),
]
