# SPDX-License-Identifier: Apache-2.0
"""Gangs in virtual time: all cards at once or none, no deadlock, and no client starves."""

import gc
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from random import Random

import pytest

from nvshared.machine.tenant import Kind, Tenant
from nvshared.scheduler.actions import Action, ClientState, Run, Stop, TurnStarted
from nvshared.scheduler.events import (
    AntiThrash,
    Event,
    MemoryChanged,
    Priority,
    Reopened,
    Stopped,
    WentIdle,
)
from nvshared.sharing.gangs import Gang
from nvshared.terms import TERMS
from nvshared.units import GIB, MIB, MILLISECOND, SECOND
from tests.seeds import seeds
from tests.unit.gang_world import Machine, Team
from tests.unit.scheduler_hookmodel import Hook
from tests.unit.scripted import peer

TOGETHER = 10 * MILLISECOND
ACTS = (
    "team", "team", "other", "kill", "suspend", "compute", "compute", "wait", "end", "pod",
    "occupy", "stop")
POD = "00000001-0000-0000-0000-000000000000"


@pytest.fixture
def machine() -> Machine:
    return Machine()


def apart(machine: Machine, team: Team) -> list[int]:
    """For each turn of a team, the time in us between its first and last start on its cards."""
    clients = [machine.client(rank) for rank in team.ranks]
    times = [[now for now, one in machine.starts if one is client] for client in clients]
    assert len({len(one) for one in times}) == 1, times
    return [max(each) - min(each) for each in zip(*times, strict=True)]


def finish(machine: Machine, *teams: Team, limit: int = 120 * SECOND) -> None:
    machine.advance(limit, until=lambda: not any(team.left for team in teams))
    assert not any(team.left for team in teams), [
        [(r.submitted, r.ended, r.granted) for r in team.ranks] for team in teams]


def test_gangs_that_do_not_fit_take_turns_on_both_cards_at_once(machine: Machine) -> None:
    one = machine.team([0, 1], [10, 11], 3 * GIB, name="a", expected=2)
    other = machine.team([1, 0], [20, 21], 3 * GIB, name="b", expected=2)
    one.compute(1000)
    other.compute(1000)
    finish(machine, one, other)
    for team in (one, other):
        spread = apart(machine, team)
        assert 4 <= len(spread) <= 8
        assert max(spread) <= TOGETHER
    assert machine.time.now < 1000 * SECOND + 12 * SECOND      # 12 s, of which programs compute 10


