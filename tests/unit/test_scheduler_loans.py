# SPDX-License-Identifier: Apache-2.0
"""Two cards that lend to each other: no byte is lent twice, and loans are returned."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from random import Random
from unittest import mock

import pytest

from nvshared.scheduler import Scheduler
from nvshared.scheduler.actions import Action, Evict, Load, Writeback, Yield
from nvshared.scheduler.domains import Neighbour
from nvshared.scheduler.events import (
    CardLost,
    Evicted,
    Joined,
    Memory,
    SettingsChanged,
    TenantChanged,
    TenantTerms,
    Tick,
    WrittenBack,
)
from nvshared.units import GIB, SECOND
from tests.unit import scheduler_world
from tests.unit.scheduler_hookmodel import Hook
from tests.unit.scheduler_talk import Talk, writebacks
from tests.unit.scheduler_world import World
from tests.unit.test_scheduler_rows import Row

SHORT = (1, 5, 15)               # seeds of sequences with loans
NEAR, FAR = "GPU-near", "GPU-far"


def pair(step: float = 1000) -> tuple[Talk, Talk]:
    """The schedulers of two cards, the second of which lends to the first."""
    cards = Neighbour(NEAR), Neighbour(FAR)
    cards[0].others = cards[0].reachable = (cards[1],)
    talks = Talk(80, step=step), Talk(80, step=step)
    for talk, card in zip(talks, cards, strict=True):
        talk.scheduler = Scheduler(talk.settings, 0, neighbour=card)
        talk.tell(Tick())
    return talks


def loans(actions: list[Action]) -> list[tuple[int, str]]:
    """Loan in GiB and lender of each EVICT."""
    return [(round(one.loan / GIB), one.lender) for one in actions if isinstance(one, Evict)]


def lend(near: Talk) -> None:
    """Evict 30 GiB of client 1 of the near card to the far card."""
    near.join(1, 60, 60)
    near.join(2, 50)
    assert loans(near.want(2)) == [(30, FAR)]
    near.tell(_evicted(near, 1, 30))


def _evicted(talk: Talk, client: int, borrowed: float) -> Evicted:
    order = talk.scheduler._card.clients[client].orders.moves[0].order
    figures = talk.memory[client]
    talk.memory[client] = replace(
        figures, resident=order.room - figures.pinned, room=order.room,
        host=int(borrowed * GIB), borrowed=int(borrowed * GIB))
    return Evicted(client, talk.memory[client], order.number, max(0, figures.resident - order.room))


def test_eviction_borrows_only_memory_that_clients_of_the_lending_card_do_not_need() -> None:
    near, far = pair()
    lend(near)
    assert far.scheduler.snapshot().free == 50 * GIB
    assert near.view(1).memory.borrowed == 30 * GIB


def test_lender_of_which_a_client_borrowed_nothing_is_used_only_if_no_other_can_lend() -> None:
    near, far = pair()
    card = near.scheduler._card.neighbour
    unseen = Neighbour("GPU-unseen", lendable=79 * GIB)     # by the programs
    card.others = card.reachable = (*card.reachable, unseen)
    lenders = []
    near.join(1, 60, 60)
    for incoming in (2, 3, 4):
        near.join(incoming, 50)
        ((_, lender),) = loans(near.want(incoming))
        lenders.append(lender)
        near.tell(_evicted(near, 1, 30 if lender == FAR else 0))
        near.leave(incoming)
        if lender == FAR:
            break
        near.obey(near.want(1))
        near.go_idle(1)
    assert lenders == ["GPU-unseen", FAR]
    assert not unseen.loans
    assert far.scheduler.snapshot().free == 50 * GIB


def test_evict_with_a_loan_leaves_free_host_memory_for_moves_to_the_disk() -> None:
    near, _ = pair()
    card = near.scheduler._card
    card.host.budget.size, card.disk.budget.size = 32 * GIB, 100 * GIB
    near.join(1, 60, 60)
    near.join(2, 50)
    assert loans(near.want(2)) == [(28, FAR)]


def lends_less(far: Talk, why: str) -> None:
    """Makes the far card lend less than its free memory."""
    neighbour = far.scheduler._card.neighbour
    neighbour.exclusive = why in ("exclusive", "other processes", "unknown processes")
    neighbour.alone = {"other processes": False, "unknown processes": None}.get(why, True)
    if why == "promised":
        far.join(7, commit=65)
    far.tell(CardLost() if why == "lost" else Tick())


@pytest.mark.parametrize(("why", "lent"), [
    ("promised", 5),                    # 80 GiB less an eighth, and less the 65 promised
    ("lost", 0), ("exclusive", 30), ("other processes", 0), ("unknown processes", 0)])
def test_eviction_borrows_only_memory_that_the_other_card_may_lend(why: str, lent: int) -> None:
    near, far = pair()
    lends_less(far, why)
    near.join(1, 60, 60)
    near.join(2, 50)
    assert loans(near.want(2)) == [(lent, FAR if lent else "")]


@pytest.mark.parametrize(("why", "ordered"), [
    ("other processes", [(0, FAR)]), ("unknown processes", [])])
def test_lent_memory_is_recalled_when_a_process_appears_on_an_exclusive_lending_card(
        why: str, ordered: list[tuple[int, str]]) -> None:
    near, far = pair()
    lend(near)
    lends_less(far, why)
    assert loans(near.tell(Tick())) == ordered


def idle_borrower(near: Talk) -> None:
    """Client 1 is idle with 30 GiB only on the far card; client 2 has disconnected."""
    near.tell(SettingsChanged(replace(near.settings, writeback=True)))
    lend(near)
    near.memory[1] = replace(near.memory[1], dirty=30 * GIB)
    near.leave(2)
    near.changed(1)


def test_writeback_copies_borrowed_memory_of_an_idle_client_once_to_the_host() -> None:
    near, _ = pair()
    idle_borrower(near)
    (order,) = writebacks(near.wait(1))
    assert (order.client, order.size) == (1, 0)
    assert order.loan == 30 * GIB
    assert order.host > near.memory[1].host + 30 * GIB
    near.memory[1] = replace(near.memory[1], host=60 * GIB, dirty=0)
    near.tell(WrittenBack(1, near.memory[1], order.number, 0))
    assert not writebacks(near.wait(5))


def test_writeback_of_a_loan_is_retried_after_a_failure_and_cancelled_if_the_client_waits(
        ) -> None:
    near, _ = pair()
    idle_borrower(near)
    (order,) = writebacks(near.wait(1))
    assert not near.tell(WrittenBack(1, near.memory[1], order.number, 0))
    (order,) = writebacks(near.wait(3))
    assert Yield(1, order.number) in near.want(1)


def test_writeback_copies_borrowed_memory_of_a_waiting_client_until_the_turn_ends() -> None:
    near, _ = pair()
    near.tell(SettingsChanged(replace(near.settings, writeback=True)))
    lend(near)
    near.obey([one for one in near.said if isinstance(one, Load)])
    near.memory[1] = replace(near.memory[1], dirty=30 * GIB)
    near.want(1)
    assert near.scheduler._card.head == 1
    (order,) = writebacks(near.wait(1))
    assert (order.client, order.size) == (1, 0)
    assert Yield(1, order.number) in near.idle(2)


@pytest.mark.parametrize("dirty", [30 * GIB, 0])
def test_recall_of_a_loan_loads_dirty_memory_and_evicts_clean_memory(dirty: int) -> None:
    near, far = pair()
    idle_borrower(near)
    near.memory[1] = replace(near.memory[1], dirty=dirty)
    near.changed(1)
    far.join(7, commit=70)
    orders = [one for one in near.tell(Tick()) if isinstance(one, Load | Evict)]
    room = (60 if dirty else 30) * GIB
    assert [(one.client, one.room, one.loan) for one in orders] == [
        (1, room, 0)] * (2 if dirty else 1)
    assert [isinstance(one, Load) for one in orders] == ([True, False] if dirty else [False])


def test_recall_of_a_loan_is_repeated_after_a_failure_and_written_off_after_silence(
        ) -> None:
    near, far = pair()
    lend(near)
    far.join(7, commit=70)
    assert loans(near.tell(Tick())) == [(0, FAR)]
    assert not loans(near.tell(_evicted(near, 1, 30)))
    assert loans(near.wait(1)) == [(0, FAR)]
    near.wait(11)
    assert far.scheduler.snapshot().free == 80 * GIB
    near.tell(_evicted(near, 1, 5))
    assert far.scheduler.snapshot().free == 75 * GIB


@pytest.mark.parametrize(("limit", "lent"), [(20 * GIB, 20), (1, 0), (0, 30)])
def test_tenant_borrows_memory_of_another_card_up_to_its_neighbour_limit(
        limit: int, lent: int) -> None:
    near, _ = pair()
    near.tell(TenantChanged("user:a", TenantTerms(neighbour_limit=limit)))
    near.join(1, 60, 60, tenants=("user:a",))
    near.join(2, 50)
    assert [loan for loan, _ in loans(near.want(2))] == [lent]


@pytest.mark.parametrize("cause", ["neighbour limit", "commit"])
def test_lowered_neighbour_limit_or_commit_on_the_lending_card_recalls_borrowed_memory(
        cause: str) -> None:
    near, far = pair(step=1)
    near.join(3, tenants=("user:a",))
    near.join(1, 60, 60, tenants=("user:a",))
    near.join(2, 50)
    near.want(2)
    while moves := near.scheduler._card.clients[1].orders.moves:
        near.tell(_evicted(near, 1, moves[0].order.loan / GIB))
    assert near.view(1).memory.borrowed == 30 * GIB
    if cause == "commit":
        far.join(7, commit=50)          # 20 GiB are left to lend
        actions = near.tell(Tick())
    else:
        terms = TenantTerms(neighbour_limit=20 * GIB)
        actions = near.tell(TenantChanged("user:a", terms))
    # The recall includes a step more, so that the next loan does not exceed the limit at once.
    assert loans(actions) == [(19, FAR)]
    assert far.scheduler.snapshot().free == 50 * GIB
    near.tell(_evicted(near, 1, 19))
    assert far.scheduler.snapshot().free == 61 * GIB


def test_borrowed_bytes_reported_beyond_a_loan_do_not_reduce_the_lending_cards_free_memory(
        ) -> None:
    near, far = pair()
    lend(near)
    near.changed(1)
    near.memory[1] = replace(near.memory[1], host=70 * GIB, borrowed=70 * GIB)
    near.changed(1)
    assert far.scheduler.snapshot().free == 50 * GIB
    near.leave(1)
    assert far.scheduler.snapshot().free == 80 * GIB


def test_borrowed_memory_in_a_hello_after_a_restart_counts_on_the_lending_card_only() -> None:
    near, far = pair()
    memory = Memory(60 * GIB, 30 * GIB, room=30 * GIB, host=30 * GIB, borrowed=30 * GIB)
    near.tell(Joined(1, memory, lender=FAR))
    near.tell(Joined(2, memory, lender="GPU-unknown"))
    assert far.scheduler.snapshot().free == 50 * GIB
    assert near.view(2).memory.borrowed == 0


def test_usage_divides_swapped_memory_among_host_another_card_and_disk() -> None:
    near, _ = pair()
    near.tell(SettingsChanged(replace(near.settings, disk_budget=100 * GIB)))
    near.tell(Joined(1, Memory(
        60 * GIB, 10 * GIB, room=10 * GIB, host=30 * GIB, borrowed=20 * GIB, disk=20 * GIB),
        commit=60 * GIB, lender=FAR))
    used = near.scheduler.usage(1, near.now + 10 * SECOND)
    assert [one // 10_240 for one in used[-4:]] == [10, 10, 20, 20]


class Pair:
    """Random events on two cards, each of which lends to the other."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.cards = Neighbour(NEAR), Neighbour(FAR)
        for card, other in zip(self.cards, reversed(self.cards), strict=True):
            card.others = card.reachable = (other,)
        self.rows: list[Row] = []
        self.lent = self.returned = 0
        self.excused = [False, False]
        self.capacities = [0, 0]
        self.heard = [0, 0]             # number of the other card's orders checked so far
        for number, card in enumerate(self.cards):
            made = partial(Scheduler, neighbour=card)
            with mock.patch.object(scheduler_world, "Scheduler", made):
                self.rows.append(Row(2 * seed + number))

    def happens(self, steps: int) -> None:
        """Play `steps` random events, with a Tick for both schedulers after each."""
        for _ in range(steps):
            side = self.dice.randrange(2)
            row, other = self.rows[side], self.rows[1 - side]
            weights = {what: weight for what, weight in row.weights().items()
                       if what != row.world.restart}
            self.dice.choices(list(weights), list(weights.values()))[0]()
            other.world.tell(Tick())
            row.world.tell(Tick())
            for number in range(2):
                self.check(number)

    def check(self, side: int) -> None:
        """Check that the card has space for its clients' memory and for its loans."""
        world, other = self.rows[side].world, self.rows[1 - side].world
        lent = sum(self._borrowed(other, hook) for hook in other.hooks.values())
        self.lent = max(self.lent, lent)
        for order in other.orders[self.heard[side]:]:
            hook = other.hooks.get(order.client)
            self.returned += (
                isinstance(order, Evict) and hook is not None and order.loan < hook.borrowed)
        self.heard[side] = len(other.orders)
        over = world._sums[0] + lent - world.settings.capacity
        # The card shrank with loans on it, or loans of a client that was silent count again.
        if world.settings.capacity < self.capacities[side] or any(
                client.unresponsive for client in other.scheduler._card.clients.values()):
            self.excused[side] = True
        self.capacities[side] = world.settings.capacity
        assert over <= 0 or self.excused[side], f"{over} bytes too many"
        self.excused[side] = self.excused[side] and over > 0

    def _borrowed(self, world: World, hook: Hook) -> int:
        client = world.scheduler._card.clients.get(hook.id)
        if client is None or client.unresponsive:
            return 0
        orders = [one for one in world._ordered(hook) if isinstance(one, Evict | Writeback)]
        return max([hook.memory.borrowed, *(one.loan for one in orders)])


def play(seeds: Iterable[int]) -> tuple[int, int]:
    """Sum of the most bytes each pair had lent, and number of orders that recalled loans."""
    pairs = [Pair(seed) for seed in seeds]
    for both in pairs:
        both.happens(150)
    return sum(both.lent for both in pairs), sum(both.returned for both in pairs)


def test_random_event_sequences_on_two_cards_lend_no_byte_twice() -> None:
    lent, returned = play(SHORT)
    assert lent > 0
    assert returned > 0


@pytest.mark.long
@pytest.mark.parametrize("first", range(100, 300, 20))
def test_long_random_event_sequences_on_two_cards_lend_no_byte_twice(first: int) -> None:
    play(range(first, first + 20))
