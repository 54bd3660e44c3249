# SPDX-License-Identifier: Apache-2.0
"""The automatic quantum and the idle window, the idle time that ends a turn: both follow costs."""

from dataclasses import dataclass, replace
from itertools import pairwise

import pytest

from nvshared.scheduler import policy, turns
from nvshared.scheduler.actions import Action, Run, TurnEnd
from nvshared.scheduler.events import (
    AntiThrash,
    Settings,
    SettingsChanged,
    Terms,
    TermsChanged,
)
from nvshared.units import GIB, MILLISECOND, SECOND
from tests.unit.scheduler_talk import Talk, runs, stops, two_programs
from tests.unit.scheduler_world import World

CARD = 100 * GIB
KERNEL = 20 * MILLISECOND
SETTINGS = Settings(capacity=CARD, total=CARD, host_budget=1000 * GIB, step=2 * GIB, tq=None,
                    anti_thrash=AntiThrash.ON)
LEARNT = 3                              # turns of each program until the costs are measured


class Watched(World):
    """Programs that compute all the time; measures when the card is idle."""

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
        """As World.step. Work in flight at the end of a turn counts as work."""
        before, busy = self.now, any(hook.flying for hook in self.hooks.values())
        went_on = super().step()
        self.idle += 0 if busy else self.now - before
        return went_on

    def learn(self) -> None:
        while len(self.turns) < LEARNT * len(self.programs):
            self.step()


@dataclass(frozen=True)
class Seen:
    lost: float                         # fraction of the time in which no program computed
    quanta: list[int]                   # us: lengths of the turns that the quantum ended
    computed: list[float]               # fraction of the time in which each program computed


def watch(world: Watched, rounds: int) -> Seen:
    """Run until each program has had this number of turns."""
    began, idle, ends = world.now, world.idle, len(world.ends)
    computed = [hook.computed for hook in world.programs]
    turns = len(world.turns)
    while len(world.turns) < turns + rounds * len(world.programs):
        world.step()
    time = world.now - began
    return Seen((world.idle - idle) / time,
                [end.held_time for end in world.ends[ends:] if end.reason is TurnEnd.QUANTUM],
                [(h.computed - c) / time for h, c in zip(world.programs, computed, strict=True)])


