# SPDX-License-Identifier: Apache-2.0
"""Everything the scheduler knows about one GPU, and the sums over its clients."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import field, replace
from itertools import count

from nvshared.record import dataclass
from nvshared.scheduler.client import Conduct, Phase, ScheduledClient, Way
from nvshared.scheduler.cost import LATENCY, PACE, Average
from nvshared.scheduler.domains import Domains
from nvshared.scheduler.groups import Groups
from nvshared.scheduler.settings import AntiThrash, Priority, Settings, TenantTerms
from nvshared.scheduler.share import Line, Ration, Share
from nvshared.scheduler.snapshot import Counters
from nvshared.scheduler.usage import Division
from nvshared.scheduler.yielding import Yielding

NO_TERMS = TenantTerms()


@dataclass(frozen=True, slots=True)
class BusyTurns:
    """Who takes short turns as all of them are busy, although they fit together; see busy.py."""

    members: frozenset[int] = frozenset()   # clients, by id; none: nobody does
    since: int = 0                      # when that became so


@dataclass(slots=True)
class Card:
    """State only; bytes and microseconds."""

    settings: Settings
    now: int
    gathering_until: int
    domains: Domains = field(default_factory=Domains)       # of all cards,
    tenancies: Domains = field(default_factory=Domains)     # and of tenants on this one
    clients: dict[int, ScheduledClient] = field(default_factory=dict)
    groups: Groups = field(init=False)
    tenant_terms: dict[str, TenantTerms] = field(default_factory=dict)    # what is set for tenants
    awaiting: bool = False              # somebody has not said yet what it has
    lost: bool = False
    shares: dict[tuple[str, Priority], Share] = field(default_factory=dict)  # of outermost tenants
    rations: dict[str, Ration] = field(default_factory=dict)    # by tenant, and
    requesting: dict[Share, None] = field(default_factory=dict) # those with a compute request
    rationed: dict[Ration, None] = field(default_factory=dict)  # those with a compute limit
    # Of tenants with one client, by priority and weight.
    lines: dict[tuple[Priority, int], Line] = field(default_factory=dict)
    foreseen: list[Share] = field(default_factory=list)     # those with turns that are not over
    weighted: bool = False              # there is more than one line, see order.py
    contended: bool = False             # someone waits for another's turn to end
    head: int | None = None             # who that is, or was when last looked
    quantum: int = 0                    # after which turns may end at this moment,
    shown_quantum: int = field(init=False)      # and as it is told where it is auto
    latency: Average = LATENCY          # of hand-overs, see cost.py
    pace: Average = PACE
    shortfall: int = 0                  # the driver turned out to have so much less
    shortfall_until: int = 0
    last_evicted: int = 0               # when anyone last moved anything out
    borrowing: bool = False             # BudgetWanted has not been answered
    overdrawn: int = 0                  # bytes promised beyond card and host, when last looked
    reach: tuple[int, ...] = (0,) * 6   # see commit.py
    untold: set[int] = field(default_factory=set)   # who is yet to hear of that,
    tell_next: int = 0                  # and when the next of them do
    domain_reach: dict[str, int] = field(default_factory=dict)  # see bounds.py
    conduct: Conduct | None = None      # see turns.py
    watched: bool = False               # whoever runs is, see pauses.py
    telling: set[int] = field(default_factory=set)  # who keeps a word, see telling.py,
    heeding: dict[int, set[int]] = field(default_factory=dict)  # and who heeds whose
    busy: BusyTurns = BusyTurns()
    yielding: dict[Way, Yielding] = field(
        default_factory=lambda: {way: Yielding() for way in Way})   # see bus_sharing.py
    counters: Counters = Counters()
    division: Division = field(default_factory=Division)        # of the time, see usage.py
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    serials: Iterator[int] = field(default_factory=lambda: count(1))
    places: Iterator[int] = field(default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        self.groups = Groups(self.clients)
        self.shown_quantum = self.settings.longest_tq

    def add(self, client: ScheduledClient) -> None:
        """A client that is new."""
        client.shares = self.shares_for(client.tenants)
        client.rations = tuple(
            self.rations.setdefault(name, Ration(name)) for name in client.tenants)
        for account in client.billed:
            account.enter(client.id, client.terms.weight)
        client.tally.division = self.division
        self.clients[client.id] = client

    def remove(self, id: int) -> ScheduledClient | None:
        """A client that is gone; None if it was not there."""
        self.groups.touched.add(id)
        client = self.clients.pop(id, None)
        if client is not None:
            client.enter(Phase.IDLE, self.now)
            for account in client.billed:
                account.depart(id)
        return client

    @property
    def gathered(self) -> int:
        """When we know what lies on the card, or as much of it as we ever will.

        A client that drains or moves memory introduces itself after that. We wait for it, but not
        for ever: it may have been stopped.
        """
        return self.gathering_until + (self.settings.drain_patience if self.awaiting else 0)

    @property
    def one_at_a_time(self) -> bool:
        """Programs take turns even if they fit together."""
        return self.settings.anti_thrash is AntiThrash.ON or bool(self.busy.members)

    @property
    def capacity(self) -> int:
        """Room that can be handed out."""
        return max(0, self.settings.capacity - self.shortfall)

    @property
    def free(self) -> int:
        """Room nobody has; negative when the capacity shrank under us."""
        return self.capacity - self.groups.total("charged")

    @property
    def host_free(self) -> int:
        """Host memory nobody has or may take; negative when the budget shrank."""
        taken = self.groups.total("host_charged") + self.groups.total("beyond")
        return self.settings.host_budget - taken

    def host_free_for(self, client: ScheduledClient) -> int:
        """The same, as far as its domains have it."""
        self.groups.settle()
        return min([self.host_free, *(domain.untaken for domain in client.domains)])

    @property
    def pinned(self) -> int:
        """By all clients."""
        return self.groups.total("pinned")

    @property
    def everyone(self) -> list[ScheduledClient]:
        """All clients, in the order of their joining."""
        return [self.clients[id] for id in sorted(self.clients)]

    def in_phase(self, phase: Phase) -> list[ScheduledClient]:
        """Clients in this phase, in the order of their joining."""
        return self.groups.group(phase.value)

    @property
    def waiting(self) -> list[ScheduledClient]:
        """Clients that want a turn and may have one, in the order of their joining."""
        return self.groups.group("queued")

    @property
    def moving(self) -> list[ScheduledClient]:
        """Clients with an EVICT or LOAD on its way."""
        return self.groups.group("moving")

    @property
    def holders(self) -> list[ScheduledClient]:
        """Chosen, running and draining clients, oldest turn first."""
        return sorted(
            self.groups.group("holding"),
            key=lambda client: client.turn.serial if client.turn else 0,
        )

    def shares_for(self, tenants: tuple[str, ...]) -> tuple[Share, Share]:
        """Those of a client of these, at the priority that it has now."""
        whole, inner, *_ = (*tenants, "", "")
        set_for = [self.terms_for(tenant).priority for tenant in tenants] or [Priority.NORMAL]
        lowest = min(set_for)
        priority = lowest if lowest is Priority.BACKGROUND else max(set_for)
        share = self.shares.setdefault((whole, priority), Share(
            whole, priority=priority, among=self.groups.lines[priority]))
        return share, share.within.setdefault(
            inner, Share(inner, priority=priority, among=share.lines, outer=share))

    def terms_for(self, tenant: str) -> TenantTerms:
        """What is set for a tenant."""
        return self.tenant_terms.get(tenant, NO_TERMS)

    def total_for(self, client: ScheduledClient) -> int:
        """How large this client is told the card is; bytes."""
        return min([
            self.settings.total, client.terms.memory_limit or self.settings.total,
            *(one.capacity for one in client.tenancies if one.capacity),
        ])

    def beside(self, group: Iterable[ScheduledClient]) -> int:
        """Bytes left when these are whole at once, and the others out as far as they can be.

        What the driver lacks for the moment does not count: if it lasts, the
        daemon lowers the capacity.
        """
        members = list(group)
        left = self.settings.capacity - self.pinned - sum([client.takes for client in members])
        return left - self.stuck(members) if self.tight else left

    @property
    def alone(self) -> int:
        """Bytes that one could fill beside what is pinned, alone with those who do not answer."""
        return self.settings.capacity - self.pinned - self.out_of_reach

    @property
    def out_of_reach(self) -> int:
        """Bytes that clients hold who do not answer, less what running ones need."""
        return self.groups.total("out_of_reach")

    @property
    def tight(self) -> bool:
        """Some of the clients' memory cannot leave, for want of host memory in a domain."""
        self.groups.settle()
        return bool(self.domains.lacking)

    def stuck(self, group: Iterable[ScheduledClient]) -> int:
        """Bytes of others than these that cannot leave the card, as they have no place."""
        kept: Counter[int] = Counter()
        inside = {client.id for client in group}
        # The inner domains first, which have fewer members.
        for domain in sorted(self.domains.lacking, key=lambda one: len(one.stakes)):
            capacity = domain.capacity or 0
            elsewhere = sum(s.taken for id, s in domain.stakes.items() if id not in self.clients)
            outside = [id for id in domain.stakes if id in self.clients and id not in inside]
            needed = sum(domain.stakes[id].needed for id in outside)
            short = needed - (capacity - elsewhere) - sum(kept[id] for id in outside)
            for id in outside:
                resident = min(self.clients[id].memory.resident, self.clients[id].charged)
                more = max(0, min(short, resident - kept[id]))
                kept[id] += more
                short -= more
        return kept.total()

    def fits(self, group: Iterable[ScheduledClient]) -> bool:
        """Whether these could all be whole at once."""
        return self.beside(group) >= 0

    def admits(self, group: Iterable[ScheduledClient]) -> bool:
        """Whether these may hold the card together."""
        members = [client for client in group if not client.settled]
        return (not self.one_at_a_time or crowd(members) <= 1) and self.fits(members)

    def count(self, **more: int) -> None:
        """Adds to the counters."""
        old = self.counters
        self.counters = replace(old, **{name: getattr(old, name) + n for name, n in more.items()})


def crowd(members: Iterable[ScheduledClient]) -> int:
    """How many these are, where they take turns: a gang is one."""
    return len({
        (client.gang, 0) if client.standing else (0, client.id)
        for client in members if not (client.settled or client.mute)})
