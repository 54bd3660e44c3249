# SPDX-License-Identifier: Apache-2.0
"""The queue: tenants get equal time, and within a tenant it is first come, first served.

A client takes its place when it wants the GPU and keeps it until its gate opens. A turn that
others cut short sends it to the end. A turn that never began does not.

**Lines.** Whoever waits stands in a line, by place. A tenant with several programs has a line of
its own. Tenants with one program stand in one line for each weight: between equals it is first
come, first served. Next is, of the first in each line, the one whose tenant has the least virtual
time: the time it held the card (share.py), divided by its weight. So over the turns all virtual
times grow alike, and times held grow as the weights, whoever has how many programs. Turns that
are not over count as if they lasted for a usual time, and so do those of all who come before.

**Within a tenant.** Its clients of one weight stand in one line, and where these weights differ
there are several, in just the same way: next is the first with the least virtual time of its own.

**Idling.** Who was idle comes back at the present, the least virtual time of those who hold or
want the card. So it has not saved up what it did not use and does not starve the others, but
still owes what it had too much. That is so for tenants, and within each for its clients.

Virtual times count from when there was more than one line.

The tenant is the innermost of those that a client is of (its job rather than its user). Lines
are kept in groups.py, so that a decision among a thousand tenants takes few steps.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heappop, heapreplace
from itertools import accumulate

from nvshared.scheduler.card import Card
from nvshared.scheduler.client import Phase, ScheduledClient
from nvshared.scheduler.settings import DEFAULT_WEIGHT
from nvshared.scheduler.share import Line, Share
from nvshared.units import SECOND

USUAL = SECOND                          # a turn, where its length is auto


def join(card: Card, client: ScheduledClient) -> None:
    """The client takes the last place and waits."""
    client.place = next(card.places)
    client.enter(Phase.WAITING, card.now)


def arrive(card: Card, client: ScheduledClient) -> None:
    """The same, for one that did not want the card until now."""
    client.enter(Phase.IDLE, card.now)  # it may have been suspended, or limited
    share = client.share
    if card.weighted and not card.groups.active(share):
        share.reach(max(share.virtual, _present(card)))
    if share.weighted:
        client.virtual = max(client.virtual, _present_within(card, client))
    join(card, client)


def leave(card: Card, client: ScheduledClient) -> None:
    """A turn of the client is over, and its time is billed."""
    card.present = max(card.present, client.share.virtual)
    client.share.present = max(client.share.present, client.virtual)


def give_precedence(card: Card, client: ScheduledClient) -> None:
    """Whoever waits now goes before this client, whatever the weights."""
    within = [other for other in card.waiting if other.share is client.share]
    client.virtual = max([client.virtual, *(other.virtual for other in within)])
    share = client.share
    share.reach(max([share.virtual, *(other.share.virtual for other in card.waiting)]))


def sequence(card: Card) -> Iterator[ScheduledClient]:
    """Waiting clients, the next one first, as they wait now."""
    heads = card.groups.heads()         # sorted, and so a heap
    lines: dict[Line, deque[ScheduledClient]] = {}
    before: dict[Line, float] = {}      # turns, in virtual time, of its tenant's who come first
    while heads:
        _, _, line = heads[0]
        if line not in lines:
            lines[line] = deque(_within(card, line))
        client = lines[line].popleft()
        if lines[line]:
            following = lines[line][0]
            share = following.share
            if share is client.share:
                before[line] = before.get(line, 0) + _adds(card, share)
            virtual = share.after + before.get(line, 0)
            heapreplace(heads, (virtual, following.place, line))
        else:
            heappop(heads)
        yield client


def ordered(card: Card, waiting: list[ScheduledClient]) -> list[ScheduledClient]:
    """Some of those who wait, in the same order."""
    if not card.weighted and not any(client.share.weighted for client in waiting):
        return sorted(waiting, key=lambda client: client.place)
    if any(client.share.weighted for client in waiting):
        some = {client.id for client in waiting}
        return [client for client in sequence(card) if client.id in some]
    card.groups.heads()                 # brings the lines up to date
    lines = {client.share.line for client in waiting}
    highest = {line: _highest(card, line) for line in lines}

    def when(client: ScheduledClient) -> tuple[float, int]:
        share = client.share
        position = bisect_left(share.line.places, (client.place, client.id))
        if share.line is share.own:
            return share.after + position * _adds(card, share), client.place
        return highest[share.line][position], client.place

    return sorted(waiting, key=when)


def _highest(card: Card, line: Line) -> list[float]:
    """For each in a line of several tenants: the virtual time at which it is first there."""
    first = card.clients[line.places[0][1]].share
    if line is first.own:
        return []
    return [*accumulate((card.clients[id].share.after for _, id in line.places), max)]


def _within(card: Card, line: Line) -> Iterable[ScheduledClient]:
    """Those who stand in it, the next one first."""
    by_place = [card.clients[id] for _, id in line.places]
    return _merged(by_place) if by_place[0].share.weighted else by_place


def _merged(by_place: Iterable[ScheduledClient]) -> list[ScheduledClient]:
    """The lines of all weights within a tenant into one."""
    lines: dict[int, deque[ScheduledClient]] = {}
    for client in by_place:
        lines.setdefault(client.terms.weight, deque()).append(client)
    merged = []
    while lines:
        first = min((line[0] for line in lines.values()), key=lambda c: (c.virtual, c.place))
        line = lines[first.terms.weight]
        merged.append(line.popleft())
        if not line:
            del lines[first.terms.weight]
    return merged


def weigh(card: Card, share: Share) -> None:
    """To be done when a tenant has a new client or one less, or there is a new weight."""
    share.bill(card.now)
    share.weight = card.terms_for(share.name).weight
    _weigh_within(card, share)
    alone = len(share.members) < 2
    line = card.lines.setdefault(share.weight, Line()) if alone else share.own
    if line is not share.line:
        share.line = line
        card.groups.touched.update(share.members)
    before = card.weighted
    # Those without a client are there as they owe something.
    lines = {one.line for one in card.shares.values() if one.members or not one.under}
    card.weighted = len(lines) > 1
    if card.weighted and not before:
        card.present = 0
        for one in card.shares.values():
            one.bill(card.now)
            one.reach(0)


def _weigh_within(card: Card, share: Share) -> None:
    members = [card.clients[id] for id in share.members]
    before = share.weighted
    share.weighted = len({client.terms.weight for client in members}) > 1
    if share.weighted and not before:
        share.present = 0
        for client in members:
            bill(card, client)
            client.virtual = 0


def account(card: Card) -> None:
    """Bills tenants that hold the card, and foresees, before it is looked whose turn is next."""
    if not card.weighted:
        return
    ahead: dict[Share, float] = dict.fromkeys(card.foreseen, 0)
    for client in card.groups.group("holding"):
        client.share.bill(card.now)
        more = _adds(card, client.share) - _lasted(card, client)
        ahead[client.share] = ahead.get(client.share, 0) + max(0, more)
    for share, more in ahead.items():
        share.foresee(more)
    card.foreseen = [share for share in ahead if share.ahead]


def choose(card: Card, client: ScheduledClient) -> None:
    """Its turn is to come now."""
    if card.weighted:
        client.share.foresee(client.share.ahead + _adds(card, client.share))
        card.foreseen.append(client.share)


def _adds(card: Card, share: Share) -> float:
    """Virtual time that a turn of usual length adds."""
    return (card.settings.tq or USUAL) * DEFAULT_WEIGHT / share.weight


def _lasted(card: Card, client: ScheduledClient) -> float:
    """For how much of it its turn has lasted."""
    turn = client.turn
    if turn is None or turn.started is None:
        return 0
    until = turn.stop_sent if client.phase is Phase.DRAINING else card.now
    return (until - turn.started) * DEFAULT_WEIGHT / client.share.weight


def forget(card: Card) -> None:
    """Tenants without programs are gone, if they owe nothing and nothing is set for them."""
    present = _present(card)
    for name, share in [*card.shares.items()]:
        if not share.under and name not in card.tenant_terms and share.virtual <= present:
            del card.shares[name]


def bill(card: Card, client: ScheduledClient) -> None:
    """Adds what it has held until now, by the weight that it has until now."""
    if client.open:
        client.enter(client.phase, card.now)


def _present(card: Card) -> float:
    """The least virtual time of tenants who hold or want the card, about."""
    active = [client.share.virtual for client in card.groups.group("holding")]
    active += [virtual for virtual, _, _ in card.groups.heads()[:1]]
    return min(active, default=card.present)


def _present_within(card: Card, newcomer: ScheduledClient) -> int:
    members = [card.clients[id] for id in newcomer.share.members if id != newcomer.id]
    for client in members:
        bill(card, client)
    active = [
        client.virtual for client in members if client.turn is not None
        or (client.phase is Phase.WAITING and not client.terms.suspended)
    ]
    return min(active, default=newcomer.share.present)
