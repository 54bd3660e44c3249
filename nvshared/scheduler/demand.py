# SPDX-License-Identifier: Apache-2.0
"""How much host memory a card needs so that everything it has promised fits somewhere.

What is promised beyond the card must fit in host memory, and a margin of that stays free: with
card and host both full to the last byte nothing could move.
"""


from dataclasses import dataclass

from nvshared.scheduler.card import Card
from nvshared.scheduler.settings import BLOCK

MARGIN_PART = 16                        # of the host's budget, or
MARGIN_EACH = 4 * BLOCK                 # for each client, as it takes host memory in pieces,
MARGIN_MOST = 2                         # but no more than this part of the budget


@dataclass(frozen=True, slots=True)
class Demand:
    """Bytes of the host's budget; each is at least the one before."""

    needs: int = 0                      # cannot be given up: promised beyond the card, or taken
    enough: int = 0                     # for what is asked for, if all that is lent is called back
    wants: int = 0                      # for what is asked for, with nothing called back


def margin(host: int, clients: int) -> int:
    """What of so much host memory is never promised."""
    return min(max(host // MARGIN_PART, MARGIN_EACH * clients), host // MARGIN_MOST)


def more_margin(card: Card, more: int) -> int:
    """What so many more clients would add to it."""
    host, now = card.settings.host_budget, card.groups.margins()
    return margin(host, now + more) - margin(host, now)


def least(beyond: int, clients: int) -> int:
    """The host memory that holds `beyond` bytes and its margin; the inverse of `margin`."""
    beyond = max(0, beyond)
    with_part = -(-beyond * MARGIN_PART // (MARGIN_PART - 1))
    with_margin = max(with_part, beyond + MARGIN_EACH * clients)
    return min(with_margin, -(-beyond * MARGIN_MOST // (MARGIN_MOST - 1)))


def demand(card: Card) -> Demand:
    """What a card needs of the host's budget, and what it asks for beyond."""
    if card.lost:                       # what is held, until they end
        held = sum(client.host_counted for client in card.clients.values())
        return Demand(held, held, held)
    clients = card.groups.margins()
    outside = card.groups.total("beyond")
    beyond = card.groups.total("committed") + outside - card.settings.capacity
    needs = max(card.groups.total("host_charged") + outside, least(beyond, clients))
    borrowers = [c for c in card.groups.group("asking") if c.question and c.question.borrows]
    if not borrowers:
        return Demand(needs, needs, needs)
    asked = sum(max(0, c.question.bytes - c.committed) for c in borrowers if c.question)
    asking = {c.id for c in borrowers}
    lent = sum(
        c.committed - c.need for c in card.groups.group("lent") if c.id not in asking)
    return Demand(
        needs,
        max(needs, least(beyond + asked - lent, clients)),
        max(needs, least(beyond + asked, clients)),
    )
