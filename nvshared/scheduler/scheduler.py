# SPDX-License-Identifier: Apache-2.0
"""One GPU's scheduler as the daemon sees it: one event in, ordered steps, actions out.

An event only changes the recorded state; then the plan reads the whole state and sends the orders
that are missing. Each comparison with a future time lowers the deadline to that time, at which the
plan may change without an event. docs/internals/scheduler.md explains the policy of all modules
here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from nvshared.scheduler import (
    ahead,
    background,
    events,
    gang,
    moves,
    policy,
    promises,
    queue,
    snapshot,
    turns,
)
from nvshared.scheduler.actions import Action, MoveOrder, Pinned, Run, TurnEnd
from nvshared.scheduler.card import Card
from nvshared.scheduler.client import Phase, ScheduledClient
from nvshared.scheduler.domains import Domains, Neighbour, SharedBudget
from nvshared.scheduler.events import Settings, TenantTerms
from nvshared.scheduler.orders import Orders
from nvshared.scheduler.promise import Claims
from nvshared.scheduler.snapshot import CardSnapshot
from nvshared.scheduler.tenants import ClientTotals, Usage
from nvshared.scheduler.turn import Turn
from nvshared.units import SECOND

LOAD_AGAIN = SECOND                     # between two tries to load memory on a lost card


class Scheduler:
    """Decides which clients use one GPU, when, and how much of their memory is resident.

    `now` is in microseconds of a clock that never steps back. For `settings.gather` microseconds
    from the start the scheduler records events, and sends no order but LIMITS.
    """

    def __init__(
        self, settings: Settings, now: int, domains: Domains | None = None,
        budgets: Mapping[str, SharedBudget] | None = None, neighbour: Neighbour | None = None,
    ) -> None:
        """`domains`, `budgets` (by tier): of all cards. `neighbour`: loans of its memory."""
        own = {name: SharedBudget(size) for name, size in settings.budgets.items()}
        self.parts = {name: shared.join() for name, shared in (budgets or own).items()}
        self.memory_limits = Domains()      # memory limits of tenants on this card
        self._card = Card(
            settings, now, now + settings.gather, self.parts, neighbour or Neighbour(),
            domains or Domains(), self.memory_limits)
        self._card.due(now + settings.gather)

    def handle(self, event: events.Event, now: int) -> list[Action]:
        """Handles an event. Returns actions, in order; of a new client, Limits come first."""
        card = self._card
        card.begin(now)
        queue.roll_quotas(card)
        _record(card, event)
        if card.lost:
            for client in card.groups["everyone"]:
                _load_all(card, client)
        else:
            queue.bill_holders(card)
            _plan(card)
            policy.of(card).settle(card)
        moves.settle_loans(card)        # for other cards' schedulers, which read loans and budgets
        card.groups.settle()
        promises.settle(card)
        return card.actions

    def deadline(self) -> int | None:
        """The time at which to send a Tick if no event arrives earlier. None: never."""
        return self._card.deadline

    @property
    def settings(self) -> Settings:
        """The settings as of the last event."""
        return self._card.settings

    def filled(self) -> int:
        """Bytes of the card that clients and borrowers fill, without overclaims."""
        borrowed = sum(loan.held for loan in self._card.neighbour.loans.values())
        return self._card.groups.sums.filled + borrowed

    def unfilled(self, but: int) -> int:
        """Bytes of the card that clients, without client `but`, and borrowers may still fill."""
        more = self._card.neighbour.lent - sum(
            loan.held for loan in self._card.neighbour.loans.values())
        for client in self._card.groups["everyone"]:
            if client.id != but:
                filled = client.memory.filled - client.claims.over.filled
                more += max(0, client.charged - filled, client.pinned_expected - client.pinned)
        return more

    def evictable(self, but: int) -> int:
        """Resident bytes of clients, without client `but`, and borrowers: they could be evicted."""
        return self._card.neighbour.lent + sum(
            client.memory.resident for client in self._card.groups["everyone"] if client.id != but)

    def memory(self, client: int) -> events.Memory:
        """A client's figures by its last record; zeros after it left."""
        found = self._card.clients.get(client)
        return events.Memory() if found is None else found.memory

    def usage(self, client: int, now: int) -> Usage:
        """A client's totals; zeros after it left."""
        found = self._card.clients.get(client)
        if found is None:
            return Usage()
        now = max(now, self._card.now)
        return found.history.usage(found.memory, now, found.time_held(now), found.time_waited(now))

    def stopping(self, client: int) -> bool:
        """Whether the client has not answered STOP."""
        draining = self._card.groups[Phase.DRAINING]
        return any(one.id == client and one.its_turn.parked is None for one in draining)

    def member(self, client: int) -> gang.Member | None:
        """The state of a client in a gang. None: the client has disconnected."""
        found = self._card.clients.get(client)
        return None if found is None else gang.member(self._card, found)

    def unanswered(self, client: int, number: int) -> MoveOrder | None:
        """The order of this number, if the client has not answered it."""
        found = self._card.clients.get(client)
        orders = [] if found is None else [move.order for move in found.orders.moves]
        return next((order for order in orders if order.number == number), None)

    def rests(self, client: int) -> bool:
        """Whether the client holds no turn, and has answered all orders to move memory."""
        found = self._card.clients.get(client)
        return found is not None and not found.holds and not found.orders.moves

    def orders_unanswered(self) -> int:
        """The number of unanswered orders to move memory, without unresponsive clients."""
        return sum(len(client.orders.moves) for client in self._card.groups["answering"])

    def belongs(self, client: int, domains: Iterable[str]) -> None:
        """Puts a client into these domains, and into no others."""
        found = self._card.clients.get(client)
        if found is not None:
            promises.bind_limits(self._card, found, domains)
            self._card.groups.settle()

    def snapshot(self) -> CardSnapshot:
        """The state since the last event."""
        return snapshot.take(self._card)


