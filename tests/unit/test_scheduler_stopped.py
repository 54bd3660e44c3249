# SPDX-License-Identifier: Apache-2.0
"""A process is stopped at any moment, as by Ctrl-Z, and other clients run beside its memory."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from nvshared.scheduler.events import AntiThrash, Settings
from nvshared.units import MIB, SECOND
from tests.seeds import seeds
from tests.unit.scheduler_hookmodel import Hook
from tests.unit.scheduler_world import World

CARD = 1024 * MIB
STUCK_AFTER = 3 * SECOND
FOR_EVER = 1 << 50                      # us of work


class Clock:
    """The world as one hook sees it: callbacks are withheld while its process is stopped."""

    def __init__(self, world: World, hook: "Stoppable") -> None:
        self.world = world
        self.hook = hook

    def __getattr__(self, name: str) -> Any:
        return getattr(self.world, name)

    def at(self, when: int, callback: Callable[[], None]) -> None:
        self.world.at(when, lambda: self.hook.happen(callback))


class Stoppable(Hook):
    def __init__(self, id: int, world: World) -> None:
        super().__init__(id, Clock(world, self))
        self.is_stopped = False
        self.missed: list[Callable[[], None]] = []

    def happen(self, callback: Callable[[], None]) -> None:
        if self.is_stopped:
            self.missed.append(callback)
        else:
            callback()

    def _carry_on(self) -> None:
        if not self.is_stopped:
            super()._carry_on()

    def go_on(self) -> None:
        self.is_stopped = False
        missed, self.missed = self.missed, []
        for callback in missed:
            callback()
        self._carry_on()


def advance(world: World, seconds: int) -> None:
    for _ in range(seconds):
        world.advance(SECOND)


@pytest.mark.parametrize("seed", seeds(6, 40))
def test_process_stopped_by_a_signal_delays_no_other_client_and_runs_again_once_continued(
        seed: int) -> None:
    dice = Random(seed)
    world = World(
        Settings(capacity=CARD, total=CARD, host_budget=8 * CARD, step=128 * MIB, tq=SECOND,
                 anti_thrash=dice.choice([AntiThrash.AUTO, AntiThrash.ON]), gather=0,
                 writeback=dice.random() < 0.5,
                 stuck_after=STUCK_AFTER), seed, bus=dice.choice([500, 50_000]))
    hooks = [world.welcome(Stoppable(id, world)) for id in range(1, dice.randint(3, 5))]
    world.advance(SECOND)
    for hook in hooks:
        hook.allocate(dice.randint(3, 9) * CARD // 20)
        hook.compute(FOR_EVER)
    world.advance(dice.randint(0, 10 * SECOND))
    stopped = dice.choice(hooks)
    stopped.is_stopped = True
    advance(world, 23)   # the client chosen beside `stopped` returns to the queue
    held = world.scheduler.snapshot().clients[stopped.id].room
    fit = [hook for hook in hooks if hook is not stopped and hook.need <= CARD - held]
    before = {hook.id: hook.computed for hook in fit}
    advance(world, 20)
    assert all(hook.computed > before[hook.id] for hook in fit), (stopped.id, held, before)
    stopped.go_on()
    before = {hook.id: hook.computed for hook in hooks}
    advance(world, 30)
    assert all(hook.computed > before[hook.id] for hook in hooks), before
