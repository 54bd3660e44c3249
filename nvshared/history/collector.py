# SPDX-License-Identifier: Apache-2.0
"""Collects what the clients of all cards have used: once a minute, and when one leaves.

The schedulers count from when a client joined, so a daemon that was started again counts nothing
twice. What was used while there was none is not known to anybody.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from operator import sub

from nvshared.clock import Clock, Timer
from nvshared.history.store import MOST, Batch, Party, add, joined
from nvshared.scheduler.events import Event, Left
from nvshared.scheduler.tenants import Usage
from nvshared.sharing.gpu import GPU, Client
from nvshared.units import SECOND

Wall = Callable[[], float]              # seconds since 1970; may be set, and step back

MINUTE = 60
SLICE = 50                              # clients that are looked at without a pause
PARTIES = 1024                          # that one minute keeps apart on a card


class Collector:
    """Hands on what was used, and when that was, in minutes of the wall clock."""

    def __init__(
        self, clock: Clock, timer: Timer, wall: Wall, deliver: Callable[[int, Batch], None],
        is_behind: Callable[[], bool] = lambda: False,
    ) -> None:
        """`deliver` takes the second in which a minute began and what was used in it.

        `is_behind`: whether it wants to be called each minute also where nothing was used.
        """
        self._clock = clock
        self._timer = timer
        self._wall = wall
        self._deliver = deliver
        self._is_behind = is_behind
        self._clients: dict[int, Client] = {}
        self._seen: dict[int, Usage] = {}       # of each, when last looked
        self._used: Batch = {}
        self._began = wall()                    # of what was not delivered yet
        self._disarm: Callable[[], None] | None = None

    def follow(self, gpu: GPU) -> None:
        """Collects from a card, too."""
        gpu.client_new.connect(self._comes)
        gpu.happens.connect(self._happens)

    def collect(self, done: Callable[[], None]) -> None:
        """Delivers what was used until now, and calls `done`. Hand-overs wait for a slice of it."""
        self._slice(iter([*self._clients]), done)

    def _slice(self, clients: Iterator[int], done: Callable[[], None]) -> None:
        now, some = self._clock(), [*islice(clients, SLICE)]
        for id in some:
            if id in self._clients:
                self._note(self._clients[id], now)
        if some:
            self._timer(now, partial(self._slice, clients, done))
        else:
            self._deliver_all()
            done()

    def flush(self) -> None:
        """Delivers what was used until now, at once."""
        now = self._clock()
        for client in self._clients.values():
            self._note(client, now)
        self._deliver_all()

    def _deliver_all(self) -> None:
        began, self._began = self._began, self._wall()
        if self._used or self._is_behind():
            used, self._used = self._used, {}
            if not 0 <= self._began - began <= 2 * MINUTE:
                began = self._began     # the clock was set, or nobody was there
            middle = int((began + self._began) / 2)
            bounded = {card: joined(of_it, PARTIES) for card, of_it in used.items()}
            self._deliver(middle - middle % MINUTE, bounded)

    def _comes(self, client: Client) -> None:
        self._clients[client.id] = client
        if self._disarm is None:
            if not self._used:
                self._began = self._wall()
            self._arm()

    def _happens(self, now: int, event: Event) -> None:
        """One that leaves is looked at while its scheduler knows it."""
        if isinstance(event, Left):
            client = self._clients.pop(event.client, None)
            if client is not None:
                self._note(client, now)
                del self._seen[client.id]

    def _note(self, client: Client, now: int) -> None:
        before = self._seen.get(client.id, Usage())
        used = client.gpu.scheduler.usage(client.id, now)
        self._seen[client.id] = used
        if used != before:
            peer = client.peer
            party = Party(peer.owner, peer.tenants[0].name, client.tenant)
            more = Usage(*(max(0, min(one, MOST)) for one in map(sub, used, before)))
            add(self._used.setdefault(client.gpu.facts.uuid, {}), party, more)

    def _arm(self) -> None:
        """For when a minute of the wall clock is over."""
        left = MINUTE - self._wall() % MINUTE
        self._disarm = self._timer(self._clock() + int(left * SECOND), self._minute_is_over)

    def _minute_is_over(self) -> None:
        self._disarm = None
        self.collect(self._go_on)

    def _go_on(self) -> None:
        if (self._clients or self._is_behind()) and self._disarm is None:
            self._arm()
