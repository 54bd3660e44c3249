# SPDX-License-Identifier: Apache-2.0
"""The history of usage by tenant: turns, waits, hand-overs, bytes moved, memory and time.

    a client leaves, or a minute is over ─► History ─► Keeper ─► store.py
                                       usage since    a thread   sqlite3
                                      the last one

Usage is the difference between two samples of the scheduler's counts for a client. A client is
sampled once a minute while it is connected, and when it leaves. A scheduler counts from the time at
which a client connected to it, so a restarted daemon counts nothing twice. Usage while no daemon
runs is not recorded. The event loop never waits for the disk.

A batch that cannot be written stays in memory and is retried each minute. The journal reports the
failure once, and the recovery once. The interpreter waits for the thread when it ends.
"""

import asyncio
import logging
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from operator import sub
from pathlib import Path
from typing import TypeVar

from nvshared.clock import Clock, Timer
from nvshared.errors import NoHistory
from nvshared.history import store
from nvshared.history.store import (
    MOST,
    OTHERS,
    Asked,
    Batch,
    Found,
    Party,
    Row,
    Store,
    add,
    joined,
)
from nvshared.scheduler.events import Event, Left
from nvshared.scheduler.tenants import Usage
from nvshared.sharing.gpu import GPU, Client
from nvshared.units import SECOND

__all__ = ["OTHERS", "Asked", "Found", "History", "Keeper", "Row", "Wall"]

logger = logging.getLogger(__name__)

Shaped = TypeVar("Shaped")
Wall = Callable[[], float]              # seconds since 1970; may be set, and step back

FRESH = SECOND                          # for this long after a lookup no clients are sampled
MINUTE = 60
SLICE = 50                              # clients sampled until the event loop runs other tasks
PARTIES = 1024                          # kept apart in one minute on one GPU
KEPT = 60                               # unwritten minutes at most; the oldest are merged
ASKING = 4                              # pending lookups for one user at most


class Keeper:
    """Writes and reads one history file, in a thread of its own."""

    def __init__(self, folder: Path, size: int) -> None:
        """`size`: bytes that the file may have at most."""
        self._store = Store(folder / store.FILE_NAME, size)
        self._thread = ThreadPoolExecutor(1, "history")
        self._asking: Counter[int | None] = Counter()   # pending lookups by uid; None: of everyone
        self._last: Future[None] | None = None          # the last write that was submitted
        # Only the thread uses the rest.
        self._waiting: list[tuple[int, Batch]] = []     # start and batch, not written yet
        self._trouble = ""                              # why the last write failed

    @property
    def is_behind(self) -> bool:
        """Whether a batch is not written yet."""
        return bool(self._waiting) or (self._last is not None and not self._last.done())

    def keep(self, start: int, batch: Batch) -> None:
        """Writes the usage of the minute that began at `start`, and earlier unwritten batches."""
        self._last = self._do(partial(self._take, start, batch))
        self._last.add_done_callback(_report)

    async def ask(self, asked: Asked, shape: Callable[[Found], Shaped]) -> Shaped:
        """Looks up usage. Returns the result of `shape`, which is called in the thread.

        Raises InvalidArgs for a query that makes no sense, NoHistory if the file cannot be read.
        """
        store.demand(asked)
        if self._asking[asked.uid] >= ASKING:
            raise NoHistory("too many ask for the history at once", "try again")
        self._asking[asked.uid] += 1
        try:
            return await asyncio.wrap_future(self._do(partial(self._answer, asked, shape)))
        finally:
            self._asking[asked.uid] -= 1

    def close(self) -> None:
        """Closes the file after earlier writes, and ends the thread."""
        self._do(self._store.close)
        self._thread.shutdown()

    def _do(self, task: Callable[[], Shaped]) -> "Future[Shaped]":
        return self._thread.submit(task)

    def _take(self, start: int, batch: Batch) -> None:
        if batch:
            self._waiting.append((start, batch))
        while len(self._waiting) > KEPT:
            (_, older), (start, newer) = self._waiting[:2]
            self._waiting[:2] = [(start, _together(older, newer))]
        self._write()

    def _write(self) -> None:
        try:
            try:
                self._store.add(self._waiting)
            except sqlite3.DatabaseError as error:
                if not store.is_broken(error):
                    raise
                self._store.add(self._waiting)      # the broken file was put aside: a new one
        except (sqlite3.Error, OSError) as error:
            trouble, path = _words(error), self._store.path
            if trouble != self._trouble:
                logger.warning("%s is not written, and tried again each minute: %s", path, trouble)
            self._trouble = trouble
            self._store.close()
        except Exception:
            self._waiting = []          # a fault of ours: the batches would fail again
            raise
        else:
            if self._trouble:
                logger.info("%s is written again", self._store.path)
            self._waiting, self._trouble = [], ""

    def _answer(self, asked: Asked, shape: Callable[[Found], Shaped]) -> Shaped:
        try:
            if self._waiting:
                self._write()
            with self._store.opened() as file:
                found = store.find(file, asked)
        except (sqlite3.Error, OSError) as error:
            raise NoHistory(
                f"{self._store.path} cannot be read: {_words(error)}") from error
        return shape(found._replace(missing=self._trouble))


