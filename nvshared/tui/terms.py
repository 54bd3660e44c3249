# SPDX-License-Identifier: Apache-2.0
"""What is set for tenants, as people would write it, and where it comes from."""

from nvshared.control.tenants import Term
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
    return f"[tenant {term.rule}] in {term.place}" if term.rule else "set by hand"


TERMS = [
    Column("TERM", lambda term: term.name),
    Column("VALUE", value, right=True),
    Column("FROM", source),
]
