# SPDX-License-Identifier: Apache-2.0
"""Groups of clients that share a limit of the host's memory."""

from dataclasses import replace
from random import Random

import pytest

from nvshared.scheduler import Scheduler
from nvshared.scheduler.actions import Evict, Limits, Load
from nvshared.scheduler.domains import Domains, Stake
from nvshared.scheduler.events import Tick
from nvshared.scheduler.settings import Settings
from nvshared.units import GIB, MIB, SECOND
from tests.seeds import seeds
from tests.unit.scheduler_talk import Talk, limits, runs, stops
from tests.unit.scheduler_world import World

BOX = ("box",)


def domains(**capacities: float) -> Domains:
    made = Domains()
    for name, size in capacities.items():
        made.resize(name, int(size * GIB), f"the limit of {name}")
    return made


def answer(talk: Talk, client: int, size: float, number: int = 1, pins: float = 0) -> Limits:
    """To a COMMIT that is answered at once, or as soon as others have done what they are told."""
    actions = talk.obey(talk.ask(client, number, size, pins))
    found, = (one for one in limits(actions, client) if one.number == number)
    return found


def test_promises_keep_to_what_the_domain_holds() -> None:
    talk = Talk(100, domains=domains(box=16))
    first, *_ = talk.join(1, domains=BOX)
    assert isinstance(first, Limits)
    assert first.most == 15 * GIB       # with a margin, as for the whole host
    refused = answer(talk, 1, 15.1)
    assert refused.commit < 15 * GIB
    assert refused.why == "the limit of box"
    granted = answer(talk, 1, 15, 2)
    assert (granted.commit, granted.why) == (15 * GIB, "")
    talk.join(2)
    assert answer(talk, 2, 90).commit >= 90 * GIB


def test_what_is_pinned_never_needs_host_memory() -> None:
    talk = Talk(100, domains=domains(box=16))
    talk.join(1, domains=BOX)
    assert answer(talk, 1, 40, pins=40).commit >= 40 * GIB
    talk.changed(1, pinned=40, answered=1)
    assert answer(talk, 1, 55, 2).commit == 55 * GIB
    assert answer(talk, 1, 56, 3).why


def test_those_in_one_domain_share_it_and_what_was_lent_comes_back() -> None:
    talk = Talk(100, domains=domains(box=32))
    for client in (1, 2):
        talk.join(client, domains=BOX)
    talk.changed(1)
    assert talk.view(1).commit > 0      # that it has not asked for
    assert answer(talk, 2, 30).commit == 30 * GIB
    talk.changed(2, allocated=30)
    assert answer(talk, 1, 1).why == "the limit of box"


def test_the_tightest_of_several_levels_counts() -> None:
    levels = domains(pod=64, one=16, two=60)
    talk = Talk(100, domains=levels)
    talk.join(1, domains=("one", "pod"))
    talk.join(2, domains=("two", "pod"))
    assert answer(talk, 1, 16).why == "the limit of one"
    assert answer(talk, 1, 14, 2).commit >= 14 * GIB
    talk.changed(1, allocated=14)
    assert answer(talk, 2, 50).why == "the limit of pod"
    assert answer(talk, 2, 46, 2).commit == 46 * GIB


def test_a_domain_spans_cards() -> None:
    shared = domains(box=16)
    first, second = Talk(100, domains=shared), Talk(100, domains=shared)
    first.join(1, domains=BOX)
    second.join(2, domains=BOX)
    assert answer(first, 1, 10).commit >= 10 * GIB
    assert answer(second, 2, 6).why == "the limit of box"
    first.leave(1)
    assert answer(second, 2, 6, 2).commit >= 6 * GIB


def test_a_limit_that_changes_holds_from_then_on() -> None:
    shared = domains(box=16)
    talk = Talk(100, domains=shared)
    talk.join(1, domains=BOX)
    assert answer(talk, 1, 20).why
    shared.resize("box", 32 * GIB)
    told, = limits(talk.tell(Tick()), 1)
    assert told.most == 30 * GIB        # it sees so without asking
    assert answer(talk, 1, 20, 2).commit >= 20 * GIB
    talk.scheduler.belongs(1, ())
    assert answer(talk, 1, 99, 3).commit >= 99 * GIB


def test_what_is_held_beyond_the_card_counts_too() -> None:
    talk = Talk(100, domains=domains(box=16))
    first, *_ = talk.join(1, domains=BOX)
    assert isinstance(first, Limits)
    assert 0 < first.beyond <= 15 * GIB
    refused, = (one for one in limits(talk.beyond(1, 1, 20), 1) if one.number)
    assert refused.beyond < 20 * GIB
    assert refused.why == "the limit of box"


def test_no_more_leaves_than_the_domain_has_place_for() -> None:
    shared = domains(box=64)
    talk = Talk(100, domains=shared)
    talk.run(1, 60, BOX)
    shared.resize("box", 20 * GIB)      # somebody else has taken the rest
    talk.join(2, 70)
    actions = talk.obey(talk.want(2))
    # It does not fit beside what must stay, so nobody is stopped for its sake.
    assert not stops(actions)
    assert not talk.view(2).fits
    assert talk.view(1).fits
    assert talk.view(1).memory.resident == 60 * GIB
    talk.join(3, 60)
    actions = talk.obey(talk.want(3))   # and this one does
    talk.idle(1)
    assert talk.view(1).state == "draining"
    actions += talk.obey(talk.stopped(1, wants=False))
    assert runs(actions)[-1] == 3
    assert max(a.host for a in actions if isinstance(a, Evict)) <= 20 * GIB
    assert talk.view(1).memory.resident >= 40 * GIB


