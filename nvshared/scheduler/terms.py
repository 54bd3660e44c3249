# SPDX-License-Identifier: Apache-2.0
"""Terms of clients and tenants: applies them, and stops clients at their compute limits.

Other modules apply the rest of the terms. promises.py promises nothing beyond a memory limit and
calls back earlier promises (a tenant's memory limit is a domain, see domains.py). turns.py ends the
turn of a suspended client, and moves.py evicts its memory. queue.py orders clients by weights.

**Compute limits** (tenants.py has their accounts). A client is stopped when the client or one of
its tenants has used its share of a window. The client leaves the queue and delays no other client.
When the next window begins it joins the end of the queue. If the administrator sets no length, a
window lasts a tenth of a second while no memory has to move, so that a program does not stutter,
and two seconds while clients take turns, because each turn may cost a hand-over. The clients of a
limited tenant take turns at its limit, so their own windows are long too: a short window would pass
while the tenant's limit keeps the client stopped.

An undrainable client is stopped at its limit like any other. Its hook shuts the gate and does not
wait for the work in flight, so work that never ends is not limited.

The hook of a limited client is ordered to pace and to report idleness even if no client waits, so
that the client is not billed for an open gate that it does not use.
"""

from collections.abc import Iterable
from dataclasses import replace

from nvshared.quantity import sized
from nvshared.scheduler import queue
from nvshared.scheduler.actions import TurnEnd
from nvshared.scheduler.card import Card
from nvshared.scheduler.client import Phase, ScheduledClient
from nvshared.scheduler.settings import TenantTerms, Terms
from nvshared.scheduler.tenants import Node


def change(card: Card, client: ScheduledClient, own: Terms) -> None:
    """Replaces a client's terms. The client is suspended also while one of its tenants is."""
    client.own = own
    suspended = own.suspended or any(
        card.tenants.terms_for(name).suspended for name in client.tenants)
    resumed = client.terms.suspended and not suspended
    client.terms = terms = replace(own, suspended=suspended)
    for node in client.nodes:
        node.members.add(client.id)
    _, outer, inner, node = client.path
    node.weigh(card.now, terms.weight)
    node.line = terms.weight
    _limit(card, node, terms.compute_limit)
    card.tenants.weigh(card.now, outer, inner)
    if resumed and client.phase is Phase.WAITING:
        queue.arrive(card, client)


def change_tenant(card: Card, tenant: str, terms: TenantTerms) -> None:
    """Replaces the terms of all clients of a tenant together."""
    before = card.tenants.terms_for(tenant)
    card.tenants.terms[tenant] = terms
    if terms == TenantTerms():
        del card.tenants.terms[tenant]
    for domains, limit, old, what in (
        (card.tenancies, terms.memory_limit, before.memory_limit, ""),
        (card.domains, terms.host_memory_limit, before.host_memory_limit, " of host memory"),
        (card.disk_limits, terms.disk_limit, before.disk_limit, " of the disk"),
    ):
        if limit != old or (limit and terms.shown != before.shown):
            whose = terms.shown or tenant
            reason = f"all programs of {whose} together are limited to {sized(limit)}{what}"
            term = bool(limit) and domains is not card.disk_limits
            domains.set_limit(tenant, limit or None, reason, term=term)
            for client in card.clients.values():
                if tenant in client.tenants:
                    bound(card, client)     # which is told at once, as it counts as changed
            card.groups.settle()
            if not limit:
                domains.drop(tenant)
    for client in card.everyone:
        if tenant in client.tenants:
            if terms.suspended != before.suspended:
                change(card, client, client.own)
            _change_priority(card, client)
    for root in card.tenants.roots.values():
        for outer in root.children.values():
            if tenant == outer.name or tenant in outer.children:
                card.tenants.weigh(card.now, outer, *filter(None, [outer.children.get(tenant)]))
    if tenant in card.tenants.accounts:
        limit_tenant(card, tenant)


