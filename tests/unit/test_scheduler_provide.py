# SPDX-License-Identifier: Apache-2.0
"""Host memory is made for what will leave, while its program runs."""

from dataclasses import replace

from nvshared.scheduler import Scheduler
from nvshared.scheduler.actions import Action, Provide
from nvshared.scheduler.events import Provided, SettingsChanged
from nvshared.units import GIB
from tests.unit.scheduler_talk import Talk, evicts, stops

A, B, C = 1, 2, 3


def talking(step: float = 1000, host: float = 1000) -> Talk:
    """With the setting on, which other stories have off."""
    talk = Talk(host=host, step=step)
    talk.settings = replace(talk.settings, presave=True)
    talk.scheduler = Scheduler(talk.settings, 0)
    return talk


def provides(actions: list[Action]) -> list[tuple[int, float]]:
    """Who is to make host memory, and of how many GiB it is to have in all; a bit more is right."""
    return [(a.client, a.host // GIB) for a in actions if isinstance(a, Provide)]


def made(talk: Talk, size: float | None = None, *, cut: bool = False) -> list[Action]:
    """The last such order is answered, by one that has so many GiB now; None: all of them."""
    order = [action for action in talk.said if isinstance(action, Provide)][-1]
    host = order.host if size is None else int(size * GIB)
    memory = talk.set(order.client, host=host / GIB)
    return talk.tell(Provided(order.client, memory, order.number, 0, yielded=cut))


def test_who_runs_makes_what_the_next_will_take_from_it() -> None:
    talk = talking()
    talk.run(A, 60)
    # B is not there yet, and would lack 20 GiB; that it does not want to run does not matter.
    assert provides(talk.join(B, 60)) == [(A, 20)]
    assert not provides(made(talk))
    assert not provides(talk.obey(talk.want(B)))
    talk.obey(talk.wait(30))
    assert stops(talk.said) == [A]
    # B has 60 now, and A lacks 20: B makes as much in its turn, before that is over.
    assert provides(talk.obey(talk.stopped(A))) == [(B, 20)]


def test_nothing_is_made_where_all_fit_or_the_setting_is_off() -> None:
    talk = talking()
    talk.run(A, 60)
    talk.run(B, 40)
    talk.wait(100)
    assert not provides(talk.said)
    talk.settings = replace(talk.settings, presave=False)
    talk.tell(SettingsChanged(talk.settings))
    talk.obey(talk.want(C) if C in talk.memory else talk.join(C, 60))
    assert not provides(talk.said)


def test_others_who_do_not_run_give_theirs_first() -> None:
    talk = talking()
    talk.run(A, 50)
    talk.run(B, 50)
    talk.obey(talk.idle(A))
    # C needs 60: 50 of A's, if that stood still, but it has its turn still, as nobody waits.
    said = talk.join(C, 60)
    assert provides(said) == [(A, 50), (B, 10)]


def test_it_is_made_in_steps_of_half_of_what_is_left() -> None:
    talk = talking(step=8, host=48)
    talk.run(A, 60)
    assert provides(talk.join(B, 60)) == [(A, 8)]
    assert provides(made(talk)) == [(A, 16)]
    assert provides(made(talk)) == [(A, 20)]
    assert not provides(made(talk))

    talk = talking(host=24)
    talk.run(A, 60)
    assert provides(talk.join(B, 60)) == [(A, 12)]
    assert provides(made(talk)) == [(A, 18)]
    assert provides(made(talk, 17)) == []


def test_what_it_may_take_counts_until_it_has_answered() -> None:
    talk = talking()
    talk.run(A, 60)
    talk.join(B, 60)
    client = talk.scheduler._card.clients[A]
    assert client.host_charged == client.host_counted >= 20 * GIB
    made(talk, 5, cut=True)
    assert client.host_counted >= 5 * GIB


def test_cut_short_it_goes_on_and_in_vain_it_rests() -> None:
    talk = talking()
    talk.run(A, 60)
    assert provides(talk.join(B, 60)) == [(A, 20)]
    # Another order came in between.
    assert provides(made(talk, 5, cut=True)) == [(A, 20)]
    # The machine has no more.
    assert not provides(made(talk, 10))
    assert not provides(talk.wait(9))
    assert provides(talk.wait(2)) == [(A, 20)]


def test_a_hand_over_waits_for_no_answer() -> None:
    talk = talking()
    talk.run(A, 60)
    talk.join(B, 60)
    talk.obey(talk.want(B))
    talk.wait(30)
    assert stops(talk.said) == [A]
    assert (A, 40) in evicts(talk.stopped(A))
