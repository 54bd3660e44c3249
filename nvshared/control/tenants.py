# SPDX-License-Identifier: Apache-2.0
"""What nvshared says of tenants and of the terms that hold for them."""

from typing import Any, NamedTuple

from nvshared.names import USUAL_TERMS


class Term(NamedTuple):
    """One thing that is set for a tenant."""

    name: str                           # memory, compute-limit or weight
    value: int
    rule: str                           # the pattern of the rule; "": set over the bus
    place: str                          # FILE:LINE of the rule; else its source, "": by hand


class Tenant(NamedTuple):
    """A pod, job, container, unit or user. Bytes and microseconds, of its living programs."""

    name: str                           # KIND:NAME
    programs: int
    allocated: int
    resident: int
    pinned: int
    held_usec: int
    within: tuple[str, ...]             # other tenants under whose terms its programs are
    terms: tuple[Term, ...]             # the first of a name holds

    def holding(self, name: str) -> Term | None:
        """The term of this name that holds; None: nobody has set it."""
        return next((term for term in self.terms if term.name == name), None)

    def value(self, name: str) -> int:
        """What holds: of memory, 0 is no limit; of compute-limit, 100."""
        term = self.holding(name)
        return USUAL_TERMS[name] if term is None else term.value

    def as_dict(self) -> dict[str, Any]:
        """What --json prints, and the text shows."""
        terms = [
            {**term._asdict(), "holds": term is self.holding(term.name)} for term in self.terms
        ]
        return {**self._asdict(), "within": list(self.within), "terms": terms}


def tenant(row: list[Any]) -> Tenant:
    """From a row of ListTenants. What later versions may add at its end is left out."""
    name, programs, allocated, resident, pinned, held_usec, within, terms, *_ = row
    return Tenant(
        name, programs, allocated, resident, pinned, held_usec, tuple(within),
        tuple(Term(*term) for term in terms),
    )
