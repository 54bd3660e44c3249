# SPDX-License-Identifier: Apache-2.0
"""Host memory is made for what will leave, while its program runs."""

from dataclasses import replace
from random import Random

from nvshared.scheduler import Scheduler
from nvshared.scheduler.actions import Action, Evict, Load, Provide
from nvshared.scheduler.domains import Domains
from nvshared.scheduler.events import SettingsChanged
from nvshared.scheduler.settings import AntiThrash, Settings
from nvshared.units import GIB, MIB, MILLISECOND, SECOND
from tests.unit.scheduler_talk import Talk, loads, provides, stops
from tests.unit.scheduler_world import World

A, B, C = 1, 2, 3


def talking(step: float = 1000, host: float = 1000, domains: Domains | None = None) -> Talk:
    """With the setting on, which other stories have off."""
    talk = Talk(host=host, step=step)
    talk.settings = replace(talk.settings, presave=True)
    talk.scheduler = Scheduler(talk.settings, 0, domains)
    return talk


def made(actions: list[Action]) -> list[tuple[int, int]]:
    """Who is to have how many GiB of host memory, about."""
    return [(order.client, order.host // GIB) for order in provides(actions)]


def test_who_runs_makes_what_the_next_will_take_from_it() -> None:
    talk = talking()
    talk.run(A, 60)
    # B is not there yet, and would lack 20 GiB; that it does not want to run does not matter.
    assert made(talk.join(B, 60)) == [(A, 20)]
    assert not provides(talk.changed(A, host=20.25))
    assert not provides(talk.obey(talk.want(B)))
    talk.obey(talk.wait(30))
    assert stops(talk.said) == [A]
    # B has 60 now, and A lacks 20: B makes as much in its turn, before that is over.
    assert made(talk.obey(talk.stopped(A))) == [(B, 20)]


def test_nothing_is_made_where_all_fit_or_the_setting_is_off() -> None:
    talk = talking()
    talk.run(A, 60)
    talk.run(B, 40)
    talk.wait(100)
    assert not provides(talk.said)
    talk.settings = replace(talk.settings, presave=False)
    talk.tell(SettingsChanged(talk.settings))
    talk.obey(talk.join(C, 60))
    assert not provides(talk.said)


def test_others_who_do_not_run_give_theirs_first() -> None:
    talk = talking()
    talk.run(A, 50)
    talk.run(B, 50)
    talk.obey(talk.idle(A))
    # C needs 60. A has its turn still, as nobody waits.
    assert made(talk.join(C, 60)) == [(A, 50), (B, 10)]

    talk = talking()
    talk.run(A, 60)
    talk.run(B, 60)
    talk.obey(talk.idle(A))
    talk.obey(talk.stopped(A, wants=False))
    talk.obey(talk.want(A))
    # Now A lacks 20; C, which lacks more, waits behind it.
    assert made(talk.said) == [(A, 20), (B, 20)]
    assert not provides(talk.run(C, 90))


def test_it_is_made_in_steps_and_as_much_stays_free() -> None:
    talk = talking(step=8)
    talk.run(A, 60)
    assert made(talk.join(B, 60)) == [(A, 8)]
    assert not provides(talk.changed(A, host=3))
    assert made(talk.changed(A, host=5)) == [(A, 16)]
    assert made(talk.changed(A, host=13)) == [(A, 20)]
    assert not provides(talk.changed(A, host=20))

    talk = talking(host=24)
    talk.run(A, 60)
    assert made(talk.join(B, 60)) == [(A, 12)]
    assert not provides(talk.changed(A, host=12))


def test_a_container_keeps_as_much_free() -> None:
    domains = Domains()
    domains.resize("box", 62 * GIB)
    talk = talking(domains=domains)
    talk.run(A, 60, domains=("box",))
    assert made(talk.join(B, 100)) == [(A, 31)]
    # Of one that is too small for what may leave, what is not in use is taken back.
    domains.resize("box", 59 * GIB)
    talk.obey(talk.changed(A, host=31))
    assert talk.memory[A].host < 31 * GIB
    assert len(provides(talk.said)) == 1


def test_what_it_may_make_counts_until_its_next_move() -> None:
    talk = talking(host=100)
    talk.run(A, 60)
    (order,) = provides(talk.join(B, 60))
    assert talk.scheduler.snapshot().host_free == 100 * GIB - order.host
    talk.changed(A, host=5)
    assert talk.scheduler.snapshot().host_free == 100 * GIB - order.host
    talk.obey(talk.want(B))
    talk.wait(30)
    (evict,) = (order for order in talk.stopped(A) if isinstance(order, Evict))
    talk.set(A, host=12)
    talk.evicted(evict)
    assert talk.scheduler.snapshot().host_free <= 100 * GIB - talk.memory[A].host


def test_no_load_takes_back_what_is_being_made() -> None:
    talk = talking()
    talk.run(A, 60)
    (order,) = provides(talk.join(B, 60))
    said = talk.need_room(A, allocated=70)
    (load,) = (order for order in said if isinstance(order, Load))
    assert load.host == order.host
    # That ended it. It goes on, as it needs more now.
    assert made(talk.obey([load])) == [(A, 30)]


def test_where_host_memory_is_short_it_goes_back_first() -> None:
    talk = talking(host=60)
    talk.run(A, 40)
    talk.run(B, 60)
    assert made(talk.join(C, 60)) == [(A, 30), (B, 15)]
    talk.changed(A, host=30)
    talk.changed(B, host=15)
    talk.obey(talk.idle(B))
    talk.obey(talk.want(C))
    assert stops(talk.said) == [B]
    said = talk.obey(talk.stopped(B, wants=False))
    # B needs 60 of host memory, so A gives what it made for itself.
    assert A in dict(loads(said))
    assert talk.memory[A].host == 0
    assert C in talk.granted


def test_whatever_programs_do_that_do_not_fit() -> None:
    """No budget is exceeded, and nothing is ordered and taken back: World looks."""
    assert sum(len(_play(seed).orders_of(Provide)) for seed in range(20)) > 20


def _play(seed: int) -> World:
    random = Random(seed)
    card = random.choice([1024, 4096, 16384]) * MIB
    settings = Settings(
        capacity=card, total=card, host_budget=card * random.choice([2, 3, 8]),
        step=random.choice([64, 256, 1024]) * MIB, tq=random.choice([SECOND // 10, SECOND]),
        anti_thrash=random.choice([AntiThrash.AUTO, AntiThrash.ON]), gather=5 * SECOND,
        prefetch=random.random() < 0.5,
    )
    world = World(settings, seed, jobs=True)
    world.advance(5 * SECOND)
    for _ in range(3):
        hook = world.join()
        world.advance(SECOND // 10)
        hook.allocate(card * random.randint(3, 6) // 7)
        hook.compute(2 * SECOND)
    for _ in range(30):
        hook = random.choice([*world.hooks.values()])
        what = random.random()
        if what < 0.1:
            hook.free(random.randint(0, 30))
        elif what < 0.15 and len(world.hooks) > 2:
            world.kill(hook)
            world.join().allocate(card // 2)
        elif what < 0.2 and not world.scheduler.orders_unanswered():
            world.resize(card * random.randint(1, 14) // 7 if random.random() < 0.7 else None)
        elif what < 0.25:
            world.restart()
        elif what < 0.3:
            hook.fail_out = random.choice(["host", "driver"])
        elif what < 0.7:
            hook.compute(random.randint(1, 4) * SECOND)
        world.advance(random.choice([1, 100, 1000]) * MILLISECOND)
    return world
