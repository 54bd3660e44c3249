# SPDX-License-Identifier: Apache-2.0
"""A lab's card through weeks: trainings that never end and notebooks that come and go.

Two weeks by default; NVSHARE_TEST_DAYS=365 makes it a year.
"""

import os
from dataclasses import dataclass

import pytest

from nvshared.scheduler.actions import Stop
from nvshared.scheduler.settings import Settings
from nvshared.units import GIB, SECOND
from tests.unit.scheduler_hookmodel import Hook
from tests.unit.scheduler_world import World

MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
KERNEL = 3 * MINUTE
DAYS = int(os.environ.get("NVSHARE_TEST_DAYS", "14"))
TQ = HOUR
CARD = 80 * GIB


@dataclass
class Notebook:
    """Somebody tries something every few hours, for some minutes, and now and then starts anew."""

    world: World
    hook: Hook
    longest: int = 0                    # us from wanting to having computed

    def live(self) -> None:
        """Now and from now on."""
        chance = self.world.random
        if not self.hook.work:
            if chance.random() < 0.1:
                self.world.kill(self.hook)
                self.hook = self.world.join()
                self.hook.kernel = KERNEL
            wanted = chance.randint(1, 24) * GIB
            if self.hook.need < wanted:
                self.hook.allocate(wanted - self.hook.need)
            self.hook.compute(chance.randint(1, 10) * MINUTE)
            self._wait_for(self.hook, self.world.now)
        self.world.schedule(self.world.now + chance.randint(1, 8) * HOUR, self.live)

    def _wait_for(self, hook: Hook, since: int) -> None:
        if hook.dead:
            return
        if hook.work:
            self.world.schedule(self.world.now + KERNEL, lambda: self._wait_for(hook, since))
        else:
            self.longest = max(self.longest, self.world.now - since)


@pytest.mark.long
def test_weeks_of_a_labs_card_are_shared_equally() -> None:
    world = World(
        Settings(
            capacity=CARD, total=CARD, host_budget=400 * GIB, step=16 * GIB, tq=TQ,
            stuck_after=HOUR,
        ),
        seed=1, block=4 * GIB, slab=8 * GIB, bus=50_000,
    )
    trainings = [world.join() for _ in range(3)]
    notebooks = [Notebook(world, world.join()) for _ in range(3)]
    world.advance(SECOND)
    for training in trainings:
        training.kernel = KERNEL
        training.allocate(56 * GIB)
        training.compute(DAYS * DAY)
    for notebook in notebooks:
        notebook.hook.kernel = KERNEL
        notebook.live()
    world.advance(DAYS * DAY)

    shares = [training.computed / (DAYS * DAY) for training in trainings]
    assert max(shares) - min(shares) < 0.1, f"unequal shares {shares}"
    assert sum(shares) > 0.8, f"the card was left unused: {shares}"
    # At worst everyone else has a whole turn first, and then it runs twice, as
    # the first turn may end early beside another's.
    everyone = len(trainings) + len(notebooks)
    for notebook in notebooks:
        assert 0 < notebook.longest < 2 * everyone * TQ
    counters = world.scheduler.snapshot().counters
    assert counters.stuck == counters.failures == counters.gave_way == 0
    assert len(world.orders_of(Stop)) > DAYS
