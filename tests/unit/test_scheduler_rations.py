# SPDX-License-Identifier: Apache-2.0
"""Limits of time for tenants: one account for all their programs."""

from dataclasses import replace

import pytest

from nvshared.scheduler.actions import Order, Report, Stop
from nvshared.scheduler.events import TenantChanged, TermsChanged
from nvshared.scheduler.settings import AntiThrash, TenantTerms, Terms
from nvshared.units import MIB, MILLISECOND, SECOND
from tests.unit.scheduler_hookmodel import Hook
from tests.unit.test_scheduler_fairness import SETTINGS, Users

TOGETHER = replace(SETTINGS, anti_thrash=AntiThrash.AUTO)
DRAIN = 0.03


class Rations(Users):
    """A limit is a reason to stop somebody."""

    def _check_action(self, action: Order | Report, starting: set[int]) -> None:
        if not isinstance(action, Stop):
            super()._check_action(action, starting)

    def ration(self, tenant: str, percent: int) -> None:
        self.tell(TenantChanged(tenant, TenantTerms(compute_limit=percent)))

    def busy(self, *tenants: str) -> Hook:
        hook = self.program(*tenants, size=32 * MIB, work=10000 * SECOND)
        hook.kernel = 10 * MILLISECOND
        return hook

    def computed(self, hooks: list[Hook], seconds: int) -> list[float]:
        """The part of the time from now on that each one's kernels run."""
        before = [hook.computed for hook in hooks]
        self.advance(seconds * SECOND)
        return [(hook.computed - was) / (seconds * SECOND)
                for hook, was in zip(hooks, before, strict=True)]


@pytest.mark.parametrize("percent", [10, 50, 80])
def test_programs_that_run_together_use_the_account_once(percent: int) -> None:
    world = Rations(TOGETHER)
    world.ration("user:alice", percent)
    hooks = [world.busy("user:alice") for _ in range(3)]
    free = world.busy("user:bob")
    *rationed, other = world.computed([*hooks, free], 40)
    assert rationed == pytest.approx([percent / 100] * 3, rel=0.06, abs=0.01)
    assert other > 0.9


def test_programs_that_take_turns_share_the_account() -> None:
    world = Rations()
    world.ration("user:alice", 40)
    hooks = [world.busy("user:alice") for _ in range(4)]
    assert sum(world.computed(hooks, 60)) == pytest.approx(0.4, abs=0.04)


def test_the_limit_of_a_program_holds_besides() -> None:
    world = Rations(TOGETHER)
    world.ration("user:alice", 60)
    one, two = world.busy("user:alice"), world.busy("user:alice")
    world.tell(TermsChanged(one.id, Terms(compute_limit=20)))
    mine, other = world.computed([one, two], 40)
    assert mine == pytest.approx(0.2, abs=0.02)
    assert other == pytest.approx(0.6, abs=0.04)


def test_the_limits_of_all_levels_hold() -> None:
    world = Rations()
    world.ration("user:alice", 50)
    world.ration("job:1", 20)
    inner = world.busy("user:alice", "job:1")
    outer = world.busy("user:alice")
    first, second = world.computed([inner, outer], 60)
    assert first <= 0.2 + DRAIN
    assert first + second <= 0.5 + DRAIN


def test_it_begins_and_ends_while_programs_run_and_none_comes_to_escape_it() -> None:
    world = Rations(TOGETHER)
    hooks = [world.busy("user:alice")]
    assert world.computed(hooks, 4) > [0.9]
    world.ration("user:alice", 30)
    world.advance(2 * SECOND)
    for _ in range(10):                 # new programs, the same account
        world.kill(hooks.pop())
        hooks.append(world.busy("user:alice"))
        share, = world.computed(hooks, 4)
        assert share <= 0.3 + 0.08
    world.ration("user:alice", 100)
    assert world.computed(hooks, 4) > [0.9]
