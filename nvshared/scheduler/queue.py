# SPDX-License-Identifier: Apache-2.0
"""The queue, and the terms that order it: equal time for tenants, first come, first served in each.

docs/internals/scheduler.md explains lines, priority, inner tenants and compute limits.
"""

from collections.abc import Hashable, Iterable
from dataclasses import replace
from math import inf
from operator import itemgetter

from nvshared.scheduler.actions import TurnEnd
from nvshared.scheduler.card import Card
from nvshared.scheduler.client import Phase, ScheduledClient
from nvshared.scheduler.events import TenantTerms, Terms
from nvshared.scheduler.tenants import Node, Path
from nvshared.terms import DEFAULT_WEIGHT
from nvshared.units import SECOND

USUAL = SECOND                          # assumed length of a turn, if the quantum is auto
GONE_KNOWN = 1000                       # most tenants without clients kept per node: they owe time
LEVELS = range(3)                       # levels of a path at which nodes have children


def join(card: Card, client: ScheduledClient) -> None:
    """Puts the client at the end of the queue."""
    client.queue(next(card.serials))
    client.enter(Phase.WAITING, card.now)


def arrive(card: Card, client: ScheduledClient) -> None:
    """Queues a client that did not want the card until now."""
    client.enter(Phase.IDLE, card.now)  # else raise_virtual_time() counts the client as active
    for level in LEVELS:
        raise_virtual_time(card, client.path, level)
    join(card, client)


def arrive_idle(card: Card) -> None:
    """Queues all idle clients if the daemon is to end: turns do not change without a daemon, so as
    many clients run as fit."""
    if not card.settings.draining:
        return
    for client in sorted(card.groups[Phase.IDLE], key=lambda c: c.unpinned_need):
        if not client.terms.suspended:
            arrive(card, client)


def want(card: Card, client: ScheduledClient) -> None:
    """Records that a thread of the client waits at the gate."""
    if client.turn is not None:
        client.turn.want()
    client.invite(False)
    if client.phase is Phase.IDLE:
        if client.history.turns:        # the idle phase that ends was a pause between two turns
            client.note_pause(card.now)
        arrive(card, client)


def raise_virtual_time(card: Card, path: Path, level: int) -> None:
    """Raises the virtual time of a waking node to the least of its active siblings."""
    node, child = path[level:level + 2]
    if node.divided and child not in active(card, level + 1):
        child.raise_to(_present(card, node, level))


def active(card: Card, *levels: int) -> set[Node]:
    """The nodes of these levels with clients that hold the card or wait for it."""
    clients = (*card.groups["queued"], *card.groups["holding"])
    return {client.path[level] for client in clients for level in levels}


def _present(card: Card, node: Node, level: int) -> float:
    """The least virtual time of a node's children that hold or want the card."""
    times = [one.virtual for one in active(card, level + 1) if one.parent is node]
    return min(times, default=node.present)


def leave(client: ScheduledClient) -> None:
    """Records the virtual times after a turn, for nodes that wake while none is active."""
    for level in LEVELS:
        node, child = client.path[level:level + 2]
        node.raise_present(child.virtual)


def stays_first(card: Card, holder: ScheduledClient, head: ScheduledClient) -> bool:
    """Whether the holder would come before the head again if its turn ended now."""
    root, mine, *_ = holder.path
    return (
        not holder.standing and root is head.path[0] and mine.virtual < head.path[1].after
        and not any(c.path[0] is root and c.path[1].line == mine.line for c in card.groups.queue()))


def give_precedence(card: Card, client: ScheduledClient) -> None:
    """Raises the client's virtual times, so that all clients that wait now come before it."""
    for level in LEVELS:
        node, child = client.path[level:level + 2]
        times = [c.path[level + 1].virtual for c in card.groups["queued"] if c.path[level] is node]
        child.raise_to(max(times, default=0))


def sequence(card: Card) -> list[ScheduledClient]:
    """The waiting clients, the next one first."""
    waiting = card.groups.queue()
    trees = [[c for c in waiting if c.path[0] is root] for root in card.tenants.roots.values()]
    return [client for in_tree in trees for client in _sequence(card, in_tree, 0)]


