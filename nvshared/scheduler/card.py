# SPDX-License-Identifier: Apache-2.0
"""Everything the scheduler knows about one GPU, the sums over its clients, and the actions that the
current event causes. All moves of memory are ordered here, so that they are recorded in one place.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from operator import add, attrgetter, sub
from typing import NamedTuple

from nvshared.scheduler import actions
from nvshared.scheduler.actions import Action, Load, MoveOrder, Run, TurnEnd
from nvshared.scheduler.client import PACE, Average, Direction, Goal, Move, Phase, ScheduledClient
from nvshared.scheduler.domains import BudgetPart, Domain, Domains, Loan, Neighbour, Stake
from nvshared.scheduler.events import AntiThrash, PinReason, Priority, Settings, Standing
from nvshared.scheduler.tenants import Counters, Division, History, Node, Tenants
from nvshared.units import MILLISECOND, SECOND

# Groups by name, with the condition of membership. Each phase names a group, too.
GROUPS: dict[str, Callable[[ScheduledClient], object]] = {
    "everyone": lambda c: True,
    "queued": lambda c: c.queued,                   # waits; neither terms nor gang forbid a turn
    "holding": lambda c: c.holds,
    "moving": lambda c: c.moves,                    # an order to move memory is unanswered
    "answering": lambda c: c.moves and not c.unresponsive,
    "evicting": lambda c: c.moving(Direction.OUT) and not c.unresponsive,
    "speculating": lambda c: c.moves and any(move.goal is not None for move in c.moves),
    "writing_back": lambda c: c.moves and any(m.goal is Goal.WRITEBACK for m in c.moves),
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
    "borrowing": lambda c: c.lender,                # may hold memory of another card
    "storing": lambda c: c.stores and c.stores[-1].size > c.memory.disk,
    "storable": lambda c: c.storable,
    "disk_limited": lambda c: c.disk_limits,
    # Clients with resident blocks, of which the disk may hold copies.
    "stored": lambda c: c.memory.disk and c.memory.resident,
    # The cost of the client's last hand-over is known, and it holds the card or is queued.
    "measured": lambda c: c.cost is not None and (c.holds or c.queued) and not c.is_permanent,
}
# Most unanswered orders to a client, so that its hook begins the next order at once.
DEPTH = 2
MARGINS_MOST = 16                       # most clients of an account that count in domains.margin
TRANSIT_PART = 8                        # with a disk, loans leave 1/8 of host memory free,
TRANSIT_BLOCKS = 2                      # and at least 2 blocks, for blocks on the way to the disk
HELLO_PATIENCE = 2 * SECOND             # gathering lasts longer for clients without HELLO
BURST = 500 * MILLISECOND               # most us in a row that moves wait for a program's copies


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
        unshown=unshown if client.account else 0,
        need=client.memory.need, filled=client.memory.filled - client.overclaims.filled,
        out_of_reach=client.out_of_reach,
        disk=client.disk_charged, swapped=client.swapped if client.is_idle else 0,
        unpinned_commit=unpinned)
    unused = committed - figures.used
    of_host = Stake(
        unpinned + beyond, unused, client.memory.allocated - client.stored + beyond,
        figures.host_charged + beyond)
    return Counted(
        groups, figures, client.account,
        Account(unshown, expected - shown, int(bool(committed) or not client.account)),
        ((client.domains, of_host), (client.memory_limits, Stake(committed, unused)),
         (client.disk_limits, Stake(taken=figures.disk))))


NOTHING = Counted()


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
        self._members: dict[str, set[int]] = {name: set() for name in (*GROUPS, *Phase)}
        self._sums = Figures()
        self._changed: dict[str, set[int]] = {}
        self._accounts: dict[str, Account] = {}

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
            for part, change in ((before, sub), (now, add)):
                sums = self._accounts.pop(part.account, Account())
                if any(sums := Account(*map(change, sums, part.of_account))):
                    self._accounts[part.account] = sums
            for name in {*before.groups} ^ {*now.groups}:
                self._members[name] ^= {id}
            self._sums = Figures(*map(add, self._sums, map(sub, now.figures, before.figures)))
            for held, new_stakes in zip(before.stakes, now.stakes, strict=True):
                if held != new_stakes:
                    for domain in held[0]:
                        domain.count(id, None)
                    for domain in new_stakes[0]:
                        domain.count(id, new_stakes[1])

    def __getitem__(self, name: str) -> list[ScheduledClient]:
        """The members of a group, in the order in which the clients joined the card."""
        self.settle()
        return [self._clients[id] for id in sorted(self._members[name])]

    @property
    def sums(self) -> Figures:
        """The sums of the figures over all clients."""
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


@dataclass(slots=True)
class BusPatience:
    """How long moves in one direction may still wait for a program that copies; see ahead.py. A
    token bucket of microseconds: it drains while moves wait, and fills up to BURST otherwise."""

    left: int = BURST
    waits: bool = False                 # moves wait now
    at: int = 0                         # time at which `left` was computed
    since: int | None = None            # time of the last change of `waits`


@dataclass(slots=True)
class Card:
    """The state of one card; bytes and microseconds."""

    settings: Settings
    now: int                            # time of the current event
    gathering_until: int
    host: BudgetPart
    disk: BudgetPart
    neighbour: Neighbour                # this card, as other cards see it
    domains: Domains                    # limits of host memory, of all cards
    memory_limits: Domains              # memory limits of tenants on this card
    clients: dict[int, ScheduledClient] = field(default_factory=dict)
    groups: Groups = field(init=False)
    tenants: Tenants = field(default_factory=Tenants)
    actions: list[Action] = field(default_factory=list)  # actions caused by the current event
    deadline: int | None = None         # the earliest time at which a new plan may differ
    awaiting: bool = False              # a client of an earlier daemon has not said HELLO yet
    lost: bool = False
    expecting: list[Node] = field(default_factory=list)  # nodes with Node.ahead above 0
    policy: object = None               # see policy.of()
    contended: bool = False             # a client waits for another's turn to end
    head: int | None = None             # id of the waiting client, by the last plan
    shown_tq: int = field(init=False)   # us; automatic quantum, as shown to people
    latency: Average = Average(1000, 1000, 1)   # us from STOP to STOPPED, less the drain's time
    pace: Average = PACE                # average us per byte of hand-overs
    shortfall: int = 0                  # bytes of the set capacity that the driver does not have,
    shortfall_until: int = 0            # `shortfall` is assumed until this time
    last_evicted: int = 0               # when any client last evicted anything
    # For promises.send_limits, which checks whether clients need new LIMITS:
    growth_figures: tuple[int, ...] = (0,) * 6      # figures when a full check began last
    domain_left: dict[str, int] = field(default_factory=dict)   # bytes at the last check, by name
    limits_unchecked: set[int] = field(default_factory=set)     # ids of clients still to be checked
    check_limits_at: int = 0            # time of the next check of a client in `limits_unchecked`
    common_run: Run | None = None   # the last RUN, before changes for single clients
    watched: bool = False               # holders report idleness though no client waits; ahead.py
    publishing: set[int] = field(default_factory=set)  # ids of clients sent PUBLISH; see turns.py
    watchers: list[int] = field(default_factory=list)   # ids of clients sent WATCH of `publishing`
    busy_members: frozenset[int] = frozenset()  # ids of the clients in busy turns, see turns.py
    busy_since: int = 0                 # when `busy_members` changed last
    patience: dict[Direction, BusPatience] = field(
        default_factory=lambda: {direction: BusPatience() for direction in Direction})
    counters: Counters = field(default_factory=Counters)
    division: Division = field(default_factory=Division)        # divides the card's time
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    serials: Iterator[int] = field(default_factory=lambda: count(1))    # of turns and waits

    def __post_init__(self) -> None:
        self.groups = Groups(self.clients)
        self.shown_tq = self.settings.longest_tq

    def add(self, client: ScheduledClient) -> None:
        """Adds a new client."""
        own = Node()
        client.path = path = self.tenants.path(client.tenants, own, client.own.priority)
        path[2].children[client.id] = own
        client.limits = (own, *[
            self.tenants.accounts.setdefault(name, Node(name)) for name in client.tenants])
        client.history = History(division=self.division, since=client.since)
        self.clients[client.id] = client

    def remove(self, id: int) -> ScheduledClient | None:
        """Removes a client and returns it. None: no client has this id."""
        self.groups.touched.add(id)
        client = self.clients.pop(id, None)
        if client is not None:
            if client.lender is not None:
                client.lender.set_loan(id, Loan())
            client.enter(Phase.IDLE, self.now)
            *_, inner, own = client.path
            del inner.children[id]
            self.tenants.limited.pop(own, None)
            for node in client.nodes:
                node.members.discard(id)
        return client

    @property
    def gathered(self) -> int:
        """When gathering ends; later while a client of an earlier daemon has not said HELLO."""
        return self.gathering_until + (HELLO_PATIENCE if self.awaiting else 0)

    @property
    def one_at_a_time(self) -> bool:
        """Whether clients take turns even if they fit together."""
        return self.settings.anti_thrash is AntiThrash.ON or bool(self.busy_members)

    @property
    def capacity(self) -> int:
        """Bytes of the card that can be given to clients as room."""
        return max(0, self.settings.capacity - self.shortfall)

    @property
    def free(self) -> int:
        """Room that no client or borrower has; negative after the capacity shrank."""
        return self.capacity - self.groups.sums.charged - self.neighbour.lent

    @property
    def host_free(self) -> int:
        """Bytes of host memory that no client has or may take; negative: beyond the budget."""
        return self.host.takeable - self.groups.sums.host_charged - self.groups.sums.beyond

    def disk_free_for(self, client: ScheduledClient) -> int:
        """Bytes of the disk that the client may still write; negative after a limit shrank."""
        self.groups.settle()
        free = self.disk.takeable - self.groups.sums.disk
        return min([free, *(limit.untaken for limit in client.disk_limits)])

    def host_free_for(self, client: ScheduledClient) -> int:
        """Bytes of host memory that the client may still take under all limits."""
        self.groups.settle()
        return min([self.host_free, *(domain.untaken for domain in client.domains)])

    @property
    def holders(self) -> list[ScheduledClient]:
        """Chosen, running and draining clients, oldest turn first."""
        return sorted(self.groups["holding"], key=lambda client: client.its_turn.serial)

    def borrowable(self, client: ScheduledClient) -> int | None:
        """Bytes that the client may still borrow under its tenants' limits and, if there is a disk,
        the card's: other blocks pass to the disk through host memory, which loans must leave free.
        Negative: a limit is exceeded. None: there is no limit.
        """
        loans = {one.id: one.loan.ordered for one in self.groups["borrowing"]}
        limits = {name: self.tenants.terms_for(name).neighbour_limit for name in client.tenants}
        left = [
            limit - sum(loan for id, loan in loans.items() if name in self.clients[id].tenants)
            for name, limit in limits.items() if limit]
        if self.disk.budget.size:
            transit = max(self.host.takeable // TRANSIT_PART, TRANSIT_BLOCKS * self.settings.block)
            left.append(self.host.takeable - transit - sum(loans.values()))
        return min(left, default=None)

    def room_left_with(self, group: Iterable[ScheduledClient]) -> int:
        """Bytes of the card left if these clients are fully resident and others evicted as far as
        possible. Ignores `shortfall`: if that lasts, the daemon lowers the capacity."""
        members = list(group)
        needed = self.groups.sums.pinned + sum([c.unpinned_need for c in members])
        kept = self.unevictable_outside(members) if self.tight else 0
        return self.settings.capacity - needed - kept

    @property
    def room_if_alone(self) -> int:
        """Bytes that a client could fill beside pinned memory and unresponsive clients."""
        return self.settings.capacity - self.groups.sums.pinned - self.groups.sums.out_of_reach

    @property
    def tight(self) -> bool:
        """Whether a domain lacks the host memory to evict all memory of its clients."""
        self.groups.settle()
        return bool(self.domains.unevictable)

    def unevictable_outside(self, group: Iterable[ScheduledClient]) -> int:
        """Bytes of clients outside `group` that cannot be evicted for want of host memory."""
        kept: Counter[int] = Counter()
        inside = {client.id for client in group}
        # Inner domains come first: they have fewer members.
        for domain in sorted(self.domains.unevictable, key=lambda one: len(one.stakes)):
            limit = domain.limit or 0
            elsewhere = sum(s.taken for id, s in domain.stakes.items() if id not in self.clients)
            outside = [id for id in domain.stakes if id in self.clients and id not in inside]
            needed = sum(domain.stakes[id].needed for id in outside)
            short = needed - (limit - elsewhere) - sum(kept[id] for id in outside)
            for id in outside:
                resident = min(self.clients[id].memory.resident, self.clients[id].charged)
                more = max(0, min(short, resident - kept[id]))
                kept[id] += more
                short -= more
        return kept.total()

    def fits(self, group: Iterable[ScheduledClient]) -> bool:
        """Whether these clients can all be fully resident at once."""
        return self.room_left_with(group) >= 0

    def load_time(self, client: ScheduledClient, size: int) -> int:
        """Microseconds to load `size` bytes of a client, and to make room for them."""
        pace = client.pace if client.pace.number else self.pace
        return round(pace.value * size)

    def count(self, client: ScheduledClient, **more: int) -> None:
        """Adds to the totals of a client and of the card."""
        for totals in (self.counters, client.history):
            for name, number in more.items():
                setattr(totals, name, getattr(totals, name) + number)

    def due(self, moment: int) -> bool:
        """Whether the time `moment` has been reached. If not, lowers the deadline to it."""
        if moment <= self.now:
            return True
        if self.deadline is None or moment < self.deadline:
            self.deadline = moment
        return False

    def report_crowded(self, client: ScheduledClient) -> None:
        """Reports a client that has waited for long, and would not fit even alone."""
        memory, alone = client.memory, self.room_if_alone
        if client.unpinned_need <= alone or client.crowded:
            return
        client.crowded = self.due(client.since + self.settings.stuck_after)
        if client.crowded:
            room = alone + min(memory.need, memory.pinned)
            self.send(actions.Crowded(client.id, memory.need, room))

    def send(self, action: Action) -> None:
        """Adds a report, or an order that needs no record of being under way."""
        self.actions.append(action)

    def stop(self, client: ScheduledClient, why: TurnEnd) -> None:
        """Orders a running client to drain (STOP)."""
        turn = client.its_turn
        turn.ending, turn.reported = why, False
        client.enter(Phase.DRAINING, self.now)
        self.send(actions.Stop(client.id))

    def end_turn(self, client: ScheduledClient, why: TurnEnd) -> None:
        """Ends a client's turn, and reports the end if the gate was open."""
        turn, client.turn = client.turn, None
        if turn is not None and turn.started is not None:
            self.send(actions.TurnEnded(client.id, why, self.now - turn.started))

    def evict(
        self, client: ScheduledClient, room: int, host: int, goal: Goal | None = None,
        loan: int | None = None,
    ) -> None:
        """Orders a client to shrink to `room` bytes, and to hold up to `host` bytes on the host and
        `loan` bytes on another card; None: as many as the limits allow."""
        if loan is None:
            loan = self._lend(client, max(0, client.ordered - room))
        self._move(client, actions.Evict, room, host, goal, loan)

    def load(self, client: ScheduledClient, room: int, host: int, goal: Goal | None = None) -> None:
        """Orders a client to load memory into `room` bytes."""
        more = max(0, room - client.charged)
        assert more == 0 or more <= self.free or self.lost, "the card has no such room"
        client.cut = False
        self._move(client, Load, room, host, goal)

    def write_back(self, client: ScheduledClient, size: int, host: int) -> None:
        """Orders copies to the host until `size` bytes can be evicted without a copy."""
        self._move(
            client, partial(actions.Writeback, size=size), client.ordered, host, Goal.WRITEBACK,
            self._lend(client, size))

    def store(self, client: ScheduledClient, size: int) -> None:
        """Orders a client to move swapped blocks to the disk, up to `size` bytes there in all."""
        order = actions.Store(client.id, next(self.numbers), size)
        client.stores = (*client.stores, order)
        self.send(order)

    def _lend(self, client: ScheduledClient, moved: int) -> int:
        """The bytes that may lie on another card once `moved` more are evicted or copied. Chooses a
        lender for a client without one; a suspended client borrows no more."""
        loan, left = client.loan.ordered, self.borrowable(client)
        moved = moved if left is None else min(moved, max(0, left))
        if client.terms.suspended:
            return loan
        if client.lender is None and moved:
            client.lender = self.neighbour.lender()
        return loan if client.lender is None else loan + min(moved, client.lender.available)

    def _move(
        self, client: ScheduledClient, kind: Callable[..., MoveOrder], room: int, host: int,
        goal: Goal | None, loan: int = 0,
    ) -> None:
        lender = client.lender.uuid if client.lender and kind is not Load else ""
        order = kind(client.id, next(self.numbers), room, host, goal is not None, loan, lender)
        counted_host = client.host_counted
        if kind is not Load:
            counted_host += max(0, host - client.host_charged)
        client.moves = (*client.moves, Move(order, self.now, counted_host, goal))
        client.preallocated = 0         # a move ends PREALLOCATE; the move's `host` counts instead
        client.record_loan()
        self.send(order)


def count_turn_takers(members: Iterable[ScheduledClient]) -> int:
    """Number of clients that take turns; a gang counts as one client."""
    return len({
        (client.membership.gang, 0) if client.standing else (0, client.id)
        for client in members if not (client.is_permanent or client.unresponsive)})
