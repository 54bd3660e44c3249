# SPDX-License-Identifier: Apache-2.0
"""The queue: tenants get equal time; within a tenant, clients are served first come, first served.

A client gets its place in the queue when it wants the GPU, and keeps it until its gate opens. A
client whose turn was cut short goes to the end. A client whose turn never began keeps its place.

**Lines.** Waiting clients are in lines, ordered by `queue_number`. A tenant with several clients
has a line of its own. Tenants with one client share one line for each weight, so equal tenants are
served first come, first served. Of the first clients of all lines, the next is the client whose
tenant has the least virtual time (tenants.py). So over the turns all virtual times grow alike, and
the time held is proportional to the weight, with any number of clients. A turn under way counts
with a usual length, and so do the turns of all clients that are earlier in the queue.

**Priority.** Clients of high priority come before all others, background clients after them. Each
priority has a tree of its own, and a tenant with clients of several priorities has a node in each.

**Inner tenants**, such as the jobs of a user, share the time of their outer tenant in the same way,
each in a line of its own. So the weight of a job counts among the jobs of its user, and a user with
ten jobs gets no more than a user with one. In the innermost tenant, clients of one weight share a
line.

**Idle nodes.** On waking, a node's virtual time is raised to the least virtual time of its siblings
that hold or want the card. So a node saves up no unused time and cannot starve the others, but
still owes the time that it overused.
"""

from collections.abc import Hashable, Iterable, Iterator
from heapq import heapify, heappop, heapreplace

from nvshared.scheduler.card import Card
from nvshared.scheduler.client import Phase, ScheduledClient
from nvshared.scheduler.settings import DEFAULT_WEIGHT
from nvshared.scheduler.tenants import Node, Path
from nvshared.units import SECOND

USUAL = SECOND                          # assumed length of a turn, if the quantum is auto
GONE_KNOWN = 1000                       # most tenants kept without clients because they owe time
LEVELS = range(3)                       # of a path that have child nodes


def join(card: Card, client: ScheduledClient) -> None:
    """Puts the client at the end of the queue."""
    client.queue_number = next(card.queue_numbers)
    client.enter(Phase.WAITING, card.now)


def arrive(card: Card, client: ScheduledClient) -> None:
    """Queues a client that did not want the card until now."""
    client.enter(Phase.IDLE, card.now)  # it may have been suspended, or limited
    for level in LEVELS:
        raise_virtual_time(card, client.path, level)
    join(card, client)


def raise_virtual_time(card: Card, path: Path, level: int) -> None:
    """Raises the virtual time of a waking node to the least of its active siblings."""
    node, child = path[level:level + 2]
    if node.divided and child not in active(card, level + 1):
        child.virtual = max(child.virtual, _present(card, node, level))


def active(card: Card, *levels: int) -> set[Node]:
    """The nodes of these levels with clients that hold the card or wait for it."""
    clients = (*card.groups["queued"], *card.groups["holding"])
    return {client.path[level] for client in clients for level in levels}


def _present(card: Card, node: Node, level: int) -> float:
    """The least virtual time of a node's children that hold or want the card."""
    beside = [one.virtual for one in active(card, level + 1) if one.parent is node]
    return min(beside, default=node.present)


def leave(client: ScheduledClient) -> None:
    """Records the virtual times after the client's turn, for nodes that wake while none is active.
    """
    for level in LEVELS:
        node, child = client.path[level:level + 2]
        node.present = max(node.present, child.virtual)


def stays_first(card: Card, holder: ScheduledClient, head: ScheduledClient) -> bool:
    """Whether the holder would come before the head again if its turn ended now."""
    root, mine, *_ = holder.path
    return (
        not holder.standing and root is head.path[0] and mine.virtual < head.path[1].after
        and not any(c.path[0] is root and c.path[1].line == mine.line for c in card.groups.queue())
    )


def give_precedence(card: Card, client: ScheduledClient) -> None:
    """Raises the client's virtual times, so that all clients that wait now come before it."""
    for level in LEVELS:
        node, child = client.path[level:level + 2]
        queued = card.groups["queued"]
        beside = [one.path[level + 1].virtual for one in queued if one.path[level] is node]
        child.virtual = max([child.virtual, *beside])


def sequence(card: Card) -> Iterator[ScheduledClient]:
    """Yields the waiting clients, the next one first."""
    waiting = card.groups.queue()
    roots = [root for root in card.tenants.roots.values() if root.members]
    for root in roots:
        mine = waiting if len(roots) == 1 else [c for c in waiting if c.path[0] is root]
        yield from _sequence(card, mine, 0)


