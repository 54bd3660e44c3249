# SPDX-License-Identifier: Apache-2.0
"""The history of usage: collecting, merging and queries."""

import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvshared.errors import InvalidArgs
from nvshared.history import History, HistoryFile
from nvshared.history import store as stored
from nvshared.history.store import (
    EVERYBODY,
    MOST,
    STEPS,
    Batch,
    HistoryStore,
    Party,
    Query,
    Used,
    find,
)
from nvshared.machine.nvml import Sample
from nvshared.machine.tenant import Kind, Tenant
from nvshared.scheduler.tenants import Usage
from nvshared.sharing.gpu import Client
from nvshared.sharing.manager import Manager
from nvshared.units import SECOND
from tests.unit.scripted import DEFAULTS, FACTS, OTHER, Noted, Scripted, Time, script
from tests.unit.scripted import joined as join

pytestmark = pytest.mark.usefixtures("closed_files")

DAY = 86400
NOON = 20_000 * DAY + DAY // 2
ALICE = Party(1000, "alice", "user:alice")
JOB = Party(1000, "alice", "job:7")
BOB = Party(1001, "bob", "user:bob")
UUID = FACTS.uuid


def used(gpu: int, **more: int) -> Usage:
    return Usage(gpu=gpu, **more)


PARTIES = st.builds(
    lambda uid, tenant: Party(uid, f"u{uid}", tenant),
    st.integers(0, 6), st.sampled_from(["", "job:1", "job:2", "job:3", "unit:a.service"]))
USED = st.dictionaries(PARTIES, st.builds(Usage, *[st.integers(0, 1000)] * 12), max_size=25)


@settings(max_examples=50)
@given(USED, st.integers(1, 12))
def test_merged_history_entries_keep_the_sum_of_usage(parties: Used, most: int) -> None:
    found = stored.joined(parties, most)
    assert len(found) <= max(most, 0)
    assert [sum(one) for one in zip(*found.values(), strict=True)] == [
        sum(one) for one in zip(*parties.values(), strict=True)]
    if len(parties) <= most:
        assert found == parties
    by_user: Counter[int] = Counter()
    for party, usage in found.items():
        by_user[party.uid] += usage.gpu
    for uid in {party.uid for party in parties}:
        own = sum(usage.gpu for party, usage in parties.items() if party.uid == uid)
        # The merged tenants of a user stay under that user while users are few.
        assert by_user[uid] == own or (EVERYBODY in found and by_user[uid] <= own)


class Batches(HistoryFile):
    def __init__(self) -> None:
        self.batches: list[tuple[int, Batch]] = []

    def keep(self, start: int, batch: Batch) -> None:
        self.batches += [(start, batch)] if batch else []

    def close(self) -> None:
        pass


class Machine:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        script(monkeypatch)
        self.time = Time()
        self.set = NOON - self.time.now / SECOND
        self.usage: dict[int, Usage] = {}
        monkeypatch.setattr(
            Scripted, "usage", lambda _, client, now: self.usage.get(client, Usage()))
        self.history_file = Batches()
        self.batches = self.history_file.batches
        manager = Manager(lambda: DEFAULTS, self.time.clock, self.time.timer)
        self.gpus = [manager.add(facts, Sample(), gather=False) for facts in (FACTS, OTHER)]
        self.history = History(self.history_file, self.time.clock, self.time.timer, self.wall)
        for gpu in self.gpus:
            self.history.follow(gpu)
        self.ids = iter(range(1, 1000))

    def wall(self) -> float:
        return self.set + self.time.now / SECOND

    def joins(self, party: Party, gpu: int = 0) -> Client:
        kind, name = party.tenant.split(":")
        client = join(self.gpus[gpu], next(self.ids), Noted())
        client.peer = replace(client.peer, owner=party.uid, tenants=(
            Tenant(Kind.USER, party.user), *([Tenant(Kind(kind), name)] if kind != "user" else [])))
        return client


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_history_passes_the_usage_of_each_minute_to_the_store_once(machine: Machine) -> None:
    machine.time.pass_by(3600 * SECOND)     # no client for an hour
    machine.set -= 3600
    alice, bob = machine.joins(ALICE), machine.joins(BOB, 1)
    machine.time.pass_by(20 * SECOND)
    machine.usage = {alice.id: used(9, turns=1), bob.id: used(4)}
    machine.time.pass_by(60 * SECOND)
    assert machine.batches == [
        (NOON, {UUID: {ALICE: used(9, turns=1)}, OTHER.uuid: {BOB: used(4)}})]
    machine.usage[alice.id] = used(15, turns=1)
    machine.time.pass_by(60 * SECOND)
    assert machine.batches[1:] == [(NOON + 60, {UUID: {ALICE: used(6)}})]
    machine.time.pass_by(600 * SECOND)      # without usage no batch is written
    assert len(machine.batches) == 2


