# SPDX-License-Identifier: Apache-2.0
"""Limits on compute time: no client gets more than its share of the card, even alone.

quota.py keeps the accounts and this reads them. A client that has used its share of a window
is stopped, leaves the queue and keeps nobody from anything. When the next window begins it
joins the end of the queue. Clients without a limit notice nothing.

All clients of a tenant with a limit share one account besides, and are stopped when that is used
up. Billed to it is the time in which at least one of them has its gate open, not the sum: the
limit is a share of the card's time, and programs that run together use that once. What their
hooks say of single turns does not tell how they overlapped, so they are billed by our own clock,
and in long windows, where messages on their way count for little. So are their own limits, as a
short window would pass while the tenant's keeps them out.

A client of which nothing leaves the card is stopped like any other. Its hook shuts the gate and
does not wait for what is in flight, so work that never ends is not limited by that.

The hook of a limited client is told to pace and to report idleness even if nobody waits. So it
is not billed for an open gate that it has no use for.
"""

from collections.abc import Iterator

from nvshared.scheduler import order, quota
from nvshared.scheduler.actions import TurnEnd
from nvshared.scheduler.card import Card
from nvshared.scheduler.client import Phase, ScheduledClient
from nvshared.scheduler.decision import Decision
from nvshared.scheduler.quota import UNLIMITED, Quota
from nvshared.scheduler.share import Ration


def change(card: Card, client: ScheduledClient) -> None:
    """Its limit has changed. A first limit holds from now on, whatever was used before. At another
    one the account goes on; otherwise whoever may lower and raise it would never use it up."""
    billed = _billed(card, client)
    client.quota = _changed(card, client.quota, client.terms.compute_limit, billed)
    _free(card, client)


def ration(card: Card, account: Ration) -> None:
    """The same for a tenant, to be done when it has other terms or its first client."""
    percent = card.terms_for(account.name).compute_limit
    if percent == (UNLIMITED if account.quota is None else account.quota.percent):
        return
    account.quota = _changed(card, account.quota, percent, _billed_to(card, account))
    if account.quota is None:
        card.rationed.pop(account, None)
    else:
        card.rationed[account] = None
    card.groups.touched.update(account.members)
    for id in sorted(account.members):
        _free(card, card.clients[id])


def _changed(card: Card, old: Quota | None, percent: int, billed: int) -> Quota | None:
    accounting = card.settings.accounting
    if percent == UNLIMITED:
        return None
    if old is None:
        window = accounting.length(turns=card.contended)
        return quota.begin(percent, window, card.now, billed)
    return quota.change(old, percent)


def _free(card: Card, client: ScheduledClient) -> None:
    """Nothing limits it any more."""
    if not client.rationed and client.phase is Phase.LIMITED:
        order.arrive(card, client)


def account(card: Card) -> None:
    """Brings the accounts up to date, before what has just happened is noted."""
    accounting = card.settings.accounting
    for client in card.groups.group("rationed"):
        if client.quota is not None and client.quota.ends <= card.now:
            client.quota = quota.roll(
                client.quota, accounting, card.now, _billed(card, client),
                waits=_waits(client), holds=client.open, short=client.phase is Phase.LIMITED,
                turns=card.contended or any(
                    one.quota is not None and len(one.members) > 1 for one in client.rations),
            )
    for one in card.rationed:
        assert one.quota is not None
        if one.quota.ends <= card.now:
            members = [card.clients[id] for id in one.members]
            waits = any(_waits(client) for client in members)
            short = any(client.phase is Phase.LIMITED for client in members)
            one.quota = quota.roll(
                one.quota, accounting, card.now, _billed_to(card, one),
                waits=waits and not one.open, holds=one.open, short=short,
                turns=card.contended or len(members) > 1,
            )


def _waits(client: ScheduledClient) -> bool:
    return client.phase in (Phase.WAITING, Phase.LOADING) and not client.terms.suspended


def plan(decision: Decision) -> None:
    """Stops those that have had their share, and lets in those that have some again."""
    card = decision.card
    for client in card.groups.group("rationed"):
        if client.phase in (Phase.IDLE, Phase.DRAINING):
            continue
        left, enough, ends = _standing(card, client)
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


def renewed(card: Card, client: ScheduledClient) -> int:
    """When one that has had its share of the time can have some again."""
    return _standing(card, client)[2]


def _standing(card: Card, client: ScheduledClient) -> tuple[int, bool, int]:
    """What it has left, whether that is enough for a turn, and when it can have more."""
    accounting = card.settings.accounting
    accounts = [*_accounts(card, client)]
    short = [both for both in accounts if both[0].left(both[1]) < both[0].least(accounting)]
    ends = (max(one.renewed(accounting, billed) for one, billed in short) if short
            else min(one.ends for one, _ in accounts))
    return min(one.left(billed) for one, billed in accounts), not short, ends


def _accounts(card: Card, client: ScheduledClient) -> Iterator[tuple[Quota, int]]:
    """Its own and those of its tenants, as far as there are any, and what was billed to them."""
    if client.quota is not None:
        yield client.quota, _billed(card, client)
    for one in client.rations:
        if one.quota is not None:
            yield one.quota, _billed_to(card, one)


def _billed(card: Card, client: ScheduledClient) -> int:
    """Microseconds in all."""
    held = client.time_held(card.now) - client.unused
    return _net(card, held, client.time_drained(card.now))


def _billed_to(card: Card, account: Ration) -> int:
    account.bill(card.now)
    return _net(card, account.held, account.drained)


def _net(card: Card, held: int, drained: int) -> int:
    return held - drained * (100 - card.settings.accounting.tail) // 100