def _report(written: "Future[None]") -> None:
    """Logs a fault of ours in a write: its batches are lost, the thread goes on."""
    if error := written.exception():
        logger.error("the history has a fault", exc_info=error)


def _words(error: Exception) -> str:
    """The error's text without errno."""
    return getattr(error, "strerror", None) or str(error)


def _together(older: Batch, newer: Batch) -> Batch:
    found = {card: dict(used) for card, used in newer.items()}
    for card, used in older.items():
        for party, usage in used.items():
            add(found.setdefault(card, {}), party, usage)
    return {card: joined(used, PARTIES) for card, used in found.items()}


class History:
    """The usage of all GPUs, with its minute of the wall clock, in one file."""

    def __init__(self, keeper: Keeper, clock: Clock, timer: Timer, wall: Wall) -> None:
        self._keeper = keeper
        self._clock, self._timer, self._wall = clock, timer, wall
        self._asked = clock() - FRESH           # time of the last lookup that sampled the clients
        self._clients: dict[int, Client] = {}
        self._seen: dict[int, Usage] = {}       # by client, at the last sample
        self._used: Batch = {}
        self._began = wall()                    # start of the undelivered usage
        self._disarm: Callable[[], None] | None = None

    def follow(self, gpu: GPU) -> None:
        """Records the usage of this GPU from now on."""
        gpu.client_new.connect(self._client_joined)
        gpu.happens.connect(self._event_happens)

    async def ask(self, asked: Asked, shape: Callable[[Found], Shaped]) -> Shaped:
        """Looks up the usage until now. Returns the result of `shape`, which another thread calls.

        Raises InvalidArgs, NoHistory.
        """
        if self._clock() - self._asked >= FRESH:
            self._asked = self._clock()
            collected = asyncio.Event()
            self._slice(iter([*self._clients]), collected.set)
            await collected.wait()
        return await self._keeper.ask(asked, shape)

    def close(self) -> None:
        """Writes the usage that is not written yet, and closes the file."""
        now = self._clock()
        for client in self._clients.values():
            self._sample(client, now)
        self._deliver_all()
        self._keeper.close()

    def _slice(self, clients: Iterator[int], done: Callable[[], None]) -> None:
        """Samples clients, delivers the usage until now, then calls `done`.

        It is done in slices, so that a hand-over waits for one slice at most.
        """
        now, some = self._clock(), [*islice(clients, SLICE)]
        for id in some:
            if id in self._clients:
                self._sample(self._clients[id], now)
        if some:
            self._timer(now, partial(self._slice, clients, done))
        else:
            self._deliver_all()
            done()

    def _deliver_all(self) -> None:
        began, self._began = self._began, self._wall()
        if self._used or self._keeper.is_behind:
            used, self._used = self._used, {}
            if not 0 <= self._began - began <= 2 * MINUTE:
                began = self._began     # the clock was set, or there were no clients
            middle = int((began + self._began) / 2)
            bounded = {card: joined(of_it, PARTIES) for card, of_it in used.items()}
            self._keeper.keep(middle - middle % MINUTE, bounded)

    def _client_joined(self, client: Client) -> None:
        self._clients[client.id] = client
        if self._disarm is None:
            if not self._used:
                self._began = self._wall()
            self._arm()

    def _event_happens(self, now: int, event: Event) -> None:
        """Samples a leaving client while its scheduler still knows it."""
        if isinstance(event, Left):
            client = self._clients.pop(event.client, None)
            if client is not None:
                self._sample(client, now)
                del self._seen[client.id]

    def _sample(self, client: Client, now: int) -> None:
        before = self._seen.get(client.id, Usage())
        used = client.gpu.scheduler.usage(client.id, now)
        self._seen[client.id] = used
        if used != before:
            peer = client.peer
            party = Party(peer.owner, peer.tenants[0].name, client.tenant)
            more = Usage(*(max(0, min(one, MOST)) for one in map(sub, used, before)))
            add(self._used.setdefault(client.gpu.facts.uuid, {}), party, more)

    def _arm(self) -> None:
        """Sets the timer to the end of the current minute of the wall clock."""
        left = MINUTE - self._wall() % MINUTE
        self._disarm = self._timer(self._clock() + int(left * SECOND), self._minute_is_over)

    def _minute_is_over(self) -> None:
        self._disarm = None
        self._slice(iter([*self._clients]), self._go_on)

    def _go_on(self) -> None:
        if (self._clients or self._keeper.is_behind) and self._disarm is None:
            self._arm()