def test_history_stores_usage_of_programs_that_end_within_a_minute(machine: Machine) -> None:
    client = machine.joins(JOB)
    machine.time.pass_by(SECOND)
    machine.usage[client.id] = used(7)
    machine.gpus[0].leave(client)
    machine.usage.clear()
    second = machine.joins(JOB)
    machine.usage[second.id] = used(5)
    machine.gpus[0].leave(second)
    assert not machine.batches
    machine.time.pass_by(60 * SECOND)
    assert machine.batches == [(NOON, {UUID: {JOB: used(12)}})]


def test_history_counts_usage_for_its_minute_when_a_client_joins_before_the_late_timer(
        machine: Machine) -> None:
    alice = machine.joins(ALICE)
    machine.time.pass_by(60 * SECOND)
    machine.usage[alice.id] = used(9)
    machine.time.now += 61 * SECOND     # the event loop was busy when the minute ended
    machine.joins(BOB)
    machine.time.pass_by(0)
    assert machine.batches == [(NOON + 60, {UUID: {ALICE: used(9)}})]


def test_history_loses_no_usage_when_the_clock_is_set(machine: Machine) -> None:
    client = machine.joins(ALICE)
    machine.time.pass_by(60 * SECOND)
    for number, jump in enumerate((-3600, +7200, -10 * DAY, 0), 1):
        machine.set += jump
        machine.usage[client.id] = used(number)
        machine.time.pass_by(60 * SECOND)
    assert [batch for _, batch in machine.batches] == [{UUID: {ALICE: used(1)}}] * 4
    starts = [start for start, _ in machine.batches]
    assert starts[1] - starts[0] == pytest.approx(7200, abs=120)
    assert all(start % 60 == 0 for start in starts)


def test_history_clamps_impossible_figures_of_a_client(machine: Machine) -> None:
    client = machine.joins(ALICE)
    for number in (1, 2):
        machine.usage[client.id] = used(0, bytes_in=number << 70)
        machine.history.close()
    assert {batch[UUID][ALICE].bytes_in for _, batch in machine.batches} == {MOST}


@pytest.fixture
def store(tmp_path: Path) -> HistoryStore:
    return HistoryStore(tmp_path / "history.db", 64 << 20)


def found(store: HistoryStore, since: int, until: int, step: int = 0, by: str = "user", **more: Any
          ) -> list[tuple[int, str, int]]:
    query = Query(since, until, step, by)._replace(**more)
    stored.validate(query)
    with store.opened() as file:
        return [(row.start, row.name, row.usage.gpu) for row in find(file, query).rows]


