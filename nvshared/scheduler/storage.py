# SPDX-License-Identifier: Apache-2.0
"""Swapped blocks on a disk: which clients' blocks are stored, and when.

Host memory is the cache of the disk: blocks move from the card to host memory and on to the disk,
and are loaded from the disk to the card. A STORE names the bytes that a client may have in its file
in all. The client's hook moves swapped blocks to the file in the background until it holds so many.
Blocks are stored

* from clients that have been idle for `park_after`;
* while little host memory is free, from clients that have been idle for a part of that;
* while an eviction lacks host memory, from any client that does not run.

The client that will run last comes first, as for evictions (moves.victims). So with little host
memory a hand-over proceeds at the speed of the disk, and all promised memory (promises.py) still
fits. A chosen client stores no more blocks: its STORE is replaced by one for the bytes that its
file holds already. There is one exception: a chosen client waits for evictions, and its own blocks
fill the host memory that these need. Then nothing could move, so its blocks are stored.

**The file's bytes count** against the budget of the disk and the limits of the client's tenants,
from the STORE on as many as it allows. The hook keeps copies of resident blocks in the file, so
that an unchanged block is evicted without a copy. While little of the disk is free, a STORE of 0
bytes makes clients give up these copies. Their number is not known to the scheduler.

**Failures.** A STORE that fails, or stores no block for a while, is followed by a pause, doubled
each time. The client's blocks stay in host memory. The daemon checks whether the disk still works
for other clients (sharing/disk.py), and sets the budget to 0 while it does not.
"""

from collections.abc import Iterable

from nvshared.scheduler.card import Card
from nvshared.scheduler.client import Phase, ScheduledClient
from nvshared.scheduler.events import Stored
from nvshared.scheduler.moves import kept, victims
from nvshared.scheduler.settings import BLOCK
from nvshared.units import SECOND

FREE_PART = 8                           # free host memory or disk space below 1/8 is little
EARLY_PART = 10                         # if little is free, blocks are stored after park_after / 10
STALLED = 5 * SECOND                    # a STORE has failed after so long without a stored block
FIRST_PAUSE = SECOND                    # from a failed STORE to the next,
LONGEST_PAUSE = 64 * SECOND             # doubled each time up to this
COPIES_AGAIN = SECOND                   # between orders to one client to give up copies
# After such an order the client stores nothing for a while. This must be well below turns.STALLED,
# after which a chosen client that waits for the host memory gives way.
COPIES_TAKE = SECOND // 4


def plan(card: Card, short: int) -> None:
    """Sends STORE orders. `short`: bytes of host memory that evictions wait for."""
    block = card.settings.block
    if not (card.disk.budget.size or card.groups.size("storing")):
        return
    short -= sum(map(kept, card.everyone)) if short else 0     # which LOADs take back
    moves = card.free >= block or card.groups.size("evicting")
    chosen = [] if moves else [
        c for c in card.groups["storable"] if c.phase is Phase.LOADING]
    goes_on = set()
    for client, size in _wanted(card, short, [*victims(card, "storable"), *chosen]):
        if client.unresponsive or not card.due(client.failures.store_after):
            continue
        if card.disk_free_for(client) < 0:      # the disk has failed, or a limit has shrunk
            continue
        if not card.due(client.failures.copies_after - COPIES_AGAIN + COPIES_TAKE):
            continue                    # the client gives up copies first
        most = max([client.memory.disk, *(order.size for order in client.stores[-1:])])
        if most - client.memory.disk < block:       # the last STORE is carried out
            more = min(size + block, card.disk_free_for(client) + client.disk_charged - most)
            if more < min(size, block):
                continue
            client.failures.store_since = card.now
            card.store(client, most + more)
            card.due(card.now + STALLED)
        elif card.due(client.failures.store_since + STALLED):
            _pause(client, card.now)
            card.due(client.failures.store_after)
            continue
        goes_on.add(client.id)
    for client in card.groups["storing"]:
        if client.id not in goes_on and client.stores[-1].size - client.memory.disk >= block:
            card.store(client, client.memory.disk)
    if card.disk.takeable - card.groups.sums.disk < card.disk.takeable // FREE_PART:
        for client in card.groups["stored"]:
            idle = client.id not in goes_on and client.memory.disk >= block
            if idle and card.due(client.failures.copies_after):
                client.failures.copies_after = card.now + COPIES_AGAIN
                card.store(client, 0)


def _wanted(
    card: Card, short: int, candidates: Iterable[ScheduledClient]
) -> Iterable[tuple[ScheduledClient, int]]:
    """Yields the clients that are to store blocks, and how many more bytes. If no eviction waits,
    up to a block stays in host memory, because a hook may keep as much as a load buffer."""
    park_after = card.settings.park_after
    little = card.host.takeable // FREE_PART - card.host_free
    for client in candidates:
        storable = client.storable
        size = min(storable, max(0, short))
        rests = client.phase is Phase.IDLE or client.terms.suspended
        if rests and storable > BLOCK:
            if card.due(client.since + park_after):
                size = storable
            elif little > 0 and card.due(client.since + park_after // EARLY_PART):
                size = min(storable, max(short, little))
        short, little = short - size, little - size
        if size > 0:
            yield client, size


def answered(card: Card, client: ScheduledClient, answer: Stored) -> None:
    """Handles STORED: a hook has received a STORE, or could not carry it out."""
    client.stores = tuple(one for one in client.stores if one.number >= answer.number)
    if answer.failed:
        _pause(client, card.now)


def _pause(client: ScheduledClient, now: int) -> None:
    failures = client.failures
    failures.store_pause = min(max(2 * failures.store_pause, FIRST_PAUSE), LONGEST_PAUSE)
    failures.store_after = now + failures.store_pause
