# SPDX-License-Identifier: Apache-2.0
"""How far a client is believed, and how much one account may be promised.

A client says itself what it has. Any user's program may connect and say anything, and what it
has others cannot have. So what it says counts as far as it can be true.

**Accounts.** Each user has one. Whatever clients of one account say, and however many they are,
others are left a card's worth of memory, on card and host together. What an account was promised
is *shown* where the driver or the kernel knows that its processes have it. What is not shown may be
memory that a program has not used yet, or nothing at all. Up to a card's worth of that an account
may have in any case, and more only as long as others are left a card's worth. Root's clients are
of no account: they are believed, and promised what there is.

**Claims.** Memory grows by our leave: of the card by LOAD, of the host by EVICT, of the commit
and of what is pinned by COMMIT. What a client says beyond that is in doubt, and does not count.
A client that comes may hold memory from the time of an earlier daemon. There it is believed what
is shown, and what we would promise anew.

**Evidence.** Every second or so the driver and the kernel tell what each process has (Seen). If
the driver shows less on the card than a client says it fills, twice in a row, the rest is in
doubt, and the room that it was given for that is given to others. Who drains, or moves memory, is
not judged by that: until its hook answers, it may have freed more than it has said. One that does
not answer at all has what is shown, as it may have been stopped. While the driver has named none
of our clients yet, nobody can tell, and what a client says that it has pinned lessens nobody's
promises: others wait for their turn instead of being refused, until the driver names them.

**Who keeps it all.** A client that frees nothing, however often it is told to, has it for good,
for a while (move.py): it counts as pinned, and is shown as what stays. Others are not held up.

**About to pin.** What a client is to pin, and has not pinned yet, lessens what others may have.
Nobody can see that. So all that one account is about to pin counts as a small part of the card at
most.
"""

from dataclasses import replace

from nvshared.scheduler import events
from nvshared.scheduler.card import HEADS, Account, Card
from nvshared.scheduler.client import Doubts, ScheduledClient
from nvshared.scheduler.demand import more_margin
from nvshared.scheduler.events import Memory, Stays

PINNING_PART = 16                       # of the card, that one account may be about to pin


def greet(card: Card, client: ScheduledClient, commit: int, left: int) -> None:
    """Believes one that comes what is shown, and what it could be promised of what is left."""
    if not client.account:
        client.commit = commit
        return
    memory = client.memory
    filled = _false(memory.filled, client.evidence.card)
    host = _false(memory.host, client.evidence.host)
    if filled:
        client.room = min(client.room, memory.filled - filled)
    more = max(0, may_have(card, client, left))
    client.commit = min(max(commit, memory.need), client.shown + more)
    more -= max(0, client.commit - client.shown)
    client.doubts = Doubts(filled, host, max(0, memory.beyond - more))


def _false(said: int, seen: int | None) -> int:
    return 0 if seen is None else max(0, said - seen)


def may_have(card: Card, client: ScheduledClient, left: int) -> int:
    """How much more its account may be promised, of so much that is left; negative: less."""
    if not client.account:
        return left
    sums = card.groups.accounts().get(client.account, Account())
    worth = card.settings.capacity
    # What is kept for each client lessens what is left, too.
    others = worth + more_margin(card, HEADS - min(sums.heads, HEADS) + 1)
    return min(left, max(worth - sums.unshown, left - others))


def pinning(card: Card, but: ScheduledClient | None = None) -> int:
    """What all are about to pin, as far as it counts for others; without that of this one."""
    most = card.settings.capacity // PINNING_PART
    total = 0
    for account, sums in card.groups.accounts().items():
        own = but.pinning if but is not None and but.account == account else 0
        total += min(sums.pinning - own, most) if account else sums.pinning - own
    return total


def hear(client: ScheduledClient, said: Memory, now: int) -> None:
    """Its figures are these, by its own words."""
    client.said = said
    if now < client.keeps_until and not said.stays:
        said = replace(
            said, allocated=max(0, said.allocated - said.resident), resident=0,
            pinned=said.filled, stays=Stays.KEPT)
    before, doubts = client.memory, client.doubts
    room, host = client.charged, client.host_counted
    client.silenced = False
    client.tally.fill(before, now)
    client.memory = said
    if client.account:
        client.doubts = Doubts(
            max(0, said.filled - max(before.filled - doubts.filled, room)),
            max(0, said.host - max(before.host - doubts.host, host)),
            max(0, said.beyond - (before.beyond - doubts.beyond)),
        )


def see(card: Card, seen: events.Seen) -> None:
    """Others than themselves have told what clients have."""
    for id, evidence in seen.evidence.items():
        client = card.clients.get(id)
        if client is None or not client.account:
            continue
        client.evidence = evidence
        client.silenced = client.mute
        if client.evidence.card is None or (client.owes and not client.mute):
            continue
        filled = client.memory.filled
        false = _false(min(seen.filled.get(id, 0), filled), client.evidence.card)
        # Once it may be memory that was freed a moment ago.
        doubt = min(false, max(client.false, client.doubts.filled))
        client.false = false
        client.doubts = Doubts(doubt, client.doubts.host, client.doubts.beyond)
        if doubt:
            client.room = min(client.room, filled - doubt)
