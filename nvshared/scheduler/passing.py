# SPDX-License-Identifier: Apache-2.0
"""Physical memory that one client passes on to another, instead of freeing it.

What is freed is cleared by the engine that brings the next client's memory in. So where one
gives up room for another that may see its memory (a *fellow*, see machine/tenant.py), it sends
its blocks' physical memory to the daemon, which sends it on. On its way here it is a *parcel*:
memory of the card that no client has.

**Counting.** Parcels lie in room that is free. What clients are charged and all parcels together
never exceed the capacity: a parcel comes with the answer that gives its room back, and goes with
the order that gives that room to somebody, to him if he may have it. Any parcel that would be
left in room that is somebody's is let go first, the oldest before others.

**How long.** Nobody waits for a parcel, and no room is refused for one. What nobody has claimed
within a second is let go. The daemon closes what it is not told to keep (sharing/handover.py).

**Who shows what.** The driver may show imported memory with the process that made it. So what a
client was given counts as shown (belief.py), until it has less than that.
"""

from collections import Counter
from collections.abc import Callable

from nvshared.scheduler.card import Card
from nvshared.scheduler.client import ScheduledClient
from nvshared.scheduler.parcels import Parcel
from nvshared.units import SECOND

LASTS = SECOND                          # unclaimed
AT_ONCE = 64                            # with one order; protocol.h


def pays(card: Card, client: ScheduledClient) -> bool:
    """Whether what leaves this client is worth passing on: a fellow lacks something."""
    if not card.settings.pass_from or not _may(client):
        return False
    head = None if card.head is None else card.clients.get(card.head)
    takers = card.groups.group("lacking") + ([] if head is None else [head])
    return any(
        one is not client and _may(one) and one.fellows == client.fellows and _lacks(one)
        for one in takers
    )


def take(card: Card, client: ScheduledClient, passed: tuple[tuple[int, int], ...]) -> None:
    """These have come from a client, by id and size, and their room is free."""
    for id, size in passed:
        if _may(client) and card.passed + size <= card.free:
            card.parcels[id] = Parcel(id, size, client.fellows, card.now)


def give(card: Card, client: ScheduledClient, room: int) -> tuple[int, tuple[int, ...]]:
    """Parcels of one size, and which, for a client that is given so much more room."""
    if not card.parcels or not _may(client) or not _lacks(client):
        return 0, ()
    fit = Counter(p.size for p in card.parcels.values() if p.fellows == client.fellows)
    amounts = {size: size * min(count, room // size, AT_ONCE) for size, count in fit.items()}
    size = max(amounts, key=amounts.__getitem__, default=0)
    if not size or not amounts[size]:
        return 0, ()
    mine = [p.id for p in card.parcels.values() if p.fellows == client.fellows and p.size == size]
    given = tuple(mine[:amounts[size] // size])
    for id in given:
        del card.parcels[id]
    return size, given


def fit(card: Card) -> None:
    """Lets go of parcels whose room is somebody's now."""
    while card.parcels and card.passed > card.free:
        del card.parcels[next(iter(card.parcels))]


def plan(card: Card, due: Callable[[int], bool]) -> None:
    """Lets go of those that nobody has claimed."""
    for parcel in [p for p in card.parcels.values() if due(p.since + LASTS)]:
        del card.parcels[parcel.id]
    fit(card)


def _may(client: ScheduledClient) -> bool:
    return bool(client.fellows) and not client.terms.suspended and not client.memory.stays


def _lacks(client: ScheduledClient) -> bool:
    return client.memory.resident < client.memory.allocated
