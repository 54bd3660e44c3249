# SPDX-License-Identifier: Apache-2.0
"""What is set for tenants, in words, and the changes of it."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from nvshared.cli.output import show
from nvshared.cli.verb import Options
from nvshared.control import Daemon
from nvshared.errors import InvalidArgs
from nvshared.names import USUAL_TERMS
from nvshared.quantity import sized
from nvshared.tui.tables import named
from nvshared.tui.terms import source

if TYPE_CHECKING:
    from nvshared.control.tenants import Tenant, Term


def set_terms(options: Options, name: str, terms: Mapping[str, int]) -> None:
    """Sets terms of a tenant, by their names on the bus; 0 takes back. Says what then holds."""
    if options.gpu is not None:
        raise InvalidArgs("what is set for a tenant holds on each GPU", "leave out --gpu")
    with Daemon(options.bus) as daemon:
        daemon.set_tenant_terms(name, terms)
        now = daemon.tenant(name)
    values: dict[str, int | str] = {f"{_PLAIN[term]}": now.value(term) for term in terms}
    if "priority" in values:
        values["priority"] = named(now.value("priority"))
    if "suspended" in values:
        values["suspended"] = bool(values["suspended"])
    show(options, {"tenant": now.name, **values}, lambda: _print(now, terms))


def _print(now: "Tenant", terms: Mapping[str, int]) -> None:
    for term in terms:
        print(f"{_SENTENCES[term](now.name, now.value(term))}{_because(now.holding(term))}.")
    if not now.programs:
        print("It has no program that uses a GPU now.")


def _because(term: "Term | None") -> str:
    return f", as {source(term)} says" if term is not None and term.rule else ""


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


_PLAIN = {
    "memory": "memory_limit", "host-memory": "host_limit", "compute-limit": "compute_limit",
    "compute-request": "compute_request", "priority": "priority", "weight": "weight",
    "suspended": "suspended",
}
_SENTENCES: dict[str, Callable[[str, int], str]] = {
    "memory": _memory,
    "host-memory": _host,
    "compute-limit": _compute,
    "compute-request": _request,
    "priority": lambda name, priority: f"The priority of {name} is {named(priority)}",
    "weight": lambda name, weight: f"The weight of {name} is {weight}",
    "suspended": lambda name, on: f"The programs of {name} are {'' if on else 'not '}suspended",
}
