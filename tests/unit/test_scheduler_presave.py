# SPDX-License-Identifier: Apache-2.0
"""What idle programs have is copied before anybody comes for it, and only then."""

from dataclasses import replace

import pytest

from nvshared.scheduler import Scheduler
from nvshared.scheduler.actions import Action, Presave, Run, TurnEnd, TurnEnded
from nvshared.scheduler.events import SettingsChanged, TermsChanged
from nvshared.scheduler.settings import Terms
from nvshared.units import GIB
from tests.unit.scheduler_talk import Talk, evicts, loads, presaves, provides, runs, stops, yields

A, B, C = 1, 2, 3


def sizes(orders: list[Presave]) -> list[tuple[int, float]]:
    """Who is to have how much ready, in GiB."""
    return [(order.client, order.size / GIB) for order in orders]


def talking(step: float = 1000, host: float = 1000, capacity: float = 100) -> Talk:
    """With the setting on, which other stories have off."""
    talk = Talk(capacity=capacity, host=host, step=step)
    talk.settings = replace(talk.settings, presave=True)
    talk.scheduler = Scheduler(talk.settings, 0)
    return talk


def one_is_away(talk: Talk, size: float = 60) -> list[Run]:
    """B has made A go, and does nothing any more. Returns what it was told last."""
    talk.run(A, 60)
    talk.run(B, size)
    talk.obey(talk.idle(A))
    talk.obey(talk.stopped(A, wants=False))
    assert B in talk.granted
    return [action for action in talk.said if isinstance(action, Run) and action.client == B][-1:]


def at_rest(talk: Talk) -> list[Action]:
    """And its gate is shut."""
    one_is_away(talk)
    assert stops(talk.idle(B)) == [B]
    return talk.stopped(B, wants=False)


def test_one_that_does_nothing_is_stopped_and_copied() -> None:
    talk = talking()
    (told,) = one_is_away(talk)
    assert isinstance(told, Run)
    assert told.report_idle
    assert not told.pace
    assert told.idle_window == 125_000
    assert stops(talk.idle(B)) == [B]
    told_of_the_end = talk.stopped(B, wants=False)
    assert [end.reason for end in told_of_the_end if isinstance(end, TurnEnded)] == [TurnEnd.IDLE]
    assert not presaves(told_of_the_end)
    # A lacks 20 GiB, and not before half a second has passed.
    assert not presaves(talk.wait(0.4))
    (order,) = presaves(talk.wait(0.2))
    assert sizes([order]) == [(B, 20)]
    assert order.host >= 20 * GIB
    assert not presaves(talk.presaved(order))
    assert not presaves(talk.wait(100))


def test_who_comes_finds_the_room_and_nobody_is_asked_twice() -> None:
    talk = talking()
    at_rest(talk)
    (order,) = presaves(talk.wait(1))
    talk.presaved(order)
    said = talk.want(A)
    assert evicts(said) == [(B, 40)]
    assert not yields(said)
    assert A in talk.granted or runs(talk.obey(said)) == [A]


def test_it_runs_again_at_once() -> None:
    talk = talking()
    at_rest(talk)
    (order,) = presaves(talk.wait(1))
    said = talk.want(B)
    # Before it may run, or the hook would hear of it too late.
    assert yields(said) == [B]
    assert runs(said) == [B]
    assert [type(action).__name__ for action in said][:1] == ["Yield"]
    said = talk.presaved(order, 5, yielded=True)
    assert not presaves(said)
    assert not runs(said)


def test_who_comes_meanwhile_cuts_it_short() -> None:
    talk = talking()
    at_rest(talk)
    (order,) = presaves(talk.wait(1))
    said = talk.want(A)
    assert yields(said) == [B]
    assert [type(action).__name__ for action in said][:1] == ["Yield"]
    talk.obey(said)
    talk.presaved(order, 5, yielded=True)
    assert A in talk.granted


def test_who_is_stopped_meanwhile_cuts_it_short_in_the_same_moment() -> None:
    talk = talking()
    at_rest(talk)
    talk.run(C, 5)
    presaves(talk.wait(1))
    said = talk.idle(C)
    assert stops(said) == [C]
    assert yields(said) == [B]
    assert not talk.wait(0)


def test_in_steps_one_after_the_other() -> None:
    talk = talking(step=8)
    at_rest(talk)
    orders, ready = presaves(talk.wait(1)), []
    while orders:
        ready += sizes(orders)
        orders = presaves(talk.presaved(orders[0]))
    assert ready == [(B, 8), (B, 16), (B, 20)]


