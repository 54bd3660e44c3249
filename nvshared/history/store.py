# SPDX-License-Identifier: Apache-2.0
"""The usage of tenants in an sqlite3 file of limited size: adding, storing and querying it.

Usage is added to a minute, an hour and a day, called steps. Of each length the steps inserted last
are kept, so a wrong clock deletes no data. An unusable file is renamed; a full file loses minutes
first. Errors of other causes are raised as sqlite3.Error or OSError."""

import logging
import os
import sqlite3
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from nvshared.errors import InvalidArgs
from nvshared.kept import aside
from nvshared.scheduler.tenants import Usage

logger = logging.getLogger(__name__)

OTHERS = ""                             # the name in a sum over several users or tenants
NOBODY = -1                             # the uid in a sum over several users
# Maximum of a figure; programs choose some figures. Seven times MOST fits sqlite's 64-bit integers.
MOST = 1 << 60


class Party(NamedTuple):
    uid: int
    user: str                           # the user's name, as far as it was known, else the number
    tenant: str                         # KIND:NAME, the most specific tenant; users by number


EVERYBODY = Party(NOBODY, OTHERS, OTHERS)
Used = dict[Party, Usage]
Batch = dict[str, Used]                 # usage by UUID of the GPU


class Query(NamedTuple):
    """A query. Times in seconds of the wall clock."""

    since: int
    until: int
    step: int                           # seconds per row; 0: one row for the whole time
    by: str                             # user, tenant or gpu
    card: str = ""                      # UUID of a GPU; "": all GPUs
    uid: int | None = None              # only this user's usage; None: everyone's
    most: int = 0                       # most names, those with the most usage; 0: MOST_NAMES


class UsageRow(NamedTuple):
    start: int                          # seconds since 1970
    name: str                           # user, tenant or card's UUID; OTHERS: a sum of several
    user: str                           # the tenant's user; OTHERS: several users, or no tenant
    usage: Usage


class QueryResult(NamedTuple):
    """A query's result; `since`, `until` and `step` are rounded to the steps that are kept."""

    since: int
    until: int
    step: int                           # seconds per row; 0: one row for the whole time
    rows: list[UsageRow]
    missing: str = ""                   # why the latest usage is missing; "": nothing is missing


def add(to: Used, party: Party, usage: Usage) -> None:
    """Adds usage to that of a party; each figure is at most MOST."""
    before = to.get(party, Usage())
    to[party] = Usage(*(min(a + b, MOST) for a, b in zip(before, usage, strict=True)))


def joined(used: Mapping[Party, Usage], most: int) -> Used:
    """Reduces the number of parties to `most`, by sums over the parties with the least GPU time.

    First all tenants of a user are summed up, then, if that is not enough, all users."""
    kept = dict(used)
    for wider in (lambda party: party._replace(tenant=OTHERS), lambda _: EVERYBODY):
        if len(kept) <= most:
            return kept
        largest = sorted(kept, key=lambda one: (kept[one].gpu, kept[one].held, one), reverse=True)
        # `most - 1` parties stay as they are; the remaining parties are summed up.
        before, kept = kept, {}
        for number, party in enumerate(largest):
            add(kept, party if number < most - 1 else wider(party), before[party])
    return kept

APPLICATION = 0x6E767368                # "nvsh": sqlite's application_id in the header of the file
VERSION = 3                             # a file of version 2 is converted when it is opened
PAGE = 4096
PATIENCE = 1.0                          # seconds to wait for another process's lock
BROKEN = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
UNLIKE_OURS = {*BROKEN, sqlite3.SQLITE_ERROR}      # SQLITE_ERROR: a table or column is missing


class ForeignFile(Exception):
    """The existing file cannot be used as a history; the exception's text is the reason."""


