# SPDX-License-Identifier: Apache-2.0
"""The terms of one client, set by the administrator and by the user who owns the program.

Both can set each term, and the stricter value applies. So users can lower the terms of their own
programs, and raise them again up to the administrator's value. If the administrator sets a term,
the user's value of this term is removed.
"""

from dataclasses import dataclass, replace
from typing import Any

from nvshared.errors import InvalidArgs
from nvshared.quantity import HEAVIEST, sized
from nvshared.scheduler.settings import UNLIMITED, Terms


@dataclass(frozen=True, slots=True)
class ClientTerms:
    """Two sets of terms, and the one that is in force."""

    administrator: Terms = Terms()
    owner: Terms = Terms(weight=HEAVIEST)

    @property
    def in_force(self) -> Terms:
        """The stricter value of each term."""
        ours, theirs = self.administrator, self.owner
        limits = [limit for limit in (ours.memory_limit, theirs.memory_limit) if limit]
        return Terms(
            memory_limit=min(limits, default=0),
            weight=min(ours.weight, theirs.weight),
            suspended=ours.suspended or theirs.suspended,
            compute_limit=min(ours.compute_limit, theirs.compute_limit),
        )

    def allows(self, setting: str, value: int) -> bool:
        """Whether the owner may set this value without an authorization by polkit."""
        ours = self.administrator
        match setting:
            case "memory_limit":
                return not ours.memory_limit or 0 < value <= ours.memory_limit
            case "compute_limit":
                return value <= ours.compute_limit
            case "weight":
                return value <= ours.weight
            case "suspended":
                return bool(value) or not ours.suspended
        raise ValueError(f"there is no setting {setting!r}")

    def bound(self, setting: str) -> str:
        """Returns the administrator's bound on a setting, in words; "": none."""
        ours = self.administrator
        match setting:
            case "memory_limit" if ours.memory_limit:
                return f"the administrator has limited the program to {sized(ours.memory_limit)}"
            case "compute_limit" if ours.compute_limit < UNLIMITED:
                return (
                    f"the administrator has limited the program to {ours.compute_limit} % of the "
                    "time"
                )
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
        if by_owner:
            return replace(self, owner=_with(self.owner, setting, value))
        free = getattr(ClientTerms().owner, setting)
        return ClientTerms(
            _with(self.administrator, setting, value), _with(self.owner, setting, free)
        )


def _with(terms: Terms, setting: str, value: int) -> Terms:
    change: dict[str, Any] = {setting: value}
    return replace(terms, **change)
