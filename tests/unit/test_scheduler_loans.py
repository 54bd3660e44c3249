# SPDX-License-Identifier: Apache-2.0
"""Cards that lend to each other: no byte is lent twice, and loans are returned."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import count
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
    Left,
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

SHORT = (13, 14, 17)             # seeds of sequences with loans
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


def unseen(near: Talk, *lendable: int) -> list[Neighbour]:
    """More cards that can lend so many GiB to the near card, but not to its programs."""
    card = near.scheduler._card.neighbour
    more = [Neighbour(f"GPU-unseen-{number}", lendable=size * GIB)
            for number, size in enumerate(lendable)]
    card.others = card.reachable = (*card.reachable, *more)
    return more


def evict_again(near: Talk, incoming: int, borrowed: float = 0) -> str:
    """Client `incoming` runs in place of client 1, which borrows so many GiB, and leaves again.
    Returns the lender."""
    near.join(incoming, 50)
    ((_, lender),) = loans(near.want(incoming))
    near.tell(_evicted(near, 1, borrowed if lender == FAR else 0))
    near.leave(incoming)
    near.obey(near.want(1))
    near.go_idle(1)
    return lender


def test_lender_of_which_a_client_borrowed_nothing_is_used_only_if_no_other_can_lend() -> None:
    near, far = pair()
    hidden, = unseen(near, 79)
    near.join(1, 60, 60)
    assert evict_again(near, 2) == hidden.uuid
    near.join(3, 50)
    assert [lender for _, lender in loans(near.want(3))] == [FAR]
    near.tell(_evicted(near, 1, 30))
    assert not hidden.loans
    assert far.scheduler.snapshot().free == 50 * GIB


def test_lender_that_lacked_memory_once_is_tried_again_once_each_other_card_was_tried() -> None:
    near, _ = pair()
    first, last = unseen(near, 79, 60)
    near.join(1, 60, 60)
    assert [evict_again(near, incoming) for incoming in (2, 3, 4)] == [first.uuid, FAR, last.uuid]
    last.lend(80 * GIB)
    assert [evict_again(near, incoming, 30) for incoming in (5, 6)] == [first.uuid, FAR]


def test_lender_of_which_a_writeback_borrowed_nothing_is_not_the_next_lender() -> None:
    near, _ = pair()
    hidden, = unseen(near, 79)
    near.tell(SettingsChanged(replace(near.settings, writeback=True)))
    near.join(1, 60, 60)
    near.join(2, 50)
    (order,) = writebacks(near.wait(1))
    assert (order.client, order.lender) == (1, hidden.uuid)
    near.written_back(order)
    assert [lender for _, lender in loans(near.want(2))] == [FAR]


def test_lender_that_was_lost_and_returns_is_known_to_have_lent_a_client_nothing() -> None:
    near, _ = pair()
    hidden, = unseen(near, 79)
    near.join(1, 60, 60)
    assert evict_again(near, 2) == hidden.uuid
    card = near.scheduler._card.neighbour
    returned = Neighbour(hidden.uuid, lendable=79 * GIB)
    card.others = card.reachable = tuple(
        returned if one is hidden else one for one in card.others)
    assert evict_again(near, 3, 30) == FAR


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


class Cards:
    """Random events on two to four cards, of which each program sees some.

    Each card lends to each other. The daemon restarts, and cards are lost and return.
    """

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.made = count(seed)
        self.cards = [Neighbour(f"GPU-{number}") for number in range(self.dice.randint(2, 4))]
        self.excused = [True] * len(self.cards)
        self.capacities = [0] * len(self.cards)
        self.link(self.cards)
        self.rows = [self.make(card) for card in self.cards]
        self.lent = self.returned = 0

    def make(self, card: Neighbour) -> Row:
        """The programs of a card, with other numbers than those of all other cards."""
        number = next(self.made)
        made = partial(Scheduler, neighbour=card)
        with (mock.patch.object(scheduler_world, "Scheduler", made),
              mock.patch.object(scheduler_world, "count", lambda first=0: count(
                  first + 1000 * number))):
            return Row(number)

    def link(self, cards: list[Neighbour]) -> None:
        for card in cards:
            card.others = card.reachable = tuple(one for one in cards if one is not card)

    def happens(self, steps: int) -> None:
        """Play `steps` random events, with a Tick for all schedulers after each."""
        for _ in range(steps):
            event = self.dice.random()
            if event < 0.01:
                self.restart()
            elif event < 0.02:
                self.lose(self.dice.randrange(len(self.cards)))
            row = self.dice.choice(self.rows)
            weights = {what: weight for what, weight in row.weights().items()
                       if what != row.world.restart}
            self.dice.choices(list(weights), list(weights.values()))[0]()
            for hook in row.world.hooks.values():
                if hook.sees is None:
                    hook.sees = {one.uuid for one in self.cards if self.dice.random() < 0.5}
            for one in (*self.rows, row):
                one.world.tell(Tick())
            for number in range(len(self.cards)):
                self.check(number)

    def restart(self) -> None:
        """Restart the daemon, which schedules all cards."""
        self.cards = [Neighbour(card.uuid) for card in self.cards]
        self.excused = [True] * len(self.cards)
        self.link(self.cards)
        for card, row in zip(self.cards, self.rows, strict=True):
            made = partial(Scheduler, neighbour=card)
            with mock.patch.object(scheduler_world, "Scheduler", made):
                row.world.restart()

    def lose(self, number: int) -> None:
        """Lose a card with its programs and what it lent. It returns, with other programs; those
        that are there do not see it any more."""
        world = self.rows[number].world
        world.scheduler.handle(CardLost(), world.now)
        known = [*world.scheduler._card.clients]    # also those with a Left on its way
        for client in known:
            world.scheduler.handle(Left(client), world.now)
        assert not any(card.loans.keys() & {*known} for card in self.cards)
        self.link([card for card in self.cards if card is not self.cards[number]])
        for row in self.rows:
            if row.world is not world:
                for one in row.world.hooks.values():
                    one.sees = {*(one.sees or ())} - {self.cards[number].uuid}
                    if one.lender == self.cards[number].uuid:
                        one.borrowed = one.dirty = 0
                row.world.tell(Tick())
        self.cards[number] = Neighbour(self.cards[number].uuid)
        self.link(self.cards)
        self.rows[number] = self.make(self.cards[number])
        self.excused[number] = True

    def check(self, number: int) -> None:
        """Check that the card has space for its clients' memory and for its loans."""
        card, world = self.cards[number], self.rows[number].world
        others = [row.world for row in self.rows if row.world is not world]
        lent = sum(self._borrowed(other, hook, card.uuid)
                   for other in others for hook in other.hooks.values())
        self.lent = max(self.lent, lent)
        over = world._sums[0] + lent - world.settings.capacity
        # The card shrank with loans on it, it does not know all loans yet, or loans of a client
        # that was silent count again.
        if (world.settings.capacity < self.capacities[number]
                or world.now < world.scheduler._card.gathered
                or any(client.unresponsive for other in others
                       for client in other.scheduler._card.clients.values())):
            self.excused[number] = True
        self.capacities[number] = world.settings.capacity
        assert over <= 0 or self.excused[number], f"{over} bytes too many"
        self.excused[number] = self.excused[number] and over > 0

    def _borrowed(self, world: World, hook: Hook, lender: str) -> int:
        client = world.scheduler._card.clients.get(hook.id)
        if client is None or client.unresponsive or lender not in (hook.sees or ()):
            return 0
        orders = [one for one in world._ordered(hook)
                  if isinstance(one, Evict | Writeback) and one.lender == lender]
        held = hook.memory.borrowed if hook.lender == lender else 0
        self.returned += any(isinstance(one, Evict) and one.loan < held for one in orders)
        return max([held, *(one.loan for one in orders)])

    def end(self) -> None:
        """End all programs, and check that no card has lent anything then."""
        for row in self.rows:
            for hook in [*row.world.hooks.values()]:
                row.world.kill(hook)
            row.world.advance(SECOND)
            row.world.tell(Tick())
        assert not any(card.loans for card in self.cards)


