# SPDX-License-Identifier: Apache-2.0
"""How far clients could grow: what is left to be promised, and what each is told of it.

See commit.py.
"""

from nvshared.scheduler import belief, bounds
from nvshared.scheduler.client import ScheduledClient
from nvshared.scheduler.decision import Decision
from nvshared.scheduler.demand import margin


def tell(
    decision: Decision, client: ScheduledClient, number: int, most: int, why: str = ""
) -> None:
    """What it may hold beyond the card is host memory that nobody has been promised.

    A memory limit is a card of that size, and such a client gets no more than that.
    """
    bounded = client.terms.memory_limit or client.tenancies
    more = 0 if bounded else max(0, client.beyond + beyond_card(decision, client))
    decision.limits(client, number, most, more, why)


def left(decision: Decision) -> int:
    """What can still be committed; negative when card or budget shrank."""
    return _left_of(decision, decision.card.settings.host_budget)


def reachable(decision: Decision) -> int:
    """The same, with what other cards could give up."""
    settings = decision.card.settings
    return _left_of(decision, settings.host_budget + (settings.elsewhere or 0))


def _left_of(decision: Decision, host: int) -> int:
    card = decision.card
    can = card.settings.capacity + host - margin(host, card.groups.margins())
    return can - card.groups.total("committed") - card.groups.total("beyond")


def unpinned(decision: Decision) -> int:
    """What nobody has pinned, or is about to."""
    card = decision.card
    return card.settings.capacity - card.groups.total("fixed") - belief.pinning(card)


def beyond_card(decision: Decision, client: ScheduledClient) -> int:
    """How much more it may hold beyond the card."""
    card = decision.card
    least = min(left(decision), bounds.bound(card, client).left, card.host_free_for(client))
    return belief.may_have(card, client, least)


def lent(decision: Decision) -> int:
    """What all clients have been promised and do not use."""
    groups = decision.card.groups
    return groups.total("committed") - groups.total("used")


def ceiling(decision: Decision, client: ScheduledClient) -> int:
    """How far a client could grow if it were alone with what others have pinned."""
    card = decision.card
    by_others = card.groups.total("fixed") - client.fixed + belief.pinning(card, client)
    if card.tight:
        by_others += card.stuck([client])
    return max(0, min(card.total_for(client), card.settings.capacity - by_others))


def most(decision: Decision, client: ScheduledClient) -> int:
    """How far it could grow if it asked, with everything lent called back."""
    return how_far(decision, client, reachable(decision), lent(decision))


def how_far(decision: Decision, client: ScheduledClient, left: int, lent: int) -> int:
    """The same, given what is lent to all clients, this one included."""
    own = client.committed - client.used
    more = belief.may_have(decision.card, client, left + lent - own) + own
    more = min(more, bounds.reach(client))
    return max(0, min(ceiling(decision, client), client.used + more))
