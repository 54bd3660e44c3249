# SPDX-License-Identifier: Apache-2.0
"""Stores of swapped blocks on a disk: order, time, size, and commit granted on the disk."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from nvshared.scheduler import Scheduler
from nvshared.scheduler.actions import Action, Store
from nvshared.scheduler.domains import SharedBudget
from nvshared.scheduler.events import (
    Joined,
    Left,
    Memory,
    MemoryChanged,
    Stored,
    TenantChanged,
    TenantTerms,
    Terms,
    TermsChanged,
    Tick,
)
from nvshared.scheduler.turns import STALLED
from nvshared.units import GIB, MIB, SECOND
from tests.unit.scheduler_talk import Talk, limits, runs
from tests.unit.test_scheduler_rows import Row

SHORT = (3, 24, 40, 70, 98, 312)


def with_disk(disk: float, host: float = 64) -> Talk:
    """A scheduler with `disk` GiB of a disk."""
    talk = Talk(80, host, step=1, disk_budget=int(disk * GIB))
    talk.tell(Tick())
    return talk


def stores(actions: Iterable[Action]) -> list[tuple[int, float]]:
    """GiB that each client may store on the disk."""
    return [(a.client, round(a.size / GIB, 1)) for a in actions if isinstance(a, Store)]


def last(talk: Talk, client: int) -> Store:
    return [a for a in talk.said if isinstance(a, Store) and a.client == client][-1]


def idle(talk: Talk, client: int, swapped: float, resident: float = 0) -> list[Action]:
    """Join a client with this much in host memory."""
    talk.memory[client] = Memory(
        int((swapped + resident) * GIB), int(resident * GIB), room=int(resident * GIB),
        host=int(swapped * GIB))
    talk.swapped[client] = int(swapped * GIB)
    return talk.tell(Joined(client, talk.memory[client], commit=int((swapped + resident) * GIB)))


def store(talk: Talk, client: int, size: float = 1000) -> list[Action]:
    """Carry out a client's last STORE, up to these GiB."""
    order, memory = last(talk, client), talk.memory[client]
    more = max(0, min(order.size - memory.disk, memory.host, int(size * GIB)))
    talk.swapped[client] = talk.swapped.get(client, 0) - more
    talk.memory[client] = replace(memory, host=memory.host - more, disk=memory.disk + more)
    return talk.tell(Stored(client, talk.memory[client], order.number))


def test_memory_of_a_client_is_stored_on_disk_once_idle_for_park_after() -> None:
    without = with_disk(0)
    idle(without, 1, 20)
    assert not stores(without.wait(3600))
    talk = with_disk(100)
    idle(talk, 1, 20)
    assert not stores(talk.wait(599))
    assert stores(talk.wait(1)) == [(1, 20.1)]
    assert stores(store(talk, 1)) == [(1, 20)]
    assert not stores(talk.wait(100))
    assert talk.view(1).memory.disk == 20 * GIB


def test_disk_store_is_cancelled_when_the_client_wants_a_turn() -> None:
    talk = with_disk(100)
    idle(talk, 1, 20)
    talk.wait(600)
    store(talk, 1, 5)
    assert stores(talk.want(1)) == [(1, 5)]
    store(talk, 1)
    assert talk.scheduler._card.clients[1].disk_charged == 5 * GIB


def test_memory_of_an_idle_client_is_stored_on_disk_early_while_host_memory_is_short() -> None:
    talk = with_disk(100)
    idle(talk, 1, 30)
    idle(talk, 2, 30)
    # 4 GiB of host memory are free, less than the eighth that the scheduler keeps free.
    assert not stores(talk.wait(59))
    assert stores(talk.wait(1)) == [(1, 4.1)]
    assert not stores(store(talk, 1))


def test_eviction_that_lacks_host_memory_waits_until_idle_clients_memory_is_on_disk() -> None:
    talk = with_disk(200)
    idle(talk, 1, 60)
    talk.join(2, 70, 70)
    talk.join(3, 20)
    assert stores(talk.obey(talk.want(3)))[0][0] == 1
    for _ in range(50):
        if 3 in runs(talk.said):
            break
        order = last(talk, 1)
        talk.obey(store(talk, 1, 2) if order.size > talk.memory[1].disk else talk.wait(1))
    assert 3 in runs(talk.said)
    assert talk.memory[1].disk > 0


