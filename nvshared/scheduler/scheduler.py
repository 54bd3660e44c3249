# SPDX-License-Identifier: Apache-2.0
"""One GPU's scheduler as the daemon sees it: events in, actions out.

What it does with them is told in plan.py.
"""

from collections.abc import Iterable

from nvshared.scheduler import (
    events,
    gang,
    lost,
    moves,
    promises,
    quantum,
    queue,
    terms,
    trust,
    turns,
)
from nvshared.scheduler.actions import Action, MoveOrder, Stayed, TurnEnd
from nvshared.scheduler.card import Card
from nvshared.scheduler.client import Phase, Question, ScheduledClient
from nvshared.scheduler.decision import Decision
from nvshared.scheduler.domains import Domains, HostBudget
from nvshared.scheduler.forecast import Forecast
from nvshared.scheduler.plan import plan
from nvshared.scheduler.settings import Settings
from nvshared.scheduler.snapshot import CardState, Snapshot
from nvshared.scheduler.tenants import Usage
from nvshared.scheduler.views import Queue, Views, usage


class Scheduler:
    """Decides who uses one GPU, when, and how much of its memory lies on it.

    `now` is microseconds on a clock that never steps back. For
    `settings.gather` microseconds from the start it only listens.
    """

    def __init__(
        self, settings: Settings, now: int, domains: Domains | None = None,
        budget: HostBudget | None = None,
    ) -> None:
        """`domains`, `budget`: those of all cards."""
        host = (budget or HostBudget(settings.host_budget)).join()
        self._card = Card(settings, now, now + settings.gather, host, domains or Domains())
        self._deadline: int | None = now + settings.gather if settings.gather else None

    def handle(self, event: events.Event, now: int) -> list[Action]:
        """Takes note of an event and returns what is to be done, in that queue.

        A client's first action is its Limits, which are the answer to HELLO.
        """
        card = self._card
        card.now = now = max(now, card.now)
        decision = Decision(card, now)
        if card.lost:
            lost.hear(decision, event)
            card.host.needs = promises.host_needs(card)
            self._deadline = decision.deadline
            return decision.actions
        terms.account(card)
        _note(decision, event)
        queue.account(card)
        plan(decision)
        card.groups.settle()            # other cards may look at the domains next,
        card.host.needs = promises.host_needs(card)     # and at the host budget
        self._deadline = decision.deadline
        return decision.actions

    def deadline(self) -> int | None:
        """When to send a Tick, if nothing else happens before. None: never."""
        return self._deadline

    @property
    def settings(self) -> Settings:
        """As they are since the last event."""
        return self._card.settings

    @property
    def host_promisable(self) -> int:
        """Bytes of the host budget that other cards do not need."""
        return self._card.host.promisable

    def filled(self) -> int:
        """Bytes of the card that clients fill, as far as they are believed."""
        return self._card.groups.total("filled")

    def memory(self, client: int) -> events.Memory:
        """A client's figures, as its last record said; nothing of one that is gone."""
        found = self._card.clients.get(client)
        return events.Memory() if found is None else found.memory

    def usage(self, client: int, now: int) -> Usage:
        """What a client has used of the card; nothing, if it is gone."""
        found = self._card.clients.get(client)
        return Usage() if found is None else usage(found, max(now, self._card.now))

    def stopping(self, client: int) -> bool:
        """Whether it owes an answer to STOP."""
        found = self._card.clients.get(client)
        turn = None if found is None or found.phase is not Phase.DRAINING else found.turn
        return turn is not None and turn.parked is None

    def member(self, client: int) -> gang.Member | None:
        """How one stands that is in a gang; None: it is gone."""
        found = self._card.clients.get(client)
        return None if found is None else gang.member(self._card, found)

    def unanswered(self, client: int, number: int) -> MoveOrder | None:
        """The order with this number, if the client owes an answer to it."""
        found = self._card.clients.get(client)
        moves = () if found is None else found.moves
        return next((move.order for move in moves if move.order.number == number), None)

    def orders_unanswered(self) -> int:
        """How many orders to move memory are on their way, to those who answer."""
        return sum(len(client.moves) for client in self._card.moving if not client.mute)

    def belongs(self, client: int, domains: Iterable[str]) -> None:
        """A client is in these domains from now on, and in no others."""
        found = self._card.clients.get(client)
        if found is not None:
            terms.place(self._card, found, domains)
            self._card.groups.settle()

    def snapshot(self) -> Snapshot:
        """How things stand since the last event."""
        card = self._card
        return Snapshot(
            now=card.now,
            state=_state(card),
            capacity=card.capacity,
            free=card.free,
            host_free=card.host_free,
            host_budget=max(0, card.host.takeable),
            holders=tuple(c.id for c in card.holders if c.phase is not Phase.LOADING),
            queue=Queue(card),
            clients=Views(card),
            counters=card.counters,
            waits=Forecast(card),
            quantum=quantum.in_force(card),
        )


