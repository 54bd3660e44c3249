# SPDX-License-Identifier: Apache-2.0
"""Has running programs make host memory for what will leave, before it has to.

To take host memory from the kernel takes two to ten times as long as to copy into it. A program
keeps what it has made, so only its first way out was that slow; but that is the moment in which
somebody waits for the room. It is known before: from when programs do not fit on the card together
until a turn ends. Meanwhile those that run make what they will need, with a few threads that take
none of the card's time (libhook/src/service/providing.c).

What the next one lacks, less what is free and what others give who do not run, will be taken from
those that run, first from the one whose turn began first. As much is made, and no more: where all
fit together, nothing, and nothing for memory that nobody's coming can drive out. Those that do not
run are left alone, as their memory leaves or is copied at once (room.py, presave.py).

It is made in steps, with at most half of the host memory that is left. Nobody waits for the answer
of such an order: the next EVICT or LOAD ends it. What it may take counts until it is answered.
"""

from nvshared.scheduler.card import Card
from nvshared.scheduler.client import Phase, ScheduledClient
from nvshared.scheduler.decision import Decision
from nvshared.scheduler.events import Provided
from nvshared.units import SECOND

HOST_PART = 2                           # of the host memory that is left
BLOCKS = 2                              # more than that: what is in pieces does not fit everywhere
PAUSE = 10 * SECOND                     # after it got less than it asked for


def plan(decision: Decision) -> None:
    """Has the next bytes made, if some are to be."""
    card = decision.card
    if not card.settings.presave or card.groups.total("need") <= card.settings.capacity:
        return
    running = [c for c in card.holders if c.phase is Phase.RUNNING]
    if not running:
        return
    short = _short(card)
    for client in running:
        part = min(short, client.staying)
        if part <= 0:
            return
        short -= part
        _provide(decision, client, part)


def answered(client: ScheduledClient, answer: Provided, now: int) -> None:
    """It has made host memory. If that is too little, it is left alone for a while."""
    made = client.providing
    if made is None or made.order.number != answer.number:
        return
    client.providing = None
    if client.memory.host < made.order.host and not answer.yielded:
        client.provide_after = now + PAUSE


def _short(card: Card) -> int:
    """What will be taken from running clients for the one that comes next, by what hooks say."""
    id = card.groups.most_away()[1] if card.head is None else card.head
    coming = card.clients.get(id)
    if coming is None:
        return 0
    # Of the memory of all others what is pinned stays.
    staying = [coming, *(c for c in card.holders if c is not coming)]
    pinned = card.pinned - sum(c.memory.pinned for c in staying)
    filled = sum(c.memory.filled for c in staying) + max(0, pinned)
    return coming.need - coming.memory.filled - max(0, card.settings.capacity - filled)


def _provide(decision: Decision, client: ScheduledClient, wanted: int) -> None:
    """Orders a step of it, if it has less."""
    card = decision.card
    if client.moves or client.providing or client.memory.stays:
        return
    block, allocated = card.settings.block, client.memory.allocated
    target = min(allocated, allocated - client.staying + wanted + BLOCKS * block)
    left = card.host_free_for(client) // HOST_PART
    more = min(target - client.host_charged, card.settings.step, left)
    if more >= block and decision.due(client.provide_after):
        decision.provide(client, client.host_charged + more)