def test_commits_of_ten_programs_of_20_gib_are_granted_on_an_80_gib_card_with_a_disk() -> None:
    talk = with_disk(100)
    for client in range(10):
        talk.join(client)
        answers = talk.ask(client, 1, 20)
        assert limits(answers, client)[-1].commit >= 20 * GIB
        talk.changed(client, allocated=20, answered=1)
    assert limits(talk.ask(9, 2, 80), 9)[-1].commit < 80 * GIB
    without = with_disk(0)
    answers = []
    for client in range(10):
        without.join(client)
        answers = without.ask(client, 1, 20)
        without.changed(client, allocated=20, answered=1)
    assert limits(answers, 9)[-1].commit < 20 * GIB


@pytest.mark.parametrize(("disk", "limit"), [(30, 0), (100, 30)])
def test_disk_budget_and_tenant_disk_limit_bound_stored_bytes(disk: int, limit: int) -> None:
    talk = with_disk(disk)
    talk.tell(TenantChanged("user:a", TenantTerms(disk_limit=limit * GIB)))
    for client in (1, 2):
        talk.memory[client] = Memory(20 * GIB, host=20 * GIB)
        talk.tell(Joined(client, talk.memory[client], tenants=("user:a",), commit=20 * GIB))
    assert stores(talk.wait(600)) == [(1, 20.1), (2, 9.9)]
    talk.leave(1)
    assert stores(store(talk, 2)) == [(2, 20.1)]


@pytest.mark.parametrize(("limit", "tenants"), [(12, 1), (12, 10), (1000, 10)])
def test_commit_is_not_granted_on_disk_space_beyond_a_tenants_disk_limit(
        limit: int, tenants: int) -> None:
    talk = with_disk(100)
    for tenant in range(tenants):
        talk.tell(TenantChanged(f"user:{tenant}", TenantTerms(disk_limit=limit * GIB)))
    for client in range(30):
        talk.join(client, tenants=(f"user:{client % tenants}",))
        talk.ask(client, 1, 20)
        granted = talk.view(client).commit >= 20 * GIB
        talk.changed(client, allocated=20 * granted, answered=1)
    promised = talk.scheduler._card.groups.sums.committed / GIB
    most = 80 + 64 + min(100, limit * tenants)
    assert most - 40 < promised <= most


@pytest.mark.parametrize(("wanted", "granted"), [(44, True), (54, False)])
def test_commit_is_not_granted_on_disk_space_beyond_any_of_nested_disk_limits(
        wanted: int, granted: bool) -> None:
    talk = with_disk(100)               # 140 GiB of card and host can be promised
    talk.tell(TenantChanged("user:a", TenantTerms(disk_limit=10 * GIB)))
    for client in (1, 2, 3):
        talk.tell(TenantChanged(f"job:{client}", TenantTerms(disk_limit=9 * GIB)))
        talk.join(client, tenants=("user:a", f"job:{client}"))
    for client in (1, 2):
        assert limits(talk.ask(client, 1, 50), client)[-1].commit >= 50 * GIB
        talk.changed(client, allocated=50, answered=1)
    # While client 3 runs, the disk may hold 10 GiB of clients 1 and 2 (limit of user a), not 18.
    assert (limits(talk.ask(3, 1, wanted), 3)[-1].commit >= wanted * GIB) is granted


def test_commit_counts_disk_space_that_a_tenants_running_client_leaves_to_other_clients() -> None:
    talk = with_disk(100)
    talk.tell(TenantChanged("user:a", TenantTerms(disk_limit=40 * GIB)))
    for client, size in enumerate((72, 76)):    # 140 GiB of card and host, 40 of the disk
        talk.join(client, tenants=("user:a",))
        assert limits(talk.ask(client, 1, size), client)[-1].commit >= size * GIB
        talk.changed(client, allocated=size, answered=1)


def test_commit_ignores_a_tenants_disk_limit_that_another_cards_scheduler_has_removed() -> None:
    talk = with_disk(100)
    for tenant in ("user:a", "unit:b"):
        talk.tell(TenantChanged(tenant, TenantTerms(disk_limit=10 * GIB)))
    talk.join(1, tenants=("user:a", "unit:b"))
    first, _ = talk.scheduler._card.clients[1].bounds.disk
    first.limit = None                  # the other card's scheduler removed it, with no event here
    assert limits(talk.ask(1, 1, 150), 1)[-1].commit < 150 * GIB


