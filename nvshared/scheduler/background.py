# SPDX-License-Identifier: Apache-2.0
"""Background clients see urgent clients' work in flight, and submit nothing meanwhile."""

from dataclasses import dataclass, field

from nvshared.scheduler.actions import Publish, Watch
from nvshared.scheduler.card import Card

WATCHED_MOST = 64                       # clients that a background client watches at most


@dataclass(slots=True)
class _Sent:
    """The orders in force on a card."""

    publishing: set[int] = field(default_factory=set)   # ids of clients sent PUBLISH
    watchers: list[int] = field(default_factory=list)   # ids of clients sent WATCH of `publishing`


def pace(card: Card) -> None:
    """Sends PUBLISH and WATCH, with which background clients see urgent clients' work in flight."""
    sent, background = card.records.of(_Sent), [client.id for client in card.groups["background"]]
    if not sent.watchers and not background:
        return
    urgent = card.groups["urgent"] if background else []
    urgent.sort(key=lambda client: not client.holds)
    publishing = {client.id for client in urgent[:WATCHED_MOST]}
    for id in sorted(publishing - sent.publishing):
        card.send(Publish(id, True))
    former = [id for id in sent.watchers if id not in background and id in card.clients]
    for id in background + former:
        before = sent.publishing if id in sent.watchers else set()
        after = publishing if id in background else set()
        for watched in sorted(before - after):
            card.send(Watch(id, watched, False))
        for watched in sorted(after - before):
            card.send(Watch(id, watched, True))
    for id in sorted(sent.publishing - publishing):
        if id in card.clients:
            card.send(Publish(id, False))
    sent.publishing, sent.watchers = publishing, background
