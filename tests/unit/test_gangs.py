# SPDX-License-Identifier: Apache-2.0
"""Gangs in virtual time: all cards at once or none, no deadlock, and nobody is starved."""

from nvshared.units import GIB, MILLISECOND, SECOND
from tests.unit.gang_world import Machine, Team

TOGETHER = 10 * MILLISECOND


def apart(machine: Machine, team: Team) -> list[int]:
    """How far the beginnings of each turn of a team lie from each other, by its cards."""
    clients = [machine.client(rank) for rank in team.ranks]
    times = [[now for now, one in machine.starts if one is client] for client in clients]
    assert len({len(one) for one in times}) == 1, times
    return [max(each) - min(each) for each in zip(*times, strict=True)]


def finish(machine: Machine, *teams: Team, limit: int = 120 * SECOND) -> None:
    machine.advance(limit, until=lambda: not any(team.left for team in teams))
    assert not any(team.left for team in teams), [
        [(r.submitted, r.ended, r.granted) for r in team.ranks] for team in teams]


def test_two_gangs_that_do_not_fit_take_turns_on_both_cards_at_once() -> None:
    machine = Machine()
    one = machine.team([0, 1], [10, 11], 3 * GIB, name="a", expected=2)
    other = machine.team([1, 0], [20, 21], 3 * GIB, name="b", expected=2)
    one.compute(1000)
    other.compute(1000)
    finish(machine, one, other)
    for team in (one, other):
        spread = apart(machine, team)
        assert 4 <= len(spread) <= 8
        assert max(spread) <= TOGETHER
    assert machine.time.now < 1000 * SECOND + 12 * SECOND      # of which they compute 10


def test_a_process_on_two_cards_is_a_gang() -> None:
    machine = Machine()
    one = machine.team([0, 1], [10, 10], 3 * GIB)
    other = machine.team([0, 1], [20, 20], 3 * GIB)
    one.compute(600)
    other.compute(600)
    finish(machine, one, other)
    assert max(apart(machine, one)[1:]) <= TOGETHER
    assert max(apart(machine, other)[1:]) <= TOGETHER
