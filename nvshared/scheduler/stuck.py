# SPDX-License-Identifier: Apache-2.0
"""Clients that owe an answer for long: people are told, once for each order."""

from nvshared.scheduler.actions import Stuck
from nvshared.scheduler.client import Client, Phase
from nvshared.scheduler.decision import Decision


def plan(decision: Decision) -> None:
    """Reports and waits on: the answer may still come, and who does not need it goes on."""
    for client in decision.card.clients.values():
        turn = client.turn
        if turn is not None and client.phase is Phase.DRAINING:
            # Orders behind the STOP wait for the same thing.
            turn.reported = turn.reported or _report(decision, client, turn.stop_sent)
        elif client.moves and not client.moves[0].reported:
            client.moves[0].reported = _report(decision, client, client.moves[0].since)


def _report(decision: Decision, client: Client, since: int) -> bool:
    if not decision.due(since + decision.card.settings.stuck_after):
        return False
    decision.report(Stuck(client.id, client.state, decision.now - since))
    decision.card.count(stuck=1)
    return True
