# SPDX-License-Identifier: Apache-2.0
"""The clients of a card by group, and the sums of their figures, kept up to date at each change."""

from bisect import bisect_left, insort
from collections.abc import Callable, Mapping
from operator import add, attrgetter, sub
from typing import NamedTuple

from nvshared.scheduler.client import Phase, ScheduledClient
from nvshared.scheduler.domains import Domain, Stake
from nvshared.scheduler.events import PinReason, Priority, Standing
from nvshared.scheduler.orders import Goal
from nvshared.scheduler.records import Direction

# Groups by name, with the condition of membership. Each phase names a group, too.
GROUPS: dict[str, Callable[[ScheduledClient], object]] = {
    "everyone": lambda c: True,
    "queued": lambda c: c.queued,                   # waits; neither terms nor gang forbid a turn
    "holding": lambda c: c.holds,
    "moving": lambda c: c.orders.moves,                    # an order to move memory is unanswered
    "answering": lambda c: c.orders.moves and not c.unresponsive,
    "evicting": lambda c: c.orders.moving(Direction.OUT) and not c.unresponsive,
    "speculating": lambda c: any(move.goal is not None for move in c.orders.moves),
    "writing_back": lambda c: any(move.goal is Goal.WRITEBACK for move in c.orders.moves),
    "requesting": lambda c: c.promise.request,
    "unused_commit": lambda c: c.committed > c.memory.need,
    "granted_to_pin": lambda c: c.promise.pins,     # its hook may not have received grants to pin
    "memory_limited": lambda c: c.terms.memory_limit,
    "undrainable": lambda c: c.memory.pin_reason,
    "ignoring_evicts": lambda c: c.memory.pin_reason is PinReason.KEPT,
    # Nothing of the client can be evicted, and its promise is larger than such a client may keep.
    "undrainable_overcommitted": lambda c: c.memory.pin_reason and (
        c.promise.wanted > c.memory.need
        or c.promise.commit > max(c.used, c.memory.need + c.to_pin)),
    "queued_permanent": lambda c: c.queued and c.is_permanent,
    "permanent": lambda c: c.holds and c.is_permanent,
    "suspended": lambda c: c.terms.suspended,
    "hurried": lambda c: c.terms.deadline,          # its turns are to begin by a deadline
    "ganged": lambda c: c.standing,
    "granted": lambda c: (
        c.standing is Standing.GRANTED and c.phase is Phase.WAITING and not c.terms.suspended),
    "rationed": lambda c: c.rationed,
    # Chosen or running, but lacks room or has memory that is not resident.
    "lacking": lambda c: (
        c.phase in (Phase.LOADING, Phase.RUNNING) and (c.room_deficit or not c.whole)),
    "occupying": lambda c: c.charged,
    # Holders that submit nothing while an "urgent" client has work in flight.
    "background": lambda c: c.holds and c.priority is Priority.BACKGROUND,
    "urgent": lambda c: c.priority is not Priority.BACKGROUND and (c.holds or c.whole),
    "borrowing": lambda c: c.orders.lender,                # may hold memory of another card
    "storing": lambda c: c.orders.stores and c.orders.stores[-1].size > c.memory.disk,
    "storable": lambda c: c.storable,
    "disk_limited": lambda c: c.bounds.disk,
    # Clients with resident blocks, of which the disk may hold copies.
    "stored": lambda c: c.memory.disk and c.memory.resident,
    # The cost of the client's last hand-over is known, and it holds the card or is queued.
    "measured": lambda c: c.cost is not None and (c.holds or c.queued) and not c.is_permanent,
}
MARGINS_MOST = 16                       # most clients of an account that count in domains.margin


class Account(NamedTuple):
    """Sums over the clients of an account, see promises.py."""

    unshown: int = 0                    # bytes promised beyond the figures of NVML and the kernel
    pinned_unshown: int = 0
    clients: int = 0                    # number of clients that a margin is kept for, see counted()


class Figures(NamedTuple):
    """Figures of one client, or their sums over all clients; bytes."""

    charged: int = 0
    host_charged: int = 0
    committed: int = 0
    used: int = 0
    pinned: int = 0
    pinned_shown: int = 0
    beyond: int = 0
    unshown: int = 0                    # promised, not shown by NVML or kernel; 0: no account
    need: int = 0
    filled: int = 0
    out_of_reach: int = 0
    disk: int = 0
    swapped: int = 0                    # bytes not resident of an idle client; 0 for other clients
    queued_deficit: int = 0             # room that a queued client lacks; 0 for other clients
    unpinned_commit: int = 0            # used for single clients only, never as a sum over clients


class Counted(NamedTuple):
    """A client's part in groups and sums, kept so that it can be subtracted again."""

    groups: tuple[str, ...] = ()
    figures: Figures = Figures()
    account: str = ""
    of_account: Account = Account()     # the client's part in the sums of its account
    # Three entries, for host memory, tenants' memory limits and disk limits: the domains in which
    # the client counts, and the amounts that the client adds to the sums of each domain.
    stakes: tuple[tuple[tuple[Domain, ...], Stake], ...] = (((), Stake()),) * 3


