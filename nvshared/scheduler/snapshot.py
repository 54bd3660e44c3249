# SPDX-License-Identifier: Apache-2.0
"""A read-only view of a GPU's state, for the bus, the metrics and people. Bytes, microseconds.

A snapshot is taken hundreds of times a second, so views of clients and the forecast are computed
only when they are read, from the state at that time: read them before the next event.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache, cached_property, partial
from heapq import heappop, heappush
from math import inf, isfinite
from typing import NamedTuple

from nvshared.scheduler import busy, policy, queue, turns
from nvshared.scheduler.actions import ClientState
from nvshared.scheduler.card import Card
from nvshared.scheduler.client import Phase, ScheduledClient
from nvshared.scheduler.events import Memory, Terms
from nvshared.scheduler.tenants import Counters
from nvshared.tiers import TierBudget
from nvshared.units import SECOND

DRAIN_USUAL = SECOND // 2               # us; the end of a drain that takes longer is not forecast


class Forecast(NamedTuple):
    """The forecast for one waiting client."""

    position: int                       # in the queue; 1: the next client; 0: not queued
    left: int | None                    # us, estimated time until its gate opens; None: unknown


class CardState(StrEnum):
    """The state of a GPU."""

    GATHERING = "gathering"             # just started: clients have yet to report their memory
    IDLE = "idle"                       # no gate is open
    SHARED = "shared"                   # all clients that want the card run
    TURNS = "turns"                     # a client waits for another's turn to end
    BUSY = "busy"                       # busy clients take short turns although they fit together
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class ClientView:
    """One client. Times and counters are totals since it joined."""

    state: ClientState
    memory: Memory                      # the client's figures, by its last record
    room: int                           # bytes of the card that it fills, or may fill by any order
    commit: int                         # bytes that allocated + pinned may grow to without asking
    fits: bool                          # False: too large to run even alone
    waited: int                         # us of all waits for the card, until CardSnapshot.now
    waiting: int | None                 # us of the current wait, part of `waited`; None: no wait
    idle: int | None                    # us since it last used or wanted the card; None: not idle
    counters: Counters                  # the scheduler's own object: it changes with the next event
    terms: Terms = Terms()
    loading: int = 0                    # bytes that its hand-over loads in all; 0: it loads none
    rationed: bool = False              # a compute limit, its own or of a tenant, applies


@dataclass(frozen=True)
class CardSnapshot:
    """One GPU and its clients."""

    now: int                            # time of the last event
    state: CardState
    capacity: int                       # bytes: as set, less memory that the driver lacks
    free: int                           # room that no client has; negative after capacity shrank
    holders: tuple[int, ...]            # clients whose gate is open, oldest turn first
    queue_length: int                   # clients that wait for their gate to open
    clients: Mapping[int, ClientView]   # by id; a view shows the state at the time of the reading
    counters: Counters
    forecast: Callable[[], Mapping[int, Forecast]]  # see `waits`
    budgets: Mapping[str, TierBudget] = field(default_factory=dict)     # by tier; see Card.budgets
    tq: int = 0                         # us, in force; automatic: the last one if no client waits

    @cached_property
    def waits(self) -> Mapping[int, Forecast]:
        """The forecast by waiting client, the next client first. Read it before the next event."""
        return self.forecast()


def take(card: Card) -> CardSnapshot:
    """Takes a snapshot of the state after the last event."""
    states = {
        CardState.LOST: card.lost, CardState.GATHERING: card.now < card.gathered,
        CardState.IDLE: not card.holders, CardState.BUSY: bool(busy.members(card)),
        CardState.TURNS: card.contended, CardState.SHARED: True}
    return CardSnapshot(
        now=card.now, state=next(state for state, applies in states.items() if applies),
        capacity=card.capacity, free=card.free, budgets=card.budgets(),
        holders=tuple(c.id for c in card.holders if c.phase is not Phase.LOADING),
        queue_length=len(card.groups[Phase.LOADING]) + len(card.groups["queued"]),
        clients=_Views(card), counters=replace(card.counters), forecast=partial(_forecast, card),
        tq=turns.tq_in_force(card))


class _Views(Mapping[int, ClientView]):
    """Views of clients, each made when it is read."""

    def __init__(self, card: Card) -> None:
        self._clients = clients = card.clients.copy()
        self._view = cache(lambda id: _view(card, clients[id]))

    def __getitem__(self, id: int) -> ClientView:
        return self._view(id)

    def __iter__(self) -> Iterator[int]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)


def _view(card: Card, client: ScheduledClient) -> ClientView:
    state, fits = client.state, card.fits([client])
    return ClientView(
        state=ClientState.CROWDED if state is ClientState.WAITING and not fits else state,
        memory=client.memory, room=client.charged, commit=client.promise.commit, fits=fits,
        waited=client.time_waited(card.now),
        waiting=card.now - client.waits_since if client.waits else None,
        idle=None if (since := client.idle_since) is None else card.now - since,
        loading=client.its_turn.swapped if client.phase is Phase.LOADING else 0,
        counters=client.history, terms=client.terms, rationed=client.rationed)


def _forecast(card: Card) -> dict[int, Forecast]:
    found: dict[int, Forecast] = {}
    alone = card.settings.capacity - card.groups.sums.pinned
    taken, now = 0, 0.0                 # bytes that simulated holders fill; us after card.now
    ends: list[tuple[float, int, int]] = []     # ends of turns: us, client id, bytes freed
    for client in card.holders:
        if client.phase is Phase.LOADING:
            come = card.load_time(client, client.missing_bytes)
            found[client.id] = Forecast(len(found) + 1, come)
        elif client.is_permanent or client.unresponsive:
            continue                    # no other client waits for its turn to end
        taken += client.unpinned_need
        heappush(ends, (_turn_left(card, client), client.id, client.unpinned_need))
    for client in policy.of(card).order(card):
        position, left = len(found) + 1, None
        if client.unpinned_need <= alone and not client.unresponsive:
            while ends and (busy.one_at_a_time(card) or taken + client.unpinned_need > alone):
                end, _, freed = heappop(ends)
                now, taken = max(now, end), taken - freed
            ready = now + card.load_time(client, client.missing_bytes)
            left = int(ready) if isfinite(ready) else None
            heappush(ends, (ready + _usual_turn(card, client), client.id, client.unpinned_need))
            taken += client.unpinned_need
        found[client.id] = Forecast(position, left)
    for client in card.groups[Phase.LIMITED]:
        found[client.id] = Forecast(0, max(0, queue.time_left(card, client)[2] - card.now))
    return found


def _usual_turn(card: Card, client: ScheduledClient) -> int:
    """The mean length of the client's turns; at most a quantum, as others wait."""
    before = client.history.turns - client.open
    lasted = card.now - client.its_turn.counted if client.open else 0
    held = client.time_held(card.now) - lasted
    most = turns.tq_in_force(card)
    return min(held // before, most) if before > 0 else most


def _turn_left(card: Card, client: ScheduledClient) -> float:
    """Microseconds left of a turn: of its usual length, or of a quantum if it has lasted longer.

    Infinite while it drains for longer than drains take as a rule: how long the work takes that is
    in flight is unknown."""
    if client.phase is Phase.DRAINING:
        return 0 if card.now - client.since < DRAIN_USUAL else inf
    if client.phase is Phase.LOADING:
        return card.load_time(client, client.missing_bytes) + _usual_turn(card, client)
    lasted, usual = card.now - client.its_turn.counted, _usual_turn(card, client)
    return max(0, (usual if lasted < usual else turns.tq_in_force(card)) - lasted)