def _record(card: Card, event: events.Event) -> None:
    match event:
        case events.Joined():
            joined = _join(card, event)
            if card.lost:               # an earlier daemon knew the client, see GPU.join()
                _release(card, joined)
        case events.Left():
            client = card.remove(event.client)
            if client is not None:
                card.end_turn(client, TurnEnd.LEFT)
                queue.leave(client)
                card.tenants.weigh(card.now, *client.path[1:3])
                queue.forget(card, client.path, client.tenants)
        case events.SettingsChanged():
            card.configure(event.settings)
        case events.CapacityChanged():
            card.configure(replace(card.settings, capacity=event.bytes))
        case events.CardLost():
            _lose(card)
        case events.TermsChanged():
            client = card.clients.get(event.client)
            if client is not None:
                queue.set_terms(card, client, event.terms)
        case events.Ganged():
            turns.ganged(card, event)
        case events.TenantChanged():
            _set_tenant_terms(card, event.tenant, event.terms)
        case events.Awaited():
            card.await_hello(event.expected)
        case events.Preempted():
            for client in card.holders if card.contended else ():
                client.its_turn.preempt()
        case events.Seen():
            promises.judge_claims(card, event)
        case events.Tick():
            return
        case events.Record():
            client = card.clients.get(event.client)
            # A client may have been removed before its last record is read.
            if client is not None:
                stayed, stored = client.memory.pin_reason, client.memory.disk
                client.record(event.memory, card.now)
                moves.note_stored(client, stored, card.now)
                if card.lost:
                    _handle_record_when_lost(card, client, event)
                    return
                _handle_record(card, client, event)
                if client.memory.pin_reason and client.memory.pin_reason != stayed:
                    card.send(Pinned(client.id, client.memory.pin_reason))


def _set_tenant_terms(card: Card, tenant: str, terms: TenantTerms) -> None:
    before = card.tenants.terms_for(tenant)
    card.tenants.set_terms(tenant, terms)
    promises.limit_tenant(card, tenant, before, terms)
    queue.apply_tenant_terms(card, tenant, before, terms)


