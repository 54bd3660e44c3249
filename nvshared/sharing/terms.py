# SPDX-License-Identifier: Apache-2.0
"""The terms of one client, set by the administrator and by the user who owns the program.

Both can set each term, and the stricter value applies. So users can lower the terms of their own
programs, and raise them again up to the administrator's value. If the administrator sets a term,
the user's value of this term is removed.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from nvshared.errors import InvalidArgs
from nvshared.quantity import HEAVIEST, sized
from nvshared.scheduler.events import UNLIMITED, Terms

# The stricter of two values of each term.
STRICTER: dict[str, Callable[[Any, Any], Any]] = {
    "memory_limit": lambda one, other: min((size for size in (one, other) if size), default=0),
    "weight": min,
    "suspended": lambda one, other: bool(one or other),
    "compute_limit": min,
}


@dataclass(frozen=True, slots=True)
class ClientTerms:
    """Two sets of terms, and the one that is in force."""

    administrator: Terms = Terms()
    owner: Terms = Terms(weight=HEAVIEST)

    @property
    def in_force(self) -> Terms:
        """The stricter value of each term."""
        return Terms(**{
            name: stricter(getattr(self.administrator, name), getattr(self.owner, name))
            for name, stricter in STRICTER.items()
        })

    def allows(self, setting: str, value: int) -> bool:
        """Whether the owner may set this value without an authorization by polkit."""
        return bool(STRICTER[setting](getattr(self.administrator, setting), value) == value)

    def bound(self, setting: str) -> str:
        """Returns the administrator's bound on a setting, in words; "": none."""
        ours = self.administrator
        limited = "the administrator has limited the program to"
        match setting:
            case "memory_limit" if ours.memory_limit:
                return f"{limited} {sized(ours.memory_limit)}"
            case "compute_limit" if ours.compute_limit < UNLIMITED:
                return f"{limited} {ours.compute_limit} % of the time"
            case "weight":
                return f"without that, the weight of your program is {ours.weight} at most"
            case "suspended" if ours.suspended:
                return "the administrator has suspended the program"
        return ""

    def having(self, setting: str, value: int, *, by_owner: bool) -> "ClientTerms":
        """Returns a copy with one setting changed. Raises InvalidArgs for a value out of range."""
        if setting == "compute_limit" and not 1 <= value <= UNLIMITED:
            raise InvalidArgs(
                f"the compute limit cannot be {value} %",
                f"give a whole number from 1 to {UNLIMITED}, which stands for no limit",
            )
        if setting == "weight" and not 1 <= value <= HEAVIEST:
            raise InvalidArgs(
                f"the weight cannot be {value}", f"give a whole number from 1 to {HEAVIEST}"
            )
        change: dict[str, Any] = {setting: value}
        if by_owner:
            return replace(self, owner=replace(self.owner, **change))
        free: dict[str, Any] = {setting: getattr(ClientTerms().owner, setting)}
        return ClientTerms(replace(self.administrator, **change), replace(self.owner, **free))
