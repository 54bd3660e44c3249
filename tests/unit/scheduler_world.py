# SPDX-License-Identifier: Apache-2.0
"""A scheduler, model hooks, links with random delays and a clock, with checks of the invariants.

Each link keeps the order of its messages. check() compares the invariants of ARCHITECTURE.md with
the true state of the hooks, including all orders not yet delivered.
"""

import heapq
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from random import Random
from typing import TypeVar

from nvshared.scheduler import Scheduler, busy
from nvshared.scheduler.actions import (
    Action,
    ClientState,
    Evict,
    Load,
    Order,
    Preallocate,
    Report,
    Run,
    Stop,
    Store,
    Stuck,
    TurnEnded,
    TurnStarted,
    Writeback,
    Yield,
)
from nvshared.scheduler.domains import UNBOUNDED, Domains
from nvshared.scheduler.events import (
    AntiThrash,
    Busy,
    CapacityChanged,
    Event,
    Evidence,
    Joined,
    Left,
    Record,
    Seen,
    Settings,
    SettingsChanged,
    TenantChanged,
    TenantTerms,
    Tick,
)
from nvshared.scheduler.orders import Goal
from nvshared.units import MIB, SECOND
from tests.unit.scheduler_hookmodel import Hook

HookKind = TypeVar("HookKind", bound=Hook)
OrderKind = TypeVar("OrderKind", bound=Order)

# Maximum for one event and client: EVICT and LOAD twice at most, STOP, RUN, LIMITS with a
# probe, an answer to a request, and reports.
ACTIONS_PER_CLIENT = 10
SAMPLE_INTERVAL = SECOND // 10          # us: least time between two samples of the card


def _is_active(hook: Hook) -> bool:
    return bool(hook.work or hook.commit_waits or hook.granted_pins or hook.busy)


def tenants_of(client: int) -> tuple[str, ...]:
    """Tenants of a client: its user, and for some clients a job."""
    return (f"user:{client % 2}", *([f"job:{client % 3}"] if client % 3 else []))


def _evidence(hook: Hook) -> Evidence:
    return Evidence(hook.filled, hook.host)


