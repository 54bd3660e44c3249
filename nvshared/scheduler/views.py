# SPDX-License-Identifier: Apache-2.0
"""The parts of a snapshot that are computed only when somebody looks at them.

A snapshot is taken hundreds of times a second, each time something has changed. Nobody wants to
know that often who stands where in a queue of a thousand. So look at these before the next
event.
"""

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property

from nvshared.scheduler import queue
from nvshared.scheduler.actions import ClientState
from nvshared.scheduler.card import Card
from nvshared.scheduler.client import Phase, ScheduledClient
from nvshared.scheduler.snapshot import ClientView
from nvshared.scheduler.tenants import Usage


class Views(Mapping[int, ClientView]):
    """Clients, each viewed when somebody looks."""

    def __init__(self, card: Card) -> None:
        self._card = card
        self._clients = card.clients.copy()
        self._views: dict[int, ClientView] = {}

    def __getitem__(self, id: int) -> ClientView:
        view = self._views.get(id)
        if view is None:
            view = self._views[id] = _view(self._card, self._clients[id])
        return view

    def __iter__(self) -> Iterator[int]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)


class Queue(Collection[int]):
    """Ids of clients that want the card and do not have it: first the chosen, then the waiting."""

    def __init__(self, card: Card) -> None:
        self._card = card

    def __len__(self) -> int:
        groups = self._card.groups
        return groups.size(Phase.LOADING.value) + groups.size("queued")

    def __iter__(self) -> Iterator[int]:
        return iter(self._ids)

    def __contains__(self, id: object) -> bool:
        return id in self._ids

    @cached_property
    def _ids(self) -> dict[int, None]:
        loading = [c for c in self._card.holders if c.phase is Phase.LOADING]
        return dict.fromkeys([c.id for c in [*loading, *queue.sequence(self._card)]])


def _view(card: Card, client: ScheduledClient) -> ClientView:
    state, fits = client.state, card.fits([client])
    if state is ClientState.WAITING and not fits:
        state = ClientState.CROWDED
    return ClientView(
        client=client.id,
        state=state,
        memory=client.memory,
        room=client.charged,
        commit=client.commit,
        fits=fits,
        held_time=client.time_held(card.now),
        waited=client.time_waited(card.now),
        waiting=card.now - client.wanted if client.waits else None,
        idle=card.now - client.since if client.phase is Phase.IDLE else None,
        turns=client.history.turns,
        bytes_in=client.history.bytes_in,
        bytes_out=client.history.bytes_out,
        reopened=client.history.reopened,
        failures=client.history.failures,
        terms=client.terms,
    )


def usage(client: ScheduledClient, now: int) -> Usage:
    """All that a client has used until now."""
    return client.history.usage(client.memory, now, client.time_held(now), client.time_waited(now))
