# SPDX-License-Identifier: Apache-2.0
"""What is set for tenants, as people would write it, and where it comes from."""

from collections.abc import Callable

from nvshared.control.tenants import Tenant, Term
from nvshared.names import USUAL_TERMS
from nvshared.quantity import sized
from nvshared.tui.tables import Column, named


def value(term: Term) -> str:
    """What is set."""
    if term.name in ("memory", "host-memory"):
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


def source(term: Term) -> str:
    """Where it comes from."""
    if term.rule:
        return f"[tenant {term.rule}] in {term.place}"
    return f"set by {term.place or 'hand'}"


TERMS = [
    Column("TERM", lambda term: term.name),
    Column("VALUE", value, right=True),
    Column("FROM", source),
]


def sentence(tenant: Tenant, term: str) -> str:
    """What holds for a tenant now, and which rule says so."""
    holds = tenant.holding(term)
    because = f", as {source(holds)} says" if holds is not None and holds.rule else ""
    return f"{_SENTENCES[term](tenant.name, tenant.value(term))}{because}."


def restriction(outer: Tenant, term: str) -> str:
    """That a limit of a tenant around it is tighter."""
    return f"A tighter limit holds: {sentence(outer, term)}"


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
    "memory": _memory,
    "host-memory": _host,
    "compute-limit": _compute,
    "compute-request": _request,
    "priority": lambda name, priority: f"The priority of {name} is {named(priority)}",
    "weight": lambda name, weight: f"The weight of {name} is {weight}",
    "suspended": lambda name, on: f"The programs of {name} are {'' if on else 'not '}suspended",
}
