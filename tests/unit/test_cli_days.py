# SPDX-License-Identifier: Apache-2.0
"""nvsharectl history --step day: a line for each day of the local time zone, whatever its length.

The hours come from a store of nvshared; each hour has as many seconds of GPU time as the day."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pytest

from nvshared.cli.days import DAY, by_days, edges
from nvshared.control.snapshot import UsageTable, history
from nvshared.history import store as stored
from nvshared.history.store import HistoryStore, Party, Query
from nvshared.scheduler.tenants import Usage
from nvshared.units import SECOND

pytestmark = pytest.mark.skipif(
    not Path("/usr/share/zoneinfo/Africa/Cairo").exists(), reason="there is no tzdata")

CARD = "GPU-1"
HOURS = 24 * 12
Zone = Callable[[str], None]


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Zone]:
    def use(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield use
    monkeypatch.undo()
    time.tzset()


def moment(day: str) -> int:
    return int(datetime.fromisoformat(day).timestamp() * SECOND)


def used(user: str, hour: int) -> tuple[Party, Usage]:
    zero = Usage(*[0] * len(Usage._fields))
    return Party(len(user), user, f"user:{user}"), zero._replace(gpu=hour, held=1)


def keep(path: Path, first: int, hours: int = HOURS) -> Callable[[int, int, int, int], UsageTable]:
    """A history from `first` (us) on: hour N has N + 1 us of alice and 1 of each of three others.

    Returns what asks for it, as Daemon.history() does."""
    kept = HistoryStore(path / "history.db", 1 << 26)
    with closing(kept):
        kept.add([(first // SECOND + 3600 * hour, {CARD: dict(
            [used("alice", hour + 1), *(used(name, 1) for name in ("bob", "carol", "dave"))])})
            for hour in range(hours)])

    def ask(since: int, until: int, step: int, names: int) -> UsageTable:
        with closing(kept), kept.opened() as file:
            found = stored.find(file, Query(
                since // SECOND, -(-until // SECOND), step // SECOND, "user", most=names))
        return history(found.since * SECOND, found.until * SECOND, found.step * SECOND, [
            [row.start * SECOND, row.name, row.user, *row.usage] for row in found.rows], "")

    return ask


@pytest.mark.parametrize(("name", "first", "change", "hours"), [
    ("Europe/Berlin", "2025-10-20", "2025-10-26", 25),
    ("Europe/Berlin", "2025-03-25", "2025-03-30", 23),
    ("America/New_York", "2025-10-30", "2025-11-02", 25),
    ("America/Havana", "2025-10-30", "2025-11-02", 25),     # 1:00 becomes 0:00, so 0:00 comes twice
    ("Africa/Cairo", "2025-04-20", "2025-04-25", 23),       # 0:00 becomes 1:00
    ("Asia/Tokyo", "2025-10-20", "2025-10-26", 24),
    ("UTC", "2025-10-20", "2025-10-26", 24),
])
def test_history_by_day_has_a_row_for_each_local_day_when_clocks_change(
        tmp_path: Path, zone: Zone, name: str, first: str, change: str, hours: int) -> None:
    zone(name)
    ask = keep(tmp_path, moment(first))
    last = moment(first) + HOURS * 3600 * SECOND
    found = by_days(ask, moment(first), last, DAY, 0)
    alice = [row for row in found.rows if row.name == "alice"]
    days = [datetime.fromtimestamp(row.start_usec / SECOND).date().isoformat() for row in alice]
    assert days == sorted(set(days))
    assert [row.start_usec for row in alice] == edges(moment(first), last, DAY)[:-1]
    (odd,) = (row for row, day in zip(alice, days, strict=True) if day == change)
    assert found.length(odd) == hours * 3600 * SECOND
    assert odd.held_usec == hours
    assert sum(row.gpu_usec for row in alice) == HOURS * (HOURS + 1) // 2
    # The names beyond the two with the most GPU time are summed up, the same ones on each day.
    few = by_days(ask, moment(first), last, DAY, 2).rows
    assert {row.name for row in few} == {"alice", "bob", ""}
    assert sum(row.gpu_usec for row in few) == sum(row.gpu_usec for row in found.rows)
    assert [row.held_usec for row in few if row.name == ""] == [
        2 * row.held_usec for row in few if row.name == "bob"]
    # Steps of several days begin at a midnight, too.
    weeks = by_days(ask, moment(first), last, 7 * DAY, 0)
    assert {datetime.fromtimestamp(row.start_usec / SECOND).hour for row in weeks.rows} <= {
        0, 1 if name == "Africa/Cairo" else 0}
    assert sum(row.gpu_usec for row in weeks.rows) == sum(row.gpu_usec for row in found.rows)


@pytest.mark.parametrize("name", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe",
                                  "Asia/Kolkata"])
def test_history_by_day_counts_no_hour_twice_where_hours_are_rounded_or_no_longer_kept(
        tmp_path: Path, zone: Zone, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    zone(name)
    monkeypatch.setattr(stored, "STEPS", {60: (48, 64), 3600: (48, 256), 86400: (1827, 1024)})
    first = moment("2025-10-20")
    ask = keep(tmp_path, first)
    for since in ("2025-10-20", "2025-10-24", "2025-10-30"):
        found = by_days(ask, moment(since), first + HOURS * 3600 * SECOND, DAY, 0)
        whole = ask(found.since_usec, found.until_usec, 0, 0)
        assert sum(row.gpu_usec for row in found.rows) == sum(row.gpu_usec for row in whole.rows)
