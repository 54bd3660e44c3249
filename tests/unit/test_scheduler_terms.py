# SPDX-License-Identifier: Apache-2.0
"""Limits, weights, suspension and preemption: what is set for single clients."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvshared.scheduler.actions import (
    ClientState,
    Load,
    Order,
    Report,
    Run,
    Stop,
    TurnEnd,
    TurnStarted,
)
from nvshared.scheduler.events import Preempted, TenantChanged, TermsChanged
from nvshared.scheduler.settings import AntiThrash, Settings, TenantTerms, Terms
from nvshared.units import GIB, MIB, SECOND
from tests.unit.scheduler_hookmodel import Hook
from tests.unit.scheduler_world import World, tenants_of

SETTINGS = Settings(
    capacity=4 * GIB, total=4 * GIB, host_budget=16 * GIB, step=256 * MIB, tq=SECOND
)
LARGE = 2600 * MIB
SMALL = 512 * MIB
MOMENT = SECOND // 10


class Tenancy(World):
    """A world in which things are set for clients, and what then must hold."""

    def __init__(self, settings: Settings = SETTINGS, seed: int = 0) -> None:
        self.terms: dict[int, Terms] = {}
        super().__init__(settings, seed)

    def put(self, hook: Hook, **changes: int) -> None:
        """At once; the daemon's D-Bus does not travel. Clients it does not know have no object."""
        if hook.id not in self.scheduler.snapshot().clients:
            return
        self.terms[hook.id] = replace(self.terms.get(hook.id, Terms()), **changes)  # type: ignore[arg-type]
        self.tell(TermsChanged(hook.id, self.terms[hook.id]))
        self.check()

    def program(self, size: int = LARGE, work: int = 1000 * SECOND) -> Hook:
        hook = self.join()
        self.advance(MOMENT)
        hook.allocate(size)
        hook.compute(work)
        return hook

    def state(self, hook: Hook) -> ClientState:
        return self.scheduler.snapshot().clients[hook.id].state

    def restart(self) -> None:
        super().restart()
        self.terms.clear()              # a daemon does not remember them

    def _check_action(self, action: Order | Report, starting: set[int]) -> None:
        suspended = self.terms.get(action.client, Terms()).suspended or any(
            self.tenant_terms[name].suspended
            for name in tenants_of(action.client) if name in self.tenant_terms
        )
        if isinstance(action, Stop) and suspended:
            return                      # needs no other reason
        if isinstance(action, Run | TurnStarted):
            running = action.client not in starting     # told what has changed, until it may stop
            assert running or not suspended, "it is suspended, and started"
        super()._check_action(action, starting)


def test_a_suspended_holder_leaves_the_card_and_another_comes() -> None:
    world = Tenancy()
    one, two = world.program(), world.program()
    world.advance(5 * SECOND)
    holder, waiter = (one, two) if one.granted else (two, one)
    world.put(holder, suspended=True)
    world.advance(2 * SECOND)
    assert waiter.open
    assert holder.resident == 0
    assert world.state(holder) is ClientState.SUSPENDED
    assert world.ends[-1].reason is TurnEnd.SUSPENDED
    runs = holder.runs
    world.advance(20 * SECOND)
    assert holder.runs == runs
    assert not waiter.paced         # nobody waits for it
    world.put(holder, suspended=False)
    world.advance(5 * SECOND)
    assert holder.runs > runs


def test_a_suspended_client_leaves_although_nobody_needs_the_room() -> None:
    world = Tenancy()
    alone = world.program()
    alone.pin(64 * MIB)
    world.advance(SECOND)
    assert alone.open
    world.put(alone, suspended=True)
    world.advance(SECOND)
    assert (alone.resident, alone.filled) == (0, 64 * MIB)
    assert not world.scheduler.snapshot().queue
    computed = alone.computed
    world.advance(10 * SECOND)
    assert alone.computed == computed
    assert not world.stuck
    world.put(alone, suspended=False)
    world.advance(SECOND)
    assert alone.open