def counted(client: ScheduledClient) -> Counted:
    """A client's part in groups and sums. Fast, as it is computed at each change of the client."""
    committed, expected, shown = client.committed, client.pinned_expected, client.pinned_shown
    beyond, unpinned = client.beyond, max(0, committed - expected)
    unshown = max(0, committed - client.shown) + beyond
    groups = (client.phase, *[name for name, belongs in GROUPS.items() if belongs(client)])
    figures = Figures(
        charged=client.charged, host_charged=client.host_counted, committed=committed,
        used=client.used, pinned=client.pinned, pinned_shown=shown, beyond=beyond,
        unshown=unshown if client.claims.account else 0,
        need=client.memory.need, filled=client.memory.filled - client.claims.over.filled,
        out_of_reach=client.out_of_reach,
        disk=client.disk_charged, swapped=client.swapped if client.is_idle else 0,
        queued_deficit=client.room_deficit if client.queued else 0,
        unpinned_commit=unpinned)
    unused = committed - figures.used
    of_host = Stake(
        unpinned + beyond, unused, client.memory.allocated - client.stored + beyond,
        figures.host_charged + beyond)
    return Counted(
        groups, figures, client.claims.account,
        Account(unshown, expected - shown, int(bool(committed) or not client.claims.account)),
        ((client.bounds.host, of_host), (client.bounds.memory_limits, Stake(committed, unused)),
         (client.bounds.disk, Stake(taken=figures.disk))))


NOTHING = Counted()
ID = attrgetter("id")


class Groups:
    """The clients of a card by group, and sums over them.

    Each change of a figure that counts adds the client's id to `touched` (Counting.__setattr__).
    The client is counted anew before the next read. Members and sums are updated incrementally,
    because each event reads about sixty of them.
    """

    def __init__(self, clients: Mapping[int, ScheduledClient]) -> None:
        """`clients`: by id. A caller that adds or removes a client adds its id to `touched`."""
        self.touched: set[int] = set()
        self._clients = clients
        self._counted: dict[int, Counted] = {}
        # The members of each group, in the order in which they joined the card.
        self._members: dict[str, list[ScheduledClient]] = {
            name: [] for name in (*GROUPS, *Phase)}
        self._sums = Figures()
        self._changed: dict[str, set[int]] = {}
        self._accounts: dict[str, Account] = {}

    def touch(self, client: ScheduledClient) -> None:
        """Has a client counted anew."""
        self.touched.add(client.id)

    def settle(self) -> None:
        """Counts anew the clients that have changed, also in the sums of their domains."""
        while self.touched:
            id = self.touched.pop()
            for changed in self._changed.values():
                changed.add(id)
            before, client = self._counted.pop(id, NOTHING), self._clients.get(id)
            now = NOTHING if client is None else counted(client)
            if client is not None:
                self._counted[id] = now
            # Most changes leave the sums of accounts, and half of them those of the card.
            if now.account != before.account or now.of_account != before.of_account:
                for part, change in ((before, sub), (now, add)):
                    sums = self._accounts.pop(part.account, Account())
                    if any(sums := Account(*map(change, sums, part.of_account))):
                        self._accounts[part.account] = sums
            if now.groups != before.groups:
                for name in {*before.groups}.difference(now.groups):
                    members = self._members[name]
                    del members[bisect_left(members, id, key=ID)]
                for name in {*now.groups}.difference(before.groups):
                    insort(self._members[name], self._clients[id], key=ID)
            if now.figures != before.figures:
                self._sums = Figures(*map(add, self._sums, map(sub, now.figures, before.figures)))
            for held, new_stakes in zip(before.stakes, now.stakes, strict=True):
                if held != new_stakes:
                    for domain in held[0]:
                        domain.count(id, None)
                    for domain in new_stakes[0]:
                        domain.count(id, new_stakes[1])

    def __getitem__(self, name: str) -> list[ScheduledClient]:
        """The members of a group, in the order in which the clients joined the card."""
        if self.touched:
            self.settle()
        return self._members[name].copy()

    @property
    def sums(self) -> Figures:
        """The sums of the figures over all clients."""
        if self.touched:
            self.settle()
        return self._sums

    def each(self) -> list[tuple[int, Figures]]:
        """The figures of each client, with its id. Cheaper than the client's properties."""
        self.settle()
        return [(id, one.figures) for id, one in self._counted.items()]

    def accounts(self) -> Mapping[str, Account]:
        """The sums by account, of accounts with a figure that is not 0."""
        self.settle()
        return self._accounts

    def margins(self) -> int:
        """The number of clients for which a margin of host memory is kept."""
        return sum([
            min(one.clients, MARGINS_MOST) if account else one.clients
            for account, one in self.accounts().items()])

    def queue(self) -> list[ScheduledClient]:
        """The queued clients, in the order of their `queue_number`."""
        return sorted(self["queued"], key=attrgetter("queue_number"))

    def take_changed(self, reader: str) -> list[ScheduledClient]:
        """Clients that have changed since the last call with this `reader`, in order of joining."""
        self.settle()
        changed = self._changed.get(reader, self._clients.keys())
        self._changed[reader] = set()
        return [self._clients[id] for id in sorted(changed) if id in self._clients]
