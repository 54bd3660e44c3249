# SPDX-License-Identifier: Apache-2.0
"""Writes bytes, times and names as short text, terms for tables and sentences; parses terms."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple

from nvshared import names
from nvshared.control.snapshot import ClientSnapshot, Tenant, Term
from nvshared.names import PRIORITIES, USUAL_TERMS
from nvshared.quantity import OFF, limit, limit_or_off, share, sized, weight
from nvshared.units import GIB, MIB, MILLISECOND, SECOND

LONG_ID, SHORT_ID = 32, 12              # an id of at least LONG_ID digits is cut to SHORT_ID


def size(count: float | None) -> str:
    """Bytes as 0, 512K, 1.5M, 97.3G; "-" when unknown."""
    if count is None:
        return "-"
    if count < 1024:
        return f"{count:.0f}"
    for unit in "KMGT":
        count /= 1024
        # 999.5 would be printed as 1000, one digit more than smaller figures.
        if count < 999.5 or unit == "T":
            break
    return f"{count:.1f}{unit}" if count < 99.95 else f"{count:.0f}{unit}"


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


def quantum(microseconds: int) -> str:
    """A quantum in the form that set-tq accepts: 30s, 250ms."""
    seconds, rest = divmod(microseconds, SECOND)
    return f"{microseconds / MILLISECOND:g}ms" if rest else f"{seconds}s"


def short_tenant(name: str) -> str:
    before, mark, id = name.rpartition("/" if "/" in name else ":")
    long = len(id) >= LONG_ID and set(id) <= set("0123456789abcdef-")
    return f"{before}{mark}{id[:SHORT_ID] if long else id}"


def shortened(text: str, width: int) -> str:
    """Cuts `text` to `width` characters at its end. The name of a process keeps its [pid]."""
    if len(text) <= width:
        return text
    name, bracket, number = text.partition("[")
    kept = width - len(number) - 2
    if not bracket or not number.endswith("]") or kept < 1:
        return text[:max(0, width - 1)] + "…"
    return f"{name[:kept]}…[{number}"


def process(client: ClientSnapshot) -> str:
    """A process as the journal writes it: python[4711]."""
    return f"{client.name}[{client.pid}]"


def command(client: ClientSnapshot) -> str:
    program, blank, rest = client.command.partition(" ")
    return (program.rpartition("/")[2] or program) + blank + rest


UNLIMITED = USUAL_TERMS["compute-limit"]
user = cache(names.user)


class TermFormat(NamedTuple):
    """How a term is parsed and formatted. The keys of TERM_FORMATS are the terms' D-Bus names."""

    parse: Callable[[str], int]         # raises ValueError with a message that names valid values
    value: Callable[[int], str]         # for the table of terms
    short: Callable[[int], str]         # for the column LIMITS, which omits default values
    words: Callable[[int], str]         # for {value} in `of_tenant` and `of_program`
    of_tenant: str                      # format string of a sentence, without the full stop
    of_program: str = ""                # "": a program has no such term


def _sized_or(unlimited: str) -> Callable[[int], str]:
    return lambda limit: sized(limit) if limit else unlimited


_memory, _limit = _sized_or("any amount"), _sized_or("no limit")


def _priority(value: int) -> str:
    return next((name for name, known in PRIORITIES.items() if known == value), "?")


