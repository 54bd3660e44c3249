# SPDX-License-Identifier: Apache-2.0
"""How long a holder is to be idle before it says so: about as long as a hand-over takes."""

from dataclasses import replace
from itertools import pairwise

import pytest

from nvshared.scheduler import quantum
from nvshared.scheduler.actions import Action, Run, TurnEnd
from nvshared.scheduler.events import TermsChanged, Tick
from nvshared.scheduler.settings import AntiThrash, Settings, Terms
from nvshared.units import GIB, MILLISECOND, SECOND
from tests.unit.scheduler_hookmodel import Hook
from tests.unit.scheduler_talk import Talk
from tests.unit.scheduler_world import World


def windows(actions: list[Action], client: int) -> list[int]:
    """What it is told, in us."""
    return [a.idle_window for a in actions if isinstance(a, Run) and a.client == client]


@pytest.mark.parametrize(("size", "expected"), [
    (100, quantum.IDLE_MOST),
    (10, 10 * GIB // 25_000 + 1000),    # at the speed that is thought usual, and the latency
    (0, quantum.IDLE_LEAST),
])
def test_idle_window_is_about_the_cost_of_the_hand_over(size: int, expected: int) -> None:
    talk = Talk(mode=AntiThrash.ON)
    talk.run(1, 100)
    talk.join(2, size)
    assert windows(talk.want(2), 1) == [pytest.approx(expected, abs=1)]


def test_idle_window_is_sent_again_when_halved() -> None:
    talk = Talk(mode=AntiThrash.ON, step=0.125)
    talk.run(1, 30)
    told = windows(talk.run(2, 40), 1)  # in 320 pieces
    assert told[0] == quantum.IDLE_MOST
    assert told[-1] < 2 * quantum.IDLE_LEAST
    assert all(later <= earlier / quantum.RESEND_FACTOR for earlier, later in pairwise(told))
    assert len(told) <= 6


def test_idle_window_follows_the_measured_speed_of_moves() -> None:
    talk = Talk()
    talk.run(1, 60)
    actions = talk.run(2, 60)           # 20 GiB change places
    for _ in range(10):
        (holder,) = talk.scheduler.snapshot().holders
        talk.wait(30)
        actions = talk.stopped(holder)
        talk.wait(0.2)                  # of which each takes so long
        actions = talk.obey(actions)
    (holder,) = talk.scheduler.snapshot().holders
    assert windows(actions, holder)[-1] == pytest.approx(200 * MILLISECOND, rel=0.05)


def test_idle_window_of_a_limited_client_alone_has_the_usual_length() -> None:
    talk = Talk()
    talk.run(1, 30)
    actions = talk.tell(TermsChanged(1, Terms(compute_limit=50)))
    assert windows(actions, 1) == [quantum.IDLE_USUAL]


def last_window(talk: Talk, client: int) -> int:
    """What it was told last while others wait."""
    return [a.idle_window for a in talk.said
            if isinstance(a, Run) and a.client == client and a.pace][-1]


def test_idle_window_halves_after_long_pauses_only() -> None:
    talk = Talk()
    talk.run(1, 100)
    talk.join(2, 100)
    holder, other, told = 1, 2, []

    def hand_over(pause: float, took: float = 1) -> None:
        nonlocal holder, other
        talk.wait(pause)
        talk.want(other)
        told.append(last_window(talk, holder))
        talk.idle(holder)
        moves = talk.stopped(holder, wants=False)
        talk.wait(took)
        talk.obey(moves)
        holder, other = other, holder

    for _ in range(12):
        hand_over(3)
    assert told[1] == quantum.IDLE_MOST
    assert told[3:8:2] == [quantum.IDLE_MOST >> halvings for halvings in (1, 2, 3)]
    assert told[-1] >= quantum.IDLE_LEAST
    hand_over(3, took=0.1)
    hand_over(0.1)                      # who left then was stopped too early
    hand_over(3)
    assert told[-1] == quantum.IDLE_MOST


class Pausing:
    """A program that computes for 5 ms and then does something else."""

    def __init__(self, world: World, hook: Hook, pause: int) -> None:
        hook.kernel = 5 * MILLISECOND
        self._world, self._hook, self._pause = world, hook, pause
        self._compute()

    def _compute(self) -> None:
        if not self._hook.work:
            self._hook.compute(5 * MILLISECOND)
        self._world.at(self._world.now + 5 * MILLISECOND + self._pause, self._compute)


@pytest.mark.parametrize(("pause", "size", "gives_way"), [
    (4, 20, False),                     # host work between launches
    (40, 20, True),                     # and the other one is there already
    (40, 80, False),                    # but if 60 GiB must change places, that is a moment
    (900, 80, True),
])
def test_holder_that_pauses_is_stopped_if_the_pause_is_long(
    pause: int, size: int, gives_way: bool
) -> None:
    world = World(
        Settings(
            capacity=100 * GIB, total=100 * GIB, host_budget=500 * GIB, step=2 * GIB,
            tq=3600 * SECOND, anti_thrash=AntiThrash.ON,
        ),
        seed=1, block=GIB, slab=4 * GIB, delay=200,
    )
    one, other = world.join(), world.join()
    world.advance(10 * MILLISECOND)
    one.allocate(size * GIB)
    Pausing(world, one, pause * MILLISECOND)
    world.advance(SECOND)
    other.kernel = SECOND
    other.allocate(size * GIB)
    other.compute(10 * SECOND)
    world.advance(5 * SECOND)
    ended = [end for end in world.ends if end.client == one.id and end.reason is TurnEnd.IDLE]
    assert bool(ended) is gives_way


def test_quantum_and_idle_window_are_sent_in_a_single_run() -> None:
    talk = Talk(mode=AntiThrash.ON)
    talk.run(1, 30)
    told = [a for a in talk.run(2, 30) if isinstance(a, Run) and a.client == 1]
    assert replace(told[-1], idle_window=0) == Run(
        1, 30 * SECOND, pace=True, report_idle=True, report_copies=True)


def test_snapshot_has_the_idle_time_of_idle_clients_only() -> None:
    talk = Talk()
    talk.run(1, 70)
    talk.join(2, 70)
    talk.wait(10)
    talk.tell(Tick())
    assert talk.view(2).idle == 10 * SECOND
    assert talk.view(1).idle is None            # whether it does something is not asked
    talk.want(2)
    assert talk.view(2).idle is None
    talk.obey(talk.wait(30))
    talk.wait(5)
    talk.tell(Tick())
    assert talk.view(1).idle is None            # it waits for its next turn
