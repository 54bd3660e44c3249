# SPDX-License-Identifier: Apache-2.0
"""What hooks report about their gates.

A report may cross an order. Then it speaks of a phase that the client has left already for us,
and its figures say what matters.
"""

from dataclasses import replace

from nvshared.scheduler import busy as busy_turns
from nvshared.scheduler import cost, order, pauses, quantum
from nvshared.scheduler.actions import TurnEnd
from nvshared.scheduler.card import Card
from nvshared.scheduler.client import Phase, ScheduledClient, Turn, Way
from nvshared.scheduler.decision import Decision
from nvshared.scheduler.events import Busy, Copies, Standing, Stopped

# A drain that does not end is asked for ever more rarely, up to patience << this.
DOUBLINGS = 6
# A hook's word that nothing ran takes at most this part of a turn off its bill: one that lies has
# twice its share, and not all of the card.
BELIEVED_PART = 2
# Who of a gang has drained waits for the others.
TOGETHER = (Standing.OPEN, Standing.ENDS, Standing.STEPS)


def take_over(card: Card, client: ScheduledClient) -> None:
    """An earlier daemon let it run: it has a turn, from now on."""
    client.turn = Turn(next(card.serials), chosen=card.now, started=card.now)
    client.turns += 1
    client.tally.taken_over = 1
    card.count(turns=1)
    client.enter(Phase.RUNNING, card.now)


def wanted(card: Card, client: ScheduledClient) -> None:
    """A thread stands at the gate."""
    turn = client.turn
    if turn is not None and turn.parked is not None:
        turn.parked = replace(turn.parked, wants=True)
    client.invited = False
    if client.phase is Phase.IDLE:
        pauses.ended(client, card.now)
        quantum.came_back(client, card.now)
        order.arrive(card, client)


def went_idle(client: ScheduledClient) -> None:
    """It does not use its turn now. If it was not asked to report that, the report is old."""
    turn = client.turn
    if turn is not None and turn.conduct is not None and client.phase is Phase.RUNNING:
        turn.idle = turn.idle or turn.conduct.report_idle


def copies(client: ScheduledClient, said: Copies) -> None:
    """Its program loads the bus, or no longer does. Counts only while it is to report that."""
    turn = client.turn
    if turn is None or turn.conduct is None or client.phase is not Phase.RUNNING:
        return
    if turn.conduct.report_copies:
        ways = ((Way.IN, said.inward), (Way.OUT, said.outward))
        turn.copying = frozenset(way for way, loaded in ways if loaded)


def busy(card: Card, client: ScheduledClient, said: Busy) -> None:
    """Whether its program has work in flight at all times. Counts only while it is to report it."""
    turn = client.turn
    if turn is None or turn.conduct is None or client.phase is not Phase.RUNNING:
        return
    if turn.conduct.report_busy:
        turn.busy = None if said.gaps else card.now
        if said.gaps and client.id in card.busy.members:
            busy_turns.end(card, client)


def stopped(decision: Decision, client: ScheduledClient, answer: Stopped) -> None:
    """It has drained, and its gate is closed."""
    turn = client.turn
    if turn is None or turn.started is None:
        return
    if client.standing in TOGETHER and not client.settled:
        turn.parked = replace(answer, used=None) if turn.resumed else answer
        turn.reported = False
        decision.card.groups.touched.add(client.id)
        return
    client.invited = False
    if turn.ending is not None and turn.parked is None:
        card, waited = decision.card, decision.now - turn.stop_sent
        card.latency = cost.delayed(card.latency, waited, answer.microseconds)
    client.reopened_in_row = 0
    client.hopeful = True
    decision.end(client, turn.ending or TurnEnd.IDLE)
    client.enter(Phase.IDLE, decision.now)
    quantum.rests(decision.card, client, turn)
    if answer.used is not None:
        held = decision.now - turn.started
        client.credit(min(max(0, held - answer.used), held // BELIEVED_PART))
    order.leave(decision.card, client)
    if turn.ending is TurnEnd.PREEMPTED:
        order.give_precedence(decision.card, client)
    if answer.wants:
        quantum.came_back(client, decision.now)
        order.join(decision.card, client)


def resume(card: Card, client: ScheduledClient) -> None:
    """It had drained, and its turn goes on, as others of its gang have not."""
    assert client.turn is not None
    client.turn.parked = None
    client.turn.resumed = True
    _go_on(card, client, client.turn)


def reopened(card: Card, client: ScheduledClient) -> None:
    """It cannot drain yet: what is in flight may depend on what is not submitted."""
    turn = client.turn
    if turn is None or client.phase is not Phase.DRAINING or turn.parked is not None:
        return
    patience = card.settings.drain_patience << min(client.reopened_in_row, DOUBLINGS)
    turn.stop_after = card.now + patience
    client.reopened += 1
    client.reopened_in_row += 1
    card.count(reopened=1)
    _go_on(card, client, turn)


def _go_on(card: Card, client: ScheduledClient, turn: Turn) -> None:
    turn.ending = None
    turn.idle = False
    turn.conduct = None                 # the hook may have forgotten that others wait
    turn.copying = frozenset()
    turn.busy = None
    client.enter(Phase.RUNNING, card.now)
