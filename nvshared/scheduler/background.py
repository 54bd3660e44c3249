# SPDX-License-Identifier: Apache-2.0
"""Background clients yield launch by launch while they hold the card with other clients.

A background client submits nothing while a client of higher priority has work in flight. The
libraries signal that through shared memory, because the daemon would be too slow
(libhook/src/gate/inflight.c). This module decides which clients publish, and which background
clients watch them: no client can hold back another of the same or a higher priority.

While a background client holds the card, each other client publishes that holds the card too, or
could launch without waiting for memory. At other times no client publishes, so launches have no
extra cost. A client that has to wait for memory need not publish: the scheduler ends turns for it.
A background client watches at most MOST clients, holders first.
"""

from nvshared.scheduler.actions import Publish, Watch
from nvshared.scheduler.card import Card

MOST = 64


def plan(card: Card) -> None:
    """Orders the changes in which clients publish and watch."""
    if not card.watching and not card.groups.size("background"):
        return
    background = [client.id for client in card.groups["background"]]
    urgent = card.groups["urgent"] if background else []
    urgent.sort(key=lambda client: not client.holds)
    publishing = {client.id for client in urgent[:MOST]}
    for id in sorted(publishing - card.publishing):
        card.send(Publish(id, True))
    watching = dict.fromkeys(background, publishing)
    former = {id: set[int]() for id in card.watching if id not in watching and id in card.clients}
    for id, after in (watching | former).items():
        before = card.watching.get(id, set())
        for watched in sorted(before - after):
            card.send(Watch(id, watched, False))
        for watched in sorted(after - before):
            card.send(Watch(id, watched, True))
    for id in sorted(card.publishing - publishing):
        if id in card.clients:
            card.send(Publish(id, False))
    card.publishing = publishing
    card.watching = watching
