# SPDX-License-Identifier: Apache-2.0
"""Loans: memory that a card's clients do not need takes what leaves a neighbour card.

Over NVLink a block goes to another card seven times as fast as to the host. So each EVICT says how
many bytes the client may hold on which card (`loan`, `lender`). A client borrows of one card at a
time, and keeps what it has there while its blocks are on its own card.

**A card lends what no client there was promised**: its capacity less all commits, or less the room
of its clients, if that is more. A loan counts as room on the lender from the order that allows it
until the borrower has said that it holds less, so the lender's sum keeps to its capacity whichever
messages cross. When a client of the lender is promised more, the loans exceed what can be lent, and
the borrowers' schedulers order the rest back (`plan`). *Clean* memory, of which the host has a
copy, returns at once; clients without a turn get such copies in quiet moments (ahead.py). *Dirty*
memory goes home while the borrower's own card has room, over NVLink, and else to the host at the
speed of one card's bus (32 GiB took 0.63 s between two H100s). So an eighth of the card is never
lent: a client that grows no faster than that finds room, and only a client that takes most of the
card at once waits.

**A process that is no client cannot call a loan back.** So with `neighbour = auto` a card lends
only while NVML shows no such process on it. A card that could lend is watched for that even without
clients, and ten times a second while it lends. A process counts when two samples in a row show it,
as the context of a client is there before its HELLO. Until the loans are back, such a process has
the eighth of the card that is never lent.

**The host can take all loans back.** What a client borrows counts in its host memory
(`memory.host`), and everything that bounds host memory bounds it. So a loan makes a hand-over
faster, and nothing larger.

**A suspended client borrows nothing**, and what it has borrowed goes to the host: its memory is not
loaded soon, and a process whose memory lies on two cards cannot be moved.

**A tenant's limit** (`neighbour-limit`) bounds what its clients on one card have on others.

A borrower that leaves an order unanswered for long does not count any more. What it holds shows as
memory in use outside of us, if it is still there (capacity.py).

The schedulers of all cards share these objects, as they do the host budget. What a card can lend is
as of the end of its last event.
"""

from nvshared.scheduler.card import Card
from nvshared.scheduler.decision import DEPTH, Decision
from nvshared.scheduler.neighbours import Loan

RESERVE_PART = 8                        # of a card is never lent


def lendable(card: Card) -> int | None:
    """Bytes that the card could lend in all. None: its clients have not reported yet."""
    neighbour = card.neighbour
    if card.lost or (neighbour.exclusive and neighbour.alone is False):
        return 0
    if card.now < card.gathered or (neighbour.exclusive and neighbour.alone is None):
        return None
    needed = max(card.groups.sums.committed, card.groups.sums.charged)
    return max(0, card.capacity - card.capacity // RESERVE_PART - needed)


def settle(card: Card) -> None:
    """Notes for the neighbours how things stand after an event."""
    for client in card.groups.group("borrowing"):
        client.note_loan()
        if client.loan == Loan():       # it may borrow of another card next
            client.lender = None
    card.neighbour.lendable = lendable(card)


def plan(decision: Decision) -> None:
    """Takes loans of this card's clients back that exceed what their lenders can lend."""
    card = decision.card
    borrowing = card.groups.group("borrowing")
    for client in borrowing:
        client.note_loan()              # as it is by the event that is being handled
    for client in borrowing:
        lender = client.lender
        excess = 0 if lender is None else max(lender.excess, -(card.borrowable(client) or 0))
        if lender not in card.neighbour.reachable or client.terms.suspended:    # any more
            excess = client.loan.ordered
        if not excess or not client.loan.ordered:
            continue
        if client.unresponsive or len(client.moves) >= DEPTH:
            continue
        if not decision.due(client.return_after):
            continue
        home = min(client.memory.dirty, excess, card.free)
        if (home >= card.settings.block and not client.moves and not client.terms.suspended
                and not card.groups.size("lacking") and decision.due(client.failures.load_after)):
            decision.load(client, client.ordered + home, client.host_charged)
        # A step more, so that a client that grows slowly there does not wait each time.
        loan = max(0, client.loan.ordered - excess - card.settings.step)
        decision.take_back(client, loan)
