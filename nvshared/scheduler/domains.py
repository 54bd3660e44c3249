# SPDX-License-Identifier: Apache-2.0
"""Shared by the schedulers of all cards: memory domains, budgets, and loans (moves.py).

A domain is a group of clients with a common limit: of host memory (a container, on all cards), of a
tenant's GPU memory on one card, or of a tenant's part of the disk. See docs/internals/scheduler.md.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import add, sub
from typing import NamedTuple

from nvshared.scheduler.events import BLOCK

UNBOUNDED = 1 << 62                     # bytes; more than any client asks for
MARGIN_PART = 16                        # the margin is 1/16 of the host memory,
MARGIN_EACH = 8 * BLOCK                 # at least this for each client: two slabs partly filled,
MARGIN_MOST = 2                         # the margin is at most 1/2 of the host memory
TRANSIT_PART = 16                       # cards share 1/16 of host memory for blocks going to disk


class Stake(NamedTuple):
    """One client's part in its domains; bytes of the memory that they bound."""

    promised: int = 0                   # commit; for host memory: bytes needed to evict the commit
    unused: int = 0                     # part of its commit that is not in use
    needed: int = 0                     # bytes needed if all of the client's memory was evicted
    taken: int = 0                      # bytes that the client has, or may take by an order


NOTHING = Stake()


@dataclass(eq=False, slots=True, weakref_slot=True)
class Domain:
    """One limit and its clients."""

    name: str
    on_change: "Callable[[Domain], None]"   # called at each change of the domain
    of_tenant: bool = False             # a tenant's limit, which bounds promises only
    limit: int | None = None            # bytes of all its clients together; None: unlimited
    reason: str = ""                    # why the limit refuses requests, for people
    whole: bool = False                 # limit of the whole host: promises keep to the host budget
    stakes: dict[int, Stake] = field(default_factory=dict)      # by client id
    sums: Stake = NOTHING

    def count(self, client: int, stake: Stake | None) -> None:
        """Replaces a client's part. None: the client is no longer in the domain."""
        old, new = self.stakes.pop(client, NOTHING), stake or NOTHING
        if stake is not None:
            self.stakes[client] = stake
        self.sums = Stake(*map(add, self.sums, map(sub, new, old)))
        self.on_change(self)

    @property
    def untaken(self) -> int:
        """Host memory that no client has or may take; negative after the limit fell."""
        if self.limit is None or self.of_tenant:
            return UNBOUNDED
        return self.limit - self.sums.taken

    @property
    def unevictable(self) -> int:
        """Bytes that the clients could not evict, or that exceed the limit already."""
        most = self.sums.taken if self.whole else max(self.sums.needed, self.sums.taken)
        return 0 if self.limit is None or self.of_tenant else max(0, most - self.limit)


class Bounds(NamedTuple):
    """The domains of one client."""

    host: tuple[Domain, ...] = ()       # limits of its host memory
    memory_limits: tuple[Domain, ...] = ()      # of its tenants; they bound its commit
    disk: tuple[Domain, ...] = ()       # its tenants' limits of the disk


