# SPDX-License-Identifier: Apache-2.0
"""The changes of what is set for tenants."""

import pwd
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from nvshared.cli.output import show, warn
from nvshared.cli.verb import Options
from nvshared.control import Daemon
from nvshared.errors import InvalidArgs
from nvshared.names import USUAL_TERMS
from nvshared.tui.tables import named
from nvshared.tui.terms import restriction, sentence

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
        around = [daemon.tenant(one) for one in now.within]
    if not _has_account(now.name) and not now.programs:
        warn(f"this machine has no user {now.name.partition(':')[2]!r} now; what is set holds once "
             "a program of such a user comes")
    values: dict[str, int | str] = {f"{_PLAIN[term]}": now.value(term) for term in terms}
    if "priority" in values:
        values["priority"] = named(now.value("priority"))
    if "suspended" in values:
        values["suspended"] = bool(values["suspended"])
    show(options, {"tenant": now.name, **values}, lambda: _print(now, terms, around))


def tightest(around: "Iterable[Tenant]", term: str, value: int) -> "Tenant | None":
    """The tenant whose limit is below `value`, where 0 is no limit of bytes, and lowest."""
    usual = USUAL_TERMS[term]
    limited = [one for one in around if one.value(term) != usual]
    least = min(limited, key=lambda one: one.value(term), default=None)
    if least is None or (value != usual and least.value(term) >= value):
        return None
    return least


def _has_account(name: str) -> bool:
    """Whether a tenant is none of a user, or of one that has a name here."""
    kind, _, user = name.partition(":")
    if kind != "user" or user.isdecimal():
        return True
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def _print(now: "Tenant", terms: Mapping[str, int], around: "list[Tenant]") -> None:
    for term in terms:
        print(sentence(now, term))
        if term in ("memory", "host-memory", "compute-limit"):
            outer = tightest(around, term, now.value(term))
            if outer is not None:
                print(restriction(outer, term))
    if not now.programs:
        print("It has no program that uses a GPU now.")