def test_history_store_finds_usage_by_user_tenant_and_gpu(store: HistoryStore) -> None:
    store.add([
        (NOON, {UUID: {ALICE: used(5), JOB: used(2)}, OTHER.uuid: {BOB: used(4)}}),
        (NOON + 60, {UUID: {ALICE: used(1), BOB: used(1)}})])
    whole = (NOON - 600, NOON + 600)
    start = whole[0]
    assert found(store, *whole) == [(start, "alice", 8), (start, "bob", 5)]
    assert found(store, *whole, by="tenant") == [
        (start, "user:alice", 6), (start, "user:bob", 5), (start, "job:7", 2)]
    assert found(store, *whole, by="gpu") == [(start, UUID, 9), (start, OTHER.uuid, 4)]
    assert found(store, *whole, card=OTHER.uuid) == [(start, "bob", 4)]
    assert found(store, *whole, uid=1001) == [(start, "bob", 5)]
    assert found(store, *whole, uid=7) == []
    assert found(store, *whole, by="tenant", most=1) == [(start, "user:alice", 6), (start, "", 7)]
    assert found(store, NOON, NOON + 120, 60, uid=1001) == [(NOON, "bob", 4), (NOON + 60, "bob", 1)]
    assert found(store, NOON + 61, NOON + 62) == [(NOON + 60, "alice", 1), (NOON + 60, "bob", 1)]
    assert found(store, NOON + 120, NOON + 600) == []
    with store.opened() as file:
        rows = find(file, Query(*whole, 0, "tenant")).rows
    assert [row.user for row in rows] == ["alice", "bob", "alice"]


