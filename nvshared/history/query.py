# SPDX-License-Identifier: Apache-2.0
"""What is asked of the history: sums over a time, by user, tenant or card, in steps."""

import sqlite3

from nvshared.errors import InvalidArgs
from nvshared.history.figures import OTHERS, Asked, Found, Row
from nvshared.history.store import FIELDS, STEPS
from nvshared.scheduler.usage import Usage

NAMES = {"user": "user", "tenant": "tenant", "gpu": "uuid"}
MOST_NAMES = 1000
MOST_ROWS = 20_000                      # of an answer
LATEST = 1 << 40                        # seconds since 1970

# total() cannot overflow, whatever programs have said of themselves.
_SUMS = ", ".join(f"CAST(total({name}) AS INTEGER)" for name in FIELDS)
_QUERY = """
WITH part AS (
    SELECT start, {name} AS name, user, {fields} FROM usage
    JOIN step ON step.id = step JOIN party ON party.id = party JOIN card ON card.id = card
    WHERE length = :length AND start >= :since AND start < :until
        AND (:card = '' OR uuid = :card) AND (:uid IS NULL OR uid = :uid)),
largest AS (
    SELECT name FROM part WHERE name != ''
    GROUP BY name ORDER BY total(gpu) DESC, total(held) DESC, name LIMIT :most)
SELECT :since + (start - :since) / :step * :step AS first,
    CASE WHEN name IN largest THEN name ELSE '' END AS shown,
    CASE WHEN min(user) = max(user) THEN min(user) ELSE '' END, {sums}
FROM part GROUP BY first, shown
ORDER BY first, shown = '', total(gpu) DESC, total(held) DESC, shown
LIMIT {most_rows}
"""


def demand(asked: Asked) -> None:
    """Raises InvalidArgs for what makes no sense."""
    if asked.by not in NAMES:
        raise InvalidArgs(f"the history cannot be shown by {asked.by!r}",
                          f"give {', '.join(NAMES)}")
    if not 0 <= asked.since < asked.until <= LATEST:
        raise InvalidArgs("the time that is asked for ends before it begins",
                          "give a later end")


def find(file: sqlite3.Connection, asked: Asked) -> Found:
    """Looks it up in the finest steps that reach back so far. Raises InvalidArgs."""
    length = _length(file, asked.since)
    since = asked.since - asked.since % length
    until = -(-asked.until // length) * length
    step = -(-asked.step // length) * length
    query = _QUERY.format(
        name=NAMES[asked.by], fields=", ".join(FIELDS), sums=_SUMS, most_rows=MOST_ROWS + 1)
    rows = file.execute(query, {
        "length": length, "since": since, "until": until, "step": step or until - since,
        "card": asked.card, "uid": asked.uid, "most": min(asked.most or MOST_NAMES, MOST_NAMES),
    }).fetchall()
    if len(rows) > MOST_ROWS:
        raise InvalidArgs(f"the answer would have more than {MOST_ROWS} lines",
                          "ask for a shorter time, longer steps, or fewer names")
    by_tenant = asked.by == "tenant"
    return Found(since, until, step, [
        Row(start, name, user if by_tenant else OTHERS, Usage(*sums))
        for start, name, user, *sums in rows
    ])


def _length(file: sqlite3.Connection, since: int) -> int:
    """Seconds of the finest steps of which none from this moment on has been dropped."""
    dropped = dict(file.execute("SELECT length, start FROM dropped").fetchall())
    whole = (length for length in STEPS if since >= dropped.get(length, -length) + length)
    return next(whole, max(STEPS))