def _join(card: Card, event: events.Joined) -> ScheduledClient:
    for tenant, terms in event.terms.items():
        _set_tenant_terms(card, tenant, terms)
    lender = next((one for one in card.neighbour.others if one.uuid == event.lender), None)
    orders = Orders(event.client, card.groups.touched, event.memory.room, lender)
    claims = Claims(event.client, card.groups.touched, event.account, event.evidence)
    memory = event.memory if lender else replace(event.memory, borrowed=0)
    client = ScheduledClient(
        event.client, card.groups.touched, memory, orders, claims,
        ClientTotals(division=card.division, since=card.now), since=card.now, tenants=event.tenants,
        own=event.own)
    card.add(client)
    promises.bind_limits(card, client, event.domains)
    for tenant in client.tenants:
        queue.set_compute_limit(card, tenant)
    queue.set_terms(card, client, client.own)
    if event.running:                   # an earlier daemon has opened its gate
        client.begin_turn(Turn(next(card.serials), started=card.now))
        client.history.take_over()
        card.count(client, turns=1)
        client.enter(Phase.RUNNING, card.now)
    elif event.wants:
        queue.arrive(card, client)
    promises.send_first_limits(card, client, event.commit)
    return client


def _handle_record(card: Card, client: ScheduledClient, record: events.Record) -> None:
    match record:
        case events.WentIdle() | events.Copies() | events.Busy():
            turns.note_report(card, client, record)
        case events.Stopped():
            turns.stopped(card, client, record)
        case events.Reopened():
            turns.reopened(card, client)
        case events.Moved():
            moves.answered(card, client, record)
        case events.Stored():
            moves.stored(card, client, record)
        case events.CommitAsked(wanted=0):
            promises.answer_beyond(card, client, record.number)
        case events.CommitAsked():
            client.promise.ask(record, card.now)
        case events.Parked():
            if client.waits and not client.holds:
                client.enter(Phase.IDLE, card.now)
        case events.MemoryChanged(wants=True):
            queue.want(card, client)
        # Without `wants` the record may be older than a thread's wait, so the record ends no wait.


def _plan(card: Card) -> None:
    """Orders everything that is due now, once all clients have reported figures and promises."""
    if not card.due(card.gathered):
        return
    for client in card.groups["ignoring_evicts"]:
        if card.due(client.orders.kept.until):
            client.record(client.reported, card.now)  # hook's own figures count
    turns.report_stuck(card)            # first: no client waits for an unresponsive client
    ahead.interrupt(card)
    promises.plan(card)
    moves.return_loans(card)
    queue.arrive_idle(card)
    queue.enforce_compute_limits(card)
    blocked, tq = turns.plan(card)
    host_short = moves.plan(card)
    ahead.plan(card, blocked, tq)
    moves.store_blocks(card, host_short)
    background.pace(card)
    promises.send_limits(card)
    turns.report_stuck(card)            # again, to set the deadline for orders of this plan


def _lose(card: Card) -> None:
    """Ends all turns, the queue and all orders, and opens all gates."""
    card.lose()
    for client in card.groups["everyone"]:
        _release(card, client)


def _release(card: Card, client: ScheduledClient) -> None:
    """Opens the gate of a client of a lost card: its program gets the driver's error."""
    card.end_turn(client, TurnEnd.LOST)
    client.enter(Phase.IDLE, card.now)
    client.orders.drop()
    if (request := client.promise.request) is not None:
        promises.grant_when_lost(card, client, request)
        client.promise.ask(None, card.now)
    client.orders.load_again.retry_at(0)
    _load_all(card, client)
    card.send(Run(client.id))


def _handle_record_when_lost(card: Card, client: ScheduledClient, record: events.Record) -> None:
    match record:
        case events.Stopped() | events.MemoryChanged(wants=True):
            card.send(Run(client.id))   # the record may have crossed the RUN of _lose
        case events.Evicted() | events.Loaded():
            client.orders.confirm(client.memory.room)
            client.orders.answer(record.number, card.now)
        case events.Stored():
            moves.stored(card, client, record)
        case events.CommitAsked():
            promises.grant_when_lost(card, client, record)


def _load_all(card: Card, client: ScheduledClient) -> None:
    if client.orders.moves or client.whole or not card.due(client.orders.load_again.until):
        return
    client.orders.load_again.retry_at(card.now + LOAD_AGAIN)
    card.load(client, client.memory.need, client.memory.host)