@settings(max_examples=20)
@given(
    st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 9)), min_size=1, max_size=25),
    st.sampled_from([(9, 9, 9), (99, 9, 9), (9, 99, 9), (99, 99, 99)]),
    st.lists(st.tuples(
        st.integers(-2000, 5000), st.integers(1, 6000), st.sampled_from([0, 1, 60, 90, 1440])),
        min_size=1, max_size=8),
)
def test_history_query_of_a_random_period_counts_each_stored_minute_once(
        said: list[tuple[int, int]], kept: tuple[int, ...],
        questions: list[tuple[int, int, int]]) -> None:
    """Compared with a plain list of all usage: each stored minute counts once."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        for (length, (_, parties)), most in zip([*STEPS.items()], kept, strict=True):
            patch.setitem(STEPS, length, (most, parties))
        store = HistoryStore(Path(folder) / "history.db", 0)
        store.add([(NOON + minute * 60, {UUID: {ALICE: used(gpu)}}) for minute, gpu in said])
        with store.opened() as file:
            coarsest = DAY + file.execute(
                "SELECT coalesce(max(last), 0) FROM span WHERE length = ?", (DAY,)).fetchone()[0]
            for back, minutes, step in questions:
                since = max(NOON + back * 60, coarsest)
                query = Query(since, since + minutes * 60, step * 60, "user")
                answer = find(file, query)
                assert answer.since <= query.since < query.until <= answer.until
                assert query.since - answer.since < DAY
                assert answer.until - query.until < DAY
                sums: Counter[int] = Counter()
                for minute, gpu in said:
                    at = NOON + minute * 60 - answer.since
                    whole = answer.step or answer.until - answer.since
                    if 0 <= at < answer.until - answer.since:
                        sums[answer.since + at // whole * whole] += gpu
                assert {row.start: row.usage.gpu for row in answer.rows} == sums
                if all(len(said) <= most for most in kept):
                    assert (answer.since, answer.until) == (query.since, query.until)
        store.close()


@pytest.mark.parametrize("minutes", [1, 20])    # of wrong time; 20 fill the steps that are kept
def test_history_keeps_minutes_of_the_right_time_after_a_clock_was_years_ahead(
        store: HistoryStore, monkeypatch: pytest.MonkeyPatch, minutes: int) -> None:
    monkeypatch.setitem(STEPS, 60, (9, 9))
    monkeypatch.setitem(STEPS, 3600, (9, 9))
    ahead = NOON + 3650 * DAY
    starts = [*range(ahead, ahead + minutes * 60, 60), *range(NOON, NOON + 20 * 60, 60)]
    for start in starts:
        store.add([(start, {UUID: {ALICE: used(1)}})])
    latest = NOON + 15 * 60, NOON + 20 * 60
    assert found(store, *latest, 60) == [(start, "alice", 1) for start in starts[-5:]]
    assert found(store, NOON - 30 * DAY, NOON + DAY) == [(NOON - 30 * DAY, "alice", 20)]
    assert [gpu for _, _, gpu in found(store, ahead, ahead + minutes * 60)] == [minutes]


def test_history_shows_users_by_the_name_known_then_or_later(store: HistoryStore) -> None:
    known = (Party(1000, "alice", "user:1000"), Party(1000, "alice", "unit:1000/x.service"),
             Party(1000, "alice", "user:alice"), Party(7, "7", "container:7/9f1c"))
    unknown = (Party(1000, "1000", "user:1000"), Party(1000, "1000", "container:1000/9f1c"),
               Party(1000, "1000", "job:7"))
    other = (Party(1000, "bob", "user:1000"),)      # the number went to another user
    for number, parties in enumerate((unknown, known, other)):
        store.add([(NOON + 60 * number, {UUID: {one: used(1) for one in parties}})])
    whole = NOON, NOON + 180
    assert {one[1:] for one in found(store, *whole, by="user")} == {
        ("bob", 4), ("alice", 3), ("7", 1)}
    assert {one[1:] for one in found(store, *whole, by="tenant")} == {
        ("user:bob", 2), ("user:alice", 2), ("unit:alice/x.service", 1), ("job:7", 1),
        ("container:bob/9f1c", 1), ("container:7/9f1c", 1)}


@pytest.mark.parametrize(("query", "sentence"), [
    (Query(5, 5, 0, "user"), "ends before it begins"),
    (Query(-1, 5, 0, "user"), "ends before it begins"),
    (Query(0, 1 << 62, 0, "user"), "knows no time of 4611686018427387904 seconds"),
    (Query(0, 9, (1 << 40) + 1, "user"), "knows no time of 1099511627777 seconds"),
    (Query(0, 9, 0, "colour"), "cannot be shown by 'colour'; give user, tenant, gpu"),
])
def test_history_query_with_invalid_values_is_refused(query: Query, sentence: str) -> None:
    with pytest.raises(InvalidArgs, match=sentence):
        stored.validate(query)


def test_history_query_beyond_the_maximum_number_of_rows_is_refused(
        store: HistoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nvshared.history.store.MOST_ROWS", 10)
    store.add([(NOON + 60 * number, {UUID: {ALICE: used(1)}}) for number in range(11)])
    with pytest.raises(InvalidArgs, match="more than 10 lines; ask for a shorter time"):
        found(store, NOON, NOON + 3600, 60)
    assert len(found(store, NOON, NOON + 600, 60)) == 10


def test_history_store_keeps_a_bounded_number_of_steps_and_tenants(
        store: HistoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STEPS, 60, (5, 3))
    many = {Party(uid, f"u{uid}", f"user:u{uid}"): used(uid) for uid in range(1, 9)}
    for number in range(9):
        store.add([(NOON + 60 * number, {UUID: many})])
    with store.opened() as file:
        lengths = Counter(length for (length,) in file.execute("SELECT length FROM step"))
        most = file.execute(
            "SELECT max(n) FROM (SELECT count(*) AS n FROM usage JOIN step ON step.id = step "
            "WHERE length = 60 GROUP BY step)").fetchone()
    assert lengths == {60: 5, 3600: 1, DAY: 1}
    assert most == (3,)
    assert found(store, NOON + 480, NOON + 540) == [
        (NOON + 480, "u8", 8), (NOON + 480, "u7", 7), (NOON + 480, "", 21)]
    assert sum(gpu for _, _, gpu in found(store, NOON, NOON + 3600)) == 9 * 36
