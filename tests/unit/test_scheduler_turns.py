# SPDX-License-Identifier: Apache-2.0
"""Choice of the clients that run, end of a turn, and choice of the memory to evict."""

import sys
from dataclasses import replace
from types import FrameType

import pytest

from nvshared.scheduler.actions import (
    ClientState,
    Evict,
    Load,
    Run,
    TurnEnd,
    TurnEnded,
    TurnStarted,
)
from nvshared.scheduler.events import (
    AntiThrash,
    CapacityChanged,
    Ganged,
    Joined,
    Memory,
    Settings,
    SettingsChanged,
    Standing,
    Tick,
)
from nvshared.scheduler.scheduler import Scheduler
from nvshared.scheduler.snapshot import CardState
from nvshared.units import GIB, MIB, SECOND
from tests.unit.scheduler_talk import Talk, evicts, loads, paced, runs, stops, two_programs

TQ = 30


def test_client_runs_once_all_memory_is_loaded() -> None:
    talk = Talk()
    talk.join(1, 70)
    first = talk.want(1)
    assert loads(first) == [(1, 70)]
    assert talk.view(1).state is ClientState.LOADING
    actions = talk.loaded(next(a for a in first if isinstance(a, Load)))
    assert actions[0] == TurnStarted(1)
    assert paced(actions) == [(1, False)]
    assert talk.want(1) == []           # the client sent this report before RUN arrived
    assert talk.view(1).state is ClientState.RUNNING


def test_clients_that_do_not_fit_take_turns() -> None:
    talk = Talk()
    talk.run(1, 70)
    talk.run(3, 30)
    talk.wait(100 * TQ)
    assert stops(talk.said) == []
    assert talk.scheduler.snapshot().state is CardState.SHARED
    talk.leave(3)
    talk.leave(1)
    talk.run(1, 70)
    assert (1, True) in paced(talk.run(2, 70))
    assert talk.scheduler.snapshot().state is CardState.TURNS
    assert stops(talk.wait(TQ - 0.001)) == []
    assert stops(talk.wait(0.001)) == [1]
    actions = talk.obey(talk.stopped(1))
    assert TurnEnded(1, TurnEnd.QUANTUM, TQ * SECOND) in actions
    assert 2 in runs(actions)
    assert talk.view(1).state is ClientState.WAITING


def test_turn_longer_than_the_quantum_ends_at_once_when_a_client_waits() -> None:
    talk = Talk()
    talk.run(1, 70)
    talk.wait(10 * TQ)
    talk.idle(1)                        # no RUN asked for this report
    assert stops(talk.run(2, 70)) == [1]
    actions = talk.obey(talk.stopped(1))
    assert [one.reason for one in actions if isinstance(one, TurnEnded)] == [TurnEnd.QUANTUM]


def test_idle_holder_is_stopped_for_a_waiting_client() -> None:
    talk = two_programs(70)
    talk.wait(1)
    assert stops(talk.idle(1)) == [1]
    actions = talk.obey(talk.stopped(1, wants=False))
    assert TurnEnded(1, TurnEnd.IDLE, SECOND) in actions
    assert paced(actions)[:1] == [(2, False)]   # no other client waits, so client 2 is not paced
    assert talk.view(1).state is ClientState.IDLE


def test_queue_of_equal_clients_is_first_come_first_served() -> None:
    talk = Talk()
    for client in (1, 2, 3):
        talk.run(client, 70)
    order = []
    for _ in range(6):
        running, = talk.scheduler.snapshot().holders
        order.append(running)
        talk.wait(TQ)
        talk.obey(talk.stopped(running))
    assert order == [1, 2, 3, 1, 2, 3]


def test_holders_are_stopped_only_when_all_together_free_enough_for_the_queue_head() -> None:
    talk = Talk()
    talk.run(1, 40)
    talk.wait(TQ - 5)
    talk.run(2, 40)
    assert stops(talk.run(3, 90)) == []
    assert stops(talk.wait(6)) == []
    assert stops(talk.wait(TQ - 6)) == [1, 2]


@pytest.mark.parametrize(("waited", "overtakes"), [(10, True), (TQ - 1, False)])
def test_client_behind_a_blocked_queue_head_runs_unless_the_holders_turns_end_soon(
        waited: int, overtakes: bool) -> None:
    talk = Talk()
    talk.run(1, 50)
    talk.run(2, 90)
    talk.wait(waited)
    assert (3 in runs(talk.run(3, 20))) is overtakes
    # Client 3 stops with the holder, so the overtaken queue head loses no time.
    assert sorted(stops(talk.wait(TQ - waited))) == ([1, 3] if overtakes else [1])


def test_client_that_does_not_fit_the_card_blocks_no_other_client() -> None:
    talk = Talk()
    talk.join(1, 120)
    talk.want(1)
    assert not talk.view(1).fits
    assert talk.view(1).state is ClientState.CROWDED
    assert 2 in runs(talk.run(2, 70))
    assert not [a for a in talk.said if isinstance(a, Run) and a.pace]
    actions = talk.tell(CapacityChanged(130 * GIB))
    assert talk.view(1).fits
    assert (2, True) in paced(actions)


