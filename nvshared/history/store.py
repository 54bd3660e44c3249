# SPDX-License-Identifier: Apache-2.0
"""What the file of the history holds, and how much of it.

    usage:   one row for each step of time, card and party; sums
    step:    minutes, hours and days. What was used is added to one of each, so they need no
             summing up later, and coarse ones are there when fine ones have gone
    dropped: the latest that has gone, of each length

Kept are so many steps of each length, those that were begun last, whatever the clock says: a
clock that is set wrong costs nothing. In each step so many parties are kept apart on a card, the
smallest are put together. If the file reaches its size all the same, the oldest of the finest
steps go first.
"""

import sqlite3
from pathlib import Path

from nvshared.history.figures import MOST, Batch, Party, Used, joined
from nvshared.history.file import PAGE, File, number, transaction
from nvshared.scheduler.tenants import Usage

FILE_NAME = "history.db"
# Seconds of a step: how many are kept, and how many parties of each, on a card.
STEPS = {60: (2880, 64), 3600: (1488, 256), 86400: (1827, 1024)}
# How many are kept when room is made, as long as that is enough, and then.
FEWEST = {60: 60, 3600: 48, 86400: 1}, dict.fromkeys(STEPS, 1)
LEAST_SIZE = 4 << 20                    # bytes of the file, so that a batch finds room in an eighth
FIELDS = Usage._fields
_SCHEMA = f"""
CREATE TABLE card (id INTEGER PRIMARY KEY, uuid TEXT NOT NULL UNIQUE);
CREATE TABLE party (id INTEGER PRIMARY KEY, uid INTEGER NOT NULL, user TEXT NOT NULL,
    tenant TEXT NOT NULL, UNIQUE (uid, user, tenant));
CREATE TABLE step (id INTEGER PRIMARY KEY, length INTEGER NOT NULL, start INTEGER NOT NULL,
    UNIQUE (length, start));
CREATE TABLE dropped (length INTEGER PRIMARY KEY, start INTEGER NOT NULL);
CREATE TABLE usage (step INTEGER NOT NULL, card INTEGER NOT NULL, party INTEGER NOT NULL,
    {", ".join(f"{name} INTEGER NOT NULL" for name in FIELDS)},
    PRIMARY KEY (step, card, party)) WITHOUT ROWID;
"""
_ADD = (
    f"INSERT INTO usage VALUES ({', '.join('?' * (3 + len(FIELDS)))}) ON CONFLICT DO UPDATE SET "
    + ", ".join(f"{name} = min({name} + excluded.{name}, {MOST})" for name in FIELDS)
)
_DROPPED = (
    "INSERT INTO dropped VALUES (?, ?) ON CONFLICT DO UPDATE SET start = max(start, excluded.start)"
)
_ROWS = (
    f"SELECT uid, user, tenant, {', '.join(FIELDS)} FROM usage JOIN party ON party.id = party "
    "WHERE step = ? AND card = ?"
)


class Store:
    """All errors that are no fault of ours come as sqlite3.Error or OSError."""

    def __init__(self, path: Path, size: int) -> None:
        """`size`: bytes that the file may have at most."""
        pages = max(size, LEAST_SIZE) // PAGE
        self.file = File(path, pages, _SCHEMA, f"{_ROWS} LIMIT 0".replace("?", "0"))

    def add(self, batches: list[tuple[int, Batch]]) -> None:
        """Adds what was used in some minutes: all of it or, if this raises, nothing."""
        with self.file.opened() as file:
            self._make_room(file)
            with transaction(file):
                for start, batch in batches:
                    for length in STEPS:
                        self._add(file, length, start - start % length, batch)

    def _add(self, file: sqlite3.Connection, length: int, start: int, batch: Batch) -> None:
        file.execute("INSERT OR IGNORE INTO step (length, start) VALUES (?, ?)", (length, start))
        step = number(file, "SELECT id FROM step WHERE length = ? AND start = ?", length, start)
        kept, most = STEPS[length]
        for uuid, used in batch.items():
            file.execute("INSERT OR IGNORE INTO card (uuid) VALUES (?)", (uuid,))
            card = number(file, "SELECT id FROM card WHERE uuid = ?", uuid)
            _put(file, step, card, used)
            there = "SELECT count(*) FROM usage WHERE step = ? AND card = ?"
            if number(file, there, step, card) > most:
                rows = file.execute(_ROWS, (step, card)).fetchall()
                file.execute("DELETE FROM usage WHERE step = ? AND card = ?", (step, card))
                _put(file, step, card, joined(
                    {Party(*row[:3]): Usage(*row[3:]) for row in rows}, most))
        self._drop(file, length, kept)

    def _make_room(self, file: sqlite3.Connection) -> None:
        """Drops the oldest until a batch will surely find room."""
        for length, least in (one for fewest in FEWEST for one in fewest.items()):
            while self._used_pages(file) > self.file.pages * 7 // 8:
                there = number(file, "SELECT count(*) FROM step WHERE length = ?", length)
                if there <= least:
                    break
                with transaction(file):
                    self._drop(file, length, max(least, there * 7 // 8))
        if number(file, "PRAGMA page_count") > self.file.pages:    # it was allowed more before
            file.executescript("PRAGMA incremental_vacuum")     # execute() would free one page
            file.execute(f"PRAGMA max_page_count = {self.file.pages}").fetchall()

    def _used_pages(self, file: sqlite3.Connection) -> int:
        return number(file, "PRAGMA page_count") - number(file, "PRAGMA freelist_count")

    def _drop(self, file: sqlite3.Connection, length: int, kept: int) -> None:
        """All but the latest steps of this length, in the order in which they were begun."""
        old = file.execute(
            "SELECT id, start FROM step WHERE length = ? ORDER BY id DESC LIMIT -1 OFFSET ?",
            (length, kept)).fetchall()
        for step, start in old:
            file.execute("DELETE FROM usage WHERE step = ?", (step,))
            file.execute("DELETE FROM step WHERE id = ?", (step,))
            file.execute(_DROPPED, (length, start))
        if old and length > min(STEPS):         # not each minute
            file.execute("DELETE FROM party WHERE id NOT IN (SELECT party FROM usage)")


def _put(file: sqlite3.Connection, step: int, card: int, used: Used) -> None:
    file.executemany("INSERT OR IGNORE INTO party (uid, user, tenant) VALUES (?, ?, ?)", used)
    which = "SELECT id FROM party WHERE uid = ? AND user = ? AND tenant = ?"
    file.executemany(_ADD, (
        (step, card, number(file, which, *party), *usage) for party, usage in used.items()))
