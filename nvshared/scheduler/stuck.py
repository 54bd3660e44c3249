# SPDX-License-Identifier: Apache-2.0
"""Clients that owe an answer for long: people are told, once for each order."""

from nvshared.scheduler.actions import Stuck
from nvshared.scheduler.client import Client, Phase
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


def _report(decision: Decision, client: Client, since: int) -> bool:
    if not decision.due(since + decision.card.settings.stuck_after):
        return False
    decision.report(Stuck(client.id, client.state, decision.now - since))
    decision.card.count(stuck=1)
    return True
