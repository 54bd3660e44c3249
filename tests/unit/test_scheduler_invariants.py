# SPDX-License-Identifier: Apache-2.0
"""Random tenants against the invariants of ARCHITECTURE.md, and everyone gets a turn in the end.

scheduler_world.py checks the invariants after each event; here is what happens
to it. A failure prints the steps that lead to it.
"""

from collections import Counter
from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from nvshared.hook.protocol import REASONS
from nvshared.scheduler.events import PinReason
from nvshared.scheduler.promises import PINNING_PART
from nvshared.scheduler.settings import AntiThrash, Priority, Settings, TenantTerms
from nvshared.units import MIB, MILLISECOND, SECOND
from tests.unit.scheduler_hookmodel import Hook
from tests.unit.scheduler_world import World

QUANTA = st.sampled_from([SECOND // 10, SECOND, 5 * SECOND, None])
MODES = st.sampled_from(list(AntiThrash))
SEVENTHS = st.integers(1, 7)
WHO = st.integers(0, 6)


class Tenants(RuleBasedStateMachine):
    """Programs that come, allocate, compute, free, pin, idle, fail and die as they like."""

    @initialize(
        seed=st.integers(0, 1 << 16),
        capacity=st.sampled_from([1024 * MIB, 4096 * MIB, 16384 * MIB]),
        host=st.sampled_from([0, 1, 2, 8]),
        step=st.sampled_from([64 * MIB, 256 * MIB, 1024 * MIB]),
        tq=QUANTA,
        mode=MODES,
        delay=st.sampled_from([10, 2 * MILLISECOND, 50 * MILLISECOND]),
        halves=st.sampled_from([1, 2]),
        slab=st.sampled_from([32 * MIB, 128 * MIB]),
        bus=st.sampled_from([500, 50_000]),
        saves=st.booleans(),
        fetches=st.booleans(),
        box=st.integers(0, 14),
        users=st.integers(0, 3),
    )
    def begin(
        self, seed: int, capacity: int, host: int, step: int, tq: int | None, mode: AntiThrash,
        delay: int, halves: int, slab: int, bus: int, saves: bool, fetches: bool,
        box: int, users: int,
    ) -> None:
        """A daemon starts."""
        self.capacity = capacity
        self.resized = False
        settings = Settings(
            capacity=capacity, total=capacity, host_budget=capacity * host // 2, step=step,
            tq=tq, anti_thrash=mode, gather=5 * SECOND, writeback=saves,
            prefetch=fetches,
        )
        block = settings.block * halves // 2
        self.world = World(
            settings, seed, block=block, slab=max(slab, block), bus=bus, delay=delay,
            accounts=users, jobs=True,
        )
        self.resize_box(box)
        self.world.advance(5 * SECOND)
        self.world.join()

    def pins_unseen(self) -> bool:
        """Some user has pinned more than counts before others than itself have seen it."""
        of_all: Counter[int] = Counter()
        for hook in self.world.hooks.values() if self.world.accounts else ():
            of_all[hook.id % self.world.accounts] += hook.pinned
        return any(pinned > self.capacity // PINNING_PART for pinned in of_all.values())

    def hook(self, who: int) -> Hook:
        """One of them."""
        hooks = list(self.world.hooks.values())
        return hooks[who % len(hooks)]

    @precondition(lambda self: len(self.world.hooks) < 7)
    @rule()
    def join(self) -> None:
        """One comes."""
        self.world.join()

    @precondition(lambda self: len(self.world.hooks) > 1)
    @rule(who=WHO)
    def die(self, who: int) -> None:
        """One goes, in whatever state."""
        self.world.kill(self.hook(who))

    @rule(who=WHO, part=SEVENTHS, few=st.booleans())
    def allocate(self, who: int, part: int, few: bool) -> None:
        """Up to the whole card, or little."""
        self.hook(who).allocate(part * self.capacity // (140 if few else 7) + part)

    @rule(who=WHO, count=st.integers(1, 20))
    def free(self, who: int, count: int) -> None:
        """Some blocks of the middle."""
        for index in range(count):
            self.hook(who).free(index * 7)

    @rule(who=WHO, part=SEVENTHS, pause=st.sampled_from([0, 1, 100]))
    def pin(self, who: int, part: int, pause: int) -> None:
        """What cannot be swapped."""
        self.hook(who).pin(part * self.capacity // 100, pause * MILLISECOND)

    @rule(who=WHO)
    def unpin(self, who: int) -> None:
        """All of it."""
        self.hook(who).unpin(self.capacity)

    @rule(who=WHO, time=st.integers(1, 4000), kernel=st.sampled_from([1, 20, 700]))
    def compute(self, who: int, time: int, kernel: int) -> None:
        """In kernels of some milliseconds."""
        self.hook(who).kernel = kernel * MILLISECOND
        self.hook(who).compute(time * MILLISECOND)

    @rule(who=WHO, inward=st.booleans(), outward=st.booleans())
    def copy(self, who: int, inward: bool, outward: bool) -> None:
        """From now on, between host and card."""
        self.hook(who).copy(inward, outward)

    @rule(who=WHO, drains=st.integers(1, 3))
    def hold_up(self, who: int, drains: int) -> None:
        """Work in flight will depend on what is not submitted yet."""
        self.hook(who).undrainable = drains

    @rule(who=st.integers(0, 20), reason=st.sampled_from([*REASONS.values()][1:]))
    def stay(self, who: int, reason: PinReason) -> None:
        """Nothing of it leaves from now on; few programs are like that."""
        if who < len(self.world.hooks):
            self.hook(who).stay(reason)

    @rule(who=WHO, what=st.sampled_from(["host", "driver"]))
    def fail_to_evict(self, who: int, what: str) -> None:
        """The next block that leaves does not."""
        self.hook(who).fail_out = what

    @rule(who=WHO)
    def fail_to_load(self, who: int) -> None:
        """The next block that comes does not."""
        self.hook(who).fail_in = "driver"

    @rule()
    def restart(self) -> None:
        """kill -9 of the daemon."""
        self.world.restart()

    @rule(part=SEVENTHS)
    def resize(self, part: int) -> None:
        """Others take some of the card, or give it back."""
        self.resized = True
        capacity = self.capacity * (part + 3) // 10
        self.world.configure(replace(self.world.settings, capacity=capacity))

    @rule(taken=st.booleans())
    def take_unseen(self, taken: bool) -> None:
        """Others take some of the card, and the daemon does not know yet."""
        self.world.outside = self.capacity // 10 if taken else 0

    @rule(part=st.integers(0, 14))
    def resize_box(self, part: int) -> None:
        """Some of the programs are in a container, and that has another limit now, or none."""
        self.world.resize(part * self.capacity // 7 if part else None)

    @rule(
        tenant=st.sampled_from(["user:0", "user:1", "job:1", "job:2"]), part=st.integers(0, 14),
        host=st.integers(0, 14), weight=st.sampled_from([100, 10, 300]),
        priority=st.sampled_from(Priority),
    )
    def limit_tenant(
        self, tenant: str, part: int, host: int, weight: int, priority: Priority
    ) -> None:
        """All its programs may have so much together, or anything."""
        limits = [tenths * self.capacity // 10 for tenths in (part, host)]
        terms = TenantTerms(limits[0], weight, priority=priority, host_memory_limit=limits[1])
        self.world.put_tenant(tenant, terms)

    @rule(mode=MODES, tq=QUANTA, draining=st.booleans())
    def configure(self, mode: AntiThrash, tq: int | None, draining: bool) -> None:
        """An administrator is at work."""
        mode = AntiThrash.OFF if draining else mode
        settings = replace(self.world.settings, anti_thrash=mode, tq=tq, draining=draining)
        self.world.configure(settings)

    @rule(time=st.sampled_from([1, MILLISECOND, 100 * MILLISECOND, 3 * SECOND]))
    def wait(self, time: int) -> None:
        """Time passes."""
        self.world.advance(time)

    def teardown(self) -> None:
        """From here on nothing goes wrong: then everyone who can run does."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.outside = 0
        world.bus = 50_000
        world.resize(None)
        mode = AntiThrash.ON if world.settings.anti_thrash is AntiThrash.ON else AntiThrash.AUTO
        budget = max(world.settings.host_budget, self.capacity // 2)
        world.configure(replace(
            world.settings, capacity=self.capacity, anti_thrash=mode, tq=SECOND,
            host_budget=budget, draining=False,
        ))
        for hook in world.hooks.values():
            hook.undrainable = 0
            hook.fail_in = hook.fail_out = ""
            hook.copy(True, True)       # and does not end it: nobody is kept from running by that
            hook.compute(2 * SECOND)
        world.settle(600 * SECOND)
        for hook in world.hooks.values():
            others = [other for other in world.hooks.values() if other is not hook]
            pinned = sum(o.filled if o.pin_reason else o.pinned for o in others)
            # Promised when there was more, or none of it would be there.
            less = self.resized or self.pins_unseen() or any(o.pin_reason for o in others)
            too_much = less and hook.need + pinned > self.capacity
            assert not hook.work or too_much, f"{hook.id} never ran"
            assert not hook.commit_waits, f"{hook.id} was not answered"


TestTenants = Tenants.TestCase
TestTenants.settings = settings(
    max_examples=40,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