class World:
    """A card with a scheduler and clients; the same seed gives the same events."""

    repeats = True                      # check that a Tick after each event changes nothing

    def __init__(self, settings: Settings, seed: int = 0, block: int = 32 * MIB,
                 slab: int = 128 * MIB, bus: int = 50_000, delay: int = 2000, accounts: int = 0,
                 jobs: bool = False) -> None:
        """`accounts`: number of accounts that own the clients; 0: root owns all.

        `jobs`: whether some clients belong to users' jobs, for which terms may be set.
        """
        self.jobs = jobs
        self.now = 1_000_000
        self.accounts = accounts
        self.block = block
        self.slab = slab
        self.bus = bus
        self.delay = delay              # maximum delay of a message, in us
        self.random = Random(seed)
        self.settings = settings
        self.outside = 0                # bytes that unshared processes use; the daemon is not told
        self.physical = settings.capacity
        self.hooks: dict[int, Hook] = {}
        self.box: int | None = None     # limit of the host memory of clients with odd ids, in bytes
        self.domains = Domains()
        self.tenant_terms: dict[str, TenantTerms] = {}
        self.scheduler = Scheduler(settings, self.now, self.domains)
        self.events = 0                 # number of events handled by the scheduler
        self.stuck: list[Stuck] = []
        self.orders: list[Order] = []   # all orders, oldest first
        self.ends: list[TurnEnded] = []
        self.turns: list[int] = []      # the clients, in the order of RUN
        self.most = 0                   # bytes: maximum sum of card, host budget and disk so far
        self.shrunk = False             # capacity or budget were lowered and may be exceeded
        self._generation = 0            # number of daemon restarts
        self._ids = count(1)
        self._ties = count()
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._arrives: dict[tuple[int, str], int] = {}  # arrival of the last message of each link
        self._sent: dict[int, deque[Order]] = {}        # orders not yet delivered, by client
        self._alarm: int | None = None
        self._busy = 0                  # clients that had reported BUSY by the last event
        self._sums = (0, 0, 0, 0, 0)
        self._greeted: set[int] = set()
        self._saves: set[int] = set()   # numbers of all WRITEBACK orders
        self._sampled = -SAMPLE_INTERVAL

    def schedule(self, when: int, what: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (when, next(self._ties), what))

    def at(self, when: int, what: Callable[[], None]) -> None:
        """As Surroundings.at; callbacks of hooks check whether the hook is dead."""
        self.schedule(when, what)

    def step(self) -> bool:
        if not self._agenda:
            return False
        when, _, what = heapq.heappop(self._agenda)
        self.now = max(self.now, when)
        what()
        self.check()
        return True

    def advance(self, microseconds: int) -> None:
        end = self.now + microseconds
        while self._agenda and self._agenda[0][0] <= end:
            self.step()
        self.now = end
        self.sample()

    def sample(self) -> None:
        if self.accounts and self.now >= self._sampled + SAMPLE_INTERVAL:
            self._sampled = self.now
            evidence = {id: _evidence(hook) for id, hook in self.hooks.items()}
            filled = {id: self.scheduler.memory(id).filled for id in self.hooks}
            self.tell(Seen(evidence, filled))

    def join(self) -> Hook:
        return self.welcome(Hook(next(self._ids), self))

    def welcome(self, hook: HookKind) -> HookKind:
        self.hooks[hook.id] = hook
        self._sent[hook.id] = deque()
        hook.hello()
        return hook

    def kill(self, hook: Hook) -> None:
        """Kill a hook: its memory is free at once, and the daemon notices later."""
        hook.dead = True
        self.hooks.pop(hook.id, None)
        self._sent.pop(hook.id, None)
        self._to_daemon(hook.id, Left(hook.id))

    def restart(self) -> None:
        """Replace the daemon as after kill -9. All clients reconnect in time."""
        self._generation += 1
        for orders in self._sent.values():
            orders.clear()
        self._greeted.clear()
        self.domains = Domains()
        self.domains.set_limit("box", self.box)
        self.scheduler = Scheduler(self.settings, self.now, self.domains)
        self._alarm = None
        self._arm()
        for tenant, terms in self.tenant_terms.items():
            self.tell(TenantChanged(tenant, terms))
        for hook in self.hooks.values():
            self._reconnect(hook, self._generation)

    def _reconnect(self, hook: Hook, generation: int) -> None:
        wait = self.random.randint(0, max(1, self.settings.gather // 4))

        def again() -> None:
            if hook.dead or generation != self._generation:
                return
            if hook.busy or hook.orders:  # the hook carries out all orders of the old daemon first
                self.schedule(self.now + 1000, again)
            else:
                hook.hello()

        self.schedule(self.now + wait, again)

    def settle(self, limit: int) -> None:
        """Lets time pass until no client computes or waits, at most `limit` us."""
        end = self.now + limit
        while self.now < end and any(map(_is_active, self.hooks.values())):
            if not self.step():
                break
        self.advance(SECOND)            # until the last reports have arrived

    def orders_of(self, kind: type[OrderKind]) -> list[OrderKind]:
        return [order for order in self.orders if isinstance(order, kind)]

    def device_free(self) -> int:
        return self.physical - self.outside - sum(hook.filled for hook in self.hooks.values())

    def configure(self, settings: Settings) -> None:
        self.check()
        old = self.settings
        self.settings = settings
        card = self.scheduler._card
        card.host.budget.size, card.disk.budget.size = settings.host_budget, settings.disk_budget
        self.shrunk = True
        if replace(old, capacity=settings.capacity) == settings:
            self.tell(CapacityChanged(settings.capacity))
        else:
            self.tell(SettingsChanged(settings))
        self.check()

    def resize(self, box: int | None) -> None:
        """Limit the host memory of clients with odd numbers; None: no limit."""
        self.check()
        self.shrunk = True
        self.box = box
        self.domains.set_limit("box", box)
        self.tell(Tick())
        self.check()

    def put_tenant(self, tenant: str, terms: TenantTerms) -> None:
        self.tenant_terms[tenant] = terms
        self.tell(TenantChanged(tenant, terms))
        self.check()

    def say(self, hook: Hook, record: Record | Joined) -> None:
        """Send a hook's record; after a restart, records before HELLO are dropped."""
        if isinstance(record, Joined):
            self._greeted.add(hook.id)
            account = f"user:{hook.id % self.accounts}" if self.accounts else ""
            record = replace(record, account=account, evidence=_evidence(hook))
        if not hook.dead and hook.id in self._greeted:
            self._to_daemon(hook.id, record)

    def _travel(self, client: int, way: str, arrive: Callable[[], None]) -> None:
        when = self.now + self.random.randint(1, self.delay)
        when = max(when, self._arrives.get((client, way), 0))
        self._arrives[client, way] = when
        generation = self._generation

        def there() -> None:
            if generation == self._generation:
                arrive()

        self.schedule(when, there)

    def _to_daemon(self, client: int, event: Event) -> None:
        self._travel(client, "up", lambda: self.tell(event))

    def tell(self, event: Event) -> None:
        self.events += 1
        if isinstance(event, Joined) and event.client % 2:
            event = replace(event, domains=("box",))
        if isinstance(event, Joined) and self.jobs:
            event = replace(event, tenants=tenants_of(event.client))
        promised = self._promised()
        self._busy = self._count_busy() + isinstance(event, Busy)
        actions = self.scheduler.handle(event, self.now)
        self._check_tenants(event, promised)
        assert len(actions) <= ACTIONS_PER_CLIENT * (len(self.hooks) + 2), actions
        starting = {action.client for action in actions if isinstance(action, TurnStarted)}
        for action in actions:
            self._check_action(action, starting)
        members = busy.members(self.scheduler._card)
        waits = self.scheduler.snapshot().waits
        queued = [id for id, wait in waits.items() if wait.position]
        assert not members or members.issuperset(queued), "another client waits"
        if self.repeats:
            again = self.scheduler.handle(Tick(), self.now)
            assert not again, f"after {event} it did {actions} and then, with nothing new, {again}"
        for action in actions:
            self._carry(action)
        self._arm()

    def _carry(self, action: Action) -> None:
        match action:
            case TurnStarted():
                self.turns.append(action.client)
            case TurnEnded():
                assert action.held_time >= 0
                self.ends.append(action)
            case Stuck():
                self.stuck.append(action)
            case _ if isinstance(action, Order):
                self._to_hook(action)

    def _to_hook(self, order: Order) -> None:
        self.orders.append(order)
        hook = self.hooks.get(order.client)
        if hook is None:
            return
        self._sent[hook.id].append(order)

        def arrive() -> None:
            if not hook.dead:
                self._sent[hook.id].popleft()
                hook.obey(order)

        self._travel(hook.id, "down", arrive)

    def _arm(self) -> None:
        deadline = self.scheduler.deadline()
        assert deadline is None or deadline > self.now, "it would never come to rest"
        self._alarm = deadline
        if deadline is not None:

            def ring() -> None:
                if self._alarm == deadline:
                    self.tell(Tick())

            self.schedule(deadline, ring)

    def _promised(self) -> Counter[str]:
        promised: Counter[str] = Counter()
        for client in self.scheduler._card.clients.values():
            for tenant in client.tenants:
                promised[tenant] += client.committed
        return promised

    def _check_tenants(self, event: Event, before: Counter[str]) -> None:
        if isinstance(event, Joined):
            joined = self.scheduler._card.clients[event.client]
            for tenant in joined.tenants:
                before[tenant] += max(event.commit, event.memory.need)
        for tenant, promised in self._promised().items():
            limit = self.scheduler._card.tenants.terms_for(tenant).memory_limit
            assert not limit or promised <= max(limit, before[tenant]), f"{tenant} has too much"

    def _early(self) -> set[int]:
        """Numbers of prefetch orders, which are for clients that do not wait for a turn."""
        moves = (move for c in self.scheduler._card.clients.values() for move in c.orders.moves)
        return {move.order.number for move in moves if move.goal is Goal.PREFETCH}

    def _count_busy(self) -> int:
        turns = [client.turn for client in self.scheduler._card.clients.values()]
        return sum(turn is not None and turn.busy is not None for turn in turns)

    def _check_action(self, action: Order | Report, starting: set[int]) -> None:
        views = self.scheduler.snapshot().clients
        if isinstance(action, Run) and action.client in starting:
            view = views[action.client]
            assert view.memory.resident == view.memory.allocated, "it runs, and is not whole"
            assert view.memory.need <= view.room
        if isinstance(action, Writeback):
            self._saves.add(action.number)
            states = {view.state for view in views.values()}
            calm = {ClientState.IDLE, ClientState.RUNNING, ClientState.SUSPENDED,
                    ClientState.EVICTING, ClientState.LIMITED}
            # Blocks on another card are written back even while clients wait for turns or room.
            calm |= set() if action.size else {ClientState.WAITING, ClientState.CROWDED}
            assert states <= calm, f"it saves, and is awaited: {states - calm}"
        if isinstance(action, Store):
            client = self.scheduler._card.clients[action.client]
            more = action.size - client.memory.disk
            assert more <= 0 or not client.open, "it stores, and runs"
        if isinstance(action, Yield) and action.number not in self._saves | self._early():
            # The turn of a loaded client has started, so its hand-over has ended.
            states = {view.state for view in views.values()}
            under_way = states & {ClientState.LOADING, ClientState.DRAINING}
            assert not under_way, "it gives way in a hand-over"
        if isinstance(action, Stop):
            now = self.scheduler.snapshot()
            memory = views[action.client].memory
            lacks_memory = memory.allocated > 0 or memory.need > memory.room
            assert lacks_memory or not memory.pin_reason, "nothing of it leaves, and it is stopped"
            full = sum(v.memory.need for v in views.values()) > self.settings.capacity
            crowded = len(now.holders) > 1 and self.settings.anti_thrash is AntiThrash.ON
            # Two busy clients take turns; an idle holder beside them is stopped first.
            # If a busy client rests, it is stopped as well, and the reports of others lapse.
            several = max(self._busy, self._count_busy()) > 1
            several = several or bool(busy.members(self.scheduler._card))
            assert full or crowded or several or now.queue_length, "stopped, and nobody wants it"

    def _ordered(self, hook: Hook) -> list[Order]:
        doing = [hook.doing] if hook.doing is not None else []
        return [*doing, *hook.orders, *self._sent[hook.id]]

    def check(self) -> None:
        host = used = boxed = room = disk = 0
        for hook in self.hooks.values():
            mine = [hook.room, hook.filled]
            if isinstance(hook.doing, Evict):
                mine.append(hook.before)
            hosts, disks = [hook.host, hook.prealloc_limit], [hook.disk, hook.disk_limit]
            for order in self._ordered(hook):
                if isinstance(order, Load):
                    mine.append(order.room)
                elif isinstance(order, Evict | Writeback | Preallocate):
                    hosts.append(order.host)
                elif isinstance(order, Store):
                    disks.append(order.size)
            disk += max(disks)
            room += max(mine)
            host += max(hosts)
            used += hook.allocated + hook.pinned
            boxed += max(hosts) if hook.id % 2 else 0
            if hook.open:
                assert hook.resident == hook.allocated, "the gate is open on absent memory"
            assert hook.filled <= max(hook.room, hook.filled if hook.busy else 0)
        before = self._sums
        self._sums = (room, host, used, boxed, disk)
        # Grants made before the sizes were lowered stay valid.
        self.most = max(self.most, self.settings.capacity + self.settings.host_budget
                        + self.settings.disk_budget)
        limits = (
            self.settings.capacity, self.settings.host_budget, self.most,
            UNBOUNDED if self.box is None else self.box, self.settings.disk_budget)
        for what, now, was, limit in zip(("room", "host memory", "memory", "box", "disk"),
                                         self._sums, before, limits, strict=True):
            excused = self.shrunk and now <= was
            assert now <= limit or excused, f"{what}: {now} of {limit}"
        self.shrunk = any(now > limit for now,
                          limit in zip(self._sums, limits, strict=True)) and self.shrunk