def test_commit_of_a_client_without_disk_limit_leaves_host_memory_to_disk_limited_clients() -> None:
    talk = with_disk(100)
    talk.tell(TenantChanged("user:a", TenantTerms(disk_limit=1)))
    for client in range(5):             # 100 GiB never go to the disk, of 144 on card and host
        talk.join(client, tenants=("user:a",))
        talk.ask(client, 1, 20)
        talk.changed(client, allocated=20, answered=1)
    talk.join(7)
    assert limits(talk.ask(7, 1, 44), 7)[-1].commit < 44 * GIB
    for client in (8, 9, 10):           # while one of these runs, the others may be on the disk
        talk.join(client)
        assert limits(talk.ask(client, 1, 32), client)[-1].commit >= 32 * GIB
        talk.changed(client, allocated=32, answered=1)


def test_failed_disk_store_is_retried_after_doubling_pauses() -> None:
    talk = with_disk(100)
    idle(talk, 1, 20)
    talk.wait(600)
    times = []
    for _ in range(4):
        before = talk.now
        talk.tell(Stored(1, talk.memory[1], last(talk, 1).number, failed=True))
        while last(talk, 1).size == 0:
            talk.wait(0.5)
        times.append(round((talk.now - before) / SECOND))
    assert times == [1, 2, 4, 8]


def test_disk_store_without_progress_is_retried_after_a_pause() -> None:
    talk = with_disk(100)
    idle(talk, 1, 20)
    talk.wait(600)
    assert stores(talk.wait(5)) == [(1, 0)]
    assert stores(talk.wait(1)) == [(1, 20.1)]


def test_failed_disk_ends_stores_and_is_not_promised_in_commits() -> None:
    talk = with_disk(100)
    idle(talk, 1, 20)
    talk.wait(600)
    store(talk, 1, 5)
    budget = talk.scheduler._card.disk.budget
    budget.size = 0
    assert stores(talk.tell(Tick())) == [(1, 5)]
    store(talk, 1)
    talk.join(2)
    assert limits(talk.ask(2, 1, 79), 2)[-1].commit >= 79 * GIB
    assert talk.scheduler.parts["disk"].promisable <= 0
    budget.size = 100 * GIB
    assert stores(talk.tell(Tick())) == [(1, 20.1)]


def test_reported_bytes_beyond_a_store_order_use_no_disk_budget() -> None:
    talk = with_disk(100)
    idle(talk, 1, 20)
    talk.memory[1] = replace(talk.memory[1], disk=50 * GIB)
    talk.tell(MemoryChanged(1, talk.memory[1]))
    assert talk.view(1).memory.disk == 0
    talk.wait(600)
    talk.tell(MemoryChanged(1, talk.memory[1]))
    assert 20 * GIB <= talk.view(1).memory.disk <= 21 * GIB


def test_scheduler_counts_stored_bytes_that_a_hello_reports_up_to_the_disk_budget() -> None:
    talk = with_disk(100)
    for client, size, counted in ((1, 80, 80), (2, 80, 100), (3, 20, 100)):
        memory = Memory(size * GIB, disk=size * GIB)
        talk.tell(Joined(client, memory, commit=size * GIB, account="user:1"))
        assert 80 * GIB <= talk.scheduler._card.groups.sums.disk <= counted * GIB
    for client in (1, 2, 3):
        talk.tell(Left(client))
    assert talk.scheduler._card.groups.sums.disk == 0


def test_holder_frees_its_disk_copies_while_little_of_the_disk_is_free() -> None:
    talk = with_disk(32)
    idle(talk, 1, 30)
    talk.wait(600)
    store(talk, 1)
    talk.obey(talk.want(1))
    assert 1 in runs(talk.said)
    assert stores(talk.said)[-1] == (1, 0)


@pytest.mark.parametrize("resident", [0, 28], ids=["swapped blocks", "copies"])
def test_client_that_acknowledges_no_store_is_sent_few(resident: int) -> None:
    """A program stopped by a signal reads nothing: unread orders would end its connection."""
    talk = with_disk(30)
    idle(talk, 1, 28)
    talk.wait(600)
    if resident:
        store(talk, 1)
        memory = replace(talk.memory[1], resident=28 * GIB, room=28 * GIB, host=0)
        talk.tell(MemoryChanged(1, memory))
    for _ in range(3600):
        talk.wait(1)
        talk.tell(Tick())
    assert len(stores(talk.said)) < 10


