# SPDX-License-Identifier: Apache-2.0
"""Limits of time: a client that never gets more than its share, even alone."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvshared.scheduler.actions import ClientState, Order, Report, Run, Stop, TurnEnd
from nvshared.scheduler.events import Stopped, TermsChanged, Tick
from nvshared.scheduler.settings import Accounting, AntiThrash, Settings, Terms
from nvshared.scheduler.snapshot import CardState
from nvshared.units import GIB, MIB, MILLISECOND, SECOND
from tests.unit.scheduler_hookmodel import Hook
from tests.unit.scheduler_talk import Talk
from tests.unit.test_scheduler_terms import LARGE, SMALL, Tenancy

SETTINGS = Settings(
    capacity=4 * GIB, total=4 * GIB, host_budget=16 * GIB, step=256 * MIB, tq=SECOND,
    accounting=Accounting(window=2 * SECOND),
)
WINDOW = 2 * SECOND
DRAIN = 25 * MILLISECOND                # a kernel and two messages


class Rationed(Tenancy):
    """A limit is a reason to stop somebody."""

    def __init__(self, settings: Settings = SETTINGS, seed: int = 0) -> None:
        super().__init__(settings, seed)

    def _check_action(self, action: Order | Report, starting: set[int]) -> None:
        limited = self.terms.get(action.client, Terms()).compute_limit < 100
        if not (isinstance(action, Stop) and limited):
            super()._check_action(action, starting)

    def limited(self, percent: int, size: int = SMALL) -> Hook:
        """A busy program of short kernels with a limit."""
        hook = self.program(size)
        self.put(hook, compute_limit=percent)
        return hook

    def computed(self, hook: Hook, time: int) -> float:
        """The part of this time, from now on, that its kernels run."""
        before = hook.computed
        self.advance(time)
        return (hook.computed - before) / time


@pytest.mark.parametrize("percent", [1, 10, 25, 50, 80, 99])
def test_alone_it_has_its_share_and_no_more(percent: int) -> None:
    world = Rationed()
    one = world.limited(percent)
    for _ in range(20):
        assert world.computed(one, WINDOW) <= percent / 100 + DRAIN / WINDOW
    share = world.computed(one, 100 * WINDOW)
    assert share == pytest.approx(percent / 100, rel=0.05, abs=0.01)
    reasons = {end.reason for end in world.ends}
    assert reasons == {TurnEnd.LIMIT}


def test_it_is_limited_until_the_next_window_begins() -> None:
    world = Rationed()
    one = world.limited(50)
    world.advance(WINDOW * 3 // 4)
    assert not one.open
    assert world.state(one) is ClientState.LIMITED
    now = world.scheduler.snapshot()
    assert not now.queue
    assert now.state is CardState.IDLE
    world.advance(WINDOW // 2)
    assert one.open


def test_long_kernels_have_no_more_of_it() -> None:
    world = Rationed()
    one = world.limited(10)
    one.kernel = 3 * SECOND
    assert world.computed(one, 600 * SECOND) == pytest.approx(0.10, abs=0.005)


def test_a_part_of_a_drain_is_billed_where_that_is_wanted() -> None:
    world = Rationed(replace(SETTINGS, accounting=Accounting(window=2 * SECOND, tail=70)))
    one = world.limited(10)
    one.kernel = 3 * SECOND
    # Most of each kernel is a drain.
    assert 0.12 < world.computed(one, 600 * SECOND) < 0.10 / 0.7 + 0.02


@pytest.mark.parametrize("percent", [25, 50, 75])
@pytest.mark.parametrize("kernel", [10 * MILLISECOND, 100 * MILLISECOND, 2 * SECOND])
def test_where_nothing_moves_a_share_is_exact_and_in_small_grains(
    percent: int, kernel: int
) -> None:
    world = Rationed(replace(SETTINGS, accounting=Accounting()))
    one = world.limited(percent)
    one.kernel = kernel
    world.advance(2 * kernel)
    parts = [world.computed(one, 5 * SECOND) for _ in range(12)]
    assert sum(parts[:6]) / 6 == pytest.approx(percent / 100, abs=max(0.01, kernel / (30 * SECOND)))
    grain = max(0.03, kernel / (5 * SECOND))        # computed is counted when a kernel ends
    assert all(part == pytest.approx(percent / 100, abs=grain) for part in parts)
    assert sum(parts) / 12 == pytest.approx(percent / 100, abs=max(0.005, kernel / (60 * SECOND)))
    if kernel < 50 * MILLISECOND:
        world.computed(one, SECOND)
        pauses = [world.computed(one, 200 * MILLISECOND) for _ in range(10)]
        assert all(pauses)              # it never stutters for long


@pytest.mark.parametrize(
    ("used", "answered", "after"),
    [(50, 95, 100), (30, 70, 70), (1, 95, 100), (1, 190, 200), (None, 95, 200), (1000, 95, 200)],
)
def test_billed_is_what_the_hook_says_that_the_card_worked(
    used: int | None, answered: int, after: int
) -> None:
    """Messages may take as long as the turn, where the daemon is busy. But half of it is billed,
    whatever the hook says: it is its user's."""
    talk = Talk()
    talk.join(1, 1, 1)
    talk.tell(TermsChanged(1, Terms(compute_limit=50)))
    talk.obey(talk.want(1))
    talk.now = 50 * MILLISECOND
    assert [type(action) for action in talk.tell(Tick())] == [Stop]
    talk.now = answered * MILLISECOND
    said = used and used * MILLISECOND
    actions = talk.tell(Stopped(1, talk.memory[1], True, 1, said))
    while not any(isinstance(action, Run) for action in actions):
        deadline = talk.scheduler.deadline()
        assert deadline is not None
        talk.now = deadline
        actions = talk.tell(Tick())
    assert talk.now == after * MILLISECOND