def test_with_a_tenant_its_programs_are_suspended_and_those_to_come() -> None:
    world = Tenancy()
    world.jobs = True
    hooks = [world.program(LARGE // 2) for _ in range(4)]
    world.advance(3 * SECOND)
    name = tenants_of(hooks[0].id)[0]
    inside = [hook for hook in hooks if name in tenants_of(hook.id)]
    world.put_tenant(name, TenantTerms(suspended=True))
    while name not in tenants_of((late := world.program(SMALL)).id):
        pass
    inside.append(late)
    world.put(inside[0], suspended=True)
    world.advance(3 * SECOND)
    runs = [hook.runs for hook in inside]
    world.advance(10 * SECOND)
    assert [hook.resident for hook in inside] == [0] * len(inside)
    assert [hook.runs for hook in inside] == runs
    assert any(hook.open for hook in hooks if hook not in inside)     # or busy, by turns
    world.restart()
    world.advance(10 * SECOND)
    assert [hook.runs for hook in inside] == runs
    world.put(inside[0], suspended=True)
    world.put_tenant(name, TenantTerms())
    world.advance(10 * SECOND)
    assert inside[0].runs == runs[0]    # what is set for a program alone stays
    assert all(hook.runs > before for hook, before in zip(inside[1:], runs[1:], strict=True))


@pytest.mark.parametrize("moment", range(0, 400_000, 50_000))
def test_suspending_at_any_moment_of_a_hand_over(moment: int) -> None:
    world = Tenancy(seed=moment)
    hooks = [world.program() for _ in range(3)]
    world.advance(3 * SECOND + moment)
    for hook in hooks[:2]:
        world.put(hook, suspended=True)
    world.advance(3 * SECOND)
    assert [hook.open for hook in hooks] == [False, False, True]
    assert hooks[0].resident == hooks[1].resident == 0


def test_who_cannot_drain_is_suspended_when_it_can() -> None:
    world = Tenancy()
    stubborn = world.program()
    world.advance(SECOND)
    stubborn.undrainable = 1
    stubborn.kernel = 3 * SECOND
    world.put(stubborn, suspended=True)
    world.advance(60 * SECOND)
    assert stubborn.resident == 0
    assert world.state(stubborn) is ClientState.SUSPENDED


def test_suspended_without_host_memory_it_leaves_as_far_as_that_goes() -> None:
    world = Tenancy(replace(SETTINGS, host_budget=GIB))
    one = world.program(2 * GIB)
    world.advance(SECOND)
    world.put(one, suspended=True)
    world.advance(5 * SECOND)
    assert not one.open
    assert 0 < one.resident < 2 * GIB
    assert one.host <= GIB
    world.put(one, suspended=False)
    world.advance(SECOND)
    assert one.open


def test_a_memory_limit_is_the_size_of_the_card_for_that_client() -> None:
    world = Tenancy()
    one = world.join()
    world.advance(MOMENT)
    world.put(one, memory_limit=GIB)
    world.advance(MOMENT)
    assert one.limits is not None
    assert (one.limits.total, one.limits.most) == (GIB, GIB)
    one.allocate(GIB + MIB)
    world.advance(MOMENT)
    assert (one.allocated, one.refused) == (0, 1)
    one.allocate(GIB - MIB)
    world.advance(MOMENT)
    assert one.allocated == GIB - MIB
    world.put(one, memory_limit=0)
    world.advance(MOMENT)
    assert one.limits.total == 4 * GIB
    one.allocate(GIB)
    world.advance(MOMENT)
    assert one.allocated == 2 * GIB - MIB


def test_a_limit_below_what_is_allocated_takes_nothing_away_and_gives_nothing_more() -> None:
    world = Tenancy()
    one = world.program(2 * GIB)
    world.advance(SECOND)
    world.put(one, memory_limit=GIB)
    world.advance(2 * SECOND)
    assert one.allocated == 2 * GIB
    assert one.open
    assert one.limits is not None
    assert one.limits.total == GIB
    one.allocate(MIB)
    world.advance(MOMENT)
    assert one.refused == 1
    while one.allocated > GIB // 2:
        one.free(0)
    world.advance(2 * SECOND)
    one.allocate(GIB)
    world.advance(MOMENT)
    assert one.refused == 2
    one.allocate(GIB // 4)
    world.advance(MOMENT)
    assert one.allocated == 3 * GIB // 4


def test_preempting_ends_the_turn_and_the_next_one_comes() -> None:
    world = Tenancy(replace(SETTINGS, tq=3600 * SECOND))
    one, two = world.program(), world.program()
    world.advance(5 * SECOND)
    assert one.open
    world.tell(Preempted())
    world.advance(SECOND)
    assert two.open
    assert world.ends[-1].reason is TurnEnd.PREEMPTED
    runs, ends = one.runs, len(world.ends)
    world.advance(60 * SECOND)
    assert len(world.ends) == ends      # the new turn is a whole one
    world.tell(Preempted())
    world.advance(SECOND)
    assert one.runs == runs + 1


@pytest.mark.parametrize("mode", [AntiThrash.ON, AntiThrash.OFF])
def test_preempting_works_in_every_mode_and_against_every_weight(mode: AntiThrash) -> None:
    world = Tenancy(replace(SETTINGS, tq=3600 * SECOND, anti_thrash=mode))
    one, two = world.program(), world.program()
    world.advance(2 * SECOND)
    world.put(one, weight=1000)
    world.advance(SECOND)
    world.tell(Preempted())
    world.advance(SECOND)
    assert two.open


def test_preempting_for_nobody_does_nothing() -> None:
    world = Tenancy(replace(SETTINGS, tq=3600 * SECOND))
    one, two = world.program(SMALL), world.program(SMALL)
    world.advance(SECOND)
    world.tell(Preempted())
    late = world.program(LARGE)
    world.program(LARGE)
    world.advance(5 * SECOND)
    assert late.paced
    assert [one.runs, two.runs, late.runs] == [1, 1, 1]
    assert not any(end.reason is TurnEnd.PREEMPTED for end in world.ends)


def shares(weights: list[int], seconds: int = 30) -> list[float]:
    world = Tenancy(replace(SETTINGS, tq=SECOND // 2))
    hooks = [world.program() for _ in weights]
    for hook, weight in zip(hooks, weights, strict=True):
        hook.kernel = SECOND // 10
        world.put(hook, weight=weight)
    world.advance(seconds * SECOND)
    views = world.scheduler.snapshot().clients
    held = [views[hook.id].held_time for hook in hooks]
    return [time / sum(held) for time in held]


@pytest.mark.parametrize("weights", [[200, 100], [100, 100, 200], [300, 100, 200], [50, 100]])
def test_time_is_shared_by_weight(weights: list[int]) -> None:
    for share, weight in zip(shares(weights), weights, strict=True):
        assert share == pytest.approx(weight / sum(weights), rel=0.1)


def test_the_largest_weight_starves_nobody() -> None:
    least = min(shares([1000, 100], 40))
    assert 0.05 < least < 0.13


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 1000), weight=st.integers(1, 1000))
def test_equal_weights_are_first_come_first_served(seed: int, weight: int) -> None:
    plain, weighed = Tenancy(seed=seed), Tenancy(seed=seed)
    for world in (plain, weighed):
        for number in range(4):
            hook = world.program(LARGE, SECOND + number * SECOND // 2)
            hook.kernel = SECOND // 10
            if world is weighed:
                world.put(hook, weight=weight)
        world.advance(15 * SECOND)
    assert plain.turns == weighed.turns


def test_who_idled_has_saved_nothing_up_and_owes_nothing_new() -> None:
    world = Tenancy()
    one, two = world.program(), world.program()
    one.kernel = two.kernel = SECOND // 5
    world.put(one, weight=200)
    idler = world.join()
    world.advance(30 * SECOND)
    idler.allocate(LARGE)
    idler.compute(1000 * SECOND)
    before = world.now
    runs = [one.runs, two.runs]
    world.advance(12 * SECOND)
    # Of one weight with `two`: one of four parts, not all of the time that it was away.
    held = world.scheduler.snapshot().clients[idler.id].held_time
    assert world.now - before == 12 * SECOND
    assert SECOND <= held <= 5 * SECOND
    assert one.runs > runs[0]
    assert two.runs > runs[1]


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 1 << 32), data=st.data())
def test_whatever_is_set_for_whom_the_invariants_hold_and_all_finish(
    seed: int, data: st.DataObject
) -> None:
    world = Tenancy(replace(SETTINGS, gather=SECOND // 2, tq=SECOND // 4), seed)
    world.advance(SECOND)
    hooks = [world.program(LARGE // 2, SECOND) for _ in range(4)]
    for _ in range(data.draw(st.integers(1, 12))):
        hook = data.draw(st.sampled_from(hooks))
        match data.draw(st.sampled_from(
            ["suspend", "resume", "limit", "weight", "preempt", "grow", "free", "restart", "wait"]
        )):
            case "suspend":
                world.put(hook, suspended=True)
            case "resume":
                world.put(hook, suspended=False)
            case "limit":
                world.put(hook, memory_limit=data.draw(st.integers(0, 4)) * GIB)
            case "weight":
                world.put(hook, weight=data.draw(st.integers(1, 1000)))
            case "preempt":
                world.tell(Preempted())
            case "grow":
                hook.allocate(256 * MIB)
            case "free":
                hook.free(data.draw(st.integers(0, 100)))
            case "restart":
                world.restart()
            case "wait":
                world.advance(SECOND)
        world.advance(data.draw(st.integers(0, 500)) * 1000)
    world.advance(10 * SECOND)
    for hook in hooks:
        if world.terms.get(hook.id, Terms()).suspended:
            assert hook.resident == 0
            assert not hook.granted
    for hook in hooks:
        world.put(hook, suspended=False)
    world.settle(600 * SECOND)
    assert [hook.work for hook in hooks] == [0] * len(hooks)
    assert not world.stuck


def test_nothing_is_loaded_for_the_suspended() -> None:
    world = Tenancy()
    one, two = world.program(), world.program()
    world.put(two, suspended=True)
    world.advance(SECOND)
    loads = [load for load in world.orders_of(Load) if load.client == two.id]
    world.advance(30 * SECOND)
    assert [load for load in world.orders_of(Load) if load.client == two.id] == loads
    assert one.open


def test_what_is_set_for_a_tenant_may_come_before_its_programs_and_after_them() -> None:
    world = Tenancy()
    world.tell(TenantChanged("user:alice", TenantTerms(memory_limit=GIB, compute_limit=50)))
    world.program()
    world.tell(TenantChanged("user:alice", TenantTerms()))
    world.check()
