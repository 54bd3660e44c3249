# SPDX-License-Identifier: Apache-2.0
"""How far a client's domains and tenants let it grow, and what of it cannot leave the card.

What is promised in a domain, less what is pinned on a card, must fit into the host memory that
the domain may take. As on the whole host (demand.py) a margin of it stays free, because a hook
takes it in pieces; but not of a tenant's limit of host memory. What a tenant with a memory limit
was promised on a card must fit into that.
"""

from typing import NamedTuple

from nvshared.scheduler import order
from nvshared.scheduler.card import Card
from nvshared.scheduler.client import Phase, ScheduledClient
from nvshared.scheduler.demand import margin
from nvshared.scheduler.domains import UNBOUNDED, Domain


class Bound(NamedTuple):
    """What the tightest of a client's domains leaves."""

    left: int                           # bytes that can still be promised; negative: too many are
    domain: Domain | None               # None: there is no bound


def bound(card: Card, client: ScheduledClient, commit: int = 0, pins: int = 0) -> Bound:
    """`commit`, `pins`: as if it had been granted so much, and so much more of it to be pinned."""
    card.groups.settle()
    committed = max(commit, client.committed)
    more = max(0, committed - client.fastened - pins) - max(0, client.committed - client.fastened)
    bounds = [Bound(_left(domain) - more, domain) for domain in client.domains]
    grows = committed - client.committed
    bounds += [Bound(_left(tenant) - grows, tenant) for tenant in client.tenancies]
    return min(bounds, default=Bound(UNBOUNDED, None), key=lambda one: one.left)


def reach(client: ScheduledClient) -> int:
    """How much more it could have if all that is lent in its domains were called back."""
    domains = (*client.domains, *client.tenancies)
    return min((_reach(domain) for domain in domains), default=UNBOUNDED)


def news(card: Card, threshold: int) -> list[ScheduledClient]:
    """Those whose reach has changed by more than `threshold` with one of their domains."""
    card.groups.settle()
    found: dict[int, None] = {}
    for domain in (*card.domains.news(card.groups), *card.tenancies.news(card.groups)):
        # More than the whole card is as good as that to everybody.
        now = min(_reach(domain), card.settings.total)
        if abs(now - card.domain_reach.get(domain.name, card.settings.total)) > threshold:
            card.domain_reach[domain.name] = now
            found.update(dict.fromkeys(domain.stakes))
    return [card.clients[id] for id in found if id in card.clients]


def overdrawn(card: Card) -> list[ScheduledClient]:
    """Those with promises that they do not use, in domains that hold less than was promised.

    A domain or a limit has shrunk, or memory that was pinned and counted nowhere has been freed.
    """
    card.groups.settle()
    return [
        client for domain in (*card.domains.full, *card.tenancies.full)
        if domain.sums.lent > 0 > _left(domain)
        for client in members(card, domain)
    ]


def call_in(card: Card) -> None:
    """What has no place any more where it is: its clients come in, as if they wanted the card."""
    card.groups.settle()
    for domain in card.domains.lacking:
        for client in members(card, domain) if domain.untaken < 0 else ():
            away = client.memory.resident < client.memory.allocated
            if away and client.phase is Phase.IDLE:
                order.arrive(card, client)


def members(card: Card, domain: Domain) -> list[ScheduledClient]:
    """Its clients on this card, in the order of their joining."""
    return [card.clients[id] for id in sorted(domain.stakes) if id in card.clients]


def _left(domain: Domain) -> int:
    if domain.capacity is None or domain.whole:
        return UNBOUNDED
    if domain.term:
        return domain.capacity - domain.sums.promised
    return domain.capacity - margin(domain.capacity, len(domain.stakes)) - domain.sums.promised


def _reach(domain: Domain) -> int:
    return _left(domain) + domain.sums.lent
