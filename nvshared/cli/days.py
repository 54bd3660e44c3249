# SPDX-License-Identifier: Apache-2.0
"""Usage by days of the local time zone, which have 23 or 25 hours where clocks are changed.

nvshared knows steps of equal length only. So of a period with a change of clocks each step is asked
for by itself. Times are microseconds since 1970."""

import time as clock
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import date, datetime, time
from itertools import pairwise

from nvshared.control.snapshot import UsageTable, Used
from nvshared.units import SECOND

DAY = 86400 * SECOND
FIRST = date(1970, 1, 1).toordinal()

Ask = Callable[[int, int, int, int], UsageTable]   # since, until, step, names: see Daemon.history()


def midnight(day: int) -> int:
    """When a day begins; the day is counted from 1970-01-01. A missing midnight: at the change."""
    return max(0, int(datetime.combine(
        date.fromordinal(FIRST + day), time.min).timestamp() * SECOND))


def edges(since: int, until: int, step: int) -> list[int]:
    """Where steps of whole days begin, the last one's end included, that hold since to until.

    Steps of several days are counted from 1970-01-01."""
    days = step // DAY
    day = datetime.fromtimestamp(since / SECOND).toordinal() - FIRST
    day -= day % days
    found = [midnight(day)]
    while found[-1] < until:
        day += days
        found.append(midnight(day))
    return found


def by_days(ask: Ask, since: int, until: int, step: int, names: int) -> UsageTable:
    """The usage in steps of local days. `names`: most names, the others are summed up; 0: all.

    The days are those of UTC where nvshared keeps no hours any more."""
    starts = edges(since, max(since + 1, min(until, int(clock.time() * SECOND))), step)
    plain = ask(starts[0], until, step, names)
    is_even = all(end - first == step for first, end in pairwise(starts))
    if is_even or (plain.since_usec, plain.step_usec) != (starts[0], step):
        return plain
    found = []
    for first, end in pairwise(starts):     # at most two months: older hours are not kept
        one = ask(first, min(end, until), 0, 0)
        if one.since_usec != first or one.until_usec > end:
            return plain                # rounded to the hours or days that are kept
        found.append(one)
    rows = [row for one in found for row in one.rows]
    return plain._replace(rows=tuple(_joined(rows, names)), edges_usec=tuple(starts))


def _joined(rows: Sequence[Used], most: int) -> list[Used]:
    """Sums up the rows of the names beyond the `most` (0: all) with the most GPU time."""
    whole: Counter[str] = Counter()
    for row in rows:
        whole[row.name] += row.gpu_usec
    del whole[""]
    names = {name for name, _ in whole.most_common(most or None)}
    found: dict[tuple[int, str], Used] = {}
    for row in rows:
        name = row.name if row.name in names else ""
        key = row.start_usec, name
        before = found.get(key)
        user = row.user if before is None or before.user == row.user else ""
        sums = row[3:] if before is None else map(sum, zip(before[3:], row[3:], strict=True))
        found[key] = Used(row.start_usec, name, user, *sums)
    return sorted(found.values(), key=lambda one: (one.start_usec, not one.name, -one.gpu_usec))
