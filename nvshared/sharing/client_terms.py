# SPDX-License-Identifier: Apache-2.0
"""The terms of one client: by the administrator, and by the program's owner."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from nvshared.quantity import HEAVIEST
from nvshared.scheduler.events import Terms
from nvshared.terms import CLIENT_TERMS, Term


@dataclass(frozen=True)
class ClientTerms:
    """Terms by the administrator and by the program's owner: the stricter value of each applies."""

    administrator: Terms = Terms()
    owner: Terms = Terms(weight=HEAVIEST, deadline=1)

    @cached_property                    # each announcement of a client reads it eight times
    def in_force(self) -> Terms:
        found: dict[str, Any] = {
            term.field: term.stricter(
                getattr(self.administrator, term.field), getattr(self.owner, term.field))
            for term in CLIENT_TERMS}
        return Terms(**found)

    def allows(self, term: Term, value: int) -> bool:
        """Whether the owner may set this value without an authorization by polkit."""
        return term.stricter(getattr(self.administrator, term.field), value) == value

    def bound(self, term: Term, value: int) -> str:
        """The administrator's bound that keeps the owner from setting a value; "": no bound."""
        ours = getattr(self.administrator, term.field)
        return "" if self.allows(term, value) else term.bound.format(term.unit.show(ours))

    def having(self, term: Term, value: int, *, by_owner: bool) -> "ClientTerms":
        """Returns a copy with one term changed. Raises InvalidArgs for a value out of range."""
        term.check(value)
        default = getattr(Terms(), term.field)
        change: dict[str, Any] = {term.field: type(default)(value)}
        if by_owner:
            return replace(self, owner=replace(self.owner, **change))
        free: dict[str, Any] = {term.field: getattr(ClientTerms().owner, term.field)}
        return ClientTerms(replace(self.administrator, **change), replace(self.owner, **free))
