# SPDX-License-Identifier: Apache-2.0
"""The queue: tenants get equal time, and within a tenant it is first come, first served.

A client takes its place when it wants the GPU and keeps it until its gate opens. A turn that
others cut short sends it to the end. A turn that never began does not.

**Lines.** Whoever waits stands in a line, by place. A tenant with several programs has a line of
its own. Tenants with one program stand in one line for each weight: between equals it is first
come, first served. Next is, of the first in each line, the one whose tenant has the least virtual
time: the time it held the card (share.py), divided by its weight, or by what stands for it where
some have requests (requests.py). So over the turns all virtual
times grow alike, and times held grow as the weights, whoever has how many programs. Turns that
are not over count as if they lasted for a usual time, and so do those of all who come before.

**Priority.** Those in the background come after all others, those of high priority before them.
For each priority there are lines of their own, and a tenant with programs of several has a share
in each.

**Within a tenant** there may be others: the jobs of a user, the users of a unit. They share the
time that it gets in just the same way, each with a virtual time that counts within it; so the
weight of a job counts among the jobs of its user, and who has ten gets no more than who has one.
What is in none of them is as one of them. In each its clients of one weight stand in one line,
and where these weights differ there are several: next is the first with the least virtual time
of its own.

**Idling.** Who was idle comes back at the present, the least virtual time of those who hold or
want the card. So it has not saved up what it did not use and does not starve the others, but
still owes what it had too much. That is so for tenants, and within each for others and clients.

Virtual times count from when there was more than one line. Who waits in which line says card.py.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from heapq import heappop, heapreplace
from itertools import accumulate, chain
from operator import attrgetter
from typing import TypeVar

from nvshared.scheduler import requests
from nvshared.scheduler.card import Card
from nvshared.scheduler.client import Phase, ScheduledClient
from nvshared.scheduler.settings import DEFAULT_WEIGHT, Priority
from nvshared.scheduler.share import Head, Line, Share
from nvshared.units import SECOND

Key = TypeVar("Key")

USUAL = SECOND                          # a turn, where its length is auto
SHARE, INNER = attrgetter("share"), attrgetter("inner")     # of a client
GONE_KNOWN = 1000                       # of tenants without programs, the latest that owe something


def join(card: Card, client: ScheduledClient) -> None:
    """The client takes the last place and waits."""
    client.place = next(card.places)
    client.enter(Phase.WAITING, card.now)


def arrive(card: Card, client: ScheduledClient) -> None:
    """The same, for one that did not want the card until now."""
    client.enter(Phase.IDLE, card.now)  # it may have been suspended, or limited
    share, inner = client.shares
    if card.weighted and share not in card.groups.active():
        share.reach(max(share.virtual, _present(card, share.priority)))
    if share.divided and inner not in card.groups.active():
        inner.reach(max(inner.virtual, _present_in(card, share)))
    if inner.weighted:
        client.virtual = max(client.virtual, _present_among(card, client))
    join(card, client)


def leave(card: Card, client: ScheduledClient) -> None:
    """A turn of the client is over, and its time is billed."""
    share, inner = client.shares
    share.among.present = max(share.among.present, share.virtual)
    share.present = max(share.present, inner.virtual)
    inner.present = max(inner.present, client.virtual)


def stays_first(card: Card, holder: ScheduledClient, head: ScheduledClient) -> bool:
    """Whether it would be the next again, before the head of the queue, if its turn ended now."""
    share = holder.share
    return (
        card.weighted and not holder.standing and holder.priority is head.priority
        and not card.groups.queue(share.line) and share.virtual < head.share.after
    )


def give_precedence(card: Card, client: ScheduledClient) -> None:
    """Whoever waits now goes before this client, whatever the weights."""
    share, inner = client.shares
    within = [other for other in card.waiting if other.share is share]
    among = [other.virtual for other in within if other.inner is inner]
    client.virtual = max([client.virtual, *among])
    inner.reach(max([inner.virtual, *(other.inner.virtual for other in within)]))
    others = [other.share for other in card.waiting if other.priority is client.priority]
    share.reach(max([share.virtual, *(other.virtual for other in others)]))


def sequence(card: Card) -> Iterator[ScheduledClient]:
    """Waiting clients, the next one first, as they wait now."""
    heads = [card.groups.heads(lines, SHARE) for lines in card.groups.lines.values()]
    return chain.from_iterable(
        _merged(card, some, partial(_within, card), SHARE) for some in heads)


def _merged(
    card: Card, heads: list[Head], within: Callable[[Line], Iterable[ScheduledClient]],
    share_of: Callable[[ScheduledClient], Share],
) -> Iterator[ScheduledClient]:
    """Several lines as one. `heads`: in order, and so a heap; `within`: who stands in a line."""
    lines: dict[Line, Iterator[ScheduledClient]] = {}
    first: dict[Line, ScheduledClient | None] = {}
    before: dict[Line, float] = {}      # turns, in virtual time, of its tenant's who come first
    while heads:
        _, _, line = heads[0]
        if line not in lines:
            lines[line] = iter(within(line))
            first[line] = next(lines[line])
        client, following = first[line], next(lines[line], None)
        assert client is not None
        first[line] = following
        if following is not None:
            share = share_of(following)
            if share is share_of(client):
                before[line] = before.get(line, 0) + _adds(card, share)
            virtual = share.after + before.get(line, 0)
            heapreplace(heads, (virtual, following.place, line))
        else:
            heappop(heads)
        yield client


def ordered(card: Card, waiting: list[ScheduledClient]) -> list[ScheduledClient]:
    """Some of those who wait, in the same order."""
    plain = all(client.share.plain for client in waiting)
    if plain and not card.weighted:
        return sorted(waiting, key=lambda client: client.place)
    if not plain:
        some = {client.id for client in waiting}
        return [client for client in sequence(card) if client.id in some]
    lines = {client.share.line for client in waiting}
    highest = {line: _highest(card, line) for line in lines}

    def when(client: ScheduledClient) -> tuple[int, float, int]:
        share, before = client.share, -client.priority
        line = card.groups.queue(share.line)
        position = bisect_left(line, client.place, key=attrgetter("place"))
        if share.line is share.own:
            return before, share.after + position * _adds(card, share), client.place
        return before, highest[share.line][position], client.place

    return sorted(waiting, key=when)


def _highest(card: Card, line: Line) -> list[float]:
    """For each in a line of several tenants: the virtual time at which it is first there."""
    waiting = card.groups.queue(line)
    if line is waiting[0].share.own:
        return []
    return [*accumulate((client.share.after for client in waiting), max)]


def _within(card: Card, line: Line) -> Iterable[ScheduledClient]:
    """Those who stand in it, the next one first."""
    waiting = card.groups.queue(line)
    share = waiting[0].share
    if share.plain or line is not share.own:
        return waiting
    return _merged(
        card, card.groups.heads(share.lines, INNER), partial(_among, card), INNER)


def _among(card: Card, line: Line) -> Iterable[ScheduledClient]:
    """Those of one within a tenant."""
    waiting = card.groups.queue(line)
    return _by_weight(waiting) if waiting[0].inner.weighted else waiting


def _by_weight(by_place: Iterable[ScheduledClient]) -> list[ScheduledClient]:
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


def weigh(card: Card, share: Share, inner: Share | None = None) -> None:
    """To be done when a tenant, and one within it, has a client more or less, or a new weight."""
    _take_weight(card, share)
    if inner is not None:
        _take_weight(card, inner)
        _weigh_among(card, inner)
    divided, share.divided = share.divided, len(share.within) > 1
    if share.divided and not divided:
        share.present = _begin(card, share.within.values())
    alone = len(share.members) < 2 and not share.request
    alone = alone and not any(one.request for one in share.within.values())
    line = share.own
    if alone:
        line = card.lines.setdefault((share.priority, share.weight), Line(share.among))
    if line is not share.line:
        share.line = line
        card.groups.touched.update(share.members)
    before = card.weighted
    # Those without a client are there as they owe something.
    card.weighted = len({one.line for one in card.shares.values()}) > 1
    if card.weighted and not before:
        for lines in card.groups.lines.values():
            lines.present = 0
        _begin(card, card.shares.values())


def _take_weight(card: Card, share: Share) -> None:
    share.bill(card.now)
    terms = card.terms_for(share.name)
    share.weight = share.rate = terms.weight
    share.request = terms.compute_request
    if share.request:
        card.requesting[share] = None
    else:
        card.requesting.pop(share, None)


def _begin(card: Card, shares: Iterable[Share]) -> float:
    """Their virtual times count from now on, from 0."""
    for share in shares:
        share.bill(card.now)
        share.reach(0)
    return 0


def _weigh_among(card: Card, share: Share) -> None:
    before = share.weighted
    share.weighted = len(share.weights) > 1
    if share.weighted and not before:
        share.present = 0
        for client in (card.clients[id] for id in share.members):
            bill(card, client)
            client.virtual = 0


def change_priority(card: Card, client: ScheduledClient) -> None:
    """It queues at the priority that its tenants' terms say now."""
    old, new = client.shares, card.shares_for(client.tenants)
    if new == old:
        return
    if card.weighted and new[0] not in card.groups.active():
        new[0].reach(max(new[0].virtual, _present(card, new[0].priority)))
    runs, drains = client.phase is Phase.RUNNING, client.phase is Phase.DRAINING
    for one in old:
        one.turn(card.now, -runs, -drains)
        one.depart(client.id)
    leave(card, client)
    client.shares = new
    for one in new:
        one.turn(card.now, runs, drains)
        one.enter(client.id, client.terms.weight)
    weigh(card, *old)
    weigh(card, *new)
    forget(card, old[0])


