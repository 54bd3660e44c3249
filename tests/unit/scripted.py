# SPDX-License-Identifier: Apache-2.0
"""A clock, timers, a scheduler and connections that a test controls."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from nvshared.hook.packets import encode
from nvshared.hook.protocol import OrderRecord
from nvshared.machine.capacity import Allowances
from nvshared.machine.nvml import Facts
from nvshared.machine.peer import Peer
from nvshared.machine.tenant import Kind, Tenant
from nvshared.scheduler import events
from nvshared.scheduler.actions import Action, ClientState, Limits, MoveOrder, Order, Stop, Stuck
from nvshared.scheduler.domains import Domains, Neighbour, SharedBudget
from nvshared.scheduler.snapshot import CardSnapshot, CardState, ClientView, Forecast
from nvshared.scheduler.tenants import Counters, Usage
from nvshared.settings.defaults import Defaults, GPUDefaults
from nvshared.sharing.gpu import GPU, Client
from nvshared.tiers import TierBudget
from nvshared.units import GIB, SECOND
from tests.records import decode_order

FACTS = Facts(0, "GPU-00112233-4455-6677-8899-aabbccddeeff", "Card", "00000000:17:00.0", 64 * GIB)
OTHER = Facts(1, "GPU-99112233-4455-6677-8899-aabbccddeeff", "Card", "00000000:65:00.0", 32 * GIB)
SETTINGS = events.Settings(capacity=0, total=0, host_budget=200 * GIB)
NO_RESERVE = Allowances(reserve=0, context_reserve=0)
DEFAULTS = Defaults(SETTINGS, lambda _: GPUDefaults(NO_RESERVE, GIB))


def peer(pid: int = 4711, uid: int = 1000) -> Peer:
    return Peer(pid, uid, uid, "python", (Tenant(Kind.USER, str(uid)),))


class Time:
    """A clock that moves by pass_by() alone, and its timers."""

    def __init__(self) -> None:
        self.now = 1000 * SECOND
        self.timers: list[tuple[int, Callable[[], None]]] = []

    def clock(self) -> int:
        return self.now

    def timer(self, when: int, callback: Callable[[], None]) -> Callable[[], None]:
        entry = (when, callback)
        self.timers.append(entry)

        def disarm() -> None:
            if entry in self.timers:
                self.timers.remove(entry)

        return disarm

    def pass_by(self, microseconds: int) -> None:
        """Fires the timers that become due, in order."""
        end = self.now + microseconds
        while due := sorted((one for one in self.timers if one[0] <= end), key=lambda one: one[0]):
            self.timers.remove(due[0])
            self.now = max(self.now, due[0][0])
            due[0][1]()
        self.now = end


class Scripted:
    """Replaces Scheduler: records events, and returns the actions of `decide`."""

    latest: "Scripted"

    def __init__(self, settings: events.Settings, now: int, domains: Domains | None = None,
                 budgets: Mapping[str, SharedBudget] | None = None,
                 neighbour: Neighbour | None = None) -> None:
        self.neighbour = neighbour
        self.settings = settings
        self.parts = {
            name: SharedBudget(size).join() for name, size in settings.budgets.items()}
        self.domains = domains
        self.events: list[events.Event] = []
        self.times: list[int] = []
        self.due: int | None = None
        self.decide: Callable[[events.Event], Sequence[Action]] = lambda _: ()
        self.state = CardState.IDLE
        self.tq = 1_200_000             # us: length of the automatic quantum
        self.holders: tuple[int, ...] = ()
        self.waits: dict[int, Forecast] = {}
        self.used: dict[int, Usage] = {}        # usage by client id
        self._clients: dict[int, ClientView] = {}
        self._moves: dict[tuple[int, int], MoveOrder] = {}
        self._stopping: set[int] = set()
        self._stuck: set[int] = set()
        Scripted.latest = self

    def handle(self, event: events.Event, now: int) -> list[Action]:
        """As Scheduler.handle, with Limits first for a client that joined."""
        self.events.append(event)
        self.times.append(now)
        welcome: list[Action] = []
        if isinstance(event, events.CapacityChanged):
            self.settings = replace(self.settings, capacity=event.bytes)
        if isinstance(event, events.SettingsChanged):
            self.settings = event.settings
        if isinstance(event, events.Record) and event.client in self._clients:
            self._clients[event.client] = replace(self._clients[event.client], memory=event.memory)
        if isinstance(event, events.Moved):
            del self._moves[event.client, event.number]
        if isinstance(event, events.Stopped | events.Reopened):
            self._stopping.discard(event.client)
        if isinstance(event, events.Joined):
            self._clients[event.client] = ClientView(ClientState.IDLE, event.memory, 0, 0, True, 0,
                                                     None, None, Counters())
            welcome = [Limits(event.client, 0, GIB, 2 * GIB, self.settings.total)]
        if isinstance(event, events.Left):
            del self._clients[event.client]
        decided = self.decide(event)
        for action in decided:
            if isinstance(action, MoveOrder):
                self._moves[action.client, action.number] = action
            if isinstance(action, Stop):
                self._stopping.add(action.client)
            if isinstance(action, Stuck):
                self._stuck.add(action.client)
        return [*welcome, *decided]

    def filled(self) -> int:
        return sum(view.memory.filled for view in self._clients.values())

    def memory(self, client: int) -> events.Memory:
        return self._clients[client].memory if client in self._clients else events.Memory()

    def usage(self, client: int, now: int) -> Usage:
        return self.used.get(client, Usage())

    def stopping(self, client: int) -> bool:
        return client in self._stopping

    def unanswered(self, client: int, number: int) -> MoveOrder | None:
        return self._moves.get((client, number))

    def member(self, client: int) -> None:
        """As Scheduler.member: the client is in no gang."""

    def orders_unanswered(self) -> int:
        return sum(client not in self._stuck for client, _ in self._moves)

    def deadline(self) -> int | None:
        return self.due

    def snapshot(self) -> CardSnapshot:
        return CardSnapshot(
            self.times[-1] if self.times else 0, self.state, self.settings.capacity, 0,
            self.holders, len(self.waits), dict(self._clients), Counters(),
            lambda: self.waits, {"host": TierBudget(self.settings.host_budget)}, self.tq)


class Noted:
    """A hook that notes orders, and obeys PARK."""

    has_turn = has_file = False

    def __init__(self) -> None:
        self.orders: list[Order] = []

    def order(self, order: Order) -> None:
        self.orders.append(order)

    def leave(self) -> None:
        """As Link.leave."""

    async def park(self, context: int, *, ahead: bool) -> None:
        """As Link.park."""

    def confirm_checkpoint(self) -> None:
        """As Link.confirm_checkpoint."""

    def resume_on(self, gpu: GPU) -> None:
        """As Link.resume_on."""

    def give_up(self) -> None:
        """As Link.give_up."""


class Wire:
    """A connection that records the orders and descriptors sent."""

    def __init__(self) -> None:
        self.sent: list[OrderRecord] = []
        self.descriptors: list[int] = []
        self.resumed: Callable[[], None] | None = None
        self.dropped = ""

    name = "client-1"

    def send(self, order: OrderRecord, descriptor: int | None = None) -> None:
        self.sent += map(decode_order, encode(order))
        if descriptor is not None:
            self.descriptors.append(descriptor)

    def drop(self, reason: str) -> None:
        self.dropped = reason

    def resume(self, work: Callable[[], None]) -> None:
        self.resumed = work


def script(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs made from now on have a scripted scheduler."""
    monkeypatch.setattr("nvshared.sharing.gpu.Scheduler", Scripted)


def joined(gpu: GPU, number: int, link: Noted | None = None, memory: events.Memory | None = None,
           process: Peer | None = None, *, running: bool = False, wants: bool = False,
           commit: int = 0) -> Client:
    """A client that has sent HELLO, by default from pid 4000 + `number`."""
    client = Client(number, gpu, process or peer(4000 + number), link or Noted())
    gpu.join(client, memory or events.Memory(), running=running, wants=wants, commit=commit)
    return client
