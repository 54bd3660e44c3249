# SPDX-License-Identifier: Apache-2.0
"""Applies what is set for clients and for tenants, as far as it has an effect at once.

The plan does the rest: commit.py promises nothing beyond a memory limit and calls back what was
promised before (that of a tenant is a domain, see domains.py), turns.py ends the turn of a
suspended client, room.py has it leave the card, order.py knows the weights, and compute.py
limits the time.
"""

from collections.abc import Iterable
from dataclasses import replace

from nvshared.quantity import sized
from nvshared.scheduler import compute, order
from nvshared.scheduler.card import Card
from nvshared.scheduler.client import Phase, ScheduledClient
from nvshared.scheduler.settings import TenantTerms, Terms


def change(card: Card, client: ScheduledClient, own: Terms) -> None:
    """From now on they are these, and it is suspended if one of its tenants is."""
    client.own = own
    suspended = own.suspended or any(card.terms_for(name).suspended for name in client.tenants)
    terms = replace(own, suspended=suspended)
    resumed = client.terms.suspended and not terms.suspended
    rationed = client.terms.compute_limit != terms.compute_limit
    order.bill(card, client)
    client.terms = terms
    for account in client.billed:
        account.enter(client.id, terms.weight)
    if rationed:
        compute.change(card, client)
    order.weigh(card, *client.shares)
    if resumed and client.phase is Phase.WAITING:
        order.arrive(card, client)


def change_tenant(card: Card, tenant: str, terms: TenantTerms) -> None:
    """From now on they are these for all programs of a tenant together."""
    before = card.terms_for(tenant)
    card.tenant_terms[tenant] = terms
    if terms == TenantTerms():
        del card.tenant_terms[tenant]
    for domains, limit, old, what in (
        (card.tenancies, terms.memory_limit, before.memory_limit, ""),
        (card.domains, terms.host_limit, before.host_limit, " of host memory"),
    ):
        if limit != old or (limit and terms.shown != before.shown):
            whose = terms.shown or tenant
            words = f"all programs of {whose} together are limited to {sized(limit)}{what}"
            domains.resize(tenant, limit or None, words, term=bool(limit))
            for client in card.clients.values():
                if tenant in client.tenants:
                    bound(card, client)     # which is told at once, as it counts as changed
            card.groups.settle()
            domains.drop(tenant)
    if terms.suspended != before.suspended:
        for client in card.everyone:
            if tenant in client.tenants:
                change(card, client, client.own)
    if terms.priority is not before.priority:
        for client in card.everyone:
            if tenant in client.tenants:
                order.change_priority(card, client)
    for share in card.shares.values():
        if tenant == share.name or tenant in share.within:
            order.weigh(card, share, share.within.get(tenant))
    if tenant in card.rations:
        compute.ration(card, card.rations[tenant])


def bound(card: Card, client: ScheduledClient) -> None:
    """What its tenants are promised keeps to their limits, of all levels."""
    tenants = client.tenants
    client.tenancies = card.tenancies.named(
        [tenant for tenant in tenants if card.terms_for(tenant).memory_limit])
    place(card, client, [one.name for one in client.domains if one.name not in tenants])


def place(card: Card, client: ScheduledClient, groups: Iterable[str]) -> None:
    """It is in these control groups, and in its tenants' limits of host memory."""
    limited = [tenant for tenant in client.tenants if card.terms_for(tenant).host_limit]
    client.domains = card.domains.named([*groups, *limited])


def preempt(card: Card) -> None:
    """The present turns may be ended, if others wait."""
    if card.contended:
        for client in card.holders:
            assert client.turn is not None
            client.turn.preempted = True
