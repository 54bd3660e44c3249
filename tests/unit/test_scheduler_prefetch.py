# SPDX-License-Identifier: Apache-2.0
"""Who will be asked soonest comes in before that, nobody is hurt by it, and it comes to rest."""

from dataclasses import replace

from bench.models.demand import zipf
from nvshared.scheduler import Scheduler
from nvshared.scheduler.actions import Evict, Load
from nvshared.scheduler.events import SettingsChanged
from nvshared.scheduler.settings import Settings
from nvshared.units import GIB, MILLISECOND, SECOND
from tests.unit.scheduler_talk import Talk, evicts, loads, runs, stops, yields
from tests.unit.scheduler_world import World

A, B, C = 1, 2, 3
AFTER = {A: B, B: C, C: A}


def talking(step: float = 1000) -> Talk:
    """With the setting on, and three programs of 45 of 100 GiB."""
    talk = Talk(step=step, host=1000)
    talk.settings = replace(talk.settings, prefetch=True)
    talk.scheduler = Scheduler(talk.settings, 0)
    for client in (A, B, C):
        talk.join(client, 45)
    return talk


def ask(talk: Talk, client: int) -> None:
    """A request to it, after which its gate is shut."""
    assert client in runs(talk.obey(talk.want(client)))
    talk.wait(0.1)
    assert stops(talk.idle(client)) == [client]
    talk.stopped(client, wants=False)


def lacks(talk: Talk, client: int) -> float:
    """GiB that are not on the card."""
    return (talk.memory[client].allocated - talk.memory[client].resident) / GIB


def unanswered(talk: Talk) -> list[Evict | Load]:
    """Orders to move that a hook still has."""
    return [a for a in talk.said if isinstance(a, Evict | Load)
            and talk.scheduler.unanswered(a.client, a.number) is not None]


def early(talk: Talk) -> list[Evict | Load]:
    """Those of them for one that has not asked."""
    return [order for order in unanswered(talk) if order.ahead]


def pause(talk: Talk, seconds: float) -> None:
    """Whatever is ordered meanwhile is done."""
    for _ in range(round(10 * seconds)):
        talk.wait(0.1)
        talk.obey([*unanswered(talk)])


def by_turns(talk: Talk, rounds: int) -> list[float]:
    """Requests by turns, one a second. Returns what each had to wait for, GiB."""
    waited = []
    for client in (A, B, C) * rounds:
        pause(talk, 0.9)
        waited.append(lacks(talk, client))
        ask(talk, client)
    return waited


def on_its_way(talk: Talk) -> int:
    """Memory moves for the one that comes next. Returns who that is."""
    by_turns(talk, 6)
    for client in (A, B, C) * 2:
        if early(talk):
            return client
        pause(talk, 0.9)
        ask(talk, client)
    raise AssertionError("nothing moves ahead")


def test_who_comes_regularly_is_there_before() -> None:
    assert sum(by_turns(talking(), 10)[12:]) == 0
    without = talking()
    without.tell(SettingsChanged(replace(without.settings, prefetch=False)))
    assert sum(by_turns(without, 10)[12:]) > 0


def test_when_nobody_comes_it_comes_to_rest() -> None:
    talk = talking()
    by_turns(talk, 6)
    pause(talk, 10)
    before = len(talk.said)
    pause(talk, 1000)
    assert not [a for a in talk.said[before:] if isinstance(a, Evict | Load)]


def test_what_was_asked_for_once_is_not_brought_in() -> None:
    talk = talking()
    for client in (A, B, C):
        ask(talk, client)
    pause(talk, 100)
    assert not [a for a in talk.said if isinstance(a, Evict | Load) and a.ahead]


def test_it_is_cut_short_as_soon_as_anybody_asks() -> None:
    talk = talking(step=2)
    coming = on_its_way(talk)
    (order,) = early(talk)
    assert yields(talk.want(AFTER[coming])) == [order.client]


def test_what_comes_in_for_who_asks_goes_on() -> None:
    talk = talking(step=2)
    coming = on_its_way(talk)
    while not isinstance((order := early(talk)[0]), Load):
        talk.obey([one for one in unanswered(talk) if not one.ahead])
        talk.evicted(order)
    assert order.client == coming
    assert not yields(talk.want(coming))
    talk.obey([*unanswered(talk)])
    assert coming in talk.granted


def test_a_victim_that_asks_keeps_the_rest() -> None:
    talk = talking(step=2)
    on_its_way(talk)
    (order,) = early(talk)
    said = talk.want(order.client)
    assert yields(said) == [order.client]
    assert order.client not in {client for client, _ in evicts(said)}


def test_nothing_comes_in_while_somebody_runs() -> None:
    talk = talking(step=2)
    talk.run(4, 2)                      # beside all others, and goes on
    by_turns(talk, 6)
    assert not [a for a in talk.said if isinstance(a, Evict | Load) and a.ahead]


def test_turned_off_it_ends() -> None:
    talk = talking(step=2)
    on_its_way(talk)
    (order,) = early(talk)
    said = talk.tell(SettingsChanged(replace(talk.settings, prefetch=False)))
    assert yields(said) == [order.client]
    talk.obey([*unanswered(talk)])
    assert loads(talk.wait(10)) == []


def test_many_requests_in_a_row_find_more_of_the_hottest_on_the_card() -> None:
    found = []
    for prefetch in (False, True):
        settings = Settings(
            capacity=16 * GIB, total=16 * GIB, host_budget=64 * GIB, step=GIB, prefetch=prefetch)
        world = World(settings, seed=1, delay=200)
        hooks = [world.join() for _ in range(4)]
        for hook in hooks:
            world.advance(SECOND)
            hook.allocate(6 * GIB)
            hook.compute(MILLISECOND)
        whole = 0
        for request in zipf(4, 1, 2.0)(60):
            world.advance(2 * SECOND)
            whole += hooks[request.model].resident == 6 * GIB
            hooks[request.model].compute(MILLISECOND)
        world.advance(10 * SECOND)
        assert not any(hook.work for hook in hooks)
        found.append(whole)
    assert found[1] > found[0]