def _sequence(card: Card, waiting: list[ScheduledClient], level: int) -> list[ScheduledClient]:
    """Sorts the waiting clients of one node of this level. `waiting`: ordered by `queue_number`."""
    while waiting and level in LEVELS and not waiting[0].path[level].divided:
        level += 1
        if waiting[0].path[level].line is not waiting[0].path[level]:
            return waiting              # several nodes share a line, sorted by `queue_number`
    if not waiting or level not in LEVELS:
        return waiting
    level += 1
    lines: dict[Hashable, list[ScheduledClient]] = {}
    for client in waiting:
        lines.setdefault(client.path[level].line, []).append(client)
    keys: list[tuple[tuple[float, int], ScheduledClient]] = []
    for line, in_line in lines.items():
        key, turns, before = (-inf, 0), 0.0, None
        ordered = _sequence(card, in_line, level) if isinstance(line, Node) else in_line
        for client in ordered:
            node = client.path[level]
            turns += _virtual_turn_time(card, node) if node is before else 0
            number = client.queue_number if before else in_line[0].queue_number
            # No client comes before the client in front of it in its line.
            key, before = max(key, (node.after + turns, number)), node
            keys.append((key, client))
    return [client for _, client in sorted(keys, key=itemgetter(0))]


def bill_holders(card: Card) -> None:
    """Bills holders, and adds the expected rest of their turns to `Node.ahead`."""
    if card.tenants.requesting:
        card.tenants.meet(card.now, active(card, 1, 2))
    card.tenants.expect_none()
    for client in card.groups["holding"]:
        bill(card, client)


def bill(card: Card, client: ScheduledClient) -> None:
    """Bills one holder, and adds the expected rest of its turn to `Node.ahead`."""
    turn = client.its_turn
    until = client.since if client.phase is Phase.DRAINING else card.now
    lasted = 0 if turn.started is None else (until - turn.counted) * DEFAULT_WEIGHT
    for node in client.path[1:3]:
        node.bill(card.now)
        card.tenants.expect(node, max(0, _virtual_turn_time(card, node) - lasted / node.rate))


def cancel_turn(card: Card, client: ScheduledClient, phase: Phase = Phase.WAITING) -> None:
    """Cancels a turn that never began. The client keeps its place in the queue."""
    client.end_turn()
    client.enter(phase, card.now)
    bill_holders(card)


def _virtual_turn_time(card: Card, node: Node) -> float:
    """The virtual time that a turn of usual length adds to a node."""
    return (card.settings.tq or USUAL) * DEFAULT_WEIGHT / node.rate


def forget(card: Card, path: Path, names: Iterable[str]) -> None:
    """Removes tenants without clients below the path's nodes, if they owe no time, and accounts of
    `names` without clients."""
    for level, node in enumerate(path[:2]):
        gone = [name for name, one in node.children.items() if not one.members]
        present = _present(card, node, level) if gone else 0
        for number, name in enumerate(gone, GONE_KNOWN - len(gone)):
            if number < 0 or node.children[name].virtual <= present:
                card.tenants.drop(node, name)
    card.tenants.drop_accounts(names)


def set_terms(card: Card, client: ScheduledClient, own: Terms) -> None:
    """Replaces a client's terms. The client is suspended also while one of its tenants is, and has
    the shortest deadline of its own and its tenants'."""
    inherited = [card.tenants.terms_for(name) for name in client.tenants]
    deadlines = filter(None, [own.deadline, *[terms.deadline for terms in inherited]])
    terms = replace(own, suspended=own.suspended or any(terms.suspended for terms in inherited),
                    deadline=min(deadlines, default=0))
    resumed = client.terms.suspended and not terms.suspended
    client.set_terms(own, terms)
    _change_priority(card, client)
    card.tenants.enter(client.id, *client.nodes)
    _, outer, inner, node = client.path
    node.weigh(card.now, terms.weight)
    _set_compute_limit_of(card, node, terms.compute_limit)
    card.tenants.weigh(card.now, outer, inner)
    if resumed and client.phase is Phase.WAITING:
        arrive(card, client)


def apply_tenant_terms(
    card: Card, tenant: str, before: TenantTerms, terms: TenantTerms
) -> None:
    """Applies a tenant's changed terms to its clients, but for limits of memory."""
    for client in card.groups["everyone"]:
        if tenant in client.tenants:
            if (terms.suspended, terms.deadline) != (before.suspended, before.deadline):
                set_terms(card, client, client.own)
            _change_priority(card, client)
    for root in card.tenants.roots.values():
        for outer in root.children.values():
            inner = outer.children.get(tenant)
            if tenant == outer.name or inner:
                card.tenants.weigh(card.now, outer, *filter(None, [inner]))
    if tenant in card.tenants.accounts:
        set_compute_limit(card, tenant)
        card.tenants.drop_accounts([tenant])


