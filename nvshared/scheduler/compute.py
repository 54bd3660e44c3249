# SPDX-License-Identifier: Apache-2.0
"""Limits on compute time: no client gets more than its share of the card, even alone.

quota.py keeps the accounts and this reads them. A client that has used its share of a window
is stopped, leaves the queue and keeps nobody from anything. When the next window begins it
joins the end of the queue. Clients without a limit notice nothing.

A client of which nothing leaves the card is stopped like any other. Its hook shuts the gate and
does not wait for what is in flight, so work that never ends is not limited by that.

The hook of a limited client is told to pace and to report idleness even if nobody waits. So it
is not billed for an open gate that it has no use for.
"""

from nvshared.scheduler import order, quota
from nvshared.scheduler.actions import TurnEnd
from nvshared.scheduler.card import Card
from nvshared.scheduler.client import Phase, ScheduledClient
from nvshared.scheduler.decision import Decision
from nvshared.scheduler.quota import UNLIMITED, Accounting, Quota


def change(card: Card, client: ScheduledClient) -> None:
    """Its limit has changed. A first limit holds from now on, whatever was used before. At another
    one the account goes on; otherwise whoever may lower and raise it would never use it up."""
    percent = client.terms.compute_limit
    accounting = card.settings.accounting
    if percent == UNLIMITED:
        client.quota = None
    elif client.quota is None:
        client.quota = quota.begin(percent, accounting, card.now, _billed(card, client))
    else:
        client.quota = quota.change(client.quota, percent, accounting)
    if client.quota is None and client.phase is Phase.LIMITED:
        order.arrive(card, client)


def account(card: Card) -> None:
    """Brings the accounts up to date, before what has just happened is noted."""
    for client in card.groups.group("rationed"):
        waits = client.phase in (Phase.WAITING, Phase.LOADING) and not client.terms.suspended
        client.quota = quota.roll(
            _quota(client), card.settings.accounting, card.now, _billed(card, client),
            waits=waits, holds=client.open,
        )


def plan(decision: Decision) -> None:
    """Stops those that have had their share, and lets in those that have some again."""
    card = decision.card
    accounting = card.settings.accounting
    for client in card.groups.group("rationed"):
        left = _quota(client).left(_billed(card, client))
        enough = left >= _quota(client).least(accounting)
        ends = _quota(client).ends(accounting)
        match client.phase:
            case Phase.RUNNING:
                _stop(decision, client, left, ends)
            case Phase.LIMITED if enough:
                order.arrive(card, client)
            case Phase.WAITING if not enough:
                client.enter(Phase.LIMITED, decision.now)
            case Phase.LOADING if left <= 0:
                client.turn = None
                client.enter(Phase.LIMITED, decision.now)
                order.account(card)
        if client.phase is Phase.LIMITED:
            decision.due(ends)


def _stop(decision: Decision, client: ScheduledClient, left: int, ends: int) -> None:
    turn = client.turn
    assert turn is not None
    if left > 0 and not turn.idle:
        decision.due(min(decision.now + left, ends))
    elif decision.due(turn.stop_after):
        decision.stop(client, TurnEnd.IDLE if turn.idle and left > 0 else TurnEnd.LIMIT)


def _quota(client: ScheduledClient) -> Quota:
    assert client.quota is not None
    return client.quota


def _billed(card: Card, client: ScheduledClient) -> int:
    """Microseconds in all."""
    accounting: Accounting = card.settings.accounting
    drained = client.time_drained(card.now)
    return client.time_held(card.now) - drained * (100 - accounting.tail) // 100
