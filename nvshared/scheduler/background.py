# SPDX-License-Identifier: Apache-2.0
"""Background clients give way launch by launch, while they hold the card with others.

A background client submits nothing while one of higher priority has work under way. The hooks tell
each other so through shared memory, as the daemon would be too slow (libhook/src/gate/telling.c).
Here it is decided which clients tell, and which heeds whose word: no client can hold up another by
saying that it has work, unless the administrator put it above the other.

While a background client holds the card, all others tell that hold it too, or could launch without
waiting for memory. Otherwise none does, and a launch costs what it always does. A client that has
to wait for memory needs no word: the scheduler ends turns for it. A client heeds no more than MOST
others; a card that many fit has others to look at first.
"""

from nvshared.scheduler.actions import Heed, Tell
from nvshared.scheduler.decision import Decision

MOST = 64


def plan(decision: Decision) -> None:
    """Tells clients which words they keep and heed from now on."""
    card = decision.card
    if not card.heeding and not card.groups.size("background"):
        return
    background = [client.id for client in card.groups.group("background")]
    urgent = card.groups.group("urgent") if background else []
    urgent.sort(key=lambda client: not client.holds)
    telling = {client.id for client in urgent[:MOST]}
    for id in sorted(telling - card.telling):
        decision.order(Tell(id, True))
    for id in background:
        before = card.heeding.get(id, set())
        for whom in sorted(before - telling):
            decision.order(Heed(id, whom, False))
        for whom in sorted(telling - before):
            decision.order(Heed(id, whom, True))
    for id in card.heeding:
        if id not in background and id in card.clients:
            for whom in sorted(card.heeding[id]):
                decision.order(Heed(id, whom, False))
    for id in sorted(card.telling - telling):
        if id in card.clients:
            decision.order(Tell(id, False))
    card.telling = telling
    card.heeding = dict.fromkeys(background, telling)
