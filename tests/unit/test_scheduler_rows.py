# SPDX-License-Identifier: Apache-2.0
"""Long sequences of random events, checked against the invariants of ARCHITECTURE.md.

Programs mostly compute, so that thousands of moves cross with other messages; at the end each
program gets a turn.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from unittest import mock

import pytest

from nvshared.hook.protocol import REASONS
from nvshared.scheduler import Scheduler, queue
from nvshared.scheduler.actions import Action, Evict
from nvshared.scheduler.domains import Stake
from nvshared.scheduler.events import AntiThrash, Event, PinReason, Priority, Settings, TenantTerms
from nvshared.scheduler.groups import GROUPS, MARGINS_MOST, Figures, counted
from nvshared.scheduler.policy import POLICIES
from nvshared.scheduler.promises import PINNING_PART
from nvshared.units import MIB, MILLISECOND, SECOND
from tests.unit import scheduler_world
from tests.unit.scheduler_hookmodel import Hook
from tests.unit.scheduler_world import World

# Seeds of sequences with many moves, or that once found a fault.
SHORT = (9, 17, 24, 40, 66, 70, 177, 302, 312, 401)
MANY = 600
FEW = 40                                # for each policy but fair
TENANTS = ["user:0", "user:1", "job:1", "job:2"]
MOST = 7                                # programs at a time


class Row:
    """Programs that join, allocate, compute, free, pin, idle, fail and die, as the seed says.

    scheduler_world.py checks the invariants of ARCHITECTURE.md after each event.
    """

    def __init__(self, seed: int, policy: str = "fair") -> None:
        self.dice = dice = Random(seed)
        self.deadlines = Random(seed)   # apart, so that the events are the same for all policies
        where = dice.randrange(1 << 16)
        self.capacity, parts = dice.choice([1024, 4096, 16384]) * MIB, dice.choice([1, 2, 8])
        # With slabs of half the host memory, possibly no client could move.
        slabs = [32, 128] if self.capacity * parts // 2 > MOST * 128 * MIB else [32, 32]
        self.resized = False
        settings = Settings(
            capacity=self.capacity, total=self.capacity, host_budget=self.capacity * parts // 2,
            step=dice.choice([64, 256, 1024]) * MIB,
            tq=dice.choice([SECOND // 10, SECOND, 5 * SECOND, None]),
            anti_thrash=dice.choice(
                [AntiThrash.AUTO, AntiThrash.AUTO, AntiThrash.ON, AntiThrash.OFF]),
            policy=policy, gather=5 * SECOND)
        delay = dice.choice([10, 2 * MILLISECOND, 50 * MILLISECOND])
        block = settings.block * dice.choice([1, 2]) // 2
        slab, bus = dice.choice(slabs) * MIB, dice.choice([500, 50_000])
        settings = replace(settings, writeback=dice.random() < 0.5, prefetch=dice.random() < 0.5)
        box = dice.choice([0, 0, 0, dice.randrange(15)])
        self.world = World(
            settings, where, block=block, slab=max(slab, block), bus=bus, delay=delay,
            accounts=dice.randrange(4), jobs=True)
        self.resize_box(box)
        self.world.advance(5 * SECOND)
        self.world.join()
        for _ in range(dice.randrange(1, 5)):
            self.world.join()

    def any_client(self) -> int:
        return self.dice.randrange(MOST)

    def goes(self) -> None:
        self.happens()
        self.teardown()

    def happens(self) -> None:
        """Play the random events, without the teardown."""
        weights = self.weights()
        for _ in range(self.dice.randint(20, 120)):
            self.dice.choices(list(weights), list(weights.values()))[0]()

    def weights(self) -> dict[Callable[[], object], float]:
        dice, any_client, hook, world = self.dice, self.any_client, self.hook, self.world
        parts = (0, 0, *range(1, 15))
        return {
            lambda: self.compute(
                any_client(), dice.randint(1, 4000), dice.choice([1, 20, 20, 700])): 12,
            lambda: world.advance(
                dice.choice([1, MILLISECOND, SECOND // 10, SECOND, 3 * SECOND])): 12,
            lambda: self.allocate(any_client(), dice.randint(1, 5), dice.random() < 0.3): 6,
            lambda: self.free(any_client(), dice.randint(1, 20)): 1,
            lambda: hook(any_client()).pin(
                dice.randint(1, 7) * self.capacity // 100,
                dice.choice([0, 1, 100]) * MILLISECOND): 1,
            lambda: hook(any_client()).unpin(self.capacity): 1,
            lambda: hook(any_client()).copy(dice.random() < 0.5, dice.random() < 0.5): 1,
            lambda: world.join() if len(world.hooks) < MOST else None: 1,
            lambda: world.kill(hook(any_client())) if len(world.hooks) > 1 else None: 0.7,
            lambda: self.fail_to_evict(any_client(), dice.choice(["host", "driver"])): 0.7,
            lambda: self.fail_to_load(any_client()): 0.7,
            lambda: self.hold_up(any_client(), dice.randint(1, 3)): 0.5,
            world.restart: 0.4,
            lambda: self.resize(dice.randint(1, 7)): 0.4,
            lambda: self.take_unseen(dice.random() < 0.3): 0.4,
            lambda: self.limit_tenant(
                dice.choice(TENANTS), dice.choice(parts), dice.choice(parts),
                dice.choice([100, 10, 300]), dice.choice(list(Priority))): 0.4,
            lambda: self.resize_box(dice.randrange(15)): 0.3,
            lambda: self.configure(
                dice.choice(list(AntiThrash)), dice.choice([SECOND // 10, SECOND, None]),
                dice.random() < 0.1): 0.3,
            lambda: self.stay(any_client(), dice.choice([*REASONS.values()][1:])): 0.1}

    def pins_unseen(self) -> bool:
        """Whether a user has pinned more than the scheduler accepts without a sample."""
        of_all: Counter[int] = Counter()
        for hook in self.world.hooks.values() if self.world.accounts else ():
            of_all[hook.id % self.world.accounts] += hook.pinned
        return any(pinned > self.capacity // PINNING_PART for pinned in of_all.values())

    def hook(self, client: int) -> Hook:
        hooks = list(self.world.hooks.values())
        return hooks[client % len(hooks)]

    def allocate(self, client: int, part: int, few: bool) -> None:
        self.hook(client).allocate(part * self.capacity // (140 if few else 7) + part)

    def free(self, client: int, count: int) -> None:
        for index in range(count):
            self.hook(client).free(index * 7)

    def compute(self, client: int, time: int, kernel: int) -> None:
        self.hook(client).kernel = kernel * MILLISECOND
        self.hook(client).compute(time * MILLISECOND)

    def hold_up(self, client: int, drains: int) -> None:
        self.hook(client).undrainable = drains

    def stay(self, client: int, reason: PinReason) -> None:
        """Pin all memory of a client, now and then."""
        if client < len(self.world.hooks):
            self.hook(client).stay(reason)

    def fail_to_evict(self, client: int, cause: str) -> None:
        self.hook(client).fail_out = cause

    def fail_to_load(self, client: int) -> None:
        self.hook(client).fail_in = "driver"

    def resize(self, part: int) -> None:
        self.resized = True
        capacity = self.capacity * (part + 3) // 10
        self.world.configure(replace(self.world.settings, capacity=capacity))

    def take_unseen(self, taken: bool) -> None:
        """Let unshared processes take some of the card without the daemon knowing."""
        self.world.outside = self.capacity // 10 if taken else 0

    def resize_box(self, part: int) -> None:
        self.world.resize(part * self.capacity // 7 if part else None)

    def limit_tenant(self, tenant: str, part: int, host: int, weight: int,
                     priority: Priority) -> None:
        limits = [tenths * self.capacity // 10 for tenths in (part, host)]
        deadline = self.deadlines.choice([0, 0, MILLISECOND, SECOND // 10, SECOND])
        terms = TenantTerms(limits[0], weight, priority=priority, host_memory_limit=limits[1],
                            deadline=deadline)
        self.world.put_tenant(tenant, terms)

    def configure(self, mode: AntiThrash, tq: int | None, draining: bool) -> None:
        mode = AntiThrash.OFF if draining else mode
        settings = replace(self.world.settings, anti_thrash=mode, tq=tq, draining=draining)
        self.world.configure(settings)

    def teardown(self) -> None:
        """End all faults, and check that each program that fits runs."""
        world = self.world
        world.outside = 0
        world.bus = 50_000
        world.resize(None)
        mode = AntiThrash.ON if world.settings.anti_thrash is AntiThrash.ON else AntiThrash.AUTO
        budget = max(world.settings.host_budget, self.capacity // 2)
        world.configure(replace(world.settings, capacity=self.capacity, anti_thrash=mode, tq=SECOND,
                                host_budget=budget, draining=False))
        for hook in world.hooks.values():
            hook.undrainable = 0
            hook.fail_in = hook.fail_out = ""
            hook.copy(True, True)       # endless copies must not block clients
            hook.compute(2 * SECOND)
        world.settle(600 * SECOND)
        for hook in world.hooks.values():
            others = [other for other in world.hooks.values() if other is not hook]
            pinned = sum(o.filled if o.pin_reason else o.pinned for o in others)
            # Memory granted under a larger capacity, or beside pinned memory, may not fit any more.
            less = self.resized or self.pins_unseen() or any(o.pin_reason for o in others)
            too_much = less and hook.need + pinned > self.capacity
            assert not hook.work or too_much, f"{hook.id} never ran"
            assert not hook.commit_waits, f"{hook.id} was not answered"


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "fair"])
def test_random_event_sequences_keep_all_invariants_beside_deadlines(policy: str) -> None:
    for seed in SHORT[:4]:
        row = Row(seed, policy)
        for tenant in TENANTS[::2]:
            row.world.put_tenant(tenant, TenantTerms(deadline=50 * MILLISECOND))
        row.goes()


def test_random_event_sequences_together_order_more_than_a_thousand_evictions() -> None:
    """Without moves the sequences would test nothing."""
    moves = 0
    for seed in SHORT:
        row = Row(seed)
        row.goes()
        moves += len(row.world.orders_of(Evict))
    assert moves > 1000


class Counting(Scheduler):
    """A scheduler that compares its groups and sums with recomputed values after each event."""

    def handle(self, event: Event, now: int) -> list[Action]:
        actions, card = super().handle(event, now), self._card
        everyone = card.groups["everyone"]
        for name, belongs in GROUPS.items():
            assert card.groups[name] == [one for one in everyone if belongs(one)], name
        parts = [counted(one) for one in everyone]
        figures = zip(*(part.figures for part in parts), strict=True)
        assert card.groups.sums == Figures(*map(sum, figures))
        clients, shown = Counter[str](), Counter[str]()
        for one, part in zip(everyone, parts, strict=True):
            clients[one.claims.account] += part.of_account.clients
            shown[one.claims.account] += max(0, one.committed - one.shown) + one.beyond
        for account, sums in card.groups.accounts().items():
            assert (sums.clients, sums.unshown) == (clients[account], shown[account])
            assert any(sums), "an account without clients is kept"
        assert card.groups.margins() == sum(
            min(number, MARGINS_MOST) if account else number for account, number in clients.items())
        for domain in (*card.domains, *card.memory_limits):
            for field, total in zip(Stake._fields, domain.sums, strict=True):
                assert total == sum(getattr(stake, field) for stake in domain.stakes.values())
        waiting = [one.id for one in queue.sequence(card)]
        assert sorted(waiting) == [one.id for one in card.groups["queued"]]
        return actions


def test_sums_of_the_scheduler_equal_recomputed_sums_after_random_events() -> None:
    with mock.patch.object(scheduler_world, "Scheduler", Counting):
        for seed in SHORT[:4]:
            Row(seed).happens()


def test_load_for_the_queue_head_is_one_order_where_host_memory_allows() -> None:
    """In this sequence evictions for the queue head leave host memory for one more eviction."""
    Row(140).goes()


def test_preallocation_takes_no_host_memory_that_evictions_of_a_shrunken_card_lack() -> None:
    """In this sequence the card shrinks while a client of the queue is loaded."""
    Row(100_000).goes()


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, MANY, 20))
def test_random_event_sequences_keep_all_scheduler_invariants(first: int) -> None:
    for seed in range(first, first + 20):
        Row(seed).goes()


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, FEW, 20))
@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "fair"])
def test_random_event_sequences_keep_all_invariants_under_all_policies(
        policy: str, first: int) -> None:
    for seed in range(first, first + 20):
        Row(seed, policy).goes()