class Domains:
    """All domains of all cards, by name, with lists of domains that matter to a plan: a user may
    have dozens of nested control groups with limits around each program."""

    def __init__(self) -> None:
        self.full: dict[Domain, None] = {}      # domains with more than half of the limit promised
        self.unevictable: dict[Domain, None] = {}   # domains with Domain.unevictable above 0
        self._all: dict[str, Domain] = {}
        self._changed: dict[object, dict[Domain, None]] = {}

    def named(self, names: Iterable[str]) -> tuple[Domain, ...]:
        """The domains of these names. Creates missing ones."""
        return tuple(self._all.setdefault(name, Domain(name, self._mark_changed)) for name in names)

    def set_limit(
        self, name: str, limit: int | None, reason: str = "", *, whole: bool = False,
        of_tenant: bool = False,
    ) -> bool:
        """Sets a domain's limit. True: the limit has changed."""
        domain, = self.named((name,))
        changed = domain.limit != limit
        domain.limit, domain.reason, domain.whole = limit, reason, whole
        domain.of_tenant = of_tenant
        if changed:
            self._mark_changed(domain)
        return changed

    def forget(self, names: Collection[str]) -> None:
        """Removes the domains without clients that are neither in `names` nor limits of tenants."""
        for name in [*self._all]:
            if name not in names:
                self.drop(name)

    def drop(self, name: str) -> None:
        """Removes a domain, if it has no clients and is no tenant's limit."""
        gone = self._all[name]
        if not gone.stakes and not gone.of_tenant:
            del self._all[name]
            for kept in (self.full, self.unevictable, *self._changed.values()):
                kept.pop(gone, None)

    def take_changed(self, reader: object) -> list[Domain]:
        """The domains that have changed since the last call with this `reader`."""
        changed = self._changed.get(reader, self._all.values())
        self._changed[reader] = {}
        return list(changed)

    def leave(self, reader: object) -> None:
        """Forgets a reader, which calls take_changed() no more."""
        self._changed.pop(reader, None)

    def __iter__(self) -> Iterator[Domain]:
        return iter(self._all.values())

    def _mark_changed(self, domain: Domain) -> None:
        for changed in self._changed.values():
            changed[domain] = None
        full = domain.limit is not None and domain.sums.promised > domain.limit // 2
        for group, inside in ((self.full, full), (self.unevictable, domain.unevictable > 0)):
            if inside:
                group[domain] = None
            else:
                group.pop(domain, None)


