# SPDX-License-Identifier: Apache-2.0
"""Applies what is set for single clients, as far as it has an effect at once.

The plan does the rest: commit.py promises nothing beyond a memory limit and calls back what was
promised before, turns.py ends the turn of a suspended client, room.py has it leave the card,
order.py knows the weights, and compute.py limits the time.
"""

from nvshared.scheduler import compute, order
from nvshared.scheduler.card import Card
from nvshared.scheduler.client import Phase, ScheduledClient
from nvshared.scheduler.settings import Terms


def change(card: Card, client: ScheduledClient, terms: Terms) -> None:
    """From now on they are these."""
    resumed = client.terms.suspended and not terms.suspended
    rationed = client.terms.compute_limit != terms.compute_limit
    order.bill(card, client)
    client.terms = terms
    if rationed:
        compute.change(card, client)
    order.weigh(card)
    if resumed and client.phase is Phase.WAITING:
        order.arrive(card, client)


def change_tenant(card: Card, tenant: str, terms: Terms) -> None:
    """From now on they are these for all programs of a tenant together."""
    card.tenant_terms[tenant] = terms
    if terms == Terms():
        del card.tenant_terms[tenant]


def preempt(card: Card) -> None:
    """The present turns may be ended, if others wait."""
    if card.contended:
        for client in card.holders:
            assert client.turn is not None
            client.turn.preempted = True
