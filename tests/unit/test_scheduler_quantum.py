# SPDX-License-Identifier: Apache-2.0
"""TQ auto: turns as short as they may be while hand-overs take a twentieth of the time."""

from dataclasses import dataclass, replace

import pytest

from nvshared.scheduler import quantum
from nvshared.scheduler.actions import Run, TurnEnd
from nvshared.scheduler.events import SettingsChanged
from nvshared.scheduler.settings import AntiThrash, Settings
from nvshared.units import GIB, MILLISECOND, SECOND
from tests.unit.scheduler_talk import Talk, stops
from tests.unit.scheduler_world import World

CARD = 100 * GIB
KERNEL = 20 * MILLISECOND
SETTINGS = Settings(
    capacity=CARD, total=CARD, host_budget=1000 * GIB, step=2 * GIB, tq=None,
    anti_thrash=AntiThrash.ON,
)
LEARNT = 3                              # turns of each program, after which all is known


class Watched(World):
    """In which programs compute all the time, and it is measured when the card does nothing."""

    def __init__(self, settings: Settings, sizes: list[int], kernel: int = KERNEL) -> None:
        """`sizes` of programs, in GiB."""
        super().__init__(settings, seed=1, block=GIB, slab=4 * GIB, bus=50_000, delay=200)
        self.idle = 0
        self.programs = [self.join() for _ in sizes]
        self.advance(10 * MILLISECOND)
        for hook, size in zip(self.programs, sizes, strict=True):
            hook.kernel = kernel
            hook.allocate(size * GIB)
            hook.compute(100_000 * SECOND)

    def step(self) -> bool:
        """As World.step. What is in flight when a turn ends is work like any other."""
        before, busy = self.now, any(hook.flying for hook in self.hooks.values())
        went_on = super().step()
        self.idle += 0 if busy else self.now - before
        return went_on

    def learn(self) -> None:
        """Until programs have come in a few times each."""
        while len(self.turns) < LEARNT * len(self.programs):
            self.step()


@dataclass(frozen=True)
class Seen:
    """Of a stretch of time."""

    lost: float                         # part of it in which nobody computed
    quanta: list[int]                   # us; of turns that lasted as long as they might
    computed: list[float]               # part of it in which each program did


def watch(world: Watched, rounds: int) -> Seen:
    """Lets each have so many turns."""
    began, idle, ends = world.now, world.idle, len(world.ends)
    computed = [hook.computed for hook in world.programs]
    turns = len(world.turns)
    while len(world.turns) < turns + rounds * len(world.programs):
        world.step()
    time = world.now - began
    return Seen(
        (world.idle - idle) / time,
        [end.held_time for end in world.ends[ends:] if end.reason is TurnEnd.QUANTUM],
        [(h.computed - c) / time for h, c in zip(world.programs, computed, strict=True)],
    )


