# SPDX-License-Identifier: Apache-2.0
"""Long rows of random events in which much memory moves.

What test_scheduler_invariants.py picks at random, with a liking for what is simple, hardly ever
makes programs share a card for long. Here they mostly compute, so that thousands of moves cross
with all the rest.
"""

from collections import Counter
from collections.abc import Callable
from random import Random
from unittest import mock

import pytest

from nvshared.hook.protocol import REASONS
from nvshared.scheduler import Scheduler, queue
from nvshared.scheduler.actions import Action, Evict
from nvshared.scheduler.card import GROUPS, MARGINS_MOST, Figures, counted
from nvshared.scheduler.domains import Stake
from nvshared.scheduler.events import Event
from nvshared.scheduler.settings import AntiThrash, Priority
from nvshared.units import MIB, MILLISECOND, SECOND
from tests.unit import scheduler_world
from tests.unit.test_scheduler_invariants import Tenants

# Rows with many moves, or that once found something.
SHORT = (9, 24, 40, 41, 66, 70, 74, 98, 312, 398, 401)
MANY = 600
TENANTS = ["user:0", "user:1", "job:1", "job:2"]
MOST = 7                                # programs at a time


class Row(Tenants):
    """The programs of one row, by the seed alone."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.dice = dice = Random(seed)
        where = dice.randrange(1 << 16)
        card, parts = dice.choice([1024, 4096, 16384]) * MIB, dice.choice([1, 2, 8])
        # Where each begun slab is the half of what there is for two, nothing may be able to move.
        slabs = [32, 128] if card * parts // 2 > MOST * 128 * MIB else [32, 32]
        self.begin(
            where, card, parts,
            dice.choice([64, 256, 1024]) * MIB,
            dice.choice([SECOND // 10, SECOND, 5 * SECOND, None]),
            dice.choice([AntiThrash.AUTO, AntiThrash.AUTO, AntiThrash.ON, AntiThrash.OFF]),
            dice.choice([10, 2 * MILLISECOND, 50 * MILLISECOND]), dice.choice([1, 2]),
            dice.choice(slabs) * MIB, dice.choice([500, 50_000]), dice.random() < 0.5,
            dice.random() < 0.5, dice.choice([0, 0, 0, dice.randrange(15)]), dice.randrange(4))
        for _ in range(dice.randrange(1, 5)):
            self.join()

    def who(self) -> int:
        return self.dice.randrange(MOST)

    def goes(self) -> None:
        """All of it, and then everybody who can comes to an end."""
        self.happens()
        self.teardown()

    def happens(self) -> None:
        """All of it."""
        weights = self.weights()
        for _ in range(self.dice.randint(20, 120)):
            self.dice.choices(list(weights), list(weights.values()))[0]()

    def weights(self) -> dict[Callable[[], None], float]:
        """What may happen, and how often."""
        dice, who = self.dice, self.who
        parts = (0, 0, *range(1, 15))
        return {
            lambda: self.compute(who(), dice.randint(1, 4000), dice.choice([1, 20, 20, 700])): 12,
            lambda: self.wait(dice.choice([1, MILLISECOND, SECOND // 10, SECOND, 3 * SECOND])): 12,
            lambda: self.allocate(who(), dice.randint(1, 5), dice.random() < 0.3): 6,
            lambda: self.free(who(), dice.randint(1, 20)): 1,
            lambda: self.pin(who(), dice.randint(1, 7), dice.choice([0, 1, 100])): 1,
            lambda: self.unpin(who()): 1,
            lambda: self.copy(who(), dice.random() < 0.5, dice.random() < 0.5): 1,
            lambda: self.join() if len(self.world.hooks) < MOST else None: 1,
            lambda: self.die(who()) if len(self.world.hooks) > 1 else None: 0.7,
            lambda: self.fail_to_evict(who(), dice.choice(["host", "driver"])): 0.7,
            lambda: self.fail_to_load(who()): 0.7,
            lambda: self.hold_up(who(), dice.randint(1, 3)): 0.5,
            self.restart: 0.4,
            lambda: self.resize(dice.randint(1, 7)): 0.4,
            lambda: self.take_unseen(dice.random() < 0.3): 0.4,
            lambda: self.limit_tenant(
                dice.choice(TENANTS), dice.choice(parts), dice.choice(parts),
                dice.choice([100, 10, 300]), dice.choice(list(Priority))): 0.4,
            lambda: self.resize_box(dice.randrange(15)): 0.3,
            lambda: self.configure(
                dice.choice(list(AntiThrash)), dice.choice([SECOND // 10, SECOND, None]),
                dice.random() < 0.1): 0.3,
            lambda: self.stay(who(), dice.choice([*REASONS.values()][1:])): 0.1,
        }


def test_random_event_sequences_evict_more_than_a_thousand_times() -> None:
    """Or these rows would show nothing."""
    moves = 0
    for seed in SHORT:
        row = Row(seed)
        row.goes()
        moves += len(row.world.orders_of(Evict))
    assert moves > 1000


class Counting(Scheduler):
    """A scheduler whose groups and sums are counted anew after each event."""

    def handle(self, event: Event, now: int) -> list[Action]:
        actions, card = super().handle(event, now), self._card
        everyone = card.everyone
        for name, belongs in GROUPS.items():
            assert card.groups[name] == [one for one in everyone if belongs(one)], name
            assert card.groups.size(name) == len(card.groups[name])
        parts = [counted(one) for one in everyone]
        figures = zip(*(part.figures for part in parts), strict=True)
        assert card.groups.sums == Figures(*map(sum, figures))
        clients, shown = Counter[str](), Counter[str]()
        for one, part in zip(everyone, parts, strict=True):
            clients[one.account] += part.account.clients
            shown[one.account] += one.unshown
        for account, sums in card.groups.accounts().items():
            assert (sums.clients, sums.unshown) == (clients[account], shown[account])
        assert card.groups.margins() == sum(
            min(number, MARGINS_MOST) if account else number for account, number in clients.items())
        for domain in (*card.domains, *card.tenancies):
            for field, total in zip(Stake._fields, domain.sums, strict=True):
                assert total == sum(getattr(stake, field) for stake in domain.stakes.values())
        waiting = [*queue.sequence(card)]
        assert {one.id for one in waiting} == {one.id for one in card.groups["queued"]}
        assert queue.ordered(card, card.groups.queue()[::2]) == [
            one for one in waiting if one in card.groups.queue()[::2]]
        return actions


def test_groups_and_sums_after_random_events_equal_those_counted_anew() -> None:
    with mock.patch.object(scheduler_world, "Scheduler", Counting):
        for seed in SHORT[:6]:
            Row(seed).happens()


def test_load_for_the_head_orders_all_at_once_that_host_memory_allows() -> None:
    """In this row evictions for the head leave host memory for one more eviction."""
    Row(140).goes()


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, MANY, 20))
def test_random_event_sequences_keep_all_scheduler_invariants(first: int) -> None:
    for seed in range(first, first + 20):
        Row(seed).goes()