def test_who_has_no_limit_notices_nothing() -> None:
    world = Rationed()
    world.limited(30)
    other = world.program(SMALL)
    world.advance(SECOND)
    runs = other.runs
    assert world.computed(other, 20 * SECOND) == pytest.approx(1.0, abs=0.01)
    assert other.runs == runs           # never stopped


@pytest.mark.parametrize("percent", [20, 50])
def test_where_turns_are_taken_it_still_has_its_share(percent: int) -> None:
    world = Rationed(replace(SETTINGS, tq=10 * SECOND))
    one, other = world.limited(percent, LARGE), world.program(LARGE)
    world.advance(60 * SECOND)
    share = world.computed(one, 400 * SECOND)
    assert share <= percent / 100 + 0.01
    assert share >= percent / 100 * 0.8
    assert other.computed > 0
    assert world.computed(other, 400 * SECOND) >= 0.9 - percent / 100


def test_while_it_is_limited_the_card_is_not_kept_for_it() -> None:
    world = Rationed(replace(SETTINGS, tq=3600 * SECOND))
    one = world.limited(10, LARGE)
    world.advance(SECOND)
    other = world.program(LARGE)
    world.advance(SECOND)
    assert other.open
    assert not one.open


def test_an_open_gate_that_is_not_used_is_not_billed() -> None:
    world = Rationed()
    one = world.limited(10)
    one.work = 0
    world.advance(WINDOW)
    assert not one.open                 # it said it was idle
    world.advance(10 * WINDOW)
    one.compute(100 * MILLISECOND)
    world.advance(150 * MILLISECOND)
    assert one.work == 0                # at once, as its share was unused


