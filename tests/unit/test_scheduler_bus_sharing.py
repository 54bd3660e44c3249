# SPDX-License-Identifier: Apache-2.0
"""Moves ahead of time leave the bus to a running program that copies, within bounds."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvshared.scheduler import Scheduler
from nvshared.scheduler.actions import Action, Evict, Load, Run
from nvshared.scheduler.settings import AntiThrash
from nvshared.scheduler.yielding import BURST, REST, WORTH, Yielding
from nvshared.units import SECOND
from tests.unit.scheduler_talk import Talk, evicts, loads, stops, yields

TQ = 30


def three(*, capacity: float = 75, size: float = 30, bus_sharing: bool = True) -> Talk:
    """1 runs and 2 is next, none of it on the card; 3 lies there in its stead, as far as it can."""
    talk = Talk(capacity, step=5, mode=AntiThrash.ON, stuck_after=1000)
    talk.settings = replace(talk.settings, bus_sharing=bus_sharing)
    talk.scheduler = Scheduler(talk.settings, 0)
    talk.join(3, size, size)
    talk.join(1, size, size)
    talk.obey(talk.want(1))
    talk.join(2, size)
    return talk


def answered(talk: Talk, actions: list[Action], rounds: int) -> list[Action]:
    """Answers so many moves; returns those that are under way then."""
    waiting = [action for action in actions if isinstance(action, Evict | Load)]
    for _ in range(rounds):
        order = waiting.pop(0)
        more = talk.evicted(order) if isinstance(order, Evict) else talk.loaded(order)
        waiting += [action for action in more if isinstance(action, Evict | Load)]
    return list(waiting)


def test_who_runs_is_watched_while_others_wait_and_only_then() -> None:
    talk = three()
    assert not any(action.report_copies for action in talk.said if isinstance(action, Run))
    told = [action for action in talk.want(2) if isinstance(action, Run)]
    assert [(action.client, action.report_copies) for action in told] == [(1, True)]
    told = [action for action in talk.leave(2) if isinstance(action, Run)]
    assert [(action.client, action.report_copies) for action in told] == [(1, False)]


def test_what_comes_in_ahead_waits_while_the_program_copies_to_the_card() -> None:
    talk = three()
    under_way = answered(talk, talk.want(2), 1)
    assert {type(order) for order in under_way} == {Evict, Load}
    assert all(order.ahead for order in under_way if isinstance(order, Evict | Load))
    assert yields(talk.copying(1, inward=True)) == [2]
    load = next(order for order in under_way if isinstance(order, Load))
    eviction = next(order for order in under_way if isinstance(order, Evict))
    # It is cut short with 2 of 5 GiB; the other direction goes on.
    rest = [order for order in under_way if order not in (load, eviction)]
    actions = talk.loaded(load, lacking=3, yielded=True)
    assert loads(actions) == []
    actions += talk.evicted(eviction)
    assert evicts(actions)
    assert loads(actions) == []
    actions += talk.copying(1)
    assert loads(actions)
    talk.obey([*rest, *actions])
    assert talk.memory[2].resident == talk.memory[2].allocated


def test_what_leaves_ahead_waits_while_the_program_copies_to_the_host() -> None:
    talk = three()
    under_way = talk.want(2)
    evictions = [order for order in under_way if isinstance(order, Evict)]
    assert [order.ahead for order in evictions] == [True, True]
    assert yields(talk.copying(1, outward=True)) == [3, 3]
    moved = talk.memory[3].resident
    actions = [*talk.evicted(evictions[0]), *talk.evicted(evictions[1])]
    assert talk.memory[3].resident < moved
    assert evicts(actions) == []
    load = next(order for order in under_way if isinstance(order, Load))
    assert loads(talk.loaded(load))     # the other direction goes on
    assert evicts(talk.copying(1))


def test_a_move_that_could_do_nothing_before_it_was_cut_short_is_no_failure() -> None:
    talk = three()
    evictions = [a for a in talk.want(2) if isinstance(a, Evict)]
    talk.copying(1, outward=True)
    for order in evictions:
        assert evicts(talk.evicted(order, yielded=True)) == []
    assert {client for client, _ in evicts(talk.copying(1))} == {3}


def test_who_says_that_it_was_cut_short_without_having_been_is_left_alone_for_a_while() -> None:
    talk = three()
    evictions = [a for a in talk.want(2) if isinstance(a, Evict)]
    for order in evictions:
        assert 3 not in dict(evicts(talk.evicted(order, yielded=True)))


def test_no_hand_over_is_delayed() -> None:
    talk = three()
    under_way = talk.want(2)
    talk.copying(1, inward=True, outward=True)
    evictions = [order for order in under_way if isinstance(order, Evict)]
    for order in evictions:
        talk.evicted(order, yielded=True)
    # It is idle, and stops: what was withheld is ordered at once.
    actions = talk.idle(1)
    assert stops(actions) == [1]
    assert evicts(actions)
    assert yields(actions) == []
    assert yields(talk.copying(1, inward=True, outward=True)) == []


def test_the_last_part_of_a_turn_is_for_what_would_be_missing_after_it() -> None:
    talk = three(size=30)
    talk.want(2)
    talk.copying(1, inward=True)
    # 30 GiB at the pace it starts with, 25 bytes in a nanosecond.
    needed = 30 * (1 << 30) / 25_000 / SECOND
    talk.wait(TQ - needed + 0.01)
    assert not any(p.giving for p in yielding(talk))
    before = len(talk.said)
    talk.wait(needed / 2)
    assert yields(talk.said[before:]) == []


def yielding(talk: Talk) -> list[Yielding]:
    """Of both directions."""
    return list(talk.scheduler._card.yielding.values())


def test_who_copies_all_the_time_has_the_bus_for_itself_for_half_of_it() -> None:
    talk = three()
    talk.want(2)
    talk.copying(1, inward=True)
    changes: list[tuple[int, bool]] = [(talk.now, True)]
    while talk.now < 20 * SECOND:
        deadline = talk.scheduler.deadline()
        assert deadline is not None
        talk.wait((deadline - talk.now) / SECOND)
        giving = any(p.giving for p in yielding(talk))
        if giving != changes[-1][1]:
            changes.append((talk.now, giving))
    waited = sum(end - start for (start, giving), (end, _) in pairwise(changes) if giving)
    moved = sum(end - start for (start, giving), (end, _) in pairwise(changes) if not giving)
    assert waited <= moved + BURST
    assert waited > 0.9 * moved
    assert len(changes) < 20 * 12       # a handful of orders in a second


def test_it_can_be_turned_off() -> None:
    talk = three(bus_sharing=False)
    actions = talk.want(2)
    assert not any(action.report_copies for action in actions if isinstance(action, Run))
    assert not any(action.ahead for action in actions if isinstance(action, Evict | Load))
    assert yields(talk.copying(1, inward=True, outward=True)) == []
    assert loads(talk.obey(actions))


@pytest.mark.parametrize("how", ["leaves", "stops", "reopens"])
def test_nothing_is_left_of_what_it_said(how: str) -> None:
    talk = three()
    talk.want(2)
    talk.copying(1, inward=True, outward=True)
    assert all(p.giving for p in yielding(talk))
    if how == "leaves":
        talk.leave(1)
    else:
        talk.idle(1)
        if how == "stops":
            talk.stopped(1)
        else:
            talk.reopened(1)
    assert not any(p.giving for p in yielding(talk))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2 * BURST)), max_size=60))
def test_patience_is_bounded_whatever_is_asked(script: list[tuple[bool, int]]) -> None:
    """Each step: whether it is asked for at that moment, and how long after the last one."""
    now, one, waited, began = 1000, Yielding(), 0, 0
    for asked, later in script:
        if one.giving and one.ends <= now + later:      # whoever keeps it looks at that moment too
            waited += one.ends - one.at
            one = one.until(one.ends).turned()
        waited += now + later - max(one.at, now) if one.giving else 0
        now += later
        one = one.until(now)
        if one.giving and not asked:
            one = one.turned()
        elif not one.giving and asked and one.begins <= now:
            assert one.left >= WORTH
            assert began == 0 or now - one.since >= REST
            one, began = one.turned(), now
        assert 0 <= one.left <= BURST
    total = now - 1000
    assert waited <= total / 2 + BURST
