# SPDX-License-Identifier: Apache-2.0
"""The queue: first come, first served; between weights, the larger claim first.

A client takes its place when it wants the GPU and keeps it until its gate opens. A turn that
others cut short sends it to the end. A turn that never began does not.

Clients of one weight stand in one line, by place. Where weights differ there are several lines.
Next is, of the first in each line, the one with the least virtual time: the time it held the
card, divided by its weight. So over the turns all virtual times grow alike, and times held grow
as the weights. A client that was idle comes back at the present, the least virtual time of
those who hold or want the card. So it has not saved up what it did not use and does not starve
the others, but still owes what it had too much.

Virtual times count from when weights began to differ.
"""

from collections import deque
from collections.abc import Iterable, Iterator

from nvshared.scheduler.card import Card
from nvshared.scheduler.client import Phase, ScheduledClient


def join(card: Card, client: ScheduledClient) -> None:
    """The client takes the last place and waits."""
    client.place = next(card.places)
    client.enter(Phase.WAITING, card.now)


def arrive(card: Card, client: ScheduledClient) -> None:
    """The same, for one that did not want the card until now."""
    if card.weighted:
        client.virtual = max(client.virtual, _present(card, client))
    join(card, client)


def leave(card: Card, client: ScheduledClient) -> None:
    """A turn of the client is over, and its time is billed."""
    card.present = max(card.present, client.virtual)


def give_precedence(card: Card, client: ScheduledClient) -> None:
    """Whoever waits now goes before this client, whatever the weights."""
    client.virtual = max([client.virtual, *(other.virtual for other in card.waiting)])


def sequence(card: Card) -> Iterator[ScheduledClient]:
    """Waiting clients, the next one first, as they wait now."""
    by_place = card.groups.queue()
    return iter(_merged(by_place)) if card.weighted else by_place


def ordered(card: Card, waiting: list[ScheduledClient]) -> list[ScheduledClient]:
    """Some of those who wait, in the same order."""
    if not card.weighted:
        return sorted(waiting, key=lambda client: client.place)
    some = {client.id for client in waiting}
    return [client for client in sequence(card) if client.id in some]


def _merged(by_place: Iterable[ScheduledClient]) -> list[ScheduledClient]:
    """The lines of all weights into one."""
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


def weigh(card: Card) -> None:
    """To be done when there is a new client or a new weight."""
    before = card.weighted
    card.weighted = len({client.terms.weight for client in card.clients.values()}) > 1
    if card.weighted and not before:
        card.present = 0
        for client in card.clients.values():
            bill(card, client)
            client.virtual = 0


def bill(card: Card, client: ScheduledClient) -> None:
    """Adds what it has held until now, by the weight that it has until now."""
    if client.open:
        client.enter(client.phase, card.now)


def _present(card: Card, newcomer: ScheduledClient) -> int:
    for client in card.clients.values():
        bill(card, client)
    active = [c for c in card.clients.values() if c.turn is not None and c is not newcomer]
    active += [c for c in card.waiting if c is not newcomer]
    return min((client.virtual for client in active), default=card.present)
