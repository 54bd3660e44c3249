# SPDX-License-Identifier: Apache-2.0
"""Members of gangs, as one card's scheduler sees them.

A gang is several clients on several cards that run together or not at all. Who is in one and when
it may run is decided above the schedulers (sharing/gangs.py), which tells each of them where a
member stands. It answers with what `member` says of it.

**Before a turn.** A member that CLAIMS the card stands in the queue like others. When its turn
could begin, and others would be stopped for that if they had to, it is `ready`, and nobody is
stopped: the others go on as if it were not there, since another card may take long. No member of
another gang gets ready until this one's turn has begun, so a claim is a lock, and gangs claim their
cards in one order. A GRANTED member goes before all others, and whoever is in its way is stopped at
once. It is loaded, and its gate stays shut until it is told OPEN.

**The end.** The scheduler stops a member for the reasons for which it stops anybody, and is told
to stop the others (ENDS). Who has drained is *parked*: it keeps its memory and its turn, as work of
another member may wait for work of its. It goes on, one launch at a time (STEPS), when another does
not drain. When all have drained they are let go.
"""

from collections.abc import Iterable
from typing import NamedTuple

from nvshared.scheduler.actions import TurnEnd
from nvshared.scheduler.card import Card
from nvshared.scheduler.client import Phase, ScheduledClient
from nvshared.scheduler.decision import Decision
from nvshared.scheduler.events import Standing


class Member(NamedTuple):
    """A client of a gang, as it is now."""

    standing: Standing                  # of which its scheduler has heard last
    phase: Phase
    since: int                          # of this phase
    wants: bool                         # its program wants the card, or has it
    light: bool                         # nothing of it can be evicted: others run beside it
    takes: int                          # bytes of the card that it fills when whole,
    alone: int                          # of so many that it could have
    crowded: bool                       # it does not fit even alone
    held_up: bool                       # it may not run, or is unresponsive
    not_before: int                     # it is not chosen before this moment
    ready: bool                         # its turn could begin
    whole: bool                         # its gate could open
    parked: bool
    pin_reason: bool                         # it is permanent: never stopped
    unresponsive: bool                          # it does not answer
    contended: bool                     # a client waits for the card,
    idle: bool                          # and this one does nothing
    stop_after: int                     # it could not drain; it is not stopped before this moment


def member(card: Card, client: ScheduledClient) -> Member:
    """The member as the gangs of all cards need it."""
    alone, turn = card.alone, client.turn
    asked = client.phase is Phase.WAITING and not client.invited
    wants = turn is not None or asked or client.phase is Phase.LIMITED
    return Member(
        client.standing, client.phase, client.since,
        wants if turn is None or turn.parked is None else turn.parked.wants,
        client.takes == 0 and not card.one_at_a_time,
        client.takes, alone,
        client.takes > alone or (card.tight and not card.fits([client])),
        client.terms.suspended or client.unresponsive or client.phase is Phase.LIMITED,
        client.not_before,
        client.ready, client.whole,
        turn is not None and turn.parked is not None,
        client.is_permanent, client.unresponsive,
        card.contended,
        turn is not None and turn.idle and card.contended,
        0 if turn is None else turn.stop_after,
    )


def plan(decision: Decision) -> None:
    """Ends turns that are to end together, and reports members that do not fit."""
    alone = decision.card.alone
    for client in decision.card.groups.group("ganged"):
        if client.phase is Phase.WAITING:
            decision.crowded(client, alone)     # whether it stands in the queue or not
        turn = client.turn
        if client.phase is not Phase.RUNNING or turn is None or client.is_permanent:
            continue
        if client.standing in (Standing.APART, Standing.ENDS) and decision.due(turn.stop_after):
            decision.stop(client, TurnEnd.GANG)


def claim(card: Card) -> ScheduledClient | None:
    """A member with a claim on this card, or granted it; all such members are of one gang."""
    return next((
        client for client in card.groups.group("ganged")
        if client.ready or client.standing is Standing.GRANTED), None)


def may_claim(card: Card, client: ScheduledClient) -> bool:
    """Whether no other gang has a claim on the card."""
    other = claim(card)
    return other is None or other.membership.gang == client.membership.gang


def gets_ready(client: ScheduledClient | None) -> bool:
    """Marks a member whose turn could begin."""
    assert client is not None
    client.ready = True
    return True


def siblings(holders: Iterable[ScheduledClient], client: ScheduledClient) -> int:
    """The number of holders of the client's gang."""
    return sum(
        bool(client.standing) and one.membership.gang == client.membership.gang for one in holders)


def lasts(holder: ScheduledClient, head: ScheduledClient | None) -> bool:
    """Whether no waiting client ends this turn now: it is yet to begin, steps for another member,
    or the head is of the same gang."""
    if holder.standing is Standing.FREE:
        return False
    if head is not None and siblings([holder], head):
        return True
    begins = holder.phase is Phase.LOADING and holder.standing in (Standing.GRANTED, Standing.OPEN)
    return begins or holder.standing is Standing.STEPS
