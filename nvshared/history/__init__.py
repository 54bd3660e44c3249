# SPDX-License-Identifier: Apache-2.0
"""The history of usage by tenant: turns, waits, hand-overs, bytes moved, memory and time.

Usage is the difference between two samples of a client's counters, taken each minute and when the
client leaves. A thread writes the usage, and each minute tries unwritten usage again."""

import asyncio
import logging
import sqlite3
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from operator import sub
from pathlib import Path
from typing import TypeVar

from nvshared.clock import Clock, Timer
from nvshared.errors import NoHistory
from nvshared.history import store
from nvshared.history.store import Batch, HistoryStore, Party, Query, QueryResult, add, joined
from nvshared.machine import subordinate
from nvshared.scheduler.events import Event, Left
from nvshared.scheduler.tenants import Usage
from nvshared.sharing.gpu import GPU, Client
from nvshared.units import SECOND

__all__ = ["History", "HistoryFile", "Query", "QueryResult", "WallClock"]

logger = logging.getLogger(__name__)

Shaped = TypeVar("Shaped")
WallClock = Callable[[], float]         # seconds since 1970; may jump forwards and backwards

FRESH = SECOND                          # microseconds between two queries that sample all clients
MINUTE = 60
PARTIES = 1024                          # most parties per minute and GPU; more are summed up
KEPT = 60                               # most unwritten batches; of more, the oldest two merge
MOST_PENDING = 4                        # most pending queries of one user; more are refused


class HistoryFile:
    def __init__(self, folder: Path, size: int) -> None:
        self._store = HistoryStore(folder / store.FILE_NAME, size)
        self._thread = ThreadPoolExecutor(1, "history")
        # Pending queries by user; uids that /etc/subuid gives one user count as one.
        self._pending: Counter[int | str | None] = Counter()
        # Only the thread of self._thread changes the fields below.
        self._unwritten: list[tuple[int, Batch]] = []       # start of a minute, its usage
        self._write_error = ""          # why the last write failed; "": it did not fail

    @property
    def fault(self) -> str:
        """Why the last write failed; "": it did not fail."""
        return self._write_error and f"{self._store.path}: {self._write_error}"

    @property
    def unused(self) -> str:
        """Why the usage until now was put aside; "": it was not."""
        return self._store.unused

    def keep(self, start: int, batch: Batch) -> None:
        """Has the thread write the usage of the minute that began at `start` (s since 1970), and
        usage that it could not write before."""
        self._thread.submit(self._append, start, batch).add_done_callback(_report)

    async def ask(self, query: Query, shape: Callable[[QueryResult], Shaped]) -> Shaped:
        """Looks up usage. Returns the result of `shape`, which is called in the thread.

        Raises InvalidArgs for an invalid query, NoHistory if the file cannot be read."""
        store.validate(query)
        user = None if query.uid is None else subordinate.lender(query.uid)
        if self._pending[user] >= MOST_PENDING:
            raise NoHistory("too many ask for the history at once", "try again")
        self._pending[user] += 1
        try:
            return await asyncio.wrap_future(self._thread.submit(self._answer, query, shape))
        finally:
            self._pending -= Counter([user])    # Counter's -= removes counts of zero

    def close(self) -> None:
        self._thread.submit(self._store.close)
        self._thread.shutdown()

    def _append(self, start: int, batch: Batch) -> None:
        if batch:
            self._unwritten.append((start, batch))
        while len(self._unwritten) > KEPT:
            (_, older), (start, newer) = self._unwritten[:2]
            self._unwritten[:2] = [(start, _summed(older, newer))]
        if self._unwritten:
            self._write()

    def _write(self) -> None:
        try:
            try:
                self._store.add(self._unwritten)
            except sqlite3.DatabaseError as error:
                if not store.is_broken(error):
                    raise
                self._store.add(self._unwritten)    # into a new file: the broken file was renamed
        except (sqlite3.Error, OSError) as error:
            reason, path = _reason(error), self._store.path
            if reason != self._write_error:
                logger.warning("%s is not written, and tried again each minute: %s", path, reason)
            self._write_error = reason
            self._store.close()
        except Exception:
            self._unwritten = []        # a bug: another write of the batches would fail, too
            raise
        else:
            if self._write_error:
                logger.info("%s is written again", self._store.path)
            self._unwritten, self._write_error = [], ""

    def _answer(self, query: Query, shape: Callable[[QueryResult], Shaped]) -> Shaped:
        try:
            with self._store.opened() as file:
                found = store.find(file, query)
        except (sqlite3.Error, OSError) as error:
            raise NoHistory(f"{self._store.path} cannot be read: {_reason(error)}") from error
        return shape(found._replace(missing=self._write_error))


