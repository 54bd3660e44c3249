# SPDX-License-Identifier: Apache-2.0
"""Memory domains: groups of clients that share a limit of the host's memory.

A container with a memory limit is one. What its programs have swapped out counts against its
limit, on whatever cards they are, and the kernel kills them when it is exceeded. A client is in
any number of domains, such as one for each level of control groups. What it may take is what the
tightest leaves.

Promises are bounded by them (bounds.py), so all that was promised in a domain fits into its host
memory. That changes when a limit is lowered, or the domain's other use grows. What has no place
there any more stays on the card then: nobody can be given its room, and who needs it does not
run meanwhile.

All cards share one `Domains`. What their clients need of it is counted together with their other
figures (groups.py), and is as it was at the end of each card's last event.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

UNBOUNDED = 1 << 62                     # bytes; more than anybody asks for


class Stake(NamedTuple):
    """What one client counts as in its domains; bytes of host memory."""

    promised: int = 0                   # would be needed if it grew to its commit, and left
    lent: int = 0                       # of its commit, and not used
    needed: int = 0                     # would be needed if all it has left
    taken: int = 0                      # is held, or may be taken


NOTHING = Stake()


class Member(Protocol):
    """What is asked of a client."""

    id: int
    domains: "tuple[Domain, ...]"


@dataclass(eq=False, slots=True)
class Domain:
    """One group."""

    name: str
    capacity: int | None = None         # host memory that all its clients may take; None: any
    words: str = ""                     # which limit that is, for people
    stakes: dict[int, Stake] = field(default_factory=dict)      # by client
    sums: Stake = NOTHING

    def count(self, client: int, stake: Stake | None) -> None:
        """A client counts as this from now on. None: it is in it no more."""
        before = self.stakes.pop(client, NOTHING)
        if stake is not None:
            self.stakes[client] = stake
        self.sums = Stake(*(
            total + new - old
            for total, new, old in zip(self.sums, stake or NOTHING, before, strict=True)
        ))

    @property
    def untaken(self) -> int:
        """Host memory that nobody has or may take; negative when the capacity shrank."""
        return UNBOUNDED if self.capacity is None else self.capacity - self.sums.taken

    @property
    def tight(self) -> bool:
        """Not all of its clients' memory could leave their cards."""
        return self.capacity is not None and self.sums.needed > self.capacity


class Domains:
    """All of them, of all cards, by name."""

    def __init__(self) -> None:
        self._all: dict[str, Domain] = {}

    def named(self, names: Iterable[str]) -> tuple[Domain, ...]:
        """These, which need not have existed."""
        return tuple(self._all.setdefault(name, Domain(name)) for name in names)

    def resize(self, name: str, capacity: int | None, words: str = "") -> bool:
        """So much is in it from now on. True: that is less or more than before."""
        domain, = self.named((name,))
        changed = domain.capacity != capacity
        domain.capacity, domain.words = capacity, words
        return changed

    def forget(self, names: Collection[str]) -> None:
        """All others that nobody is in are gone."""
        for name in [name for name, one in self._all.items()
                     if name not in names and not one.stakes]:
            del self._all[name]

    def __iter__(self) -> Iterator[Domain]:
        return iter(self._all.values())


class Remaining:
    """Host memory that is left while a plan gives it away piece by piece."""

    def __init__(self, host: int) -> None:
        self.host = host                # of all together
        self._given: Counter[str] = Counter()

    def of(self, client: Member) -> int:
        """What this client could have of it."""
        return max(0, min([
            self.host, *(one.untaken - self._given[one.name] for one in client.domains),
        ]))

    def give(self, client: Member, size: int) -> None:
        """It gets so much."""
        self.host -= size
        for domain in client.domains:
            self._given[domain.name] += size