def test_who_asks_for_more_memory_does_not_wait_for_it() -> None:
    talk = talking()
    at_rest(talk)
    presaves(talk.wait(1))
    said = talk.ask(A, 1, 70)
    assert [type(action).__name__ for action in said][:1] == ["Yield"]


def test_what_runs_in_vain_is_left_alone_for_longer() -> None:
    talk = talking()
    at_rest(talk)
    pause = 0.5
    for _ in range(3):
        (order,) = presaves(talk.wait(pause + 0.01))
        talk.presaved(order)
        talk.want(B)
        pause = 2 * pause
        talk.idle(B)
        talk.stopped(B, wants=False)
        assert not presaves(talk.wait(pause - 0.01))
    (order,) = presaves(talk.wait(0.02))
    talk.presaved(order)
    # Somebody comes for it: that was right.
    talk.obey(talk.want(A))
    talk.obey(talk.want(B))
    talk.obey(talk.idle(A))
    talk.obey(talk.stopped(A, wants=False))
    talk.idle(B)
    talk.stopped(B, wants=False)
    assert presaves(talk.wait(0.51))


def test_nobody_is_stopped_or_copied_where_all_fit() -> None:
    talk = talking()
    talk.run(A, 50)
    talk.run(B, 50)
    assert not any(action.report_idle for action in talk.said if isinstance(action, Run))
    talk.idle(A)
    assert not stops(talk.said)
    assert not presaves(talk.wait(10))


def test_nothing_is_copied_where_it_is_turned_off() -> None:
    talk = talking()
    at_rest(talk)
    talk.tell(SettingsChanged(replace(talk.settings, presave=False)))
    assert not presaves(talk.wait(10))


def test_the_one_that_is_idle_longest_is_copied_first() -> None:
    talk = talking()
    talk.run(A, 50)
    talk.run(B, 30)
    talk.run(C, 60)                     # comes for 40 GiB of A's
    for client in (A, B):
        talk.obey(talk.idle(client))
        talk.obey(talk.stopped(client, wants=False))
    # A lacks 40 GiB, and of those B has 30; also while C runs.
    assert C in talk.granted
    (order,) = presaves(talk.wait(1))
    assert sizes([order]) == [(B, 30)]
    talk.presaved(order)
    talk.idle(C)
    talk.stopped(C, wants=False)
    (order,) = presaves(talk.wait(1))
    assert sizes([order]) == [(C, 10)]
    assert not presaves(talk.presaved(order))


def test_a_hook_that_can_do_no_more_is_not_asked_again_in_vain() -> None:
    talk = talking()
    at_rest(talk)
    (order,) = presaves(talk.wait(1))
    assert not presaves(talk.presaved(order, 3, no_memory=True))
    assert not presaves(talk.wait(100))
    talk.want(B)                        # and after a turn it is
    talk.idle(B)
    talk.stopped(B, wants=False)
    assert presaves(talk.wait(1.01))


def test_half_of_what_is_left_on_the_host_is_for_those_who_must_leave() -> None:
    talk = talking(host=30)
    talk.run(A, 60)
    talk.run(B, 60)
    talk.obey(talk.idle(A))
    talk.obey(talk.stopped(A, wants=False))
    talk.idle(B)
    talk.stopped(B, wants=False)
    left = talk.scheduler.snapshot().host_free
    (order,) = presaves(talk.wait(1))
    assert order.host - provides(talk.said)[-1].host == left // 2


def test_a_suspended_program_leaves_and_is_not_copied() -> None:
    talk = talking()
    at_rest(talk)
    (order,) = presaves(talk.wait(1))
    said = talk.tell(TermsChanged(B, Terms(suspended=True)))
    assert yields(said) == [B]
    talk.obey(talk.presaved(order, 1, yielded=True))
    assert not presaves(talk.wait(10))


@pytest.mark.parametrize("outward", [True, False])
def test_it_gives_way_to_one_that_copies_to_the_host(outward: bool) -> None:
    talk = talking()
    talk.run(A, 60)
    talk.run(B, 60)
    talk.obey(talk.idle(A))
    talk.obey(talk.stopped(A, wants=False))
    talk.idle(B)
    talk.stopped(B, wants=False)
    talk.run(C, 10)                     # fits beside either
    (order,) = presaves(talk.wait(1))
    said = talk.copying(C, inward=not outward, outward=outward)
    assert yields(said) == ([B] if outward else [])
    said = talk.presaved(order, 1, yielded=True)
    assert sizes(presaves(said)) == ([] if outward else sizes([order]))
    if outward:
        assert sizes(presaves(talk.copying(C))) == sizes([order])
    assert not loads(said)
