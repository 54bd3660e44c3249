# SPDX-License-Identifier: Apache-2.0
"""Where those who wait stand, and about how much longer they wait. For people; it decides nothing.

It plays the queue on, as plan.py would. Each turn is taken to last as its client's turns did on
average, at most a quantum. Before it comes what a hand-over costs. The head of the queue comes in
as soon as enough turns are over for it to fit. What programs will do is not known, so the times
are about right while they go on as before, and wrong when they do something else.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from heapq import heapify, heappop, heappush

from nvshared.scheduler import quantum, queue, terms
from nvshared.scheduler.card import Card
from nvshared.scheduler.client import Phase, ScheduledClient
from nvshared.scheduler.snapshot import Wait


class Forecast(Mapping[int, Wait]):
    """Of all that wait, made when somebody looks, which is to be before the next event."""

    def __init__(self, card: Card) -> None:
        self._card = card

    def __getitem__(self, id: int) -> Wait:
        return self._waits[id]

    def __iter__(self) -> Iterator[int]:
        return iter(self._waits)

    def __len__(self) -> int:
        return len(self._waits)

    @cached_property
    def _waits(self) -> dict[int, Wait]:
        return _forecast(self._card)


def _forecast(card: Card) -> dict[int, Wait]:
    found: dict[int, Wait] = {}
    one_at_a_time = card.one_at_a_time
    alone = card.settings.capacity - card.pinned
    taken, now = 0, 0                   # bytes of those who hold it then; us from now
    ends: list[tuple[int, int, int]] = []       # of turns, with whose it is and what it takes
    for client in card.holders:
        if client.phase is Phase.LOADING:
            come = quantum.moving(card, client, quantum.lacks(client))
            found[client.id] = Wait(len(found) + 1, come)
        elif client.settled or client.mute:
            continue                    # it runs beside whoever has the turn
        taken += client.takes
        ends.append((_left(card, client), client.id, client.takes))
    heapify(ends)
    for client in queue.sequence(card):
        position = len(found) + 1
        if client.takes > alone or client.mute:
            found[client.id] = Wait(position, None)
            continue
        while ends and (one_at_a_time or taken + client.takes > alone):
            end, _, freed = heappop(ends)
            now, taken = max(now, end), taken - freed
        cost = quantum.moving(card, client, quantum.lacks(client))
        found[client.id] = Wait(position, now + cost)
        heappush(ends, (now + cost + _usual(card, client), client.id, client.takes))
        taken += client.takes
    for client in card.in_phase(Phase.LIMITED):
        found[client.id] = Wait(0, max(0, terms.renewed(card, client) - card.now))
    return found


def _usual(card: Card, client: ScheduledClient) -> int:
    """How long its turns last; at most a quantum, as others wait."""
    turn = client.turn
    now = turn is not None and turn.started is not None
    before = client.history.turns - now
    held = client.time_held(card.now) - (_lasted(card, client) if now else 0)
    most = quantum.in_force(card)
    return min(held // before, most) if before > 0 else most


def _left(card: Card, client: ScheduledClient) -> int:
    """How much longer a turn lasts: as long as usual, or, if it is that long already, a quantum."""
    if client.phase is Phase.LOADING:
        return quantum.moving(card, client, quantum.lacks(client)) + _usual(card, client)
    lasted, usual = _lasted(card, client), _usual(card, client)
    return max(0, (usual if lasted < usual else quantum.in_force(card)) - lasted)


def _lasted(card: Card, client: ScheduledClient) -> int:
    assert client.turn is not None
    return card.now - (card.now if client.turn.started is None else client.turn.counted)