@pytest.mark.parametrize(("sizes", "mode"), [
    ([80, 80], AntiThrash.AUTO),        # 60 GiB change places
    ([80, 80], AntiThrash.ON),
    ([90, 30], AntiThrash.AUTO),
    ([60, 60, 60], AntiThrash.ON),
    ([70, 50, 40, 30], AntiThrash.ON),
])
def test_quantum_auto_spends_a_twentieth_on_hand_overs(
    sizes: list[int], mode: AntiThrash
) -> None:
    world = Watched(replace(SETTINGS, anti_thrash=mode), sizes, kernel=SECOND // 10)
    world.learn()
    seen = watch(world, 3)
    assert 0.045 < seen.lost < 0.0525
    assert max(seen.quanta) < 1.1 * min(seen.quanta), "it swings"
    assert max(seen.computed) < 1.1 * min(seen.computed)
    told = world.scheduler.snapshot().quantum
    assert 0.7 * told < seen.quanta[-1] < 1.3 * told


def test_quantum_auto_is_about_the_time_to_load_the_next_client() -> None:
    world = Watched(SETTINGS, [45, 45, 45])
    world.learn()
    seen = watch(world, 10)
    assert seen.lost < 0.0525
    ahead = 45 * GIB / world.bus
    assert max(seen.quanta) < 1.2 * ahead
    assert min(seen.quanta) > 0.5 * ahead


def test_quantum_auto_is_shortest_when_all_are_resident() -> None:
    world = Watched(SETTINGS, [20, 20, 20, 20])
    world.learn()
    seen = watch(world, 20)
    assert min(seen.quanta) >= quantum.LEAST
    # What is in flight at the end is drained, and the orders take a moment.
    assert max(seen.quanta) <= quantum.LEAST + KERNEL + 2 * MILLISECOND
    assert world.scheduler.snapshot().quantum == quantum.LEAST


def test_quantum_auto_is_at_most_longest_tq() -> None:
    world = Watched(replace(SETTINGS, longest_tq=3 * SECOND), [80, 80])
    world.learn()
    seen = watch(world, 4)
    assert min(seen.quanta) >= 3 * SECOND
    assert max(seen.quanta) <= 3 * SECOND + KERNEL + 2 * MILLISECOND
    assert world.scheduler.snapshot().quantum == 3 * SECOND


def hand_over(talk: Talk, takes: float, drains: float = 0) -> float:
    """Until the present turn is over, and the next one has come in. Returns how long it was."""
    (holder,) = talk.scheduler.snapshot().holders
    began = talk.now
    while not (stopping := stops(talk.wait(0.01))):
        assert talk.now < began + 100 * SECOND
    assert stopping == [holder]
    lasted = (talk.now - began) / SECOND
    talk.wait(drains)
    actions = talk.stopped(holder)
    talk.wait(takes)
    talk.obey(actions)
    return lasted


def two(talk: Talk) -> None:
    """Programs of 70 GiB each."""
    talk.tell(SettingsChanged(replace(talk.settings, tq=None)))
    talk.run(1, 70)
    talk.run(2, 70)


def test_quantum_auto_is_not_shortened_by_a_cheap_client() -> None:
    talk = Talk()
    two(talk)
    for _ in range(10):
        hand_over(talk, 0.4)            # the second comes in
        hand_over(talk, 0)              # nothing of the first had to be copied
    lasted = [hand_over(talk, 0.4), hand_over(talk, 0)]
    assert lasted == [pytest.approx(19 * 0.4 / 2, rel=0.05)] * 2


def test_quantum_after_an_outlier_stays_near_the_average() -> None:
    talk = Talk()
    two(talk)
    for _ in range(10):
        hand_over(talk, 0.1)
    usual = hand_over(talk, 0.1)
    assert usual == pytest.approx(19 * 0.1, rel=0.05)
    hand_over(talk, 8)                  # its host was paging
    assert hand_over(talk, 0.1) < 3 * usual
    for _ in range(20):
        hand_over(talk, 0.1)
    assert hand_over(talk, 0.1) == pytest.approx(usual, rel=0.05)


def test_quantum_does_not_count_the_drain_as_cost_of_a_hand_over() -> None:
    talk = Talk()
    two(talk)
    for _ in range(6):
        hand_over(talk, 0.2, drains=5)
    assert hand_over(talk, 0.2) == pytest.approx(19 * 0.2, rel=0.05)


def test_quantum_is_sent_again_after_a_change() -> None:
    talk = Talk()
    two(talk)
    for _ in range(20):
        hand_over(talk, 0.2)
    said = len(talk.said)
    for _ in range(10):
        hand_over(talk, 0.21)
    told = [a for a in talk.said[said:] if isinstance(a, Run)]
    assert len(told) == 10              # each once, when its turn began
    assert len({one.quantum for one in told}) == 1


def test_quantum_may_change_between_seconds_and_auto() -> None:
    talk = Talk()
    talk.run(1, 70)
    talk.run(2, 70)
    for _ in range(6):
        assert hand_over(talk, 0.2) == 30
    talk.tell(SettingsChanged(replace(talk.settings, tq=None)))
    # What hand-overs take is known already.
    assert talk.scheduler.snapshot().quantum == pytest.approx(19 * 0.2 * SECOND, rel=0.05)
    for _ in range(2):
        assert hand_over(talk, 0.2) == pytest.approx(19 * 0.2, rel=0.05)
    talk.tell(SettingsChanged(replace(talk.settings, tq=7 * SECOND)))
    assert talk.scheduler.snapshot().quantum == 7 * SECOND
    for _ in range(2):
        assert hand_over(talk, 0.2) == 7