def _note(decision: Decision, event: events.Event) -> None:
    """Changes what we know."""
    card = decision.card
    match event:
        case events.Joined():
            _join(decision, event)
        case events.Left():
            client = card.remove(event.client)
            if client is not None:
                decision.end(client, TurnEnd.LEFT)
                queue.leave(client)
                card.tenants.weigh(decision.now, *client.path[1:3])
                queue.forget(card, client.path, client.tenants)
        case events.CapacityChanged() | events.SettingsChanged():
            card.change_settings(events.settings_after(event, card.settings))
            card.shortfall = 0
        case events.BudgetChanged():
            card.change_settings(events.settings_after(event, card.settings))
        case events.GPULost():
            lost.lose(decision)
        case events.TermsChanged():
            client = card.clients.get(event.client)
            if client is not None:
                terms.change(card, client, event.terms)
        case events.Ganged():
            turns.ganged(decision, event)
        case events.TenantChanged():
            terms.change_tenant(card, event.tenant, event.terms)
        case events.Awaited():
            card.awaiting = event.anybody
        case events.Preempted():
            terms.preempt(card)
        case events.Seen():
            trust.judge_all(card, event)
        case events.Tick():
            return
        case _:
            client = card.clients.get(event.client)
            # A client may be gone when the last it said is read.
            if client is not None:
                stayed = client.memory.stays
                trust.hear(client, event.memory, decision.now)
                _hear(decision, client, event)
                if client.memory.stays and client.memory.stays != stayed:
                    decision.report(Stayed(client.id, client.memory.stays))


def _join(decision: Decision, event: events.Joined) -> None:
    card = decision.card
    client = ScheduledClient(
        event.client, card.groups.touched, event.memory, event.memory.room, since=decision.now,
        domains=card.domains.named(event.domains), account=event.account, evidence=event.evidence,
        tenants=event.tenants,
    )
    card.add(client)
    terms.bound(card, client)
    for tenant in client.tenants:
        terms.limit_tenant(card, tenant)
    terms.change(card, client, client.own)
    if event.running:
        turns.take_over(card, client)
    elif event.wants:
        queue.arrive(card, client)
    promises.welcome(decision, client, event.commit)


def _hear(decision: Decision, client: ScheduledClient, record: events.Record) -> None:
    match record:
        case events.WentIdle() | events.Copies() | events.Busy():
            turns.hear(decision.card, client, record)
        case events.Stopped():
            turns.stopped(decision, client, record)
        case events.Reopened():
            turns.reopened(decision.card, client)
        case events.Moved():
            moves.answered(decision.card, client, record)
        case events.CommitAsked(bytes=0):
            promises.answer_beyond(decision, client, record.number)
        case events.CommitAsked():
            client.question = Question(record.number, record.bytes, record.pins, decision.now)
        case events.MemoryChanged(wants=True):
            turns.wanted(decision.card, client)
        case events.MemoryChanged():
            # Written perhaps just before a thread came to stand there: it does not end the wanting.
            return


def _state(card: Card) -> CardState:
    if card.lost:
        return CardState.LOST
    if card.now < card.gathered:
        return CardState.GATHERING
    if not card.holders:
        return CardState.IDLE
    if card.busy.members:
        return CardState.BUSY
    return CardState.TURNS if card.contended else CardState.SHARED