def _change_priority(card: Card, client: ScheduledClient) -> None:
    """Moves a client to the tree of the priority that its tenants' terms now set."""
    old, new = client.path, card.tenants.path(client.tenants, client.path[-1])
    if new == old:
        return
    queue.raise_virtual_time(card, new, 0)
    runs, drains = client.phase is Phase.RUNNING, client.phase is Phase.DRAINING
    for node in old[:-1]:
        node.turn(card.now, -runs, -drains)
        node.members.remove(client.id)
    queue.leave(client)
    del old[2].children[client.id]
    client.path = new
    for node in new[:-1]:
        node.turn(card.now, runs, drains)
        node.members.add(client.id)
    new[2].children[client.id] = new[3]
    for path in (old, new):
        card.tenants.weigh(card.now, *path[1:3])
    queue.forget(card, old, client.tenants)


def bound(card: Card, client: ScheduledClient, groups: Iterable[str] | None = None) -> None:
    """Binds a client to the limits of its control groups and tenants, of all levels.

    `groups`: names of the control groups from now on; None: unchanged.
    """
    if groups is None:
        groups = [one.name for one in client.domains if one.name not in client.tenants]
    terms = [(name, card.tenants.terms_for(name)) for name in client.tenants]
    client.tenancies = card.tenancies.named([name for name, one in terms if one.memory_limit])
    limited = (name for name, one in terms if one.host_memory_limit)
    client.domains = card.domains.named([*groups, *limited])
    client.disk_limits = card.disk_limits.named([name for name, one in terms if one.disk_limit])


def limit_tenant(card: Card, tenant: str) -> None:
    """Applies a tenant's compute limit after a change, or when a client of the tenant joins."""
    _limit(card, card.tenants.accounts[tenant], card.tenants.terms_for(tenant).compute_limit)


def _limit(card: Card, node: Node, percent: int) -> None:
    accounting = card.settings.accounting
    if card.tenants.limit(node, percent, card.now, accounting, turns=card.contended):
        card.groups.touched.update(node.members)
        for client in [card.clients[id] for id in sorted(node.members)]:
            if not client.rationed and client.phase is Phase.LIMITED:
                queue.arrive(card, client)


def account(card: Card) -> None:
    """Rolls the accounts of compute limits to the current time. Runs before each event."""
    for node in card.tenants.limited:
        assert node.quota is not None
        if node.quota.ends > card.now:
            continue
        members = [card.clients[id] for id in node.members]
        waits = any(
            one.phase in (Phase.WAITING, Phase.LOADING) and not one.terms.suspended
            for one in members)
        node.quota = node.quota.roll(
            card.settings.accounting, card.now, node.billed(card.now, card.settings.accounting),
            waits=waits and not node.open, holds=node.open,
            short=any(one.phase is Phase.LIMITED for one in members),
            turns=card.contended or any(
                one.quota is not None and len(one.members) > 1
                for member in members for one in member.limits),
        )


def plan(card: Card) -> None:
    """Stops clients that have used up their window, and queues clients with time in a new one."""
    for client in card.groups["rationed"]:
        if client.phase in (Phase.IDLE, Phase.DRAINING):
            continue
        left, enough, ends = standing(card, client)
        match client.phase:
            case Phase.RUNNING:
                turn = client.its_turn
                if left > 0 and not turn.idle:
                    card.due(min(card.now + left, ends))
                elif card.due(turn.stop_after):
                    card.stop(
                        client, TurnEnd.IDLE if turn.idle and left > 0 else TurnEnd.LIMIT)
            case Phase.LIMITED if enough:
                queue.arrive(card, client)
            case Phase.WAITING if not enough:
                client.enter(Phase.LIMITED, card.now)
            case Phase.LOADING if left <= 0:
                client.turn = None
                client.enter(Phase.LIMITED, card.now)
                queue.account(card)
        if client.phase is Phase.LIMITED:
            card.due(ends)


def standing(card: Card, client: ScheduledClient) -> tuple[int, bool, int]:
    """Microseconds left, whether they are enough for a turn, and the time at which more are left.
    """
    accounting = card.settings.accounting
    accounts = [(one.quota, one.billed(card.now, accounting)) for one in client.limits if one.quota]
    short = [both for both in accounts if both[0].left(both[1]) < both[0].least(accounting)]
    ends = (max(one.renewed(accounting, billed) for one, billed in short) if short
            else min(one.ends for one, _ in accounts))
    return min(one.left(billed) for one, billed in accounts), not short, ends
