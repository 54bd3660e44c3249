# SPDX-License-Identifier: Apache-2.0
"""A file of sqlite3 that is ours, opened when it is needed, and whole after a power cut.

What is written at once is written in one transaction, with a rollback journal that is on disk
before the file is touched. A file that is not ours, is of a newer version or is broken is put
aside under another name, and a new one begun. What keeps us from the file (permissions, a full
disk) raises sqlite3.Error or OSError.
"""

import logging
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

logger = logging.getLogger(__name__)

APPLICATION = 0x6E767368                # "nvsh": whose file it is, in its header
VERSION = 1
PAGE = 4096
ASIDES = 9                              # files that were put aside
PATIENCE = 1.0                          # seconds, if somebody else has it open
BROKEN = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
UNLIKE_OURS = {*BROKEN, sqlite3.SQLITE_ERROR}      # the last one: a table or column is not there


class Foreign(Exception):
    """The file is there and cannot be ours to write; why, in words."""


class File:
    """At a path, or none yet."""

    def __init__(self, path: Path, pages: int, schema: str, probe: str) -> None:
        """`pages` that it may have at most; `probe`: a query that only a file of ours answers."""
        self.path = path
        self.pages = pages
        self._schema = schema
        self._probe = probe
        self._open: sqlite3.Connection | None = None
        self._which = (0, 0)            # file it is, on disk

    def close(self) -> None:
        """Harmless when repeated; what comes next opens it again."""
        if self._open is not None:
            self._open.close()
            self._open = None

    @contextmanager
    def opened(self) -> Iterator[sqlite3.Connection]:
        """The file, open. One that turns out to be broken is put aside."""
        try:
            yield self._opened()
        except sqlite3.DatabaseError as error:
            self.close()
            if is_broken(error):
                self._put_aside(f"it is broken: {error}")
            raise

    def _opened(self) -> sqlite3.Connection:
        if self._open is not None and self._which != self._there():
            self.close()                # somebody has taken it away: what is written would be lost
        if self._open is None:
            try:
                self._open = self._begin()
            except Foreign as reason:
                self._put_aside(str(reason))
                self._open = self._begin()
            self._which = self._there()
        return self._open

    def _there(self) -> tuple[int, int]:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return 0, 0
        return found.st_dev, found.st_ino

    def _begin(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists() and not stat.S_ISREG(self.path.stat().st_mode):
            raise Foreign("it is no file")
        # What others run is nobody's business: for us alone, and so is its journal.
        try:
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except PermissionError as error:
            if self.path.exists():
                raise Foreign("we may not write to it") from error
            raise
        file = sqlite3.connect(
            self.path, timeout=PATIENCE, isolation_level=None, check_same_thread=False,
            cached_statements=32)
        try:
            self._check(file)           # before anything that may write to one that is not ours
            for pragma in (
                "journal_mode = TRUNCATE", "synchronous = FULL", "cache_size = -512",
                "temp_store = MEMORY", f"max_page_count = {self.pages}",
            ):
                file.execute(f"PRAGMA {pragma}").fetchall()
        except sqlite3.DatabaseError as error:
            file.close()
            if error.sqlite_errorcode & 0xFF in UNLIKE_OURS:
                raise Foreign(f"it is broken: {error}") from error
            raise
        except BaseException:
            file.close()
            raise
        return file

    def _check(self, file: sqlite3.Connection) -> None:
        """Raises Foreign for a file that is none of ours. Makes one of an empty file.

        A disk that fills up meanwhile leaves a page that has nothing in it, which is empty too.
        """
        identity = number(file, "PRAGMA application_id")
        if not identity and not number(file, "SELECT count(*) FROM sqlite_schema"):
            file.execute(f"PRAGMA page_size = {PAGE}")
            file.execute("PRAGMA auto_vacuum = INCREMENTAL")
            with transaction(file):
                for statement in self._schema.split(";")[:-1]:
                    file.execute(statement)
                file.execute(f"PRAGMA application_id = {APPLICATION}")
                file.execute(f"PRAGMA user_version = {VERSION}")
        if number(file, "PRAGMA application_id") != APPLICATION:
            raise Foreign("another program made it")
        if (version := number(file, "PRAGMA user_version")) != VERSION:
            raise Foreign(f"it is of version {version}, and we know {VERSION}")
        file.execute(self._probe).fetchall()
        ((answer,),) = file.execute("PRAGMA quick_check(1)").fetchall()
        if answer != "ok":
            raise Foreign(f"it is broken: {' '.join(answer.split())}")

    def _put_aside(self, reason: str) -> None:
        """Nothing in it is lost: people may look. Raises OSError."""
        self.close()
        number = 1
        while os.path.lexists(aside := self.path.with_name(f"{self.path.name}.aside-{number}")):
            number += 1
        if number > ASIDES:             # a disk that breaks again and again would be full of them
            raise OSError(f"{reason}; {ASIDES} have been put aside already, take some away")
        self.path.rename(aside)
        with suppress(FileNotFoundError):   # of a write that was cut short, and so a part of it
            journal = self.path.with_name(f"{self.path.name}-journal")
            journal.rename(aside.with_name(f"{aside.name}-journal"))
        logger.warning("%s is put aside as %s and a new history begun: %s",
                       self.path, aside.name, reason)


def is_broken(error: sqlite3.Error) -> bool:
    """The file is to be put aside, or has been."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in BROKEN


@contextmanager
def transaction(file: sqlite3.Connection) -> Iterator[None]:
    """All of it or, if it raises, nothing."""
    file.execute("BEGIN IMMEDIATE")
    try:
        yield
        file.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):   # on some errors sqlite has done so itself
            file.execute("ROLLBACK")
        raise


def number(file: sqlite3.Connection, query: str, *values: object) -> int:
    """What a query answers that has one answer."""
    return int(file.execute(query, values).fetchone()[0])
