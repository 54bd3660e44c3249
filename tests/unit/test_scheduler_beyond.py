# SPDX-License-Identifier: Apache-2.0
"""What programs hold beyond the card: host memory for good, and only what nobody was promised."""

from nvshared.scheduler.events import Joined, Memory, TermsChanged
from nvshared.scheduler.settings import Terms
from nvshared.units import GIB
from tests.unit.scheduler_talk import Talk, limits


def granted(talk: Talk, client: int, size: float, number: int = 1) -> bool:
    """Whether it may; it has given up what it may not when this returns."""
    answer, = (one for one in limits(talk.beyond(client, number, size), client)
               if one.number == number)
    if answer.beyond < int(size * GIB):
        talk.changed(client, beyond=0)
    return answer.beyond >= int(size * GIB)


def test_there_is_as_much_as_the_host_has_and_nobody_was_promised() -> None:
    talk = Talk(capacity=100, host=64)          # of which 4 are the margin
    talk.join(1, 100)
    assert granted(talk, 1, 59)
    assert not granted(talk, 1, 61)
    talk.join(2, 30)
    assert granted(talk, 1, 29)
    assert not granted(talk, 1, 31)


def test_what_is_held_beyond_the_card_can_neither_be_committed_nor_swapped_into() -> None:
    talk = Talk(capacity=100, host=64)
    talk.join(1, 90)
    assert granted(talk, 1, 50)
    assert talk.scheduler.snapshot().host_free == 14 * GIB
    talk.join(2)
    answer, = limits(talk.ask(2, 1, 30), 2)
    assert answer.commit < 30 * GIB
    talk.changed(1, beyond=0)
    assert talk.scheduler.snapshot().host_free == 64 * GIB
    answer, = limits(talk.ask(2, 2, 30), 2)
    assert answer.commit >= 30 * GIB


def test_a_memory_limit_is_a_card_of_that_size() -> None:
    talk = Talk(capacity=100, host=64)
    talk.join(1, 10)
    talk.tell(TermsChanged(1, Terms(memory_limit=20 * GIB)))
    assert not granted(talk, 1, 1)
    talk.tell(TermsChanged(1, Terms()))
    assert granted(talk, 1, 1)


def test_the_next_daemon_hears_of_it_in_hello() -> None:
    talk = Talk(capacity=100, host=64)
    memory = Memory(90 * GIB, 90 * GIB, room=90 * GIB, beyond=40 * GIB)
    welcome, *_ = limits(talk.tell(Joined(1, memory)), 1)
    assert talk.scheduler.snapshot().host_free == 24 * GIB
    assert 0 < welcome.beyond - 40 * GIB <= 24 * GIB
