# SPDX-License-Identifier: Apache-2.0
"""Loans: blocks evicted from one card move to memory of a neighbour card that it does not need.

Over NVLink a block is copied to another card seven times as fast as to the host. So each EVICT
names the bytes that the client may hold on another card, and that card (`loan`, `lender`). A client
borrows of one card at a time, and keeps the borrowed memory while its blocks are on its own card.

**A card lends only memory that none of its clients was promised**: its capacity less all commits,
or less the room of its clients, if that is more. A loan counts as room on the lender from the order
that allows it until the borrower has reported that it holds less. So the sum of room on the lender
keeps to its capacity whichever messages cross. When a client of the lender is promised more, the
loans may exceed the lendable bytes, and the borrowers' schedulers order the excess back (`plan`).
*Clean* memory, of which the host has a copy, is returned at once; in calm periods such copies are
made for clients without a turn (ahead.py). *Dirty* memory is moved back to the borrower's own card
over NVLink while that has room, and else to the host at the speed of one card's bus (32 GiB took
0.63 s between two H100s). An eighth of the card is never lent, so only a client that takes more
than that at once waits for loans to be returned.

**A process that is no client cannot call a loan back.** So with `neighbour = auto` a card lends
only while NVML shows no such process on it. NVML is sampled for such processes even on a card
without clients, and ten times a second while the card lends. A process counts when two samples in a
row show it, because a client's context exists before its HELLO. Until the loans are returned, such
a process can use the eighth of the card that is never lent.

**The host can take all loans back.** Borrowed memory counts in the client's host memory
(`memory.host`), and every limit of host memory bounds it. So a loan makes hand-overs faster, but
allows no larger promises.

**A suspended client borrows nothing**, and its borrowed memory is moved to the host: it is not
loaded soon, and a process whose memory lies on two cards cannot be moved.

**A tenant's limit** (`neighbour-limit`) bounds the bytes that its clients on one card have on
others.

The loan of a borrower that leaves an order unanswered for long no longer counts. If the borrower
still holds the memory, it counts as memory in use outside nvshared (capacity.py).

The schedulers of all cards share these objects, as they share the host budget. A card's lendable
bytes are those at the end of its last event.
"""

from nvshared.scheduler.card import DEPTH, Card
from nvshared.scheduler.domains import Loan

RESERVE_PART = 8                        # of a card is never lent
RETURN_BLOCKS = 2                       # host memory to add for a return, as blocks do not fill it


def settle(card: Card) -> None:
    """Records this card's loans and lendable bytes for its neighbours, after an event."""
    for client in card.groups["borrowing"]:
        client.note_loan()
        if client.loan == Loan():       # nothing is borrowed: the next lender may be another card
            client.lender = None
    neighbour = card.neighbour
    if card.lost or (neighbour.exclusive and neighbour.alone is False):
        neighbour.lendable = 0
    elif card.now < card.gathered or (neighbour.exclusive and neighbour.alone is None):
        neighbour.lendable = None       # the clients have not reported yet, or NVML is not sampled
    else:
        needed = max(card.groups.sums.committed, card.groups.sums.charged)
        left = card.capacity - card.capacity // RESERVE_PART - needed
        neighbour.lendable = max(0, left)


def plan(card: Card) -> None:
    """Orders this card's clients to return loans that exceed their lenders' lendable bytes."""
    borrowing = card.groups["borrowing"]
    for client in borrowing:
        client.note_loan()              # updated by the event that is being handled
    for client in borrowing:
        lender = client.lender
        excess = 0 if lender is None else max(lender.excess, -(card.borrowable(client) or 0))
        if lender not in card.neighbour.reachable or client.terms.suspended:    # any more
            excess = client.loan.ordered
        if not excess or not client.loan.ordered:
            continue
        if client.unresponsive or len(client.moves) >= DEPTH:
            continue
        if not card.due(client.return_after):
            continue
        home = min(client.memory.dirty, excess, card.free)
        if (home >= card.settings.block and not client.moves and not client.terms.suspended
                and not card.groups.size("lacking") and card.due(client.failures.load_after)):
            card.load(client, client.ordered + home, client.host_charged)
        # Return a step more, so that a slowly growing client of the lender does not wait each time.
        loan = max(0, client.loan.ordered - excess - card.settings.step)
        host = min(max(0, card.host_free_for(client)), RETURN_BLOCKS * card.settings.block)
        card.evict(client, client.ordered, client.host_charged + host, loan=loan)
