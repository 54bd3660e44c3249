# SPDX-License-Identifier: Apache-2.0
"""The thread that writes the history and looks things up in it: the event loop waits for no disk.

What cannot be written is kept and tried again each minute; the journal says once that it cannot,
and once that it can again. The interpreter waits for the thread when it ends.
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

KEPT = 60                               # minutes that wait for that; older ones are put together
PARTIES = 1024                          # of each of them and of a card
ASKING = 4                              # questions about one user that may wait for an answer

Shaped = TypeVar("Shaped")


class Keeper:
    """Of one file."""

    def __init__(self, folder: Path, size: int) -> None:
        """`size`: bytes that it may have at most."""
        self._store = Store(folder / FILE_NAME, size)
        self._thread = ThreadPoolExecutor(1, "history")
        self._asking: Counter[int | None] = Counter()   # by user
        self._last: Future[None] | None = None          # of what is to be written
        # The rest is the thread's own.
        self._waiting: list[tuple[int, Batch]] = []     # to be written
        self._trouble = ""                              # why that cannot be

    @property
    def is_behind(self) -> bool:
        """Whether something is not written yet, or cannot be."""
        return bool(self._waiting) or (self._last is not None and not self._last.done())

    def keep(self, start: int, batch: Batch) -> None:
        """Writes what was used in the minute that began then, and what could not be before."""
        self._last = self._do(partial(self._take, start, batch))
        self._last.add_done_callback(_report)

    async def ask(self, asked: Asked, shape: Callable[[Found], Shaped]) -> Shaped:
        """What `shape` makes of the answer, in the thread.

        Raises InvalidArgs for what makes no sense, NoHistory if the file cannot be read.
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
        """Writes what is left."""
        self._do(self._store.file.close)
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
                self._store.add(self._waiting)      # to a new one: that was put aside
        except (sqlite3.Error, OSError) as error:
            trouble, path = _words(error), self._store.file.path
            if trouble != self._trouble:
                logger.warning("%s is not written, and tried again each minute: %s", path, trouble)
            self._trouble = trouble
            self._store.file.close()
        except Exception:
            self._waiting = []          # it would fail again and again
            raise
        else:
            if self._trouble:
                logger.info("%s is written again", self._store.file.path)
            self._waiting, self._trouble = [], ""

    def _answer(self, asked: Asked, shape: Callable[[Found], Shaped]) -> Shaped:
        try:
            if self._waiting:
                self._write()
            with self._store.file.opened() as file:
                found = find(file, asked)
        except (sqlite3.Error, OSError) as error:
            raise NoHistory(
                f"{self._store.file.path} cannot be read: {_words(error)}") from error
        return shape(found._replace(missing=self._trouble))


def _report(written: "Future[None]") -> None:
    """A fault of ours costs a step, and not the thread."""
    if error := written.exception():
        logger.error("the history has a fault", exc_info=error)


def _words(error: Exception) -> str:
    """Without the number that the kernel has for it."""
    return getattr(error, "strerror", None) or str(error)


def _together(older: Batch, newer: Batch) -> Batch:
    found = {card: dict(used) for card, used in newer.items()}
    for card, used in older.items():
        into = found.setdefault(card, {})
        for party, usage in used.items():
            add(into, party, usage)
    return {card: joined(used, PARTIES) for card, used in found.items()}