def account(card: Card) -> None:
    """Bills tenants that hold the card, and foresees, before it is looked whose turn is next."""
    requests.meet(card)
    ahead: dict[Share, float] = dict.fromkeys(card.foreseen, 0)
    usual = (card.settings.tq or USUAL) * DEFAULT_WEIGHT
    for client in card.groups.group("holding"):
        lasted = _lasted(card, client) * DEFAULT_WEIGHT
        for share in client.shares:
            share.bill(card.now)
            more = usual / share.rate - lasted / share.rate
            ahead[share] = ahead.get(share, 0) + (more if more > 0 else 0)
    for share, more in ahead.items():
        share.foresee(more)
    card.foreseen = [share for share in ahead if share.ahead]


def choose(card: Card, client: ScheduledClient) -> None:
    """Its turn is to come now."""
    for share in client.shares:
        share.foresee(share.ahead + _adds(card, share))
        card.foreseen.append(share)


def _adds(card: Card, share: Share) -> float:
    """Virtual time that a turn of usual length adds."""
    return (card.settings.tq or USUAL) * DEFAULT_WEIGHT / share.rate


def _lasted(card: Card, client: ScheduledClient) -> int:
    """For how many us the turn of a client has lasted."""
    turn = client.turn
    if turn is None or turn.started is None:
        return 0
    until = turn.stop_sent if client.phase is Phase.DRAINING else card.now
    return until - turn.counted


