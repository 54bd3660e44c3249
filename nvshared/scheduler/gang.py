# SPDX-License-Identifier: Apache-2.0
"""Members of gangs, as one card's scheduler sees them.

sharing/gangs.py sends the standing of each member and reads the member's state with `member`.
docs/internals/scheduler.md explains how a gang's turn begins and ends.
"""

from collections.abc import Iterable
from typing import NamedTuple

from nvshared.scheduler import busy
from nvshared.scheduler.actions import TurnEnd
from nvshared.scheduler.card import Card
from nvshared.scheduler.client import Phase, ScheduledClient
from nvshared.scheduler.events import Standing


class Member(NamedTuple):
    """The current state of a member of a gang."""

    standing: Standing                  # by the last Ganged event
    phase: Phase
    since: int                          # when the phase began
    wants: bool                         # its program wants the card, or has a turn on it
    needs_no_room: bool                 # it has no evictable memory, and clients may run together
    unpinned_need: int                  # bytes of the card that all its evictable memory fills
    room_if_alone: int                  # bytes that a client alone on the card could fill
    crowded: bool                       # it does not fit even alone
    held_up: bool                       # suspended, at a compute limit, or unresponsive
    not_before: int                     # it is not chosen before this time
    ready: bool                         # its turn could begin
    whole: bool                         # all its memory is on the card
    parked: bool                        # it has drained, and waits for the other members
    is_permanent: bool                  # undrainable and `whole`: never stopped for other clients
    unresponsive: bool                  # it was reported as stuck
    contended: bool                     # a client of this card waits for another's turn to end
    idle: bool                          # it is idle in its turn
    stop_after: int                     # it could not drain; not stopped before this time


def member(card: Card, client: ScheduledClient) -> Member:
    """The state of a member, for sharing/gangs.py."""
    alone, turn, limited = card.room_if_alone, client.turn, client.phase is Phase.LIMITED
    waits = client.phase is Phase.WAITING and not client.invited
    parked = None if turn is None else turn.parked
    return Member(
        client.standing, client.phase, client.since,
        turn is not None or waits or limited if parked is None else parked.wants,
        client.unpinned_need == 0 and not busy.one_at_a_time(card), client.unpinned_need, alone,
        client.unpinned_need > alone or (card.tight and not card.fits([client])),
        client.terms.suspended or client.unresponsive or limited, client.not_before,
        client.ready, client.whole, parked is not None, client.is_permanent, client.unresponsive,
        card.contended, turn is not None and turn.idle,
        0 if turn is None else turn.stop_after)


def plan(card: Card) -> None:
    """Stops members whose gang's turn ends, and reports members that do not fit."""
    for client in card.groups["ganged"]:
        if client.phase is Phase.WAITING:
            card.report_crowded(client)  # members that are not queued are reported, too
        ends = client.standing in (Standing.APART, Standing.ENDS) and not client.is_permanent
        if client.phase is Phase.RUNNING and ends and card.due(client.its_turn.stop_after):
            card.stop(client, TurnEnd.GANG)


def claim(card: Card) -> ScheduledClient | None:
    """A member that is ready, or was GRANTED this card. All such members are of one gang."""
    return next((
        client for client in card.groups["ganged"]
        if client.ready or client.standing is Standing.GRANTED), None)


def may_claim(card: Card, client: ScheduledClient) -> bool:
    """Whether no other gang has claimed the card, or one of lower priority that has to wait for its
    other cards: these may have holders that do not stop for it."""
    other = claim(card)
    return other is None or other.membership.gang == client.membership.gang or (
        other.standing is Standing.CLAIMS and other.priority < client.priority)


def take_claim(card: Card, client: ScheduledClient) -> None:
    """Ends the claim of another gang, which claims the card again after the client's gang."""
    for one in card.groups["ganged"]:
        if one.ready and one.membership.gang != client.membership.gang:
            one.claim(False)


def siblings(holders: Iterable[ScheduledClient], client: ScheduledClient) -> int:
    """The number of holders that are in the client's gang."""
    return sum(
        bool(client.standing) and one.membership.gang == client.membership.gang for one in holders)


def turn_is_protected(holder: ScheduledClient, head: ScheduledClient | None) -> bool:
    """Whether no waiting client may end this gang member's turn now: the turn has not begun, the
    member steps because another cannot drain, or the head is of the same gang."""
    begins = holder.phase is Phase.LOADING and holder.standing in (Standing.GRANTED, Standing.OPEN)
    together = bool(holder.standing) and head is not None and siblings([holder], head) > 0
    return begins or together or holder.standing is Standing.STEPS
