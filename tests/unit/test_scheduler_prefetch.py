# SPDX-License-Identifier: Apache-2.0
"""Who is asked for most comes in before that, nobody is hurt by it, and it comes to rest."""

from dataclasses import replace

from bench.models.demand import zipf
from nvshared.scheduler import Scheduler
from nvshared.scheduler.actions import Evict, Load
from nvshared.scheduler.events import SettingsChanged
from nvshared.scheduler.settings import Settings
from nvshared.units import GIB, MILLISECOND, SECOND
from tests.unit.scheduler_talk import Talk, evicts, loads, runs, stops, yields
from tests.unit.scheduler_world import World

HOT, WARM, COLD = 1, 2, 3


def talking(step: float = 1000) -> Talk:
    """With the setting on, and three programs of 45 of 100 GiB."""
    talk = Talk(step=step, host=1000)
    talk.settings = replace(talk.settings, prefetch=True)
    talk.scheduler = Scheduler(talk.settings, 0)
    for client in (HOT, WARM, COLD):
        talk.join(client, 45)
    return talk


def ask(talk: Talk, client: int) -> None:
    """A request to it; then it does nothing for a second, and its gate is shut."""
    said = talk.obey(talk.want(client))
    assert client in runs(said)
    talk.wait(0.6)
    assert stops(talk.idle(client)) == [client]
    talk.stopped(client, wants=False)


def hot_is_away(talk: Talk) -> None:
    """The one that is asked for most was used longest ago, and had to leave."""
    for client in (HOT, HOT, HOT, HOT, HOT):
        ask(talk, client)
    talk.wait(60)                       # so others will probably be asked before it
    for client in (WARM, WARM, COLD):
        ask(talk, client)


def lacks(talk: Talk, client: int) -> float:
    """GiB that are not on the card."""
    return (talk.memory[client].allocated - talk.memory[client].resident) / GIB


def settle(talk: Talk) -> None:
    """Whatever is ordered is done, until nothing is."""
    talk.obey([*unanswered(talk)])
    assert not unanswered(talk)


def unanswered(talk: Talk) -> list[Evict | Load]:
    """Orders to move that a hook still has."""
    return [a for a in talk.said if isinstance(a, Evict | Load)
            and talk.scheduler.unanswered(a.client, a.number) is not None]


def test_the_hottest_comes_in_for_the_coldest_and_then_all_is_at_rest() -> None:
    talk = talking()
    hot_is_away(talk)
    settle(talk)
    assert lacks(talk, HOT) == 0
    assert lacks(talk, WARM) == 0
    assert lacks(talk, COLD) > 0
    before = len(talk.said)
    talk.wait(3600)
    assert not [a for a in talk.said[before:] if isinstance(a, Evict | Load)]
    assert talk.scheduler.deadline() is None


def test_those_that_are_asked_for_alike_are_not_exchanged() -> None:
    talk = talking()
    for client in (HOT, WARM, COLD) * 4:
        ask(talk, client)
        assert not [order for order in unanswered(talk) if isinstance(order, Evict)]
        settle(talk)


def test_it_is_cut_short_as_soon_as_anybody_asks() -> None:
    talk = talking(step=2)
    hot_is_away(talk)
    (out,) = unanswered(talk)
    assert (type(out), out.client, out.ahead) == (Evict, COLD, True)
    assert yields(talk.want(WARM)) == [COLD]


def test_what_comes_in_for_who_asks_goes_on() -> None:
    talk = talking(step=2)
    hot_is_away(talk)
    while (under_way := unanswered(talk)) and not isinstance(under_way[0], Load):
        talk.evicted(under_way[0])
    assert [order.client for order in under_way] == [HOT]
    assert not yields(talk.want(HOT))
    talk.obey([*unanswered(talk)])
    assert HOT in talk.granted


def test_a_victim_that_asks_keeps_the_rest() -> None:
    talk = talking(step=2)
    hot_is_away(talk)
    said = talk.want(COLD)
    assert yields(said) == [COLD]
    assert evicts(said) == []


def test_nothing_comes_in_while_somebody_runs() -> None:
    talk = talking(step=2)
    talk.run(4, 2)                      # beside all others, and goes on
    hot_is_away(talk)
    assert not unanswered(talk)
    assert stops(talk.idle(4)) == [4]
    talk.stopped(4, wants=False)
    (out,) = unanswered(talk)
    assert (out.client, out.ahead) == (4, True)     # asked for as often as the cold one, and before
    assert yields(talk.want(4)) == [4]


def test_turned_off_it_ends() -> None:
    talk = talking(step=2)
    hot_is_away(talk)
    said = talk.tell(SettingsChanged(replace(talk.settings, prefetch=False)))
    assert yields(said) == [COLD]
    settle(talk)
    assert loads(talk.wait(10)) == []
    assert lacks(talk, HOT) > 0


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
