# SPDX-License-Identifier: Apache-2.0
"""The thread that writes and reads the history, so that the event loop never waits for the disk.

A batch that cannot be written stays in memory and is retried each minute. The journal reports the
failure once, and the recovery once. The interpreter waits for the thread when it ends.
"""

import asyncio
import logging
import sqlite3
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from nvshared.errors import NoHistory
from nvshared.history.store import (
    FILE_NAME,
    Asked,
    Batch,
    Found,
    Store,
    add,
    demand,
    find,
    is_broken,
    joined,
)

logger = logging.getLogger(__name__)

KEPT = 60                               # unwritten minutes at most; the oldest are merged
PARTIES = 1024                          # kept apart per GPU in a merged minute
ASKING = 4                              # pending lookups for one user at most

Shaped = TypeVar("Shaped")


class Keeper:
    """Writes and reads one history file, in a thread of its own."""

    def __init__(self, folder: Path, size: int) -> None:
        """`size`: bytes that the file may have at most."""
        self._store = Store(folder / FILE_NAME, size)
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
        demand(asked)
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
                if not is_broken(error):
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
                found = find(file, asked)
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
