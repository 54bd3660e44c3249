# SPDX-License-Identifier: Apache-2.0
"""Keeps moves ahead of time off the bus while a running program copies over it.

A hook reports when its program begins to load the bus and when it has stopped (COPIES).
Meanwhile moves in the same direction that nobody waits for are not ordered, and one that is
under way is cut short (YIELD).

Copies of other processes cost a running program nothing while it computes. When it copies
itself, between host and card in the same direction, the two share the bus and the program gets
half of it. On YIELD a hook ends its move after the one or two pieces of 16 MiB that are being
copied, well within a millisecond, and answers with what it did. A block that is not through
stays where it was. Nothing waits in a hook, so there is nothing to release, and a hook that
dies leaves nothing behind. What is missing shows in the figures and is ordered again.

How long should moves wait? Let the program copy for a part f of the time, and let there be
bytes to move ahead that take the bus time m, in a turn of length q.

* If m <= (1 - f) q, all of it moves while the program does not copy. Waiting costs nobody
  anything, and not waiting would cost the program up to f m.
* What does not fit there (all of it, if f is 1) must move either during the program's copies,
  which then take longer by as much as it takes alone, or after the turn, while nobody computes,
  which takes the same time. The sum is equal. But in the first case the program that copies
  pays, and in the second all who wait pay, for as long as that program likes.

So moves wait as long as what is to be moved can still be moved at full speed before the turn
is planned to end, and no longer. That is the first bound. It binds little where turns end
late: the quantum may be minutes, and where it is auto a turn becomes longer the more there is
to move (quantum.py). So there is a second bound (yielding.py): moves wait at most half of the
time, and at most half a second in a row. A program that copies less than half of the time does
not notice the second bound. One that copies all the time, or says so, gets the whole bus for
half of the time and half of the bus for the rest.

A hand-over is never delayed. While somebody drains, or a chosen or running client lacks
something, no move waits, and what was withheld is ordered in the same decision.

Reports may be late by some milliseconds, or wrong (libhook's flight/bus_sharing.c says how).
What a lie costs the others is bounded as above.
"""

from nvshared.scheduler import quantum
from nvshared.scheduler.card import Card
from nvshared.scheduler.client import Phase, ScheduledClient, Way
from nvshared.scheduler.decision import Decision
from nvshared.scheduler.settings import AntiThrash


def plan(decision: Decision, head: ScheduledClient | None) -> None:
    """Decides in which directions moves for the next client, `head`, wait; cuts those under way.

    The answer for each is card.yielding[way].giving.
    """
    card = decision.card
    copying = _copying(card)
    early = head is not None and bool(copying) and _early(decision, head)
    for way in Way:
        patience = card.yielding[way].until(decision.now)
        asked = early and way in copying
        if patience.giving and (not asked or decision.due(patience.ends)):
            patience = patience.turned()
        # Not due at the moment at which it has ended.
        if not patience.giving and asked and decision.due(patience.begins):
            patience = patience.turned()
            decision.due(patience.ends)
        card.yielding[way] = patience
        if patience.giving:
            _cut_short(decision, way)


def _copying(card: Card) -> frozenset[Way]:
    """The directions in which running clients load the bus, while nobody waits for a move."""
    if card.groups.size("lacking") or card.groups.size(Phase.DRAINING.value):
        return frozenset()
    ways: frozenset[Way] = frozenset()
    for client in card.in_phase(Phase.RUNNING):
        assert client.turn is not None
        ways |= client.turn.copying
    return ways


def _early(decision: Decision, head: ScheduledClient) -> bool:
    """There is something to move ahead, and time enough for it after a wait."""
    card = decision.card
    room = card.beside(card.holders) - head.memory.resident
    ahead = min(quantum.lacks(head), room)
    if ahead <= 0:
        return False
    if card.settings.anti_thrash is AntiThrash.OFF:
        return True                     # no turn has a planned end
    started = min(
        (c.turn.counted for c in card.in_phase(Phase.RUNNING)
         if c.turn is not None and c.turn.started is not None),
        default=decision.now,
    )
    return not decision.due(started + card.quantum - quantum.moving(card, head, ahead))


def _cut_short(decision: Decision, way: Way) -> None:
    for client in decision.card.moving:
        for move in client.moves:
            if move.way is way and move.order.ahead and not move.cut:
                decision.cut(client, move)