@pytest.mark.parametrize(("sizes", "mode"), [
    ([80, 80], AntiThrash.AUTO),        # 60 GiB are swapped at each hand-over
    ([90, 30], AntiThrash.AUTO),
    ([60, 60, 60], AntiThrash.ON),
])
def test_automatic_quantum_makes_hand_overs_take_a_twentieth_of_the_time(
        sizes: list[int], mode: AntiThrash) -> None:
    world = Watched(replace(SETTINGS, anti_thrash=mode), sizes, kernel=SECOND // 10)
    world.learn()
    seen = watch(world, 3)
    assert 0.045 < seen.lost < 0.0525
    assert max(seen.quanta) < 1.1 * min(seen.quanta), "it swings"
    assert max(seen.computed) < 1.1 * min(seen.computed)
    sent = world.scheduler.snapshot().tq
    assert 0.7 * sent < seen.quanta[-1] < 1.3 * sent


@pytest.mark.parametrize(("longest", "sizes", "tq"), [
    (30 * SECOND, [20, 20, 20, 20], policy.LEAST_TQ),    # all clients are resident
    (3 * SECOND, [80, 80], 3 * SECOND)])
def test_automatic_quantum_is_between_the_least_and_the_longest_quantum(
        monkeypatch: pytest.MonkeyPatch, longest: int, sizes: list[int], tq: int) -> None:
    monkeypatch.setattr(policy, "AUTO_TQ_MOST", longest)
    world = Watched(SETTINGS, sizes)
    world.learn()
    seen = watch(world, 8)
    assert min(seen.quanta) >= tq
    # Work in flight at the end is drained, and the orders take a moment.
    assert max(seen.quanta) <= tq + KERNEL + 2 * MILLISECOND
    assert world.scheduler.snapshot().tq == tq


def hand_over(talk: Talk, takes: float, drains: float = 0) -> float:
    """End the present turn and load the next program. Returns the length of the turn."""
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
    talk.tell(SettingsChanged(replace(talk.settings, tq=None)))
    talk.run(1, 70)
    talk.run(2, 70)


def test_automatic_quantum_is_not_shortened_by_a_client_that_loads_nothing() -> None:
    talk = Talk()
    two(talk)
    for _ in range(10):
        hand_over(talk, 0.4)            # the second program is loaded
        hand_over(talk, 0)              # nothing of the first had to be copied
    lasted = [hand_over(talk, 0.4), hand_over(talk, 0)]
    assert lasted == [pytest.approx(19 * 0.4 / 2, rel=0.05)] * 2


def test_automatic_quantum_after_a_single_slow_hand_over_stays_near_the_average() -> None:
    talk = Talk()
    two(talk)
    for _ in range(10):
        hand_over(talk, 0.1)
    usual = hand_over(talk, 0.1)
    assert usual == pytest.approx(19 * 0.1, rel=0.05)
    hand_over(talk, 8)                  # an outlier, as when the host swaps
    assert hand_over(talk, 0.1) < 3 * usual
    for _ in range(20):
        hand_over(talk, 0.1)
    assert hand_over(talk, 0.1) == pytest.approx(usual, rel=0.05)


def test_small_change_of_the_automatic_quantum_is_not_shown_and_sends_no_run_order() -> None:
    talk = Talk()
    two(talk)
    for _ in range(20):
        hand_over(talk, 0.2, drains=5)  # a drain is no cost of the hand-over
    assert hand_over(talk, 0.2) == pytest.approx(19 * 0.2, rel=0.05)
    said, shown = len(talk.said), talk.scheduler.snapshot().tq
    for _ in range(10):
        hand_over(talk, 0.21)
        assert talk.scheduler.snapshot().tq == shown
    assert len(runs(talk.said[said:])) == 10    # only the RUN that begins each turn


def test_quantum_switched_between_seconds_and_auto_takes_effect_at_once() -> None:
    talk = two_programs(70)
    for _ in range(6):
        assert hand_over(talk, 0.2) == 30
    talk.tell(SettingsChanged(replace(talk.settings, tq=None)))
    # The cost of hand-overs is known already.
    assert talk.scheduler.snapshot().tq == pytest.approx(19 * 0.2 * SECOND, rel=0.05)
    for _ in range(2):
        assert hand_over(talk, 0.2) == pytest.approx(19 * 0.2, rel=0.05)
    talk.tell(SettingsChanged(replace(talk.settings, tq=7 * SECOND)))
    assert talk.scheduler.snapshot().tq == 7 * SECOND
    for _ in range(2):
        assert hand_over(talk, 0.2) == 7


def windows(actions: list[Action], client: int) -> list[int]:
    """The idle windows in the RUN orders to the client, in us."""
    return [a.idle_window for a in actions if isinstance(a, Run) and a.client == client]


@pytest.mark.parametrize(("size", "expected"), [
    (100, turns.IDLE_MOST),
    (10, 10 * GIB // 25_000 + 1000),    # at the assumed speed, plus the latency
    (0, turns.IDLE_LEAST),
])
def test_idle_time_that_ends_a_turn_is_about_the_expected_hand_over_time(
        size: int, expected: int) -> None:
    talk = Talk(mode=AntiThrash.ON)
    talk.run(1, 100)
    talk.join(2, size)
    assert windows(talk.want(2), 1) == [pytest.approx(expected, abs=1)]


def test_idle_time_that_ends_a_turn_is_sent_to_a_client_again_only_when_halved() -> None:
    talk = Talk(mode=AntiThrash.ON, step=0.125)
    talk.run(1, 30)
    sent = windows(talk.run(2, 40), 1)  # loaded in steps of 1/8 GiB
    assert sent[0] == turns.IDLE_MOST
    assert sent[-1] < 2 * turns.IDLE_LEAST
    assert all(later <= earlier / turns.RESEND_FACTOR for earlier, later in pairwise(sent))
    assert len(sent) <= 6


def test_turn_of_a_compute_limited_client_ends_after_50_ms_idle_without_waiting_clients() -> None:
    talk = Talk()
    talk.run(1, 30)
    actions = talk.tell(TermsChanged(1, Terms(compute_limit=50)))
    assert windows(actions, 1) == [turns.IDLE_USUAL]


def test_idle_time_that_ends_a_turn_is_sent_unchanged_however_long_the_program_paused() -> None:
    """The hook shortens it by the pauses that it has seen."""
    talk = Talk()
    talk.run(1, 100)
    talk.join(2, 100)
    holder, other = 1, 2
    for pause in (3, 3, 3, 0.1, 3):
        talk.wait(pause)
        talk.want(other)
        assert [a.idle_window for a in talk.said
                if isinstance(a, Run) and a.client == holder and a.pace][-1] == turns.IDLE_MOST
        talk.idle(holder)
        moves = talk.stopped(holder, wants=False)
        talk.wait(1)
        talk.obey(moves)
        holder, other = other, holder


def test_first_hand_overs_of_a_pair_begin_within_100_ms_of_the_end_of_the_work() -> None:
    world = Watched(replace(SETTINGS, anti_thrash=AntiThrash.AUTO), [80, 80])
    for hook in world.programs:
        hook.work = 0
    world.settle(10 * SECOND)
    holder, other = world.programs
    holder.compute(SECOND)
    for _ in range(6):
        while not holder.granted:
            world.step()
        other.compute(SECOND // 2)      # it waits from now on
        ends = len(world.ends)
        for _ in range(4):              # pauses in which the holder only prepares more work
            while holder.work or holder.flying:
                world.step()
            world.advance(40 * MILLISECOND)
            holder.compute(SECOND // 2)
        while holder.work or holder.flying:
            world.step()
        assert len(world.ends) == ends, "a pause ended the turn"
        ended = world.now
        while len(world.ends) == ends:
            world.step()
        assert (world.ends[-1].client, world.ends[-1].reason) == (holder.id, TurnEnd.IDLE)
        assert world.now - ended <= 100 * MILLISECOND + 4 * world.delay
        holder, other = other, holder
