# SPDX-License-Identifier: Apache-2.0
"""Everything the scheduler knows about one GPU, the sums over its clients, and the actions that the
current event causes. All moves of memory are ordered here, so that they are recorded in one place.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from nvshared.scheduler import actions
from nvshared.scheduler.actions import Action, Load, MoveOrder, TurnEnd
from nvshared.scheduler.client import Phase, ScheduledClient
from nvshared.scheduler.domains import BudgetPart, Domains, Loan, Neighbour
from nvshared.scheduler.events import Settings
from nvshared.scheduler.groups import Groups
from nvshared.scheduler.orders import Goal, Move
from nvshared.scheduler.records import PACE, Average, Records
from nvshared.scheduler.tenants import Counters, Division, Tenants
from nvshared.tiers import TierBudget
from nvshared.units import SECOND

# Most unanswered orders to a client, so that its hook begins the next order at once.
DEPTH = 2
TRANSIT_PART = 8                        # with a disk, loans leave 1/8 of host memory free,
TRANSIT_BLOCKS = 2                      # and at least 2 blocks, for blocks on the way to the disk
HELLO_PATIENCE = 2 * SECOND             # gathering lasts longer for clients without HELLO
SHORTFALL = 10 * SECOND                 # a LOAD without memory lowers the capacity for this time


@dataclass(slots=True)
class Card:
    """The state of one card; bytes and microseconds."""

    settings: Settings
    now: int                            # time of the current event
    gathering_until: int
    parts: Mapping[str, BudgetPart]     # the card's parts of budgets, by tier
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
    contended: bool = False             # a client waits for another's turn to end
    head: int | None = None             # id of the waiting client, by the last plan
    latency: Average = Average(1000, 1000, 1)   # us from STOP to STOPPED, less the drain's time
    pace: Average = PACE                # average us per byte of hand-overs
    shortfall: int = 0                  # bytes of the set capacity that the driver does not have,
    shortfall_until: int = 0            # `shortfall` is assumed until this time
    counters: Counters = field(default_factory=Counters)
    division: Division = field(default_factory=Division)        # divides the card's time
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    serials: Iterator[int] = field(default_factory=lambda: count(1))    # of turns and waits
    records: Records = field(default_factory=Records)   # of modules that use this one

    def __post_init__(self) -> None:
        self.groups = Groups(self.clients)

    def add(self, client: ScheduledClient) -> None:
        """Adds a new client."""
        path = self.tenants.join(client.id, client.tenants, client.own.priority)
        client.join(path, path[-1], *map(self.tenants.account, client.tenants))
        self.clients[client.id] = client

    def remove(self, id: int) -> ScheduledClient | None:
        """Removes a client and returns it. None: no client has this id."""
        client = self.clients.pop(id, None)
        if client is not None:
            self.groups.touch(client)
            if client.orders.lender is not None:
                client.orders.lender.set_loan(id, Loan())
            client.enter(Phase.IDLE, self.now)
            self.tenants.leave(id, client.path, client.limits)
        return client

    def begin(self, now: int) -> None:
        self.now, self.actions, self.deadline = max(now, self.now), [], None

    def configure(self, settings: Settings) -> None:
        self.settings, self.shortfall = settings, 0

    def await_hello(self, expected: bool) -> None:
        """Records whether a client of an earlier daemon has not said HELLO yet."""
        self.awaiting = expected

    def lose(self) -> None:
        """The card is gone."""
        self.lost = True
        for part in self.parts.values():
            part.lose()
        self.domains.leave(self.groups)
        self.note_head(None, contended=False)

    def note_head(self, blocked: ScheduledClient | None, *, contended: bool) -> None:
        """Records the client that waits for another's turn to end, by the last plan."""
        self.head, self.contended = None if blocked is None else blocked.id, contended

    def note_latency(self, latency: int) -> None:
        """Records the us from STOP to STOPPED, less the drain's time."""
        self.latency = self.latency.after(latency)

    def note_pace(self, pace: float) -> None:
        """Records the us per byte of a hand-over."""
        self.pace = self.pace.after(pace)

    def fall_short(self, missing: int) -> None:
        """Lowers the capacity for a while: a client could not fill the last `missing` bytes of its
        room. While `free` is negative, that shows the earlier shortfall again."""
        shortfall = self.shortfall + missing if self.free >= 0 else max(self.shortfall, missing)
        self.shortfall = min(shortfall, self.settings.capacity)
        self.shortfall_until = self.now + SHORTFALL

    def end_shortfall(self) -> None:
        """Restores the capacity if it is time to."""
        if self.shortfall and self.due(self.shortfall_until):
            self.shortfall = 0

    @property
    def gathered(self) -> int:
        """When gathering ends; later while a client of an earlier daemon has not said HELLO."""
        return self.gathering_until + (HELLO_PATIENCE if self.awaiting else 0)

    @property
    def capacity(self) -> int:
        """Bytes of the card that can be given to clients as room."""
        return max(0, self.settings.capacity - self.shortfall)

    @property
    def free(self) -> int:
        """Room that no client or borrower has; negative after the capacity shrank."""
        return self.capacity - self.groups.sums.charged - self.neighbour.lent

    @property
    def host(self) -> BudgetPart:
        """The card's part of the budget of host memory."""
        return self.parts["host"]

    @property
    def disk(self) -> BudgetPart:
        """The card's part of the budget of the disk."""
        return self.parts["disk"]

    def budgets(self) -> dict[str, TierBudget]:
        """What its clients have in each tier, or may take by orders; negative `free`: too much."""
        lent, host = self.neighbour.lent, self.host.takeable
        return {
            "neighbour": TierBudget(lent + self.neighbour.available, lent),
            "host": TierBudget(host, host - self.host_free),
            "disk": TierBudget(self.disk.takeable, self.groups.sums.disk)}

    @property
    def host_free(self) -> int:
        """Bytes of host memory that no client has or may take; negative: beyond the budget."""
        return self.host.takeable - self.groups.sums.host_charged - self.groups.sums.beyond

    def disk_free_for(self, client: ScheduledClient) -> int:
        """Bytes of the disk that the client may still write; negative after a limit shrank."""
        self.groups.settle()
        free = self.disk.takeable - self.groups.sums.disk
        return min([free, *(limit.untaken for limit in client.bounds.disk)])

    def host_free_for(self, client: ScheduledClient) -> int:
        """Bytes of host memory that the client may still take under all limits."""
        self.groups.settle()
        return min([self.host_free, *(domain.untaken for domain in client.bounds.host)])

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
        if self.due(client.since + self.settings.stuck_after):
            client.note_crowded()
            room = alone + min(memory.need, memory.pinned)
            self.send(actions.Crowded(client.id, memory.need, room))

    def send(self, action: Action) -> None:
        """Adds a report, or an order that needs no record of being under way."""
        self.actions.append(action)

    def stop(self, client: ScheduledClient, why: TurnEnd) -> None:
        """Orders a running client to drain (STOP)."""
        client.its_turn.stop(why)
        client.enter(Phase.DRAINING, self.now)
        self.send(actions.Stop(client.id))

    def end_turn(self, client: ScheduledClient, why: TurnEnd) -> None:
        """Ends a client's turn, and reports the end if the gate was open."""
        turn = client.end_turn()
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
        self._move(client, Load, room, host, goal)

    def write_back(self, client: ScheduledClient, size: int, host: int) -> None:
        """Orders copies to the host until `size` bytes can be evicted without a copy."""
        self._move(
            client, partial(actions.Writeback, size=size), client.ordered, host, Goal.WRITEBACK,
            self._lend(client, size))

    def store(self, client: ScheduledClient, size: int) -> None:
        """Orders a client to move swapped blocks to the disk, up to `size` bytes there in all."""
        order = actions.Store(client.id, next(self.numbers), size)
        client.orders.store(order)
        self.send(order)

    def _lend(self, client: ScheduledClient, moved: int) -> int:
        """The bytes that may lie on another card once `moved` more are evicted or copied. Chooses a
        lender for a client without one; a suspended client borrows no more."""
        loan, left = client.loan.ordered, self.borrowable(client)
        moved = moved if left is None else min(moved, max(0, left))
        if client.terms.suspended:
            return loan
        if client.orders.lender is None and moved:
            client.orders.borrow(self.neighbour.lender(client.orders.passed))
        lender = client.orders.lender
        return loan if lender is None else loan + min(moved, lender.available)

    def _move(
        self, client: ScheduledClient, kind: Callable[..., MoveOrder], room: int, host: int,
        goal: Goal | None, loan: int = 0,
    ) -> None:
        lender = client.orders.lender.uuid if client.orders.lender and kind is not Load else ""
        order = kind(client.id, next(self.numbers), room, host, goal is not None, loan, lender)
        counted_host = client.host_counted
        if kind is not Load:
            counted_host += max(0, host - client.host_charged)
        client.orders.send(Move(order, self.now, counted_host, goal))
        client.record_loan()
        self.send(order)


def count_turn_takers(members: Iterable[ScheduledClient]) -> int:
    """Number of clients that take turns; a gang counts as one client."""
    return len({
        (client.membership.gang, 0) if client.standing else (0, client.id)
        for client in members if not (client.is_permanent or client.unresponsive)})
