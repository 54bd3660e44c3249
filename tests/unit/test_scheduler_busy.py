# SPDX-License-Identifier: Apache-2.0
"""Busy turns: clients that fit together and are all busy take turns, until one reports gaps."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from nvshared.scheduler import busy
from nvshared.scheduler.actions import Action, Evict, Load, Run, Stop
from nvshared.scheduler.events import (
    AntiThrash,
    Busy,
    Event,
    MemoryChanged,
    PinReason,
    Priority,
    SettingsChanged,
    TenantChanged,
    TenantTerms,
    Terms,
    TermsChanged,
    Tick,
)
from nvshared.scheduler.snapshot import CardState
from nvshared.units import MILLISECOND, SECOND
from tests.unit.scheduler_talk import Talk

ONE, TWO, THREE = 1, 2, 3


class Pair(Talk):
    """Programs of 10 GiB on a card of 100."""

    def __init__(self, number: int = 2) -> None:
        super().__init__(stuck_after=10_000)
        for client in range(1, number + 1):
            self.begins(client)

    def begins(self, client: int) -> list[Action]:
        """A program joins, with all of its memory resident."""
        actions = self.join(client, 10, 10, wants=True, commit=10, tenants=(f"user:{client}",))
        self.granted.add(client)
        return actions

    def busy(self, client: int, *, gaps: bool = False) -> list[Action]:
        return self.tell(Busy(client, self.memory[client], gaps))

    def take_turns(self) -> list[Action]:
        for client in self.memory:
            self.busy(client)
        self.now += busy.BUSY_PROOF
        return self.tick()

    def one_runs(self) -> int:
        """Busy turns begin; returns the first holder."""
        return self.answer(self.take_turns())

    def answer(self, actions: list[Action]) -> int:
        """Let stopped clients drain and ask for another turn; returns the next holder."""
        stops = [a.client for a in actions if isinstance(a, Stop)]
        while stops:
            actions = self.stopped(stops.pop(0))
            stops += [a.client for a in actions if isinstance(a, Stop)]
        (holder,) = self.running
        return holder

    def tick(self) -> list[Action]:
        return self.tell(Tick())

    @property
    def running(self) -> tuple[int, ...]:
        return self.scheduler.snapshot().holders

    def takes_turns(self) -> bool:
        """True if clients take turns, as when all are busy."""
        return self.scheduler.snapshot().state is CardState.BUSY


def test_busy_turns_of_two_clients_move_no_memory() -> None:
    pair = Pair()
    holder = pair.one_runs()
    for _ in range(6):
        pair.now += busy.BUSY_TQ
        actions = pair.tick()
        assert actions == [Stop(holder)]
        pair.now += 30 * MILLISECOND
        actions = pair.stopped(holder)
        other = ONE + TWO - holder
        run = next(a for a in actions if isinstance(a, Run))
        assert (run.client, run.pace) == (other, True)
        assert run.report_busy
        assert not run.report_idle
        holder = other
    assert not any(isinstance(a, Evict) or (isinstance(a, Load) and a.ahead) for a in pair.said)


def test_busy_report_is_requested_only_while_a_limited_number_of_clients_run() -> None:
    pair = Pair(1)

    def requested(client: int) -> list[bool]:
        return [a.report_busy for a in pair.said if isinstance(a, Run) and a.client == client]

    assert requested(ONE) == [False]
    pair.begins(TWO)
    assert requested(ONE) == [False, True]
    assert requested(TWO) == [True]
    pair.leave(TWO)
    assert requested(ONE)[-1:] == [False]
    for client in range(2, busy.REPORT_MOST + 2):
        pair.memory[client] = pair.memory[ONE]
        pair.join(client, 0, 0, wants=True)
        pair.granted.add(client)
    assert len(pair.running) == busy.REPORT_MOST + 1
    assert requested(ONE)[-2:] == [True, False]


def test_busy_turns_begin_once_both_clients_have_been_busy_for_a_minimum_time() -> None:
    pair = Pair()
    for client, gaps, passes in (
        (ONE, False, 10 * SECOND), (TWO, False, busy.BUSY_PROOF - 1), (ONE, True, 10 * SECOND),
    ):
        pair.busy(client, gaps=gaps)
        pair.now += passes
        assert pair.tick() == []


@pytest.mark.parametrize("gap", [True, False], ids=["pauses", "reopens"])
def test_busy_turns_end_after_a_pause_in_a_turn_or_a_reopened_gate(
        gap: bool) -> None:
    pair = Pair(3)
    holder = pair.one_runs()
    if gap:
        pair.busy(holder, gaps=True)
    else:
        pair.now += busy.BUSY_TQ
        pair.tick()
        pair.reopened(holder)
    assert len(pair.running) == 3
    assert not pair.takes_turns()


def test_busy_turns_resume_after_a_delay_that_doubles_with_each_reported_gap() -> None:
    pair = Pair()
    holder = pair.one_runs()
    for rest in (2, 4, 8, 16, 32, 64, 64):
        while holder != ONE:
            pair.now += busy.BUSY_TQ
            holder = pair.answer(pair.tick())
        pair.busy(ONE, gaps=True)
        ended = pair.now
        actions = [*pair.busy(ONE), *pair.busy(TWO)]
        while not pair.takes_turns():
            deadline = pair.scheduler.deadline()
            assert deadline is not None
            pair.now = deadline
            actions = pair.tick()
        assert pair.now - ended == rest * SECOND
        holder = pair.answer(actions)
    pair.now += busy.EXCLUDED_RESET
    while (holder := pair.answer(pair.tick())) != ONE:
        pair.now += busy.BUSY_TQ
    pair.busy(ONE, gaps=True)
    for client in (ONE, TWO):
        pair.busy(client)
    assert pair.scheduler.deadline() == pair.now + 2 * SECOND


def test_busy_report_of_a_client_after_the_end_of_the_turn_is_ignored() -> None:
    pair = Pair()
    holder = pair.one_runs()
    other = ONE + TWO - holder
    assert pair.busy(other, gaps=True) == []
    pair.now += busy.BUSY_TQ
    assert pair.tick() == [Stop(holder)]
    assert pair.busy(holder, gaps=True) == []
    assert pair.takes_turns()


def test_busy_turns_end_when_a_participating_client_stays_idle() -> None:
    pair = Pair()
    holder = pair.one_runs()
    pair.now += busy.BUSY_TQ
    pair.tick()
    pair.stopped(holder, wants=False)
    assert pair.takes_turns()
    pair.now += busy.RETURNS_WITHIN - 1
    pair.want(holder)                       # the program had only waited for its work in flight
    assert pair.takes_turns()
    holder = ONE + TWO - holder
    pair.now += busy.BUSY_TQ
    pair.tick()
    pair.stopped(holder, wants=False)
    pair.now += busy.RETURNS_WITHIN
    pair.tick()
    assert not pair.takes_turns()
    pair.want(holder)
    assert len(pair.running) == 2


def drain_slowly(pair: Pair, actions: list[Action]) -> int:
    """The client stopped by the actions does not drain; after a while the other client runs."""
    (slow,) = (a.client for a in actions if isinstance(a, Stop))
    pair.now += busy.BUSY_DRAIN_MOST - 1
    assert pair.tick() == []
    pair.now += 1
    assert [a.client for a in pair.tick() if isinstance(a, Run)] == [ONE + TWO - slow]
    return slow


def test_slow_drain_of_a_turn_that_began_before_busy_turns_lets_the_other_client_run() -> None:
    pair = Pair()
    (first,) = (a.client for a in pair.take_turns() if isinstance(a, Stop))
    pair.now += busy.BUSY_DRAIN_MOST
    assert pair.tick() == []                # the other client runs
    slow = drain_slowly(pair, pair.stopped(first))      # the other turn has lasted long enough
    assert slow != first
    assert pair.takes_turns()
    pair.stopped(slow)                      # much was in flight: the turns go on
    pair.now += busy.BUSY_TQ
    assert pair.answer(pair.tick()) == slow
    assert pair.takes_turns()


@pytest.mark.parametrize("reopens", [False, True])
def test_clients_have_no_busy_turns_again_after_one_did_not_drain_in_them(reopens: bool) -> None:
    pair = Pair()
    pair.one_runs()
    pair.now += busy.BUSY_TQ
    pair.answer(pair.tick())                # both turns before busy turns have ended
    pair.now += busy.BUSY_TQ
    actions = pair.tick()
    if reopens:
        (slow,) = (a.client for a in actions if isinstance(a, Stop))
        pair.reopened(slow)
    else:
        slow = drain_slowly(pair, actions)
        pair.stopped(slow)
    assert sorted(pair.running) == [ONE, TWO]
    for _ in range(10):
        pair.now += 60 * SECOND
        pair.take_turns()
        assert sorted(pair.running) == [ONE, TWO]
        assert not pair.takes_turns()
    pair.leave(slow)
    pair.begins(THREE)
    pair.take_turns()
    assert pair.takes_turns()


def test_busy_turns_end_when_another_client_wants_the_card() -> None:
    pair = Pair()
    pair.one_runs()
    actions = pair.begins(THREE)
    assert {a.client for a in actions if isinstance(a, Run)} >= {THREE}
    assert pair.running == (*sorted(pair.running),)
    assert len(pair.running) == 3
    pair.now += 10 * SECOND
    pair.busy(ONE)
    pair.busy(TWO)
    pair.now += 10 * SECOND
    pair.tick()
    assert not pair.takes_turns()             # client THREE is not busy


def test_busy_turns_of_two_clients_begin_once_an_idle_third_client_is_stopped() -> None:
    pair = Pair(3)
    pair.busy(ONE)
    pair.busy(TWO)
    assert pair.idle(THREE)[0] == Stop(THREE)
    pair.stopped(THREE, wants=False)
    pair.now += busy.BUSY_PROOF
    holder = pair.answer(pair.tick())
    assert pair.takes_turns()
    pair.want(THREE)
    assert {holder, THREE} < {*pair.running}
    assert len(pair.running) == 3
    assert not pair.takes_turns()


def test_idle_holder_is_not_stopped_for_busy_turns_while_another_client_is_not_busy() -> None:
    pair = Pair(4)
    pair.busy(ONE)
    pair.busy(TWO)
    assert not any(isinstance(a, Stop) for a in pair.idle(THREE))
    pair.busy(TWO, gaps=True)
    assert not any(isinstance(a, Stop) for a in pair.idle(4))


@pytest.mark.parametrize("change", [
    lambda talk: SettingsChanged(replace(talk.settings, anti_thrash=AntiThrash.OFF)),
    lambda talk: SettingsChanged(replace(talk.settings, anti_thrash=AntiThrash.OFF, draining=True)),
    lambda talk: TermsChanged(ONE, Terms(compute_limit=50)),
    lambda talk: TenantChanged("user:2", TenantTerms(priority=Priority.BACKGROUND)),
    lambda talk: TenantChanged("user:2", TenantTerms(priority=Priority.HIGH)),
    lambda talk: TermsChanged(TWO, Terms(suspended=True)),
    lambda talk: MemoryChanged(ONE, talk.set(ONE, pin_reason=PinReason.GIVEN)),
])
@pytest.mark.parametrize("before", [False, True])
def test_busy_turns_do_not_begin_while_a_limit_priority_or_mode_excludes_busy_turns(
        change: Callable[[Pair], Event], before: bool) -> None:
    pair = Pair()
    if before:
        pair.tell(change(pair))
        pair.take_turns()
    else:
        pair.one_runs()
        pair.tell(change(pair))
    assert not pair.takes_turns()


def test_busy_clients_that_do_not_fit_take_ordinary_turns() -> None:
    pair = Pair()
    holder = pair.one_runs()
    actions = pair.changed(holder, allocated=95)
    assert not pair.takes_turns()
    assert [a.report_busy for a in actions if isinstance(a, Run)] == [False]