def forget(card: Card, share: Share) -> None:
    """Tenants without programs are gone, if they owe nothing; of those within one, this one's."""
    _forget(card, card.shares, cache(partial(_present, card)))
    _forget(card, share.within, cache(lambda _: _present_in(card, share)))
    for name, account in [*card.rations.items()]:
        if not account.members and account.quota is None:
            del card.rations[name]


def _forget(
    card: Card, shares: dict[Key, Share], present: Callable[[Priority], float]
) -> None:
    gone = [name for name, share in shares.items() if not share.members]
    for number, name in enumerate(gone, GONE_KNOWN - len(gone)):
        if number < 0 or shares[name].virtual <= present(shares[name].priority):
            for one in (shares[name], *shares[name].within.values()):
                card.requesting.pop(one, None)
            del shares[name]


def bill(card: Card, client: ScheduledClient) -> None:
    """Adds what it has held until now, by the weight that it has until now."""
    if client.open:
        client.enter(client.phase, card.now)


def _present(card: Card, priority: Priority) -> float:
    """The least virtual time of tenants of this one who hold or want the card, about."""
    holding = card.groups.group("holding")
    active = [client.share.virtual for client in holding if client.priority is priority]
    lines = card.groups.lines[priority]
    active += [virtual for virtual, _, _ in card.groups.heads(lines, SHARE)[:1]]
    return min(active, default=lines.present)


def _present_in(card: Card, share: Share) -> float:
    """The same of those within a tenant."""
    active = [
        client.inner.virtual for client in card.groups.group("holding") if client.share is share]
    active += [virtual for virtual, _, _ in card.groups.heads(share.lines, INNER)[:1]]
    return min(active, default=share.present)


def _present_among(card: Card, newcomer: ScheduledClient) -> float:
    """The same of clients beside this one."""
    members = [card.clients[id] for id in newcomer.inner.members if id != newcomer.id]
    for client in members:
        bill(card, client)
    active = [
        client.virtual for client in members if client.turn is not None
        or (client.phase is Phase.WAITING and not client.terms.suspended)
    ]
    return min(active, default=newcomer.inner.present)
