# SPDX-License-Identifier: Apache-2.0
"""Memory leaves the program that will want the card last, as far as its pauses say."""

import random

import pytest

from nvshared.units import GIB
from tests.unit.scheduler_talk import Talk, stops

A, B, C = 1, 2, 3


def talking(sizes: tuple[int, ...] = (45, 45, 45)) -> Talk:
    """Some programs on a card of 100 GiB."""
    talk = Talk(host=1000)
    for client, size in enumerate(sizes, A):
        talk.join(client, size)
    return talk


def gone(talk: Talk, client: int) -> float:
    """GiB of its memory that are not on the card."""
    memory = talk.memory[client]
    return (memory.allocated - memory.resident) / GIB


def ask(talk: Talk, client: int) -> float:
    """A request to it, after which its gate is shut. Returns the GiB that had to come in."""
    missing = gone(talk, client)
    talk.obey(talk.want(client))
    talk.wait(0.1)
    if stops(talk.idle(client)):
        talk.stopped(client, wants=False)
    return missing


def test_of_models_asked_in_turn_the_one_that_has_just_answered_gives_way() -> None:
    talk = talking()
    came = []
    for _ in range(12):
        for client in (A, B, C):
            talk.wait(0.65)
            came.append(ask(talk, client))
    # Of 135 GiB, 35 have no place. By turns, each request would find them missing.
    assert sum(came[18:]) / 18 < 20


def test_who_was_idle_longest_gives_way_where_nothing_else_is_known() -> None:
    talk = talking((30, 30, 60))
    ask(talk, A)
    ask(talk, B)
    talk.wait(10)
    talk.obey(talk.want(C))
    assert gone(talk, A) > 0
    assert gone(talk, B) == 0


def test_a_pause_longer_than_all_before_will_last() -> None:
    talk = talking((40, 40, 20, 60))
    for _ in range(6):                  # A every second, B every 20
        for _ in range(20):
            talk.wait(0.9)
            ask(talk, A)
        ask(talk, B)
    talk.wait(5)
    ask(talk, A)
    talk.wait(120)                      # nobody needs A any more
    ask(talk, B)
    talk.obey(talk.want(4))
    assert gone(talk, A) == 40
    assert gone(talk, B) == 0


@pytest.mark.parametrize("seed", range(5))
def test_where_pauses_are_of_any_length_what_is_asked_rarely_gives_way(seed: int) -> None:
    talk, chance = talking(), random.Random(seed)
    came = {A: 0.0, B: 0.0, C: 0.0}
    for _ in range(200):
        talk.wait(chance.expovariate(1))
        client = chance.choices((A, B, C), (10, 10, 1))[0]
        came[client] += ask(talk, client)
    assert came[A] + came[B] < 6 * came[C]

