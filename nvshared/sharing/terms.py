# SPDX-License-Identifier: Apache-2.0
"""What is set for one client, by the administrator and by the user who owns the program.

Both may set everything, and the stricter of the two holds. So users may lower what their own
programs get, and raise it again up to what the administrator has set, and no further. When the
administrator sets something, it replaces what the user has set of the same kind.
"""

from dataclasses import dataclass, replace

from nvshared.errors import InvalidArgs
from nvshared.scheduler.quota import UNLIMITED
from nvshared.scheduler.settings import Terms

HEAVIEST = 1000


@dataclass(frozen=True, slots=True)
class ClientTerms:
    """Two sets of terms, and the one that is in force."""

    administrator: Terms = Terms()
    owner: Terms = Terms(weight=HEAVIEST)

    @property
    def in_force(self) -> Terms:
        """What holds."""
        ours, theirs = self.administrator, self.owner
        limits = [limit for limit in (ours.memory_limit, theirs.memory_limit) if limit]
        return Terms(
            memory_limit=min(limits, default=0),
            weight=min(ours.weight, theirs.weight),
            suspended=ours.suspended or theirs.suspended,
            compute_limit=min(ours.compute_limit, theirs.compute_limit),
        )

    def allows(self, setting: str, value: int) -> bool:
        """Whether the owner may give a setting of Terms this value without being asked about."""
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
        """What keeps the owner from giving a setting of Terms any value, in words."""
        ours = self.administrator
        match setting:
            case "memory_limit" if ours.memory_limit:
                return f"the administrator has limited the program to {ours.memory_limit} bytes"
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

    def with_memory_limit(self, size: int, *, by_owner: bool) -> "ClientTerms":
        """Bytes; 0 for none."""
        if by_owner:
            return replace(self, owner=replace(self.owner, memory_limit=size))
        return ClientTerms(
            replace(self.administrator, memory_limit=size), replace(self.owner, memory_limit=0)
        )

    def with_compute_limit(self, percent: int, *, by_owner: bool) -> "ClientTerms":
        """Of the card's time; 100 for no limit. Raises InvalidArgs unless it is from 1 to 100."""
        if not 1 <= percent <= UNLIMITED:
            raise InvalidArgs(
                f"the compute limit cannot be {percent} %",
                f"give a whole number from 1 to {UNLIMITED}, which stands for no limit",
            )
        if by_owner:
            return replace(self, owner=replace(self.owner, compute_limit=percent))
        return ClientTerms(
            replace(self.administrator, compute_limit=percent),
            replace(self.owner, compute_limit=UNLIMITED),
        )

    def with_weight(self, weight: int, *, by_owner: bool) -> "ClientTerms":
        """Raises InvalidArgs unless it is from 1 to 1000."""
        if not 1 <= weight <= HEAVIEST:
            raise InvalidArgs(
                f"the weight cannot be {weight}", f"give a whole number from 1 to {HEAVIEST}"
            )
        if by_owner:
            return replace(self, owner=replace(self.owner, weight=weight))
        return ClientTerms(
            replace(self.administrator, weight=weight), replace(self.owner, weight=HEAVIEST)
        )

    def with_suspended(self, suspended: bool, *, by_owner: bool) -> "ClientTerms":
        """Suspended by either is suspended."""
        if by_owner:
            return replace(self, owner=replace(self.owner, suspended=suspended))
        return ClientTerms(
            replace(self.administrator, suspended=suspended), replace(self.owner, suspended=False)
        )