TERM_FORMATS: dict[str, TermFormat] = {
    "memory-limit": TermFormat(limit, _limit, size, _memory,
                               "The programs of {name} together may allocate {value} on each GPU",
                               "{name} may allocate {value}{on}"),
    "host-memory-limit": TermFormat(
        limit, _limit, lambda limit: f"h{size(limit)}", _memory,
        "The programs of {name} together may need {value} of host memory for eviction"),
    "disk-limit": TermFormat(
        limit, _limit, lambda limit: f"d{size(limit)}", _memory,
        "The programs of {name} together may have {value} of swapped memory on the disk"),
    "neighbour-limit": TermFormat(
        limit_or_off, lambda limit: "off" if limit == OFF else _limit(limit),
        lambda limit: "n off" if limit == OFF else f"n{size(limit)}",
        lambda limit: "nothing" if limit == OFF else _memory(limit),
        "The programs of {name} together may borrow {value} of other GPUs' memory for each GPU"),
    "compute-limit": TermFormat(
        share, lambda percent: f"{percent} %" if percent < UNLIMITED else "no limit",
        lambda percent: f"{percent}%",
        lambda percent: f"at most {percent} % of the time" if percent < UNLIMITED else
        "all of the time that other programs leave",
        "The programs of {name} together may use each GPU {value}", "{name} may use {gpu} {value}"),
    "compute-request": TermFormat(
        share, lambda percent: f"{percent} %" if percent else "none",
        lambda percent: f"r{percent}%",
        lambda percent: f"{percent} % of the time of each GPU, whenever they want it" if percent
        else "the share of the time that their weight gives them",
        "The programs of {name} together get {value}"),
    "weight": TermFormat(weight, str, lambda weight: f"w{weight}", str,
                         "The weight of {name} is {value}", "The weight of {name}{on} is {value}"),
    "priority": TermFormat(PRIORITIES.__getitem__, _priority, _priority, _priority,
                           "The priority of {name} is {value}"),
    "suspended": TermFormat(int, lambda on: "yes" if on else "no", lambda _on: "suspended",
                            lambda on: "suspended" if on else "no longer suspended",
                            "The programs of {name} are {value}", "{name} is {value}{on}"),
    "unshared": TermFormat(int, lambda on: "checkpoint" if on else "no", lambda _on: "checkpoint",
                           lambda on: "take turns by checkpoints" if on else "are left alone",
                           "Programs of {name} without libnvshare.so {value}"),
}


def limits(values: Mapping[str, int]) -> str:
    """Terms for the column LIMITS: 20.0G,50%,w200; "" if all have their usual values."""
    return ",".join(
        meaning.short(values[name]) for name, meaning in TERM_FORMATS.items()
        if name in values and values[name] != USUAL_TERMS[name])


def program_terms(client: ClientSnapshot) -> dict[str, int]:
    """The program's own terms; terms that are not set have their usual values."""
    return {
        "memory-limit": client.memory_limit, "compute-limit": client.compute_limit,
        "weight": client.weight, "suspended": client.suspended}


def program_limits(client: ClientSnapshot) -> str:
    """The program's terms for the column LIMITS, without `suspended`, which STATE shows."""
    return limits(program_terms(client) | {"suspended": 0})


def tenant_limits(tenant: Tenant) -> str:
    return limits({name: tenant.value(name) for name in TERM_FORMATS})


def sources(tenant: Tenant) -> str:
    """The sources of the terms in force for a tenant, for the column FROM."""
    found = {"rule" if term.rule else term.place or "hand" for term in tenant.terms
             if term is tenant.holding(term.name)}
    return ",".join(sorted(found))


def term_value(term: Term) -> str:
    return TERM_FORMATS[term.name].value(term.value)


def term_source(term: Term) -> str:
    """Where the term was set: a rule, or by hand, pod or job."""
    if term.rule:
        return f"[tenant {term.rule}] in {term.place}"
    return f"set by {term.place or 'hand'}"


def program_sentence(name: str, term: str, value: int, gpu: str | int | None) -> str:
    """A sentence about a program's term on the GPU `gpu`; None: on all GPUs that it uses."""
    meaning = TERM_FORMATS[term]
    place = "" if gpu is None else f" on GPU {gpu}"
    return meaning.of_program.format(name=name, value=meaning.words(value), on=place,
                                     gpu="the GPU" if gpu is None else f"GPU {gpu}") + "."


def term_sentence(tenant: Tenant, term: str) -> str:
    """A sentence with the value in force of a tenant's term, and the rule, if any, that set it."""
    holds, meaning = tenant.holding(term), TERM_FORMATS[term]
    because = f", as {term_source(holds)} says" if holds is not None and holds.rule else ""
    text = meaning.words(tenant.value(term))
    return meaning.of_tenant.format(name=tenant.name, value=text) + because + "."