def test_what_stays_is_no_room_for_others() -> None:
    shared = domains(box=64)
    talk = Talk(100, domains=shared)
    talk.run(1, 60, BOX)
    shared.resize("box", 20 * GIB)
    talk.join(2)
    assert answer(talk, 2, 61).commit < 61 * GIB
    assert answer(talk, 2, 60, 2).commit >= 60 * GIB


def test_what_is_kept_for_nothing_is_given_back_when_a_domain_shrinks() -> None:
    shared = domains(box=64)
    talk = Talk(100, domains=shared)
    talk.run(1, 60, BOX)
    talk.changed(1, host=50)            # of the time before, and the program runs
    shared.resize("box", 40 * GIB)
    orders = [a for a in talk.tell(Tick()) if isinstance(a, Load)]
    assert [(a.client, a.host) for a in orders] == [(1, 30 * GIB)]


def test_memory_that_has_no_place_any_more_comes_in() -> None:
    shared = domains(box=64)
    talk = Talk(100, domains=shared)
    talk.join(1, 60, 0, domains=BOX)
    talk.set(1, host=60)
    talk.swapped[1] = 60 * GIB
    talk.changed(1)
    shared.resize("box", 40 * GIB)
    talk.obey(talk.tell(Tick()))
    assert talk.view(1).memory.resident == 60 * GIB
    assert talk.view(1).memory.host <= 40 * GIB


def test_figures_of_domains_are_the_sums_over_their_clients() -> None:
    shared = domains(box=64)
    talk = Talk(100, domains=shared)
    talk.join(1, 10, 0, domains=BOX)
    talk.join(2, 20, 0, pinned=5, domains=BOX)
    talk.changed(1, host=10, beyond=1)
    box, = shared
    assert box.sums.needed == 31 * GIB
    assert box.sums.taken == 11 * GIB
    talk.leave(1)
    talk.leave(2)
    assert (box.sums, box.stakes) == (Stake(), {})
    shared.forget({"box"})
    assert list(shared) == [box]
    shared.forget(())
    assert list(shared) == []


def test_a_limit_of_the_whole_host_bounds_what_is_taken_and_no_promises() -> None:
    """Three of 55 GiB on a card of 139, in a container of 110 with the daemon."""
    shared = Domains()
    shared.resize("box", 110 * GIB, whole=True)
    talk = Talk(139, host=100, domains=shared)
    for client in (1, 2, 3):
        talk.join(client, domains=BOX)
        assert answer(talk, client, 55).commit >= 55 * GIB
        talk.changed(client, allocated=55)
    assert not shared.lacking
    shared.resize("box", 20 * GIB, whole=True)
    talk.obey(talk.want(1))
    talk.obey(talk.want(2))
    actions = talk.obey(talk.want(3))
    talk.idle(1)
    actions += talk.obey(talk.stopped(1, wants=False))
    assert max(a.host for a in actions if isinstance(a, Evict)) <= 20 * GIB


def test_a_domain_without_a_limit_bounds_nobody() -> None:
    talk = Talk(100)
    talk.join(1, domains=BOX)
    assert answer(talk, 1, 100).commit == 100 * GIB


def test_after_a_restart_all_keep_what_they_were_promised() -> None:
    shared = domains(box=16)
    talk = Talk(100)
    talk.scheduler = Scheduler(replace(talk.settings, gather=0), 0, shared)
    talk.join(1, 40, 40, running=True, commit=40, domains=BOX)
    assert talk.view(1).commit == 40 * GIB
    assert answer(talk, 1, 41).why == "the limit of box"
    other, = shared.named(("other",))
    assert other.untaken > 1 << 60


def test_what_was_pinned_and_freed_is_not_promised_any_more() -> None:
    talk = Talk(100, domains=domains(box=16))
    talk.join(1, domains=BOX)
    assert answer(talk, 1, 40, pins=40).commit >= 40 * GIB
    talk.changed(1, pinned=40, answered=1)
    talk.wait(2)
    actions = talk.changed(1, pinned=0)
    assert {one.commit for one in limits(actions, 1)} == {0}


@pytest.mark.parametrize("seed", seeds(2, 6))
def test_random_programs_in_a_container_whose_limit_changes(seed: int) -> None:
    """scheduler_world.py checks after each event that no more is taken than the limit leaves."""
    random = Random(seed)
    world = World(
        Settings(
            capacity=4 * GIB, total=4 * GIB, host_budget=16 * GIB, step=256 * MIB, tq=SECOND // 4,
            presave=bool(seed % 2), stuck_after=600 * SECOND),
        seed,
    )
    world.resize(4 * GIB)
    for _ in range(5):
        world.join()
    hooks = list(world.hooks.values())
    most = 0
    for _ in range(150):
        hook = random.choice(hooks)
        match random.randrange(8):
            case 0 | 1 | 2:
                hook.allocate(random.randrange(1, 1024) * MIB)
            case 3:
                hook.free(random.randrange(8))
            case 4 if seed % 3 == 0:
                world.resize(random.randrange(1, 24) * GIB // 4)
            case _:
                hook.compute(SECOND // 2)
        world.advance(random.randrange(SECOND))
        most = max(most, sum(one.host for one in hooks if one.id % 2))
    assert most > 512 * MIB             # it mattered
    world.resize(None)
    for hook in hooks:
        hook.compute(SECOND)
    world.settle(600 * SECOND)
    assert not any(hook.work or hook.asking for hook in hooks)
