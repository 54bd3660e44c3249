# SPDX-License-Identifier: Apache-2.0
"""Tenants and their terms (limits, weight, priority), as nvshared reports them."""

from typing import Any, NamedTuple

from nvshared.names import USUAL_TERMS


class Term(NamedTuple):
    """One term that is set for a tenant, by a rule or over the bus."""

    name: str                           # memory, compute-limit or weight
    value: int
    rule: str                           # the pattern of the rule; "": set over the bus
    place: str                          # FILE:LINE of the rule; else its source, "": by hand


class Tenant(NamedTuple):
    """A pod, job, container, unit or user. Bytes and microseconds are of its running programs."""

    name: str                           # KIND:NAME
    programs: int
    allocated: int
    resident: int
    pinned: int
    held_usec: int
    within: tuple[str, ...]             # other tenants whose terms hold for its programs, too
    terms: tuple[Term, ...]             # the first term of each name is in force

    def holding(self, name: str) -> Term | None:
        """The term of this name that is in force; None: it is not set."""
        return next((term for term in self.terms if term.name == name), None)

    def value(self, name: str) -> int:
        """The value in force. No limit is 0 for memory, and 100 for compute-limit."""
        term = self.holding(name)
        return USUAL_TERMS[name] if term is None else term.value

    def as_dict(self) -> dict[str, Any]:
        """What --json prints, and the text shows."""
        terms = [
            {**term._asdict(), "holds": term is self.holding(term.name)} for term in self.terms
        ]
        return {**self._asdict(), "within": list(self.within), "terms": terms}


def tenant(row: list[Any]) -> Tenant:
    """Makes a Tenant from a row of ListTenants. Fields that later versions append are ignored."""
    name, programs, allocated, resident, pinned, held_usec, within, terms, *_ = row
    return Tenant(
        name, programs, allocated, resident, pinned, held_usec, tuple(within),
        tuple(Term(*term) for term in terms),
    )