def test_anti_thrash_off_stops_no_busy_holder_at_the_end_of_the_quantum() -> None:
    talk = Talk(mode=AntiThrash.OFF)
    talk.run(1, 70)
    talk.run(2, 70)
    assert stops(talk.wait(100 * TQ)) == []
    assert stops(talk.idle(1)) == [1]


def test_anti_thrash_switched_on_stops_all_but_a_single_client_after_the_quantum() -> None:
    talk = Talk()
    for client in (1, 2, 3):
        talk.run(client, 20)
        talk.wait(1)
    actions = talk.tell(SettingsChanged(replace(talk.settings, anti_thrash=AntiThrash.ON)))
    assert stops(actions) == []
    assert sorted(runs(actions)) == [1, 2, 3]
    assert stops(talk.wait(TQ)) == [1, 2]
    assert stops(talk.stopped(1)) == [3]  # client 1 wants another turn, so client 3 is stopped
    assert talk.stopped(2)[1:] == []
    assert runs(talk.stopped(3)) == [1]


def test_turn_ends_when_the_quantum_is_shortened_or_the_client_disconnects() -> None:
    talk = two_programs(70)
    talk.wait(10)
    talk.tell(SettingsChanged(replace(talk.settings, tq=15 * SECOND)))
    assert stops(talk.wait(4.999)) == []
    assert stops(talk.wait(0.001)) == [1]
    actions = talk.obey(talk.leave(1))
    assert TurnEnded(1, TurnEnd.LEFT, 15 * SECOND) in actions
    assert 2 in runs(actions)


def test_stop_of_a_client_that_reopens_the_gate_is_repeated_after_doubling_pauses() -> None:
    talk = two_programs(70)
    talk.wait(TQ)
    for pause in (2, 4, 8):
        talk.reopened(1)
        assert talk.view(1).state is ClientState.RUNNING
        assert stops(talk.wait(pause - 0.001)) == []
        assert stops(talk.wait(0.001)) == [1]
    assert talk.view(1).counters.reopened == 3
    talk.obey(talk.stopped(1))
    talk.wait(TQ)
    talk.obey(talk.stopped(2))
    talk.wait(TQ)
    talk.reopened(1)
    assert stops(talk.wait(2)) == [1]


def test_held_time_and_waiting_time_of_a_client_add_up_over_turns() -> None:
    talk = two_programs(70)
    talk.wait(TQ)
    talk.wait(2)                        # the drain takes two seconds
    talk.obey(talk.stopped(1))
    talk.wait(5)
    talk.changed(2)
    assert talk.scheduler.usage(1, talk.now).held == (TQ + 2) * SECOND
    assert talk.view(1).waited == 5 * SECOND
    assert talk.scheduler.usage(2, talk.now).held == 5 * SECOND
    assert talk.view(2).waited == (TQ + 2) * SECOND


def test_restarted_scheduler_stops_no_holder_and_waits_for_other_clients_to_reconnect() -> None:
    talk = Talk(gather=1)
    assert not [a for a in talk.join(1, 70, 70, running=True, commit=70) if isinstance(a, Run)]
    actions = talk.join(2, 70, 30, wants=True, commit=70)
    assert not loads(actions)
    assert not runs(actions)
    assert talk.scheduler.snapshot().state is CardState.GATHERING
    actions = talk.wait(1)
    assert (1, True) in paced(actions)
    assert stops(talk.wait(TQ)) == [1]
    assert 2 in runs(talk.obey(talk.stopped(1)))


def test_scheduler_of_a_daemon_about_to_end_runs_all_clients_that_fit_smallest_first() -> None:
    talk = Talk(step=5)
    talk.run(1, 50)
    for client, size in ((2, 45), (3, 30), (4, 10), (5, 20)):
        talk.join(client, size)
    draining = replace(talk.settings, draining=True, anti_thrash=AntiThrash.OFF)
    talk.obey(talk.tell(SettingsChanged(draining)))
    states = {client: talk.view(client).state for client in range(1, 6)}
    assert states == {
        1: ClientState.RUNNING, 4: ClientState.RUNNING, 5: ClientState.RUNNING,
        3: ClientState.WAITING, 2: ClientState.WAITING}
    assert stops(talk.idle(1)) == []    # an idle holder keeps its turn with anti-thrash off
    assert stops(talk.wait(100 * TQ)) == []
    assert 3 in runs(talk.obey(talk.leave(1)))
    assert talk.view(2).state is ClientState.WAITING
    assert stops(talk.tell(SettingsChanged(talk.settings))) != []       # the idle holder is stopped


def test_hand_over_evicts_and_loads_memory_in_overlapping_steps() -> None:
    talk = Talk(step=10)
    talk.run(1, 100)
    talk.join(2, 100)
    talk.want(2)
    talk.wait(TQ)
    actions = talk.stopped(1)
    assert evicts(actions) == [(1, 90), (1, 80)]
    first, second = (a for a in actions if isinstance(a, Evict))
    actions = talk.evicted(first)
    assert loads(actions) == [(2, 10)]
    assert evicts(actions) == [(1, 70)]
    load = next(a for a in actions if isinstance(a, Load))
    assert loads(talk.evicted(second)) == [(2, 20)]
    talk.loaded(load)
    assert talk.memory[2].resident == 10 * GIB


