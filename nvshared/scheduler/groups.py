# SPDX-License-Identifier: Apache-2.0
"""Clients by what they have in common, and sums over them, kept up as clients change.

There may be a thousand clients, and a plan is made at each event. Going through
all of them for each sum and each "those who wait" takes ten milliseconds, which
every hand-over would wait for; and what has changed since the last event is one
client or two. A client notes each change of a figure that counts here (see
Client.__setattr__, so that none is forgotten); before anything is read, those
clients are counted anew, and nobody else.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from nvshared.scheduler.client import Client, Phase
from nvshared.scheduler.quota import UNLIMITED


def _wants(client: Client) -> int:
    return max(0, client.need - client.ordered)


def _waits(client: Client) -> bool:
    return client.phase is Phase.WAITING and not client.terms.suspended


def _stays(client: Client) -> bool:
    return client.phase in (Phase.LOADING, Phase.RUNNING)


def _in_phase(phase: Phase, client: Client) -> bool:
    return client.phase is phase


# Who is in which group.
GROUPS: dict[str, Callable[[Client], object]] = {
    "queued": _waits,                   # wants a turn and may have one
    "holding": lambda client: client.turn is not None,
    "moving": lambda client: client.moves,
    "asking": lambda client: client.question,
    "bounded": lambda client: client.terms.memory_limit,
    "suspended": lambda client: client.terms.suspended,
    "rationed": lambda client: client.terms.compute_limit < UNLIMITED,
    "lacking": lambda client: _stays(client) and (_wants(client) or not client.whole),
    "occupying": lambda client: client.held,
} | {phase.value: partial(_in_phase, phase) for phase in Phase}

# What is summed up over whom; bytes.
SUMS: dict[str, Callable[[Client], int]] = {
    "held": lambda client: client.held,
    "host_held": lambda client: client.host_held,
    "committed": lambda client: client.committed,
    "used": lambda client: client.used,
    "pinned": lambda client: client.memory.pinned,
    "staying_take": lambda client: client.takes if _stays(client) else 0,
    "holders_take": lambda client: client.takes if client.turn is not None else 0,
    "queued_want": lambda client: _wants(client) if _waits(client) else 0,
}


class _Counted(NamedTuple):
    """What a client was counted as, so that it can be taken out again."""

    groups: tuple[str, ...]
    sums: tuple[int, ...]
    place: tuple[int, int]              # in the queue, and its id
    takes: int


class Groups:
    """All clients of a card, grouped and summed up."""

    def __init__(self, clients: Mapping[int, Client]) -> None:
        """`clients` by id. Whoever adds or removes one adds the id to `touched`."""
        self.touched: set[int] = set()
        self._clients = clients
        self._counted: dict[int, _Counted] = {}
        self._groups: dict[str, dict[int, Client]] = {name: {} for name in GROUPS}
        self._sums = dict.fromkeys(SUMS, 0)
        self._queue: list[tuple[int, int]] = []     # places and ids of those who wait
        self._takes: list[int] = []                 # what they would take, least first
        self._news: dict[str, set[int]] = {}

    def group(self, name: str) -> list[Client]:
        """Those in it, in the order of their joining."""
        if self.touched:
            self._count()
        members = self._groups[name]
        if len(members) < 2:
            return list(members.values())
        return [members[id] for id in sorted(members)]

    def size(self, name: str) -> int:
        """How many are in it."""
        if self.touched:
            self._count()
        return len(self._groups[name])

    def total(self, name: str) -> int:
        """One of the sums."""
        if self.touched:
            self._count()
        return self._sums[name]

    def queue(self) -> Iterator[Client]:
        """Those who wait, by their places, as it is now."""
        if self.touched:
            self._count()
        return (self._clients[id] for _, id in self._queue.copy())

    def least_take(self) -> int:
        """The least that one of those who wait would take; 0 if nobody waits."""
        if self.touched:
            self._count()
        return self._takes[0] if self._takes else 0

    def news(self, reader: str) -> list[Client]:
        """Those that have changed since this reader asked last, in the order of their joining."""
        self._count()
        changed = self._news.get(reader, self._clients.keys())
        self._news[reader] = set()
        return [self._clients[id] for id in sorted(changed) if id in self._clients]

    def _count(self) -> None:
        while self.touched:
            id = self.touched.pop()
            for changed in self._news.values():
                changed.add(id)
            if (before := self._counted.pop(id, None)) is not None:
                self._leave(id, before)
            if (client := self._clients.get(id)) is not None:
                self._enter(client)

    def _enter(self, client: Client) -> None:
        counted = _Counted(
            tuple([name for name, belongs in GROUPS.items() if belongs(client)]),
            tuple([figure(client) for figure in SUMS.values()]),
            (client.place, client.id),
            client.takes,
        )
        self._counted[client.id] = counted
        for name in counted.groups:
            self._groups[name][client.id] = client
        for name, figure in zip(SUMS, counted.sums, strict=True):
            self._sums[name] += figure
        if "queued" in counted.groups:
            insort(self._queue, counted.place)
            insort(self._takes, counted.takes)

    def _leave(self, id: int, counted: _Counted) -> None:
        for name in counted.groups:
            del self._groups[name][id]
        for name, figure in zip(SUMS, counted.sums, strict=True):
            self._sums[name] -= figure
        if "queued" in counted.groups:
            del self._queue[bisect_left(self._queue, counted.place)]
            del self._takes[bisect_left(self._takes, counted.takes)]
