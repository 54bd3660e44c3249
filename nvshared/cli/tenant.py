# SPDX-License-Identifier: Apache-2.0
"""The changes of what is set for tenants."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from nvshared.cli.output import show
from nvshared.cli.verb import Options
from nvshared.control import Daemon
from nvshared.errors import InvalidArgs
from nvshared.tui.tables import named
from nvshared.tui.terms import sentence

if TYPE_CHECKING:
    from nvshared.control.tenants import Tenant

_PLAIN = {
    "memory": "memory_limit", "host-memory": "host_limit", "compute-limit": "compute_limit",
    "compute-request": "compute_request", "priority": "priority", "weight": "weight",
    "suspended": "suspended",
}


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
        print(sentence(now, term))
    if not now.programs:
        print("It has no program that uses a GPU now.")