def test_client_that_freed_disk_copies_stores_again_when_a_chosen_client_lacks_memory() -> None:
    talk = with_disk(40, host=16)
    talk.join(2, 79, 79)
    talk.memory[1] = Memory(52 * GIB, GIB, room=GIB, host=15 * GIB, disk=36 * GIB)
    talk.swapped[1] = 15 * GIB
    # Little of the disk is free, so copies are freed.
    assert stores(talk.tell(Joined(1, talk.memory[1], commit=52 * GIB))) == [(1, 0)]
    talk.obey(talk.join(3, 5))
    talk.obey(talk.want(3))
    talk.obey(talk.wait(STALLED / SECOND / 2))
    assert talk.view(3).state == "loading"
    assert last(talk, 1).size > 36 * GIB


def test_two_cards_that_fill_the_shared_disk_each_keep_host_memory_for_transit() -> None:
    host, disk = SharedBudget(64 * GIB), SharedBudget(100 * GIB)
    talks = [with_disk(100), with_disk(100)]
    for talk in talks:
        talk.scheduler = Scheduler(talk.settings, 0, budgets={
            **dict.fromkeys(talk.settings.budgets, SharedBudget(0)), "host": host, "disk": disk})
        talk.tell(Tick())
    for client in range(20):
        talk = talks[client // 10]
        talk.join(client)
        talk.ask(client, 1, 20)
        granted = talk.view(client).commit >= 20 * GIB
        talk.changed(client, allocated=20 * granted, answered=1)
    promised = sum(talk.scheduler._card.groups.sums.used for talk in talks)
    assert 280 * GIB <= promised <= (160 + 64 + 100) * GIB
    assert all(part.takeable >= 2 * GIB for part in host.cards)
    assert sum(part.takeable for part in host.cards) <= 64 * GIB
    assert sum(part.takeable for part in disk.cards) <= 100 * GIB


def test_suspended_client_is_evicted_through_host_memory_to_disk() -> None:
    talk = with_disk(100, host=4)
    talk.join(1, 40, 40)
    talk.tell(Tick())
    talk.obey(talk.tell(TermsChanged(1, Terms(suspended=True))))
    for _ in range(60):
        if not talk.memory[1].resident:
            break
        talk.obey(store(talk, 1))
        talk.obey(talk.wait(1))
    assert talk.memory[1].resident == 0
    assert talk.memory[1].disk >= 36 * GIB


class DiskRow(Row):
    """Random events on a machine with a disk that is slow, fails and fills up."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.failed = False
        world = self.world
        self.disk = self.dice.choice([1, 4, 16]) * self.capacity // 4
        self.set_disk(self.disk)
        world.advance(SECOND)

    def set_disk(self, size: int) -> None:
        self.world.configure(replace(
            self.world.settings, disk_budget=size, park_after=self.world.random.choice(
                [SECOND // 100, SECOND, 100 * SECOND])))

    def fail_to_store(self) -> None:
        self.hook(self.any_client()).store_fails = True

    def weights(self) -> dict[Callable[[], object], float]:
        return super().weights() | {
            self.fail_to_store: 0.7,
            lambda: self.set_disk(self.dice.choice([0, self.disk])): 0.3}

    def teardown(self) -> None:
        for hook in self.world.hooks.values():
            hook.store_fails = False
        self.set_disk(self.disk)
        super().teardown()


def play(seeds: Iterable[int]) -> tuple[int, int]:
    """Number of STORE orders, and the most bytes on the disk at the end of a sequence."""
    orders = filled = 0
    for seed in seeds:
        row = DiskRow(seed)
        row.happens()
        filled = max(filled, row.world._sums[4])
        row.teardown()
        orders += len(row.world.orders_of(Store))
    return orders, filled


def test_random_event_sequences_with_a_disk_keep_all_scheduler_invariants() -> None:
    orders, filled = play(SHORT)
    assert orders > 50
    assert filled > 100 * MIB


@pytest.mark.long
@pytest.mark.parametrize("first", range(400, 700, 20))
def test_long_random_event_sequences_with_a_disk_keep_all_scheduler_invariants(first: int) -> None:
    play(range(first, first + 20))
