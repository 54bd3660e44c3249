# SPDX-License-Identifier: Apache-2.0
"""Giving way: what is moved ahead of time leaves the bus to a running program that copies.

Copies of other processes cost a running program nothing, as long as it computes.
When it copies itself, between host and card in the same direction, the bus is
shared, and it gets half of what it had alone. Its hook says when it begins to load
the bus, and when it has stopped (COPYING). Meanwhile the moves in that direction
that nobody waits for yet, those of room.py's `_load_ahead`, are not ordered, and
one that is being carried out is cut short (YIELD): the hook ends it after the one
or two pieces of 16 MiB that are being copied, well within a millisecond, and answers
with what it did; a block that is not through stays where it was.
Nothing waits in a hook, so there is nothing to release, and nothing is left behind
by one that dies; what is missing is seen in the figures and ordered again.

For how long that is right is a question of arithmetic. Let the program copy for
a part f of the time, and let there be bytes to move ahead that take the bus time m,
in a turn of length q.

* If m <= (1 - f) q, all of it moves while the program does not copy. Giving way
  costs nobody anything, and not giving way would cost the program up to f m.
* What does not fit there (all of it, where f is 1) must move either during the
  program's copies, which then take as much longer as it takes alone; or when the turn
  is over and nobody computes, which takes the same time. The sum is equal. Only,
  in the one case he pays who copies, in the other all who wait, and he could make
  them pay for as long as he likes.

So it is right to give way as long as what is to be moved can still be moved at
full speed before the turn is planned to end, and not any more after that. That is the first
bound. It binds little where turns have no planned end soon: tq may be minutes, and
where it is auto a turn becomes the longer the more there is still to be moved (quantum.py).
Therefore the second (patience.py): moves wait half of the time at most, and half
a second in a row. A program that copies for less than half of the time does not
feel it; one that copies all the time, or says so, gets the bus for itself for half of
the time, and half of it for the rest.

A hand-over is never delayed. As soon as one is on, that is somebody drains, or
who was chosen or runs lacks something, nothing gives way, and what was withheld is
ordered in the same decision.

What the hook says may be late by some milliseconds, or wrong (traffic.c says how it errs).
A lie costs the others what is bounded above.
"""

from nvshared.scheduler import quantum
from nvshared.scheduler.card import Card
from nvshared.scheduler.client import Phase, ScheduledClient, Way
from nvshared.scheduler.decision import Decision
from nvshared.scheduler.settings import AntiThrash


def plan(decision: Decision, head: ScheduledClient | None) -> None:
    """Decides in which directions moves for the next one, `head`, wait; cuts short those under way.

    The answer for each is card.patience[way].giving.
    """
    card = decision.card
    copying = _copying(card)
    early = head is not None and bool(copying) and _early(decision, head)
    for way in Way:
        patience = card.patience[way].until(decision.now)
        asked = early and way in copying
        if patience.giving and (not asked or decision.due(patience.ends)):
            patience = patience.turned()
        # Not due at the moment at which it has ended.
        if not patience.giving and asked and decision.due(patience.begins):
            patience = patience.turned()
            decision.due(patience.ends)
        card.patience[way] = patience
        if patience.giving:
            _cut_short(decision, way)


def _copying(card: Card) -> frozenset[Way]:
    """The directions in which those who run load the bus, while nobody waits for a move."""
    if card.groups.size("lacking") or card.groups.size(Phase.DRAINING.value):
        return frozenset()
    ways: frozenset[Way] = frozenset()
    for client in card.in_phase(Phase.RUNNING):
        assert client.turn is not None
        ways |= client.turn.copying
    return ways


def _early(decision: Decision, head: ScheduledClient) -> bool:
    """There is something to move ahead, and time enough for it after having waited."""
    card = decision.card
    room = card.beside(card.holders) - head.memory.resident
    ahead = min(quantum.lacks(head), room)
    if ahead <= 0:
        return False
    if card.settings.anti_thrash is AntiThrash.OFF:
        return True                     # no turn has a planned end
    started = min(
        (c.turn.started for c in card.in_phase(Phase.RUNNING)
         if c.turn is not None and c.turn.started is not None),
        default=decision.now,
    )
    return not decision.due(started + card.quantum - quantum.moving(card, head, ahead))


def _cut_short(decision: Decision, way: Way) -> None:
    for client in decision.card.moving:
        for move in client.moves:
            if move.way is way and move.ahead and not move.cut:
                decision.cut(client, move)