def play(seeds: Iterable[int]) -> tuple[int, int]:
    """Sum of the most bytes that cards had lent, and a count of orders that recalled loans."""
    worlds = [Cards(seed) for seed in seeds]
    for world in worlds:
        world.happens(150)
        world.end()
    return sum(world.lent for world in worlds), sum(world.returned for world in worlds)


def test_random_event_sequences_on_several_cards_lend_no_byte_twice() -> None:
    lent, returned = play(SHORT)
    assert lent > 0
    assert returned > 0


@pytest.mark.long
@pytest.mark.parametrize("first", range(100, 300, 20))
def test_long_random_event_sequences_on_several_cards_lend_no_byte_twice(first: int) -> None:
    play(range(first, first + 20))


def test_lender_from_which_memory_with_copies_on_the_host_needed_nothing_stays_next() -> None:
    near, far = pair()
    hidden, = unseen(near, 0)
    far.scheduler._card.neighbour.lend(0)
    near.tell(SettingsChanged(replace(near.settings, writeback=True)))
    near.join(1, 60, 60)
    near.join(2, 50)
    (order,) = writebacks(near.wait(1))
    assert (order.client, order.loan) == (1, 0)
    near.written_back(order)
    far.tell(Tick())
    hidden.lend(10 * GIB)
    assert [lender for _, lender in loans(near.want(2))] == [FAR]
    near.tell(_evicted(near, 1, 0))
    near.leave(2)
    near.obey(near.want(1))
    near.go_idle(1)
    near.join(3, 50)
    assert [lender for _, lender in loans(near.want(3))] == [FAR]
