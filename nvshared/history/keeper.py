# SPDX-License-Identifier: Apache-2.0
"""The thread that writes the history and looks things up in it: the event loop waits for no disk.

It begins when there is something to do. What cannot be written is kept and tried again each
minute; the journal says once that it cannot, and once that it can again.
"""

import asyncio
import logging
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from nvshared.errors import InvalidArgs, NoHistory, NvshareError
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

AGAIN = 60.0                            # seconds until what could not be written is tried again
KEPT = 60                               # minutes that wait for that; older ones are put together
PARTIES = 1024                          # of each of them and of a card
ASKING = 4                              # questions about one user that may wait for an answer
PATIENCE = 2.0                          # seconds that the last minute may take to be written

Shaped = TypeVar("Shaped")
Answer = Callable[[Any, NvshareError | None], None]


class Keeper:
    """Of one file."""

    def __init__(self, folder: Path, size: int) -> None:
        """`size`: bytes that it may have at most."""
        self._store = Store(folder / FILE_NAME, size)
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._asking: Counter[int | None] = Counter()   # by user
        # The rest is the thread's own.
        self._waiting: list[tuple[int, Batch]] = []     # to be written
        self._trouble = ""                              # why that cannot be

    def keep(self, start: int, batch: Batch) -> None:
        """Writes what was used in the minute that began then."""
        self._do(partial(self._take, start, batch))

    async def ask(self, asked: Asked, shape: Callable[[Found], Shaped]) -> Shaped:
        """What `shape` makes of the answer, in the thread.

        Raises InvalidArgs for what makes no sense, NoHistory if the file cannot be read.
        """
        demand(asked)
        if self._asking[asked.uid] >= ASKING:
            raise NoHistory("too many ask for the history at once", "try again")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Shaped] = loop.create_future()

        def answered(found: Shaped, error: NvshareError | None) -> None:
            if answer.done():           # who asked is gone
                return
            if error is None:
                answer.set_result(found)
            else:
                answer.set_exception(error)

        def post(found: Any, error: NvshareError | None) -> None:
            with suppress(RuntimeError):        # nobody runs the loop any more
                loop.call_soon_threadsafe(answered, found, error)

        self._asking[asked.uid] += 1
        try:
            self._do(partial(self._answer, asked, shape, post))
            return await answer
        finally:
            self._asking[asked.uid] -= 1

    def close(self) -> None:
        """Writes what is left, unless that takes too long."""
        if self._thread is not None:
            self._tasks.put(None)
            self._thread.join(PATIENCE)

    def _do(self, task: Callable[[], None]) -> None:
        if self._thread is None:
            # A daemon thread: a disk that hangs must not keep the process from ending.
            self._thread = Thread(target=self._work, name="history", daemon=True)
            self._thread.start()
        self._tasks.put(task)

    def _work(self) -> None:
        while True:
            try:
                task = self._tasks.get(timeout=AGAIN if self._waiting else None)
            except Empty:
                task = self._write
            if task is None:
                break
            try:
                task()
            except Exception:           # a fault of ours costs a step, and not the thread
                logger.exception("the history has a fault")
        self._store.file.close()

    def _take(self, start: int, batch: Batch) -> None:
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

    def _answer(self, asked: Asked, shape: Callable[[Found], Any], post: Answer) -> None:
        try:
            if self._waiting:
                self._write()
            with self._store.file.opened() as file:
                found = find(file, asked)
            post(shape(found._replace(missing=self._trouble)), None)
        except InvalidArgs as error:
            post(None, error)
        except (sqlite3.Error, OSError) as error:
            post(None, NoHistory(f"{self._store.file.path} cannot be read: {_words(error)}"))
        except Exception:
            post(None, NoHistory("the history has a fault; the journal says more"))
            raise


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