@pytest.mark.parametrize("idle", [0, 60])
def test_holder_that_grows_gets_free_memory_or_memory_of_clients_without_a_turn(idle: int) -> None:
    talk = Talk()
    talk.join(1, idle, idle)
    talk.run(2, 40)
    actions = talk.changed(2, allocated=60)
    assert evicts(actions) == ([(1, 40)] if idle else [])
    talk.obey(actions)
    assert talk.view(2).state is ClientState.RUNNING
    assert talk.memory[2].resident == 60 * GIB
    assert stops(talk.said) == []


def test_holder_that_grows_beyond_the_free_memory_is_stopped_and_waits() -> None:
    talk = Talk(stuck_after=1000)
    talk.run(1, 50)
    talk.run(2, 40)
    assert stops(talk.changed(2, allocated=60)) == [2]
    actions = talk.stopped(2)
    assert talk.view(2).state is ClientState.WAITING
    assert runs(actions) == [1]         # client 1 gets a new RUN, as another client now waits
    assert stops(talk.wait(TQ)) == [1]
    talk.obey(talk.stopped(1))
    assert talk.view(2).state is ClientState.RUNNING


def test_shrinking_capacity_stops_a_holder_only_when_several_holders_no_longer_fit() -> None:
    talk = Talk()
    talk.run(1, 50)
    talk.wait(1)
    talk.run(2, 50)
    assert stops(talk.tell(CapacityChanged(80 * GIB))) == [1]
    assert evicts(talk.stopped(1, wants=False)) == [(1, 30)]
    actions = talk.tell(CapacityChanged(40 * GIB))
    assert stops(actions) == []         # client 2 is the only client
    assert talk.view(2).state is ClientState.RUNNING


def test_chosen_client_that_no_longer_fits_waits_until_capacity_grows() -> None:
    talk = Talk()
    talk.join(1, 90)
    talk.want(1)
    talk.join(2, 60)
    talk.want(2)
    talk.tell(CapacityChanged(80 * GIB))
    assert talk.view(1).state is ClientState.CROWDED
    assert talk.view(2).state is ClientState.LOADING
    talk.tell(CapacityChanged(100 * GIB))
    assert [*talk.scheduler.snapshot().waits][-1] == 1


ONE, OTHER = ("user:1",), ("user:2",)
SHARED = [("user:1", f"job:{number}") for number in range(3)]


@pytest.mark.parametrize(
    "tenants", [(ONE, OTHER, OTHER), SHARED], ids=["its own line", "a line with others"])
def test_evict_chooses_a_gang_member_that_waits_for_other_members(
        tenants: list[tuple[str, ...]]) -> None:
    talk = Talk(100)
    for client, tenants_of_client in enumerate(tenants, 1):
        talk.obey(talk.join(client, 60, tenants=tenants_of_client))
    talk.obey(talk.want(1))
    talk.tell(Ganged((1,), 1, Standing.APART))
    said = talk.stopped(1, wants=True)
    assert TurnEnd.GANG in [one.reason for one in said if isinstance(one, TurnEnded)]
    assert 2 in runs(talk.obey(talk.want(2)))
    talk.obey(talk.want(3))
    assert talk.memory[1].resident < 60 * GIB


@pytest.mark.parametrize("mode", [AntiThrash.OFF, AntiThrash.AUTO])
def test_client_with_a_cancelled_load_does_not_overtake_a_granted_gang_member(
        mode: AntiThrash) -> None:
    talk = Talk(mode=mode)
    talk.run(1, 60)
    talk.join(3, 30)
    talk.want(3)
    assert talk.view(3).state is ClientState.LOADING
    talk.join(2, 80)
    talk.want(2)
    assert stops(talk.tell(Ganged((2,), 1, Standing.GRANTED))) == [1]
    assert talk.view(3).state is ClientState.WAITING


def calls_when_all_clients_are_chosen(number: int) -> int:
    """Python calls of the event in which a restarted daemon chooses this number of clients."""
    settings = Settings(capacity=80 * GIB, total=80 * GIB, host_budget=0, gather=SECOND)
    scheduler, calls = Scheduler(settings, 0), 0

    def count(_frame: FrameType, kind: str, _argument: object) -> None:
        nonlocal calls
        calls += kind == "call"

    for client in range(1, number + 1):
        tenants = (f"user:{client}",)
        scheduler.handle(Joined(client, Memory(allocated=MIB), wants=True, tenants=tenants), 1)
    sys.setprofile(count)
    try:
        actions = scheduler.handle(Tick(), SECOND)
    finally:
        sys.setprofile(None)
    assert sum(isinstance(one, Load) for one in actions) == number
    return calls


def test_choice_of_four_times_as_many_clients_takes_at_most_four_times_as_many_calls() -> None:
    assert calls_when_all_clients_are_chosen(60) <= 4 * calls_when_all_clients_are_chosen(15)
