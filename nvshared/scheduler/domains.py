# SPDX-License-Identifier: Apache-2.0
"""Memory domains: groups of clients that share a limit of the host's memory, or of a card's.

A container with a memory limit is one. What its programs have swapped out counts against its
limit, on whatever cards they are, and the kernel kills them when it is exceeded. A client is in
any number of domains, such as one for each level of control groups. What it may take is what the
tightest leaves.

Promises are bounded by them (bounds.py), so all that was promised in a domain fits into its host
memory. That changes when a limit is lowered, or the domain's other use grows. What has no place
there any more stays on the card then: nobody can be given its room, and who needs it does not
run meanwhile.

All cards share one `Domains`. What their clients need of it is counted together with their other
figures (card.py), and is as it was at the end of each card's last event.

A tenant with a memory limit is a domain as well, one on each card, and there all counts that its
programs were promised, wherever it is. One with a limit of host memory is one of all cards. Such
limits bound promises and nothing else: what is held already may leave as before.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

UNBOUNDED = 1 << 62                     # bytes; more than anybody asks for


class Stake(NamedTuple):
    """What one client counts as in its domains; bytes of what they bound."""

    promised: int = 0                   # would be needed if it grew to its commit, and left;
                                        # of a card: its commit
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
    noted: "Callable[[Domain], None]"   # called when anything in it has changed
    term: bool = False                  # of a tenant: it bounds what is promised, and nothing else
    capacity: int | None = None         # what all its clients may take; None: any
    words: str = ""                     # which limit that is, for people
    whole: bool = False                 # the host's budget is bounded by it: promises keep to that
    stakes: dict[int, Stake] = field(default_factory=dict)      # by client
    sums: Stake = NOTHING

    def count(self, client: int, stake: Stake | None) -> None:
        """A client counts as this from now on. None: it is in it no more."""
        old, sums = self.stakes.pop(client, NOTHING), self.sums
        if stake is not None:
            self.stakes[client] = stake
        new = stake or NOTHING
        self.sums = Stake(
            sums.promised + new.promised - old.promised, sums.lent + new.lent - old.lent,
            sums.needed + new.needed - old.needed, sums.taken + new.taken - old.taken,
        )
        self.noted(self)

    @property
    def untaken(self) -> int:
        """Host memory that nobody has or may take; negative when the capacity shrank."""
        if self.capacity is None or self.term:
            return UNBOUNDED
        return self.capacity - self.sums.taken

    @property
    def lacking(self) -> int:
        """Bytes of its clients' memory that could not leave their cards, or have no place."""
        most = self.sums.taken if self.whole else max(self.sums.needed, self.sums.taken)
        return 0 if self.capacity is None or self.term else max(0, most - self.capacity)


class Domains:
    """All of them, of all cards, by name. Only those that matter to a plan are gone through."""

    def __init__(self) -> None:
        self.full: dict[Domain, None] = {}      # more than half of it is promised
        self.lacking: dict[Domain, None] = {}   # it lacks something
        self._all: dict[str, Domain] = {}
        self._news: dict[object, dict[Domain, None]] = {}

    def named(self, names: Iterable[str]) -> tuple[Domain, ...]:
        """These, which need not have existed."""
        return tuple(self._all.setdefault(name, Domain(name, self._note)) for name in names)

    def resize(
        self, name: str, capacity: int | None, words: str = "", *, whole: bool = False,
        term: bool = False,
    ) -> bool:
        """So much is in it from now on. True: that is less or more than before."""
        domain, = self.named((name,))
        changed = domain.capacity != capacity
        domain.capacity, domain.words, domain.whole, domain.term = capacity, words, whole, term
        if changed:
            self._note(domain)
        return changed

    def forget(self, names: Collection[str]) -> None:
        """All others that nobody is in, and that are no terms, are gone."""
        for name in [*self._all]:
            if name not in names:
                self.drop(name)

    def drop(self, name: str) -> None:
        """The same of one."""
        gone = self._all[name]
        if not gone.stakes and not gone.term:
            del self._all[name]
            for kept in (self.full, self.lacking, *self._news.values()):
                kept.pop(gone, None)

    def news(self, reader: object) -> list[Domain]:
        """Those that have changed since this reader asked last."""
        changed = self._news.get(reader, self._all.values())
        self._news[reader] = {}
        return list(changed)

    def __iter__(self) -> Iterator[Domain]:
        return iter(self._all.values())

    def _note(self, domain: Domain) -> None:
        for changed in self._news.values():
            changed[domain] = None
        capacity = domain.capacity
        for group, inside in (
            (self.full, capacity is not None and domain.sums.promised > capacity // 2),
            (self.lacking, domain.lacking > 0),
        ):
            if inside:
                group[domain] = None
            else:
                group.pop(domain, None)


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