def test_the_limit_can_be_raised_and_taken_away_at_any_time() -> None:
    world = Rationed()
    one = world.limited(1)
    world.advance(WINDOW // 2)
    assert world.state(one) is ClientState.LIMITED
    for percent, state in (
        (50, ClientState.RUNNING), (1, ClientState.LIMITED), (100, ClientState.RUNNING),
    ):
        world.put(one, compute_limit=percent)
        world.advance(WINDOW // 4)
        assert world.state(one) is state
    assert not one.paced
    runs = one.runs
    world.advance(20 * WINDOW)
    assert one.runs == runs


@pytest.mark.parametrize("pause", [10, 100, 700])
def test_who_changes_the_limit_again_and_again_has_no_more_of_it(pause: int) -> None:
    """Users may lower and raise what their own programs get, up to the administrator's limit."""
    world = Rationed()
    one = world.limited(10)
    before = one.computed
    changes = 20 * WINDOW // (pause * MILLISECOND)
    for change in range(changes):
        world.put(one, compute_limit=9 + change % 2)
        world.advance(pause * MILLISECOND)
    share = (one.computed - before) / (changes * pause * MILLISECOND)
    assert 0.08 < share <= 0.10 + DRAIN / WINDOW


def test_suspended_while_limited_it_stays_away() -> None:
    world = Rationed()
    one = world.limited(10)
    world.advance(WINDOW // 2)
    world.put(one, suspended=True)
    assert world.computed(one, 10 * WINDOW) == 0
    assert one.resident == 0
    world.put(one, suspended=False)
    assert world.computed(one, 20 * WINDOW) == pytest.approx(0.1, abs=0.02)


def test_the_window_is_the_administrators() -> None:
    world = Rationed(replace(SETTINGS, accounting=Accounting(window=200 * MILLISECOND)))
    one = world.limited(50)
    one.kernel = MILLISECOND
    for _ in range(20):
        assert world.computed(one, 200 * MILLISECOND) == pytest.approx(0.5, abs=0.06)


def test_no_turn_is_shorter_than_the_grain() -> None:
    world = Rationed()
    one = world.limited(50)
    one.kernel = MILLISECOND
    world.advance(60 * SECOND)
    # The first is cut by whatever was left of its window.
    assert all(end.held_time >= 50 * MILLISECOND for end in world.ends)


@pytest.mark.long
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 1 << 32), data=st.data())
def test_whatever_is_limited_when_nobody_exceeds_it_and_all_finish(
    seed: int, data: st.DataObject
) -> None:
    mode = data.draw(st.sampled_from(list(AntiThrash)))
    world = Rationed(
        replace(SETTINGS, tq=SECOND // 4, anti_thrash=mode, gather=SECOND // 2), seed
    )
    world.advance(SECOND)
    hooks = [world.program(data.draw(st.sampled_from([SMALL, LARGE // 2]))) for _ in range(4)]
    for _ in range(data.draw(st.integers(1, 12))):
        hook = data.draw(st.sampled_from(hooks))
        match data.draw(st.sampled_from(
            ["limit", "suspend", "resume", "weight", "idle", "grow", "restart", "wait"]
        )):
            case "limit":
                world.put(hook, compute_limit=data.draw(st.integers(1, 100)))
            case "suspend":
                world.put(hook, suspended=True)
            case "resume":
                world.put(hook, suspended=False)
            case "weight":
                world.put(hook, weight=data.draw(st.integers(1, 1000)))
            case "idle":
                hook.work = 0
            case "grow":
                hook.allocate(64 * MIB)
            case "restart":
                world.restart()
            case "wait":
                world.advance(SECOND)
        world.advance(data.draw(st.integers(0, 500)) * MILLISECOND)
    world.advance(SECOND)               # a new daemon knows them all
    for hook in hooks:
        world.put(hook, suspended=False, compute_limit=20)
        hook.compute(1000 * SECOND)
    before = [hook.computed for hook in hooks]
    world.advance(40 * WINDOW)
    for hook, was in zip(hooks, before, strict=True):
        assert (hook.computed - was) / (40 * WINDOW) <= 0.2 + 0.02
    for hook in hooks:
        world.put(hook, compute_limit=data.draw(st.sampled_from([5, 50, 100])))
        hook.work = SECOND
    world.settle(600 * SECOND)
    assert [hook.work for hook in hooks] == [0] * len(hooks)
    assert not world.stuck