def is_broken(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in BROKEN


def number(file: sqlite3.Connection, query: str, *values: object) -> int:
    return int(file.execute(query, values).fetchone()[0])


FILE_NAME = "history.db"
# By length of a step in seconds: most steps kept, and most parties (Party) per step and GPU.
STEPS = {60: (2880, 64), 3600: (1488, 256), 86400: (1827, 1024)}
# By length: fewest steps that stay in a full file. Table 2 applies if table 1 frees too little.
FEWEST = {60: 60, 3600: 48, 86400: 1}, dict.fromkeys(STEPS, 1)
LEAST_SIZE = 4 << 20                    # bytes; a smaller maximum size is raised to this size
FIELDS = Usage._fields
_SCHEMA = f"""
CREATE TABLE card (id INTEGER PRIMARY KEY, uuid TEXT NOT NULL UNIQUE);
CREATE TABLE party (id INTEGER PRIMARY KEY, uid INTEGER NOT NULL, user TEXT NOT NULL,
    tenant TEXT NOT NULL, UNIQUE (uid, user, tenant));
CREATE TABLE step (id INTEGER PRIMARY KEY, length INTEGER NOT NULL, start INTEGER NOT NULL,
    UNIQUE (length, start));
CREATE TABLE span (length INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL);
CREATE TABLE usage (step INTEGER NOT NULL, card INTEGER NOT NULL, party INTEGER NOT NULL,
    {", ".join(f"{name} INTEGER NOT NULL" for name in FIELDS)},
    PRIMARY KEY (step, card, party)) WITHOUT ROWID;
"""
# Version 2 had the latest dropped step of each length: any earlier step may be dropped, too.
_FROM_VERSION_2 = """
CREATE TABLE span AS SELECT length, 0 AS first, start AS last FROM dropped;
DROP TABLE dropped;
"""
_ADD = (
    f"INSERT INTO usage VALUES ({', '.join('?' * (3 + len(FIELDS)))}) ON CONFLICT DO UPDATE SET "
    + ", ".join(f"{name} = min({name} + excluded.{name}, {MOST})" for name in FIELDS)
)
# Spans of dropped steps. Those of a clock that was years ahead are a span of their own, so they
# hide no later step of the right time.
_WIDEN = (
    "UPDATE span SET first = min(first, :start), last = max(last, :start) "
    "WHERE length = :length AND :start BETWEEN first - :gap AND last + :gap"
)
_DROPPED = "INSERT INTO span VALUES (:length, :start, :start)"
_ROWS = (
    f"SELECT uid, user, tenant, {', '.join(FIELDS)} FROM usage JOIN party ON party.id = party "
    "WHERE step = ? AND card = ?"
)


class HistoryStore:
    """The sqlite3 file at a path, created when needed. Raises sqlite3.Error or OSError."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self.pages = max(size, LEAST_SIZE) // PAGE
        self.unused = ""                # why an earlier file was put aside; "": none was
        self._connection: sqlite3.Connection | None = None
        self._open_identity = (0, 0)    # device and inode of the open file

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def opened(self) -> Iterator[sqlite3.Connection]:
        """The open connection. A file that turns out to be broken is renamed (_put_aside)."""
        try:
            yield self._opened()
        except sqlite3.DatabaseError as error:
            self.close()
            if is_broken(error):
                self._put_aside(f"it is broken: {error}")
            raise

    def _opened(self) -> sqlite3.Connection:
        if self._connection is not None and self._open_identity != self._file_identity():
            self.close()                # the file at the path was replaced: writes would be lost
        if self._connection is None:
            try:
                self._connection = self._open_or_create()
            except ForeignFile as reason:
                self._put_aside(str(reason))
                self._connection = self._open_or_create()
            self._open_identity = self._file_identity()
        return self._connection

    def _file_identity(self) -> tuple[int, int]:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return 0, 0
        return found.st_dev, found.st_ino

    def _open_or_create(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists() and not stat.S_ISREG(self.path.stat().st_mode):
            raise ForeignFile("it is no file")
        # Usage is private: only the daemon's user may read the file and its sqlite journal.
        try:
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except PermissionError as error:
            if self.path.exists():
                raise ForeignFile("we may not write to it") from error
            raise
        file = sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None,
                               check_same_thread=False, cached_statements=32)
        try:
            self._check(file)           # before the pragmas, which may write to the file
            for pragma in (
                "journal_mode = TRUNCATE", "synchronous = FULL", "cache_size = -512",
                "temp_store = MEMORY", f"max_page_count = {self.pages}",
            ):
                file.execute(f"PRAGMA {pragma}").fetchall()
        except sqlite3.DatabaseError as error:
            file.close()
            if error.sqlite_errorcode & 0xFF in UNLIKE_OURS:
                raise ForeignFile(f"it is broken: {error}") from error
            raise
        except BaseException:
            file.close()
            raise
        return file

    def _check(self, file: sqlite3.Connection) -> None:
        """Raises ForeignFile unless nvshared made the file. Makes tables in an empty file.

        A failed write to a full disk can leave a page without tables, which counts as empty, too.
        """
        identity = number(file, "PRAGMA application_id")
        if not identity and not number(file, "SELECT count(*) FROM sqlite_schema"):
            file.execute(f"PRAGMA page_size = {PAGE}")
            file.execute("PRAGMA auto_vacuum = INCREMENTAL")
            _change_tables(file, _SCHEMA)
        if number(file, "PRAGMA application_id") != APPLICATION:
            raise ForeignFile("another program made it")
        if (version := number(file, "PRAGMA user_version")) not in (2, VERSION):
            raise ForeignFile(f"it is of version {version}, and we know {VERSION}")
        file.execute(f"{_ROWS} LIMIT 0".replace("?", "0")).fetchall()  # checks that columns exist
        ((answer,),) = file.execute("PRAGMA quick_check(1)").fetchall()
        if answer != "ok":
            raise ForeignFile(f"it is broken: {' '.join(answer.split())}")
        if version != VERSION:
            _change_tables(file, _FROM_VERSION_2)

    def _put_aside(self, reason: str) -> None:
        """Renames the file, so that people can examine it. Raises OSError."""
        self.close()
        try:
            new = aside(self.path)
        except OSError as error:
            raise OSError(f"{reason}; {error}") from None
        self.path.rename(new)
        with suppress(FileNotFoundError):   # sqlite's journal of an interrupted write, if any
            journal = self.path.with_name(f"{self.path.name}-journal")
            journal.rename(new.with_name(f"{new.name}-journal"))
        self.unused = f"{self.path}: {reason}"
        logger.warning("%s is put aside as %s and a new history begun: %s",
                       self.path, new.name, reason)

    def add(self, batches: list[tuple[int, Batch]]) -> None:
        with self.opened() as file:
            self._make_room(file)
            with file:
                file.execute("BEGIN IMMEDIATE")
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
        """Deletes the oldest steps until an eighth of the pages is free, so that a batch fits."""
        for length, least in (one for fewest in FEWEST for one in fewest.items()):
            while number(file, "PRAGMA page_count") - number(
                    file, "PRAGMA freelist_count") > self.pages * 7 // 8:
                there = number(file, "SELECT count(*) FROM step WHERE length = ?", length)
                if there <= least:
                    break
                with file:
                    file.execute("BEGIN IMMEDIATE")
                    self._drop(file, length, max(least, there * 7 // 8))
        if number(file, "PRAGMA page_count") > self.pages:    # the maximum size was reduced
            file.executescript("PRAGMA incremental_vacuum")     # execute() would free one page
            file.execute(f"PRAGMA max_page_count = {self.pages}").fetchall()

    def _drop(self, file: sqlite3.Connection, length: int, kept: int) -> None:
        """Deletes all but the `kept` steps of this length that were begun last."""
        old = file.execute("SELECT id, start FROM step WHERE length = ? ORDER BY id DESC LIMIT -1 "
                           "OFFSET ?", (length, kept)).fetchall()
        for step, start in old:
            file.execute("DELETE FROM usage WHERE step = ?", (step,))
            file.execute("DELETE FROM step WHERE id = ?", (step,))
            span = {"length": length, "start": start, "gap": length * STEPS[length][0]}
            if not file.execute(_WIDEN, span).rowcount:
                file.execute(_DROPPED, span)
        if old and length > min(STEPS):         # the query is too slow for each minute
            file.execute("DELETE FROM party WHERE id NOT IN (SELECT party FROM usage)")


def _change_tables(file: sqlite3.Connection, statements: str) -> None:
    """Makes the tables of VERSION by statements that end with semicolons."""
    with file:
        file.execute("BEGIN IMMEDIATE")
        for statement in statements.split(";")[:-1]:
            file.execute(statement)
        file.execute(f"PRAGMA application_id = {APPLICATION}")
        file.execute(f"PRAGMA user_version = {VERSION}")


def _put(file: sqlite3.Connection, step: int, card: int, used: Used) -> None:
    file.executemany("INSERT OR IGNORE INTO party (uid, user, tenant) VALUES (?, ?, ?)", used)
    which = "SELECT id FROM party WHERE uid = ? AND user = ? AND tenant = ?"
    file.executemany(_ADD, (
        (step, card, number(file, which, *party), *usage) for party, usage in used.items()))


NAMES = {"user": "user", "tenant": "tenant", "gpu": "uuid"}
MOST_NAMES = 1000
MOST_ROWS = 20_000                      # most rows of a result
LATEST = 1 << 40                        # largest end of a query in seconds since 1970, and step

# Users are stored by number, and shown by the name that was known. Use from a time without a known
# name counts for the latest name; names are not joined otherwise, as a number may get another user.
# total() adds as floating point, so it cannot overflow. Temporary tables have the order of the
# joins: sqlite would compare each row of usage with each party, as it expects few rows.
_TABLES = """
CREATE TEMP TABLE identity (id INTEGER PRIMARY KEY, uid, user, tenant);
CREATE TEMP TABLE part (first, name, low, high, {fields});
CREATE TEMP TABLE largest (name PRIMARY KEY) WITHOUT ROWID;
""".format(fields=", ".join(FIELDS))
_WHO = """
INSERT INTO identity
WITH called AS (
    SELECT uid, user AS latest, max(id) FROM party WHERE user != CAST(uid AS TEXT) GROUP BY uid),
known AS (
    SELECT id, uid, iif(user = CAST(uid AS TEXT), coalesce(latest, user), user) AS user, tenant
    FROM party LEFT JOIN called USING (uid) WHERE :uid IS NULL OR uid = :uid)
SELECT id, uid, user, CASE
    WHEN tenant = 'user:' || uid THEN 'user:' || user
    WHEN tenant LIKE 'unit:' || uid || '/%' OR tenant LIKE 'container:' || uid || '/%'
    THEN substr(tenant, 1, instr(tenant, ':')) || user || substr(tenant, instr(tenant, '/'))
    ELSE tenant END
FROM known
"""
# The users of a row are the same if the first and last in the alphabet are.
_PART = f"""
INSERT INTO part
WITH piece (long, low, high) AS (VALUES {{pieces}})
SELECT :since + (start - :since) / :step * :step AS first, {{name}} AS shown, min(user), max(user),
    {", ".join(f"total({name})" for name in FIELDS)}
FROM piece CROSS JOIN step ON length = long AND start >= piece.low AND start < piece.high
CROSS JOIN usage ON usage.step = step.id CROSS JOIN identity ON identity.id = party
CROSS JOIN card ON card.id = card
WHERE :card = '' OR uuid = :card
GROUP BY first, shown
"""
_LARGEST = """
INSERT INTO largest SELECT name FROM part WHERE name != ''
GROUP BY name ORDER BY total(gpu) DESC, total(held) DESC, name LIMIT :most
"""
_ROWS_OF_RESULT = f"""
SELECT first, CASE WHEN name IN largest THEN name ELSE '' END AS shown,
    CASE WHEN min(low) = max(high) THEN min(low) ELSE '' END,
    {", ".join(f"CAST(total({name}) AS INTEGER)" for name in FIELDS)}
FROM part GROUP BY first, shown
ORDER BY first, shown = '', total(gpu) DESC, total(held) DESC, shown
LIMIT {MOST_ROWS + 1}
"""


def validate(query: Query) -> None:
    if query.by not in NAMES:
        raise InvalidArgs(f"the history cannot be shown by {query.by!r}",
                          f"give {', '.join(NAMES)}")
    if query.until > LATEST or query.step > LATEST:
        raise InvalidArgs(
            f"the history knows no time of {max(query.until, query.step)} seconds",
            f"give an end and a step of at most {LATEST} seconds")
    if not 0 <= query.since < query.until:
        raise InvalidArgs("the time that is asked for ends before it begins", "give a later end")


def find(file: sqlite3.Connection, query: Query) -> QueryResult:
    """Runs a query. Raises InvalidArgs if the result would have too many rows."""
    file.execute("BEGIN")               # all statements read the same minutes
    try:
        return _find(file, query)
    finally:
        file.rollback()                 # drops the temporary tables, too


def _find(file: sqlite3.Connection, query: Query) -> QueryResult:
    # By length of a step: the time from which on all steps of this length are kept, up to the end
    # of the query, which is rounded up to a whole step of any length.
    end = query.until + max(STEPS)
    dropped = dict(file.execute(
        "SELECT length, max(last) FROM span WHERE first < ? GROUP BY length", (end,)).fetchall())
    kept = {length: dropped.get(length, -length) + length for length in STEPS}
    since, until, reach = _rounded(kept, query.since, query.until)
    step = -(-query.step // reach) * reach
    # Lengths of steps that fill each row of the result exactly.
    lengths = [one for one in STEPS if not step or step % one == since % one == 0]
    pieces = [*_pieces(kept, sorted(lengths, reverse=True), since, until)]
    values = {
        "since": since, "step": step or until - since, "card": query.card, "uid": query.uid,
        "most": min(query.most or MOST_NAMES, MOST_NAMES)}
    part = _PART.format(pieces=", ".join(map(str, pieces)) or "(0, 0, 0)", name=NAMES[query.by])
    for table in _TABLES.split(";")[:-1]:
        file.execute(table)
    for statement in (_WHO, part, _LARGEST):
        file.execute(statement, values)
    rows = file.execute(_ROWS_OF_RESULT, values).fetchall()
    if len(rows) > MOST_ROWS:
        raise InvalidArgs(f"the answer would have more than {MOST_ROWS} lines",
                          "ask for a shorter time, longer steps, or fewer names")
    by_tenant = query.by == "tenant"
    return QueryResult(since, until, step, [
        UsageRow(start, name, user if by_tenant else OTHERS, Usage(*sums))
        for start, name, user, *sums in rows])


def _rounded(kept: dict[int, int], since: int, until: int) -> tuple[int, int, int]:
    """Rounds both ends outwards to the finest steps kept there. Also returns the first length."""
    lengths = sorted(STEPS)
    begin = next((one for one in lengths if kept[one] <= since), lengths[0])
    end = lengths[-1]
    for coarser, finer in pairwise(reversed(lengths)):
        if kept[finer] > until - until % coarser:
            break
        end = finer
    return since - since % begin, -(-until // end) * end, begin


def _pieces(kept: dict[int, int], lengths: list[int], since: int,
            until: int) -> Iterator[tuple[int, int, int]]:
    """Covers a time span with pieces (length, beginning, end) of the coarsest possible steps."""
    if not lengths or since >= until:
        return
    length, *finer = lengths
    low = -(-max(since, kept[length]) // length) * length
    high = until - until % length
    if low < high:
        yield length, low, high
        yield from _pieces(kept, finer, since, low)
        yield from _pieces(kept, finer, high, until)
    else:
        yield from _pieces(kept, finer, since, until)
