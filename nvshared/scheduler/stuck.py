# SPDX-License-Identifier: Apache-2.0
"""Clients that owe an answer for long: people are told, once for each order.

A program may be stopped for as long as somebody likes, with Ctrl-Z or in a debugger; it
keeps what it has then, as only its own hook can move that. From the moment people
are told nobody waits for it: others give up their room in its place, those who fit
beside it run, and it is not chosen again before it has answered (ScheduledClient.mute).

Nothing tells it from one that only takes long, such as a kernel of a minute that must end
before its turn does. Others that fit run at the same time as that, then, also where turns
are taken; what it has stays where it is until it has said that nothing is in flight.
"""

from nvshared.scheduler.actions import Stuck
from nvshared.scheduler.client import Phase, ScheduledClient
from nvshared.scheduler.decision import Decision


def plan(decision: Decision) -> None:
    """Reports and waits on: the answer may still come, and who does not need it goes on."""
    card = decision.card
    for client in card.in_phase(Phase.DRAINING):
        turn = client.turn
        assert turn is not None
        # Orders behind the STOP wait for the same thing.
        turn.reported = turn.reported or _report(decision, client, turn.stop_sent)
    for client in card.moving:
        if client.phase is not Phase.DRAINING and not client.moves[0].reported:
            client.moves[0].reported = _report(decision, client, client.moves[0].since)


def _report(decision: Decision, client: ScheduledClient, since: int) -> bool:
    if not decision.due(since + decision.card.settings.stuck_after):
        return False
    decision.report(Stuck(client.id, client.state, decision.now - since))
    decision.card.count(stuck=1)
    return True
