# SPDX-License-Identifier: Apache-2.0
"""Reports clients that do not answer an order for long, once for each order.

From then on nobody waits for them: others give up room in their place, clients that fit beside
them run, and they are not chosen again before they answer (ScheduledClient.mute).

A program may be stopped for as long as somebody likes, with Ctrl-Z or in a debugger. It keeps
what it has, as only its own hook can move that.

Nothing tells it from a program that only takes long, such as one with a kernel of a minute.
Clients that fit run beside it then, even where turns are taken; its memory stays where it is
until the hook has said that nothing is in flight.
"""

from nvshared.scheduler.actions import Stuck
from nvshared.scheduler.client import Phase, ScheduledClient
from nvshared.scheduler.decision import Decision


def plan(decision: Decision) -> None:
    """Reports clients that owe an answer for too long, and goes on waiting."""
    card = decision.card
    for client in card.in_phase(Phase.DRAINING):
        turn = client.turn
        assert turn is not None
        if turn.parked is not None:
            continue                    # it has answered
        # Orders behind the STOP wait for the same thing.
        if not turn.reported:
            turn.reported = _report(decision, client, turn.stop_sent)
    for client in card.moving:
        if client.phase is not Phase.DRAINING and not client.moves[0].reported:
            client.moves[0].reported = _report(decision, client, client.moves[0].since)


def _report(decision: Decision, client: ScheduledClient, since: int) -> bool:
    if not decision.due(since + decision.card.settings.stuck_after):
        return False
    decision.card.groups.touched.add(client.id)
    decision.report(Stuck(client.id, client.state, decision.now - since))
    decision.card.count(stuck=1)
    return True
