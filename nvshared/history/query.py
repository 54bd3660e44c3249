# SPDX-License-Identifier: Apache-2.0
"""What is asked of the history: sums over a time, by user, tenant or card, in steps.

A time is put together of days, of hours at its ends and of minutes at theirs: coarse steps are
fewer, and keep more parties apart. Where fine ones have gone, the time is that of coarser ones.
"""

import sqlite3
from collections.abc import Iterator
from itertools import pairwise

from nvshared.errors import InvalidArgs
from nvshared.history.figures import OTHERS, Asked, Found, Row
from nvshared.history.store import FIELDS, STEPS
from nvshared.scheduler.tenants import Usage

NAMES = {"user": "user", "tenant": "tenant", "gpu": "uuid"}
MOST_NAMES = 1000
MOST_ROWS = 20_000                      # of an answer
LATEST = 1 << 40                        # seconds since 1970

# total() cannot overflow, whatever programs have said of themselves.
_SUMS = ", ".join(f"CAST(total({name}) AS INTEGER)" for name in FIELDS)
_QUERY = """
WITH piece (long, low, high) AS (VALUES {pieces}),
part AS (
    SELECT start, {name} AS name, user, {fields} FROM piece
    JOIN step ON length = long AND start >= low AND start < high
    JOIN usage ON usage.step = step.id JOIN party ON party.id = party JOIN card ON card.id = card
    WHERE (:card = '' OR uuid = :card) AND (:uid IS NULL OR uid = :uid)),
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
    """Looks it up. Raises InvalidArgs for what would be too much."""
    kept = _kept(file)
    since, until = _rounded(kept, asked.since, asked.until)
    reach = next((one for one in STEPS if kept[one] <= since), min(STEPS))
    step = -(-asked.step // reach) * reach
    # A step has whole pieces.
    lengths = [one for one in STEPS if not step or step % one == since % one == 0]
    pieces = [*_pieces(kept, sorted(lengths, reverse=True), since, until)]
    query = _QUERY.format(
        pieces=", ".join(map(str, pieces)) or "(0, 0, 0)", name=NAMES[asked.by],
        fields=", ".join(FIELDS), sums=_SUMS, most_rows=MOST_ROWS + 1)
    rows = file.execute(query, {
        "since": since, "step": step or until - since, "card": asked.card, "uid": asked.uid,
        "most": min(asked.most or MOST_NAMES, MOST_NAMES),
    }).fetchall()
    if len(rows) > MOST_ROWS:
        raise InvalidArgs(f"the answer would have more than {MOST_ROWS} lines",
                          "ask for a shorter time, longer steps, or fewer names")
    by_tenant = asked.by == "tenant"
    return Found(since, until, step, [
        Row(start, name, user if by_tenant else OTHERS, Usage(*sums))
        for start, name, user, *sums in rows
    ])


def _kept(file: sqlite3.Connection) -> dict[int, int]:
    """For each length the moment from which on all steps are there."""
    dropped = dict(file.execute("SELECT length, start FROM dropped").fetchall())
    return {length: dropped.get(length, -length) + length for length in STEPS}


def _rounded(kept: dict[int, int], since: int, until: int) -> tuple[int, int]:
    """To the finest steps that are there at both ends."""
    lengths = sorted(STEPS)
    begin = next((one for one in lengths if kept[one] <= since), lengths[0])
    end = lengths[-1]
    for coarser, finer in pairwise(reversed(lengths)):
        if kept[finer] > until - until % coarser:
            break
        end = finer
    return since - since % begin, -(-until // end) * end


def _pieces(
    kept: dict[int, int], lengths: list[int], since: int, until: int
) -> Iterator[tuple[int, int, int]]:
    """Length, beginning and end of what covers a time together, of the coarsest steps that do."""
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
