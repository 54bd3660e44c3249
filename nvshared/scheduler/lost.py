# SPDX-License-Identifier: Apache-2.0
"""A card that is lost: every program goes on and gets the driver's error.

Nothing is left to share. All gates open and all questions are answered with yes, as whoever
waited would wait for ever. The programs stay clients, to be seen, until they end.

A hook whose memory is not all on the card keeps its program waiting by itself. So it is told to
load all of it, as if it had the card for itself. On a lost card that fails; the hook sees that
its context has failed and lets its program go on. If NVML was wrong and the card is there, what
was away comes back as soon as the driver has memory for it. That is tried again and again, and
no program works on memory that is not there.
"""

from nvshared.scheduler import actions, events, trust
from nvshared.scheduler.client import Phase, ScheduledClient
from nvshared.scheduler.decision import Decision
from nvshared.units import SECOND

AGAIN = SECOND                          # between two tries to bring a client's memory in


def lose(decision: Decision) -> None:
    """Ends all turns, the queue and what is under way, and lets everybody go on."""
    card = decision.card
    card.lost = card.host.lost = True
    card.contended, card.head = False, None
    for client in card.everyone:
        decision.end(client, actions.TurnEnd.LOST)
        client.enter(Phase.IDLE, decision.now)
        client.moves = ()
        if client.question is not None:
            _allow(decision, client, client.question.number, client.question.bytes)
            client.question = None
        client.load_after = 0
        _bring_back(decision, client)
        _open(decision, client)


def hear(decision: Decision, event: events.Event) -> None:
    """Something happened on a card that is gone."""
    _note(decision, event)
    for client in decision.card.everyone:
        _bring_back(decision, client)


def _note(decision: Decision, event: events.Event) -> None:
    card = decision.card
    if isinstance(event, events.Left):
        card.remove(event.client)
        return
    if isinstance(event, events.CapacityChanged | events.BudgetChanged | events.SettingsChanged):
        card.change_settings(events.settings_after(event, card.settings))
    if not isinstance(event, events.Record | events.TermsChanged):
        return
    client = card.clients.get(event.client)
    if client is None:
        return
    if isinstance(event, events.TermsChanged):
        client.terms = event.terms
        return
    trust.hear(client, event.memory, decision.now)
    match event:
        case events.Stopped() | events.MemoryChanged(wants=True):
            _open(decision, client)     # it may have crossed with the RUN that all were sent
        case events.Evicted() | events.Loaded():
            client.room = client.memory.room
            client.moves = tuple(move for move in client.moves if move.order.number > event.number)
        case events.CommitAsked():
            _allow(decision, client, event.number, event.bytes)


def _open(decision: Decision, client: ScheduledClient) -> None:
    decision.actions.append(actions.Run(client.id))


def _bring_back(decision: Decision, client: ScheduledClient) -> None:
    if client.moves or client.whole or not decision.due(client.load_after):
        return
    client.load_after = decision.now + AGAIN
    decision.load_unbounded(client)


def _allow(decision: Decision, client: ScheduledClient, number: int, size: int) -> None:
    client.commit = max(client.commit, size)
    decision.limits(client, number, client.commit, client.memory.beyond)