def _report(written: "Future[None]") -> None:
    if error := written.exception():
        logger.error("the history has a fault", exc_info=error)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _summed(older: Batch, newer: Batch) -> Batch:
    found = {card: dict(used) for card, used in newer.items()}
    for card, used in older.items():
        for party, usage in used.items():
            add(found.setdefault(card, {}), party, usage)
    return {card: joined(used, PARTIES) for card, used in found.items()}


class History:
    def __init__(self, file: HistoryFile, clock: Clock, timer: Timer, wall: WallClock) -> None:
        self._file = file
        self._clock, self._timer, self._wall = clock, timer, wall
        self._sampled_at = clock() - FRESH      # time of the last query that sampled the clients
        self._clients: dict[int, Client] = {}
        self._last_usage: dict[int, Usage] = {}     # at the last sample, by client id
        self._collected: Batch = {}
        self._start = wall()                    # time at which the usage in _collected begins
        self._arm()

    @property
    def fault(self) -> str:
        """Why the latest usage is not in the file; "": it is."""
        return self._file.fault

    @property
    def unused(self) -> str:
        """Why the usage until now was put aside; "": it was not."""
        return self._file.unused

    def follow(self, gpu: GPU) -> None:
        gpu.client_new.connect(self._client_joined)
        gpu.happens.connect(self._event_happens)

    async def ask(self, query: Query, shape: Callable[[QueryResult], Shaped]) -> Shaped:
        """Looks up the usage until now, as HistoryFile.ask does."""
        if self._clock() - self._sampled_at >= FRESH:
            self._sampled_at = self._clock()
            self._deliver_all()
        return await self._file.ask(query, shape)

    def close(self) -> None:
        self._disarm()
        self._deliver_all()
        self._file.close()

    def _deliver_all(self) -> None:
        """Samples all clients, and passes the usage to the file."""
        now = self._clock()
        for client in self._clients.values():
            self._sample(client, now)
        began, self._start = self._start, self._wall()
        if not 0 <= self._start - began <= 2 * MINUTE:
            began = self._start         # the wall clock was set, or the machine was suspended
        middle = int((began + self._start) / 2)
        bounded = {card: joined(of_it, PARTIES) for card, of_it in self._collected.items()}
        self._collected = {}
        self._file.keep(middle - middle % MINUTE, bounded)

    def _client_joined(self, client: Client) -> None:
        if not self._clients and not self._collected:
            self._start = self._wall()
        self._clients[client.id] = client

    def _event_happens(self, now: int, event: Event) -> None:
        """Samples a leaving client while its scheduler still knows it."""
        if isinstance(event, Left):
            client = self._clients.pop(event.client, None)
            if client is not None:
                self._sample(client, now)
                del self._last_usage[client.id]

    def _sample(self, client: Client, now: int) -> None:
        before = self._last_usage.get(client.id, Usage())
        used = client.gpu.scheduler.usage(client.id, now)
        self._last_usage[client.id] = used
        if used != before:
            party = Party(client.peer.owner, client.user, client.counted_for)
            more = Usage(*(max(0, min(one, store.MOST)) for one in map(sub, used, before)))
            add(self._collected.setdefault(client.gpu.facts.uuid, {}), party, more)

    def _arm(self) -> None:
        left = MINUTE - self._wall() % MINUTE
        self._disarm = self._timer(self._clock() + int(left * SECOND), self._minute_is_over)

    def _minute_is_over(self) -> None:
        self._deliver_all()
        self._arm()