def margin(host: int, clients: int) -> int:
    """The bytes of `host` that are never promised: no block can move if all memory is full."""
    return min(max(host // MARGIN_PART, MARGIN_EACH * clients), host // MARGIN_MOST)


def least_host(beyond: int, clients: int) -> int:
    """The least host memory that holds `beyond` bytes beside its own margin: inverts `margin`."""
    beyond = max(0, beyond)
    with_part = -(-beyond * MARGIN_PART // (MARGIN_PART - 1))
    with_margin = max(with_part, beyond + MARGIN_EACH * clients)
    return min(with_margin, -(-beyond * MARGIN_MOST // (MARGIN_MOST - 1)))


@dataclass(eq=False, slots=True)
class SharedBudget:
    """Host memory, or the disk, for swapped blocks of all cards; bytes. The cards' needs may exceed
    the size: after it shrank, and when clients join, as each needs a margin."""

    size: int
    contexts: int = 0                   # bytes of host memory for checkpoints of parked programs
    gathering: bool = False             # the needs of some cards are not known yet
    cards: "list[BudgetPart]" = field(default_factory=list)
    limits: Domains = field(default_factory=Domains)    # tenants' limits of the disk

    def join(self) -> "BudgetPart":
        """Adds a card. Returns its view of the budget."""
        self.cards.append(BudgetPart(self))
        return self.cards[-1]

    def leave(self, part: "BudgetPart") -> None:
        """Removes a lost card."""
        self.cards.remove(part)

    def resize(self, size: int) -> None:
        self.size = size

    def gather(self, gathering: bool) -> None:
        """Records whether the needs of some cards are not known yet."""
        self.gathering = gathering

    def hold(self, more: int) -> None:
        """Holds more bytes for checkpoints of parked programs."""
        self.contexts += more

    @property
    def unneeded(self) -> int:
        """Bytes that neither cards nor contexts need; negative: `size` is exceeded."""
        return self.size - self.contexts - sum(card.needs for card in self.cards)


@dataclass(eq=False, slots=True)
class BudgetPart:
    """One card's view of a budget; bytes, as of the last event of each card."""

    budget: SharedBudget
    needs: int = 0                      # bytes promised beyond the card's memory, or already in use
    lost: bool = False                  # the card is lost

    def lose(self) -> None:
        self.lost = True

    def need(self, size: int) -> None:
        self.needs = size

    @property
    def promisable(self) -> int:
        """Bytes of the budget that other cards do not need, so that this card may promise them."""
        budget = self.budget
        return self.takeable if budget.gathering else budget.unneeded + self.needs

    @property
    def most(self) -> int:
        """Most bytes of host memory for this card's needs where the disk takes the rest."""
        budget = self.budget
        least = budget.size // (TRANSIT_PART * len(budget.cards))
        return self.promisable - sum(
            max(0, least - card.needs) for card in budget.cards if card is not self)

    @property
    def takeable(self) -> int:
        """Bytes that the card's clients may hold: its needs, and an equal part of the bytes that no
        card needs. If the needs exceed the budget: the bytes that other cards do not need."""
        budget, share = self.budget, self.budget.unneeded
        if budget.gathering:
            return max(0, min(budget.size // len(budget.cards), self.needs + share))
        if share > 0:
            share = 0 if self.lost else share // sum(not card.lost for card in budget.cards)
        return max(0, self.needs + share)


class Loan(NamedTuple):
    """A loan to one client; bytes."""

    held: int = 0                       # bytes on the other card, by the client's last record
    charged: int = 0                    # the larger of `held` and the bytes that orders allow
    ordered: int = 0                    # bytes allowed once all orders are carried out


@dataclass(eq=False, slots=True)
class Neighbour:
    """One card, as other cards see it; bytes. All schedulers of a daemon share these objects."""

    uuid: str = ""
    others: "tuple[Neighbour, ...]" = ()        # all other cards
    reachable: "tuple[Neighbour, ...]" = ()     # cards of which its clients may borrow
    lendable: int | None = 0            # bytes to lend, as of the card's last event; None: unknown
    loans: dict[int, Loan] = field(default_factory=dict)  # its loans, by id of the borrowing client
    exclusive: bool = False             # the card lends only while all its processes are clients
    alone: bool | None = None           # by NVML, all its processes are clients; None: unknown

    def link(
        self, others: "tuple[Neighbour, ...]", reachable: "tuple[Neighbour, ...]", *,
        exclusive: bool,
    ) -> None:
        """Sets the other cards. `exclusive`: see there."""
        self.others, self.reachable, self.exclusive = others, reachable, exclusive

    def find_alone(self, alone: bool) -> None:
        self.alone = alone

    def lend(self, most: int | None) -> None:
        """Records the bytes that the card can lend. None: unknown."""
        self.lendable = most

    def set_loan(self, client: int, loan: Loan) -> None:
        """Replaces the loan to a client."""
        if loan == Loan():
            self.loans.pop(client, None)
        else:
            self.loans[client] = loan

    @property
    def lent(self) -> int:
        """Bytes of the card's room that clients of other cards hold, or may by orders."""
        return sum(loan.charged for loan in self.loans.values())

    @property
    def returning(self) -> int:
        """Lent bytes that orders under way will return."""
        return sum(loan.charged - loan.ordered for loan in self.loans.values())

    @property
    def available(self) -> int:
        """Bytes of the card that can be lent in addition to the lent bytes."""
        return max(0, (self.lendable or 0) - self.lent)

    @property
    def excess(self) -> int:
        """Lent bytes beyond the lendable bytes, less the bytes that orders under way return."""
        return 0 if self.lendable is None else max(0, self.lent - self.returning - self.lendable)

    def lender(self, passed: Sequence[str] = ()) -> "Neighbour | None":
        """The reachable card with most available bytes. Cards of `passed` (UUIDs) are lenders only
        if no other card can lend, the first of them first. None: no card can lend any."""
        able = [one for one in self.reachable if one.available]
        turn = {uuid: number for number, uuid in enumerate(passed, 1)}
        return max(able, key=lambda one: (-turn.get(one.uuid, 0), one.available), default=None)