def _sequence(card: Card, waiting: list[ScheduledClient], level: int) -> Iterable[ScheduledClient]:
    """Sorts the waiting clients of one node of this level. `waiting`: ordered by `queue_number`."""
    while waiting and level in LEVELS and not waiting[0].path[level].divided:
        level += 1
        if waiting[0].path[level].line is not waiting[0].path[level]:
            return waiting              # a line shared by several nodes: in the order of places
    if not waiting or level not in LEVELS:
        return waiting
    lines: dict[Hashable, list[ScheduledClient]] = {}
    for client in waiting:
        lines.setdefault(client.path[level + 1].line, []).append(client)
    return _merged(card, lines, level + 1)


def _merged(
    card: Card, lines: dict[Hashable, list[ScheduledClient]], level: int
) -> Iterator[ScheduledClient]:
    """Merges lines: of the first clients of all lines, takes the client with least virtual time."""
    first: dict[Hashable, ScheduledClient] = {}
    others: dict[Hashable, Iterator[ScheduledClient]] = {}
    before = dict.fromkeys(lines, 0.0)  # virtual time of the same tenant's turns that come before
    heap = [(waiting[0].path[level].after, waiting[0].queue_number, line)
            for line, waiting in lines.items()]
    heapify(heap)
    while heap:
        line = heap[0][2]
        if line not in others:          # lazily, as most callers read only the first client
            waiting = lines[line]
            others[line] = iter(
                _sequence(card, waiting, level) if isinstance(line, Node) else waiting)
            first[line] = next(others[line])
        client, following = first[line], next(others[line], None)
        if following is not None:
            first[line], node = following, following.path[level]
            if node is client.path[level]:
                before[line] += _adds(card, node)
            heapreplace(heap, (node.after + before[line], following.queue_number, line))
        else:
            heappop(heap)
        yield client


def ordered(card: Card, waiting: Iterable[ScheduledClient]) -> list[ScheduledClient]:
    """Sorts some of the waiting clients in the order of `sequence`."""
    others = {client.id: client for client in waiting}
    found: list[ScheduledClient] = []
    # Stops when one client is left, because it comes last.
    for client in sequence(card) if len(others) > 1 else ():
        if others.pop(client.id, None) is not None:
            found.append(client)
            if len(others) == 1:
                break
    return [*found, *others.values()]


def account(card: Card) -> None:
    """Bills holders and foresees the rest of their turns, before the queue is read."""
    if card.tenants.requesting:
        card.tenants.meet(card.now, active(card, 1, 2))
    for node in card.expecting:
        node.ahead = 0
    card.expecting = []
    usual = (card.settings.tq or USUAL) * DEFAULT_WEIGHT
    for client in card.groups["holding"]:
        lasted = _lasted(card, client) * DEFAULT_WEIGHT
        for node in client.path[1:3]:
            node.bill(card.now)
            node.ahead += max(0, usual / node.rate - lasted / node.rate)
            card.expecting.append(node)


def choose(card: Card, client: ScheduledClient) -> None:
    """Adds the usual length of a turn to the nodes of a client that was just chosen."""
    for node in client.path[1:3]:
        node.ahead += _adds(card, node)
        card.expecting.append(node)


def _adds(card: Card, node: Node) -> float:
    """The virtual time that a turn of usual length adds to a node."""
    return (card.settings.tq or USUAL) * DEFAULT_WEIGHT / node.rate


def _lasted(card: Card, client: ScheduledClient) -> int:
    """Microseconds that the client's turn has lasted."""
    turn = client.turn
    if turn is None or turn.started is None:
        return 0
    until = turn.stop_sent if client.phase is Phase.DRAINING else card.now
    return until - turn.counted


def forget(card: Card, path: Path, names: Iterable[str]) -> None:
    """Removes tenants without clients below the path's nodes, if they owe no time, and accounts of
    `names` without clients. An account with a compute limit is kept, or the tenant's next client
    would get the time of a whole window."""
    tenants = card.tenants
    for level, node in enumerate(path[:2]):
        gone = [name for name, one in node.children.items() if not one.members]
        present = _present(card, node, level) if gone else 0
        for number, name in enumerate(gone, GONE_KNOWN - len(gone)):
            if number < 0 or node.children[name].virtual <= present:
                child = node.children.pop(name)
                for one in (child, *child.children.values()):
                    tenants.requesting.pop(one, None)
    for name in names:
        if not tenants.accounts[name].members and tenants.accounts[name].quota is None:
            del tenants.accounts[name]