def test_gang_is_paced_on_every_card_while_another_program_waits(machine: Machine) -> None:
    """Also on the card without a waiting client: a rank there waits for work of other ranks."""
    since: dict[tuple[str, int], int] = {}
    stopped: list[int] = []             # us that each stopped turn had lasted

    def decided(card: str, now: int, _: Event, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Run) and action.pace and not action.step:
                since.setdefault((card, action.client), now)
            elif isinstance(action, TurnStarted):
                since.pop((card, action.client), None)
            elif isinstance(action, Stop):
                stopped.append(now - since.get((card, action.client), now))

    for gpu in machine.gpus:
        gpu.decided.connect(partial(decided, str(gpu)))
    for name, pid in (("a", 10), ("b", 20)):
        machine.team([0, 1], [pid, pid + 1], 3 * GIB, name=name).compute(5000)
    machine.advance(15 * SECOND)
    assert len(stopped) > 10
    # first turns may be shorter
    assert sum(held > SECOND // 2 for held in stopped) > len(stopped) - 4


@pytest.mark.parametrize("pod", [False, True], ids=["process", "pod"])
def test_process_or_pod_with_programs_on_two_cards_is_a_gang(machine: Machine, pod: bool) -> None:
    teams = [Team(machine), Team(machine)]
    for number, team in enumerate(teams, 1):
        for card in (0, 1):
            who = peer(10 * number + card * pod, 0)
            if pod:
                name = f"0000000{number}-0000-0000-0000-000000000000"
                who = replace(who, tenants=(Tenant(Kind.POD, name),))
            machine.rank(team, card, who, 3 * GIB)
        team.compute(600)
    finish(machine, *teams)
    assert max(apart(machine, teams[0])[1:] if not pod else [0]) <= TOGETHER
    assert max(apart(machine, teams[1])[1:]) <= TOGETHER


def test_gangs_and_a_program_on_a_card_get_equal_time(machine: Machine) -> None:
    gangs = [machine.team([0, 1], [10 * number, 10 * number + 1], 3 * GIB, name=name)
             for number, name in enumerate("ab", 1)]
    alone = machine.program(1, 30, 3 * GIB)
    for gang in gangs:
        gang.compute(100_000)
    alone.compute(1000 * SECOND)
    machine.advance(30 * SECOND)
    ranks = [rank for gang in gangs for rank in gang.ranks]
    held = [machine.client(one).usage.held for one in (*ranks, alone)]
    assert all(7 * SECOND < each < 12 * SECOND for each in held), held


@pytest.mark.parametrize("fits", [True, False])
def test_gangs_that_fit_on_all_cards_run_together_without_stops(
        machine: Machine, fits: bool) -> None:
    teams = [machine.team([number, 1 - number], [10 + number] * 2, GIB if fits else 0)
             for number in (0, 1)]
    for team in teams:
        team.ranks[1].allocate(0 if fits else 3 * GIB)
    machine.advance(SECOND)
    for team in teams:
        team.compute(400)
    finish(machine, *teams, limit=3 * SECOND)
    assert not [reason for _, _, reason in machine.ends if reason == "gang"]


@pytest.mark.parametrize("is_pod", [False, True])
def test_gangs_of_two_users_with_the_same_name_are_separate(
        machine: Machine, is_pod: bool) -> None:
    team = Team(machine)
    for number, uid in enumerate((1000, 1001)):
        who = peer(10 + number, uid)
        if is_pod:
            who = replace(who, tenants=(Tenant(Kind.POD, POD),))
        else:
            who = replace(who, gang="a", gang_size=2)
        machine.rank(team, number, who, GIB)
    assert len(machine.manager.gangs._gangs) == 2


def test_gang_with_a_suspended_member_does_not_run(machine: Machine) -> None:
    one = machine.team([0, 1], [10, 11], 3 * GIB, name="a")
    other = machine.team([0, 1], [20, 21], 3 * GIB, name="b")
    one.compute(200)
    other.compute(1000)
    suspended = machine.client(one.ranks[1])
    machine.manager.set_term(suspended.id, TERMS["suspended"], 1)
    finish(machine, other, limit=7 * SECOND)
    assert one.left > 100
    machine.manager.set_term(suspended.id, TERMS["suspended"], 0)
    finish(machine, one, limit=3 * SECOND)


def test_gang_with_an_unresponsive_member_frees_the_cards_of_other_members(
        machine: Machine) -> None:
    one = machine.team([0, 1], [10, 11], 3 * GIB, name="a")
    alone = [machine.program(card, 30 + card, 3 * GIB) for card in (0, 1)]
    one.compute(1000)
    machine.advance(500 * MILLISECOND)
    machine.freeze(one.ranks[0])
    for program in alone:
        program.compute(SECOND)
    machine.advance(30 * SECOND)
    assert not alone[1].work    # the gang frees card 1 although only its member on card 0 is frozen
    machine.thaw()
    finish(machine, one, limit=60 * SECOND)
    machine.advance(5 * SECOND)
    assert not alone[0].work


def test_gang_waits_for_missing_ranks(machine: Machine) -> None:
    one = machine.team([0], [10], 3 * GIB, name="a", expected=2)
    one.compute(200)
    machine.advance(SECOND)
    assert not one.ranks[0].ended
    alone = machine.program(0, 30, 3 * GIB)
    alone.compute(SECOND)
    machine.advance(2 * SECOND)
    assert not alone.work               # no other client is delayed
    rank = machine.rank(one, 1, replace(peer(11, 0), gang="a", gang_size=2), 3 * GIB)
    rank.compute(200)
    finish(machine, one, limit=5 * SECOND)


@pytest.mark.parametrize(("drains", "limit"), [(True, 2), (False, 32)])
def test_gang_with_missing_ranks_runs_after_the_maximum_wait_or_before_the_daemon_ends(
        machine: Machine, drains: bool, limit: int) -> None:
    one = machine.team([0], [10], 3 * GIB, name="a", expected=2)
    one.compute(200)
    machine.advance(SECOND)
    machine.manager.drain(drains)
    finish(machine, one, limit=limit * SECOND)


def test_gang_with_unequal_work_in_flight_stops_without_reopening_a_gate(
        machine: Machine) -> None:
    one = machine.team([0, 1], [10, 11], 3 * GIB, name="a")
    one.ranks[0].depth = 40
    other = machine.team([0, 1], [20, 21], 3 * GIB, name="b")
    other.ranks[1].depth = 40
    one.compute(1000)
    other.compute(1000)
    finish(machine, one, other)
    assert all(machine.client(r).view.counters.reopened == 0 for r in (*one.ranks, *other.ranks))
    assert machine.steps


def test_gang_that_does_not_fit_is_reported_and_blocks_no_other_client() -> None:
    machine = Machine(cards=3)
    one = machine.team([0, 1], [10, 11], 3 * GIB, name="a")
    other = machine.team([0, 2], [20, 21], 3 * GIB, name="b")
    beside = machine.program(1, 30, GIB)
    machine.occupy(1, 2 * GIB)
    one.compute(200)
    other.compute(200)
    beside.compute(SECOND)
    finish(machine, other, limit=5 * SECOND)
    machine.advance(20 * SECOND)
    assert not beside.work
    assert machine.crowded == [(machine.client(one.ranks[1]), 3 * GIB, 2 * GIB)]
    machine.occupy(1, 0)
    finish(machine, one, limit=5 * SECOND)


@pytest.mark.parametrize("waits", [False, True])
def test_gang_larger_than_a_shrunk_capacity_is_stopped_only_while_another_client_waits(
        machine: Machine, waits: bool) -> None:
    one = machine.team([0, 1], [10, 11], 3 * GIB, name="a")
    one.compute(400)
    machine.advance(500 * MILLISECOND)
    beside = machine.program(1, 30, GIB) if waits else None
    machine.occupy(1, 2 * GIB)
    if beside:
        beside.compute(SECOND)
        machine.advance(20 * SECOND)
        assert not beside.work
        assert one.left
        assert [client for client, _, _ in machine.crowded] == [machine.client(one.ranks[1])]
        machine.occupy(1, 0)
    finish(machine, one, limit=5 * SECOND)
    assert beside or not machine.ends


def test_gang_that_waits_for_an_unresponsive_client_blocks_no_other_gang() -> None:
    machine = Machine(cards=3)
    unresponsive = machine.program(1, 30, 3 * GIB)
    unresponsive.compute(1000 * SECOND)
    machine.advance(SECOND)
    machine.freeze(unresponsive)
    one = machine.team([0, 1], [10, 11], 3 * GIB, name="a")
    one.compute(200)
    machine.advance(15 * SECOND)
    other = machine.team([0, 2], [20, 21], 3 * GIB, name="b")
    other.compute(200)
    finish(machine, other, limit=10 * SECOND)
    assert one.left
    machine.kill(unresponsive)
    finish(machine, one, limit=10 * SECOND)


def test_programs_of_a_pod_that_do_not_fit_together_take_turns(
        machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    programs = [
        machine.program(card, 10 + number, 3 * GIB, POD) for number, card in enumerate([0, 0, 1])]
    for program in programs:
        program.compute(5 * SECOND)
    machine.advance(30 * SECOND)
    assert not [one.id for one in programs if one.work]
    assert len(caplog.messages) == 1
    assert "6144 MiB together, and no more than 4096 MiB" in caplog.messages[0]


def test_idle_program_of_a_pod_blocks_no_other_program_of_the_pod(machine: Machine) -> None:
    idle = machine.program(0, 30, 3 * GIB, POD)
    machine.advance(6 * SECOND)
    programs = [machine.program(card, 10 + card, 3 * GIB, POD) for card in (0, 1)]
    for program in programs:
        program.compute(5 * SECOND)
    machine.advance(15 * SECOND)
    assert not [one.id for one in programs if one.work]
    assert machine.client(idle).gang


def test_gang_with_ranks_that_together_exceed_a_card_blocks_no_other_client(
        machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    one = machine.team([0, 0, 1], [10, 11, 12], 3 * GIB, name="a")
    beside = machine.program(0, 30, 3 * GIB)
    one.compute(200)
    beside.compute(5 * SECOND)
    machine.advance(10 * SECOND)
    assert not beside.work
    assert one.left
    assert len(caplog.messages) == 1
    assert "gang a: its programs on gpu0 need 6144 MiB together" in caplog.messages[0]
    machine.kill(one.ranks.pop(1))
    finish(machine, one, limit=10 * SECOND)


def test_gang_member_that_stopped_runs_again_when_another_member_reopens_its_gate(
        machine: Machine) -> None:
    one = machine.team([0, 1], [10, 11], 3 * GIB, name="a")
    other = machine.program(0, 30, 3 * GIB)
    one.compute(10_000)
    machine.advance(200 * MILLISECOND)
    other.compute(SECOND)
    for rank in one.ranks:
        machine.freeze(rank)            # the test sends the replies itself
    machine.advance(2 * SECOND)
    first, second = map(machine.client, one.ranks)
    assert all(one.gpu.scheduler.stopping(one.id) for one in (first, second))
    first.gpu.tell(Reopened(first.id, first.memory))
    second.gpu.tell(Stopped(second.id, second.memory, True, 0, 0))
    assert [client.view.state for client in (first, second)] == [ClientState.RUNNING] * 2


def test_gang_whose_member_drained_late_gives_way_at_the_next_stop(machine: Machine) -> None:
    one, other = (
        machine.team([0, 1], pids, 3 * GIB, name=name)
        for name, pids in (("a", [10, 11]), ("b", [20, 21])))
    one.compute(10_000)
    machine.advance(200 * MILLISECOND)
    other.compute(10)
    for rank in one.ranks:
        machine.freeze(rank)            # the test sends the replies itself
    machine.advance(2 * SECOND)
    clients = [*map(machine.client, one.ranks)]
    first = clients[0]
    first.gpu.tell(Reopened(first.id, first.memory))
    machine.advance(3 * SECOND)         # the second member still drains when the first may again
    for _ in range(3):
        for client in clients:
            if client.gpu.scheduler.stopping(client.id):
                client.gpu.tell(Stopped(client.id, client.memory, True, 0, 0))
    assert [client.view.state for client in clients] == [ClientState.EVICTING] * 2


@pytest.mark.parametrize("late_first", [True, False])
def test_running_gang_gets_a_further_card_before_a_gang_that_has_not_started(
        machine: Machine, late_first: bool) -> None:
    """A member that was idle wants its card: the grant of the other gang is taken back."""
    runs = machine.program(1, 11, 3 * GIB, POD)
    runs.compute(30 * SECOND)
    machine.advance(MILLISECOND)
    late = machine.program(0, 10, 3 * GIB, POD) if late_first else None
    beside = machine.program(0, 30, 3 * GIB)
    beside.kernel = 3 * SECOND
    beside.compute(6 * SECOND)
    one = Team(machine)
    for card, size in enumerate((2 * GIB, GIB)):
        machine.rank(one, card, replace(peer(20 + card, 0), gang="b", gang_size=2), size)
    late = late or machine.program(0, 10, 3 * GIB, POD)
    one.compute(200)
    machine.advance(300 * MILLISECOND)
    machine.time.now += SECOND          # the timers are late: gang b's claim became ready meanwhile
    client, other = machine.client(late), machine.client(one.ranks[0])
    client.gpu.tell(MemoryChanged(client.id, client.memory, True))      # `late` wants its card
    late.compute(SECOND)
    machine.advance(60 * SECOND)
    assert [late.work, runs.work, beside.work, one.left] == [0, 0, 0, 0]
    started = [one for _, one in machine.starts]
    assert started.index(client) < started.index(other)


def test_gang_runs_although_a_gang_of_lower_priority_waits_for_another_card() -> None:
    machine = Machine(cards=3)
    runs = machine.program(1, 10, 3 * GIB)
    runs.compute(3600 * SECOND)
    low = machine.team([0, 1], [20, 21], 3 * GIB, name="low", expected=2)
    for rank in low.ranks:
        machine.manager.set_term(machine.client(rank).id, TERMS["priority"], Priority.BACKGROUND)
    low.compute(100)
    machine.advance(3 * SECOND)         # it claims the first card, and waits for the second
    usual = machine.team([0, 2], [30, 31], 3 * GIB, name="usual", expected=2)
    usual.compute(1000)
    finish(machine, usual)
    assert low.left == 100
    for hook in (runs, *usual.ranks):
        machine.kill(hook)
    finish(machine, low)


@pytest.mark.parametrize("is_gang", [True, False], ids=["gang", "program"])
@pytest.mark.parametrize("priority", [*Priority])
def test_idle_gang_ends_its_turn_for_a_gang_or_a_program_of_any_priority(
        priority: Priority, is_gang: bool) -> None:
    """A program, or a gang that has yet to claim its second card, waits at one of the idle gang's
    cards: no client waits at the other one."""
    machine = Machine(cards=2)
    idle = machine.team([0, 1], [20, 21], 3 * GIB, name="idle", expected=2)
    idle.compute(10)
    finish(machine, idle)
    waiting: list[Hook] = []
    if is_gang:
        team = machine.team([0, 1], [30, 31], 3 * GIB, name="waits", expected=2)
        waiting += team.ranks
        team.compute(100)
    else:
        waiting.append(machine.program(0, 30, 3 * GIB))
        waiting[0].compute(SECOND)
    for one in waiting:
        machine.manager.set_term(machine.client(one).id, TERMS["priority"], priority)
    machine.advance(SECOND)
    for rank in idle.ranks:
        assert rank.reports_idle or not rank.granted
        rank.say(WentIdle(rank.id, rank.memory))
    machine.advance(100 * SECOND, until=lambda: not any(one.work for one in waiting))
    assert not any(one.work for one in waiting)


@pytest.mark.parametrize("seed", seeds(5, 400))
def test_gangs_in_random_configurations_all_finish(seed: int) -> None:
    """Gangs and single programs start, compute, are suspended, stopped and killed; cards shrink.

    At the end all remaining programs finish.
    """
    dice = Random(seed)
    machine = Machine(
        cards=dice.choice([2, 2, 3, 4]), seed=seed, delay=dice.choice([50, 500, 5000]),
        tq=dice.choice([SECOND // 5, SECOND, None]),
        anti_thrash=dice.choice([AntiThrash.AUTO, AntiThrash.AUTO, AntiThrash.ON]))
    teams: list[Team] = []
    others: list[Hook] = []
    for step in range(dice.randint(10, 40)):
        pid = 100 + 10 * step
        act = dice.choice(ACTS)
        if act in ("team", "other", "pod"):
            _clear(machine)             # a program starts only where its memory fits
        match act:
            case "team" if len(teams) < 4:
                teams.append(_team(machine, dice, pid))
            case "other" if len(others) < 4:
                size = dice.choice([0, GIB, 3 * GIB])
                others.append(machine.program(dice.randrange(len(machine.gpus)), pid, size))
            case "kill" if teams:
                team = dice.choice(teams)
                teams.remove(team)
                for rank in dice.sample(team.ranks, len(team.ranks)):
                    machine.kill(rank)
                    machine.advance(dice.choice([0, 100 * MILLISECOND, 3 * SECOND]))
            case "end" if others:
                machine.kill(others.pop(dice.randrange(len(others))))
            case "suspend" if teams:
                who = machine.client(dice.choice(dice.choice(teams).ranks))
                machine.manager.set_term(who.id, TERMS["suspended"], 1)
                machine.advance(dice.randint(0, 2000) * MILLISECOND)
                machine.manager.set_term(who.id, TERMS["suspended"], 0)
            case "compute":
                _compute(dice, teams, others, few=True)
            case "pod" if not any(machine.client(one).gang for one in others):
                others += [
                    machine.program(dice.randrange(len(machine.gpus)), pid + number, size, POD)
                    for number, size in enumerate(dice.choices([GIB, 3 * GIB], k=3))]
            case "occupy":
                machine.occupy(dice.randrange(len(machine.gpus)), dice.choice([0, 2, 2, 3]) * GIB)
            case "stop" if others and dice.random() < 0.5:
                machine.freeze(dice.choice(others))
            case "stop" if teams:       # shorter than the wait for an unresponsive rank
                machine.freeze(dice.choice(dice.choice(teams).ranks))
                machine.advance(dice.choice([10, 300, 3000]) * MILLISECOND)
                machine.thaw()
        machine.advance(dice.choice([0, 10, 300, 3000, 8000]) * MILLISECOND)
    _clear(machine)
    machine.thaw()
    _compute(dice, teams, others, few=False)
    machine.advance(300 * SECOND, until=lambda: not any(t.left for t in teams)
                    and not any(one.work for one in others))
    finish(machine, *teams, limit=0)
    assert not [one.id for one in others if one.work]


def _clear(machine: Machine) -> None:
    for card in range(len(machine.gpus)):
        machine.occupy(card, 0)


def _team(machine: Machine, dice: Random, pid: int) -> Team:
    cards = dice.sample(range(len(machine.gpus)), dice.randint(2, len(machine.gpus)))
    name = dice.choice(["", f"{pid:x}"])
    return machine.team(
        cards, [pid + number if name else pid for number in range(len(cards))],
        dice.choice([GIB, 3 * GIB]), name=name, depth=dice.choice([1, 3, 20]),
        expected=dice.choice([0, len(cards)]) if name else 0)


def _compute(dice: Random, teams: list[Team], others: list[Hook], *, few: bool) -> None:
    for team in teams:
        if not few or dice.random() < 0.5:
            team.kernel = dice.choice([MILLISECOND // 2, 5 * MILLISECOND])
            team.compute(dice.choice([1, 30, 400]))
    for one in others:
        if not few or dice.random() < 0.5:
            one.kernel = dice.choice([1, 20, 300]) * MILLISECOND
            one.compute(dice.choice([1, 500, 3000]) * MILLISECOND)


def test_process_with_many_clients_on_a_card_forms_no_gang(machine: Machine) -> None:
    for number in range(4):
        machine.program(number % 2, 10, 16 * MIB).compute(SECOND)
    machine.advance(SECOND)
    assert not any(client.gang for client in machine.manager.clients)


def test_gangs_are_forgotten_when_all_members_end_before_the_expected_number_has_joined(
        machine: Machine) -> None:
    def count() -> int:
        return sum(isinstance(one, Gang) for one in gc.get_objects())

    before = count()
    for number in range(20):
        team = machine.team([0], [10 + number], GIB, name=f"gang {number}", expected=2)
        machine.kill(team.ranks[0])
        machine.advance(SECOND)
    assert count() - before <= 1