def _change_priority(card: Card, client: ScheduledClient) -> None:
    """Moves a client to the tree of the priority that its own and its tenants' terms now set."""
    old = client.path
    new = card.tenants.path(client.tenants, client.path[-1], client.own.priority)
    if new == old:
        return
    raise_virtual_time(card, new, 0)
    leave(client)
    runs, drains = client.phase is Phase.RUNNING, client.phase is Phase.DRAINING
    card.tenants.move(client.id, old, new, card.now, runs, drains)
    client.join(new)
    for path in (old, new):
        card.tenants.weigh(card.now, *path[1:3])
    forget(card, old, client.tenants)


def set_compute_limit(card: Card, tenant: str) -> None:
    """Applies a tenant's compute limit after a change, or when a client of the tenant joins."""
    limit = card.tenants.terms_for(tenant).compute_limit
    _set_compute_limit_of(card, card.tenants.accounts[tenant], limit)


def _set_compute_limit_of(card: Card, node: Node, percent: int) -> None:
    accounting = card.settings.accounting
    if card.tenants.limit(node, percent, card.now, accounting, turns=card.contended):
        for client in [card.clients[id] for id in sorted(node.members)]:
            card.groups.touch(client)
            if not client.rationed and client.phase is Phase.LIMITED:
                arrive(card, client)


def roll_quotas(card: Card) -> None:
    """Begins a compute limit's next window when a window has ended. Runs before each event."""
    accounting = card.settings.accounting
    for node in card.tenants.limited:
        assert node.quota is not None
        if node.quota.ends > card.now:
            continue
        members = [card.clients[id] for id in node.members]
        waits = any(
            one.phase in (Phase.WAITING, Phase.LOADING) and not one.terms.suspended
            for one in members)
        node.renew(node.quota.roll(
            accounting, card.now, node.billed(card.now, accounting),
            waits=waits and not node.open, holds=node.open,
            short=any(one.phase is Phase.LIMITED for one in members),
            turns=card.contended or any(
                one.quota and len(one.members) > 1 for member in members for one in member.limits)))


def enforce_compute_limits(card: Card) -> None:
    """Stops clients without time in the window, and queues LIMITED clients with time again."""
    # LIMITED clients come last: the client that one waits for may have no time left in the window.
    for client in sorted(card.groups["rationed"], key=lambda c: c.phase is Phase.LIMITED):
        if client.phase in (Phase.IDLE, Phase.DRAINING):
            continue
        left, enough, ends = time_left(card, client)
        match client.phase:
            case Phase.RUNNING:
                turn = client.its_turn
                idle = turn.idle and not card.settings.draining
                if left > 0 and not idle:
                    card.due(min(card.now + left, ends))
                elif card.due(turn.stop_after):
                    card.stop(client, TurnEnd.IDLE if idle and left > 0 else TurnEnd.LIMIT)
            case Phase.LIMITED if enough and not _lets_others_finish(card, client, ends - left):
                arrive(card, client)
            case Phase.WAITING if not enough:
                client.enter(Phase.LIMITED, card.now)
            case Phase.LOADING if left <= 0:
                cancel_turn(card, client, Phase.LIMITED)
        if client.phase is Phase.LIMITED:
            card.due(ends)


def _lets_others_finish(card: Card, client: ScheduledClient, latest: int) -> bool:
    """Whether a client with time again waits for turns of other limited clients to end.

    An open gate is billed in full, so limited clients that run at once pay for work of each other,
    and later leave the card idle together. `latest`: the last time at which a turn can still use
    all time of the window. Clients of a limited tenant do not wait for each other: they share it.
    """
    if card.contended or client.standing:
        return False
    limited = {node for node in client.limits if node.quota}
    for one in card.groups["rationed"]:
        goes_first = _runs_soon(card, one) and one.priority >= client.priority
        if goes_first and limited.isdisjoint(one.limits):
            return not card.due(latest)
    return False


def _runs_soon(card: Card, client: ScheduledClient) -> bool:
    """Whether the client has a turn that will end, or will have one as soon as others' end."""
    return (client.phase in (Phase.WAITING, Phase.LOADING, Phase.RUNNING, Phase.DRAINING)
            and not client.unresponsive and not client.terms.suspended
            and client.unpinned_need <= card.room_if_alone)


def time_left(card: Card, client: ScheduledClient) -> tuple[int, bool, int]:
    """Microseconds left by all limits, whether a turn may begin, and when more will be left."""
    accounting = card.settings.accounting
    accounts = [(one.quota, one.billed(card.now, accounting)) for one in client.limits if one.quota]
    short = [both for both in accounts if both[0].left(both[1]) < both[0].least(accounting)]
    ends = (max(one.renewed(accounting, billed) for one, billed in short) if short
            else min(one.ends for one, _ in accounts))
    return min(one.left(billed) for one, billed in accounts), not short, ends
