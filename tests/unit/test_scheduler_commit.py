# SPDX-License-Identifier: Apache-2.0
"""How far clients may grow."""

from nvshared.scheduler.actions import Evict, Limits
from nvshared.scheduler.events import CapacityChanged, Evicted
from nvshared.units import GIB, MIB
from tests.unit.scheduler_talk import Talk, limits


def granted(
    talk: Talk, client: int, size: float, number: int = 1, pins: float = 0
) -> bool | None:
    """Whether a COMMIT is granted; None: not answered yet."""
    for answer in limits(talk.ask(client, number, size, pins), client):
        if answer.number == number:
            return answer.commit >= int(size * GIB)
    return None


def one_has_half() -> Talk:
    """Two clients on a card of 100 GiB and a host of 10."""
    talk = Talk(100, host=10)
    talk.join(1)
    talk.join(2)
    talk.ask(1, 1, 50)
    talk.changed(1, allocated=50)
    return talk


def test_the_first_action_after_a_client_joined_is_its_limits() -> None:
    first, *_ = Talk().join(1)
    assert isinstance(first, Limits)
    assert (first.number, first.most, first.total) == (0, 100 * GIB, 100 * GIB)


def test_a_commit_is_answered_under_its_number() -> None:
    talk = Talk()
    talk.join(1)
    answer, = limits(talk.ask(1, 7, 50), 1)
    assert answer.number == 7
    assert answer.commit >= 50 * GIB


def test_a_little_more_is_granted_than_asked_for_while_there_is_plenty() -> None:
    talk = Talk()
    talk.join(1)
    answer, = limits(talk.ask(1, 1, 50), 1)
    assert 64 * MIB <= answer.commit - 50 * GIB <= GIB


def test_one_client_never_gets_more_than_the_card() -> None:
    talk = Talk()
    talk.join(1)
    assert granted(talk, 1, 100)
    assert granted(talk, 1, 100.1, 2) is False


def test_what_others_have_pinned_is_not_to_be_had() -> None:
    talk = Talk()
    talk.join(1, pinned=20)
    talk.join(2)
    assert granted(talk, 2, 85) is False
    assert granted(talk, 2, 80, 2)


def test_nobody_pins_what_another_one_needs_to_run_at_all() -> None:
    talk = Talk()
    talk.join(1, 90)
    talk.join(2, 20)
    assert granted(talk, 2, 31, pins=11) is False
    assert granted(talk, 2, 20.5, 2, pins=11) is False  # of what it has already
    assert granted(talk, 2, 29, 3, pins=9)
    # What was granted counts before it is there.
    assert granted(talk, 2, 31, 4, pins=2) is False
    assert granted(talk, 1, 92) is False
    assert granted(talk, 1, 91, 2)
    talk.wait(61)                       # it has not done it
    assert granted(talk, 2, 22, 5, pins=2)


def test_what_was_pinned_and_freed_again_is_not_promised_any_more() -> None:
    """Another thread may free as much before the daemon hears that something is pinned."""
    talk = Talk()
    talk.join(1, 60)
    talk.join(2, 20)
    for number in range(1, 50):
        assert granted(talk, 2, 25, number, pins=5)
        talk.changed(2, pinned=0, answered=number)
    assert granted(talk, 1, 95)


def test_what_is_still_to_be_pinned_counts_by_what_the_hook_says() -> None:
    talk = Talk()
    talk.join(1, 90)
    talk.join(2, 2)
    assert granted(talk, 2, 4, 1, pins=2)
    assert granted(talk, 2, 6, 2, pins=4)
    talk.changed(2, answered=1, to_pin=2)               # and of the second it has not heard
    assert granted(talk, 2, 7, 3, pins=5) is False
    talk.changed(2, answered=3, to_pin=6)
    assert granted(talk, 2, 7, 4, pins=5) is False
    talk.changed(2, pinned=2, answered=4, to_pin=4)     # the same, whoever takes it first
    assert granted(talk, 2, 7, 5, pins=5) is False
    talk.changed(2, pinned=2, answered=5, to_pin=0)     # which was freed, or refused by the driver
    assert granted(talk, 2, 9, 6, pins=5)


def test_a_thread_that_takes_its_time_keeps_only_its_own_counted() -> None:
    """The first has been granted a GiB, and takes it after all the others."""
    talk = Talk()
    talk.join(1, 90)
    talk.join(2, 2)
    assert granted(talk, 2, 3, 1, pins=1)
    for number in range(2, 50):
        assert granted(talk, 2, 7, number, pins=5)
        talk.changed(2, pinned=5, answered=number, to_pin=1)
        talk.changed(2, pinned=0)
    assert granted(talk, 1, 98)
    talk.changed(1, allocated=98)
    assert granted(talk, 2, 4, 50, pins=2) is False     # it is counted as long as it may pin that
    talk.wait(100)
    assert granted(talk, 2, 4, 51, pins=2) is False
    talk.changed(2, to_pin=0)
    answer, = (a for a in limits(talk.obey(talk.ask(2, 52, 4, 2)), 2) if a.number)
    assert answer.commit >= 4 * GIB


def test_a_question_is_forgotten_when_a_later_one_has_been_answered() -> None:
    """What is beyond the card is answered at once; whoever waited before that asks again."""
    talk = one_has_half()
    probe = next(a for a in talk.ask(2, 1, 59) if isinstance(a, Evict) and a.client == 1)
    talk.beyond(2, 2, 0)
    talk.changed(2, answered=2)
    assert [a.number for a in limits(talk.evicted(probe), 2) if a.number] == []


def test_what_others_were_lent_is_called_back_for_what_is_to_be_pinned() -> None:
    talk = Talk()
    talk.join(1)
    assert granted(talk, 1, 90)
    talk.changed(1, allocated=90)       # and a GiB more is promised
    talk.join(2, 5)
    actions = talk.ask(2, 1, 15, 10)
    assert not [answer for answer in limits(actions, 2) if answer.number]
    told, = limits(actions, 1)
    assert told.commit == 90 * GIB
    answer, = (a for a in limits(talk.obey(actions), 2) if a.number)
    assert answer.commit >= 15 * GIB


def test_what_could_not_be_swapped_out_is_refused() -> None:
    talk = Talk(100, host=0)
    talk.join(1)
    talk.join(2)
    assert granted(talk, 1, 70)
    talk.changed(1, allocated=70)
    assert granted(talk, 2, 40) is False
    assert granted(talk, 2, 20, 2)


def test_three_of_eighty_fit_a_card_of_137_and_a_host_of_110() -> None:
    talk = Talk(137, 110)
    for client in (1, 2, 3):
        talk.join(client)
        talk.changed(client)
    for client in (1, 2, 3):
        talk.obey(talk.ask(client, 1, 80))
        talk.changed(client, allocated=80)
    assert all(talk.view(client).commit >= 80 * GIB for client in (1, 2, 3))
    assert granted(talk, 1, 90, 2) is False


def test_what_is_lent_is_called_back_before_anyone_is_refused() -> None:
    talk = one_has_half()
    lent = talk.view(1).commit - 50 * GIB
    assert lent > 0
    everything = 110 - 1                # less the margin
    wanted = everything - 50
    actions = talk.ask(2, 1, wanted)
    assert [a.number for a in limits(actions, 2)] == []
    smaller = limits(actions, 1)[-1]
    assert (smaller.number, smaller.commit) == (0, 50 * GIB)
    probe = next(a for a in actions if isinstance(a, Evict) and a.client == 1)
    answer, = (a for a in limits(talk.evicted(probe), 2) if a.number == 1)
    assert answer.commit >= int(wanted * GIB)


def test_what_a_lender_used_in_that_moment_is_not_given_to_another() -> None:
    talk = one_has_half()
    wanted = 110 - 1 - 50
    probe = next(a for a in talk.ask(2, 1, wanted) if isinstance(a, Evict) and a.client == 1)
    memory = talk.set(1, allocated=50.5)
    answer, = (
        a for a in limits(talk.tell(Evicted(1, memory, probe.number, 0)), 2) if a.number == 1
    )
    assert answer.commit < int(wanted * GIB)


def test_a_lender_that_does_not_answer_does_not_hold_up_a_program_for_ever() -> None:
    talk = one_has_half()
    talk.ask(2, 1, 110 - 1 - 50)
    actions = talk.wait(10)
    answer, = (a for a in limits(actions, 2) if a.number == 1)
    assert answer.commit < (110 - 1 - 50) * GIB


def test_what_was_just_granted_is_not_called_back_before_it_could_be_taken() -> None:
    talk = Talk(100, host=0)
    talk.join(1)
    talk.join(2)
    talk.ask(1, 1, 60)                  # its thread has not allocated yet
    assert granted(talk, 2, 60) is None
    assert talk.view(1).commit >= 60 * GIB
    answer, = (a for a in limits(talk.changed(1, allocated=60), 2) if a.number)
    assert answer.commit < 60 * GIB


def test_what_was_granted_and_never_taken_is_called_back_after_a_while() -> None:
    talk = Talk(100, host=0)
    talk.join(1)
    talk.join(2)
    talk.ask(1, 1, 60)
    talk.obey(talk.ask(2, 1, 60))
    actions = talk.obey(talk.wait(1))
    assert talk.view(1).commit == 0
    answer, = (a for a in limits(actions, 2) if a.number == 1)
    assert answer.commit >= 60 * GIB


def test_a_change_of_what_can_be_reached_is_told() -> None:
    talk = Talk(100, host=10)
    talk.join(1)
    talk.join(2)
    told = limits(talk.ask(1, 1, 70), 2)
    assert told[-1].most < 40 * GIB
    assert limits(talk.tell(CapacityChanged(50 * GIB)), 2)


def test_what_one_user_is_granted_decides_at_once_what_another_waits_for() -> None:
    talk = Talk(100, host=0)
    talk.join(1, 2, 2, commit=12, account="user:1")
    talk.join(2, account="user:1")
    talk.join(3, account="user:2")
    assert granted(talk, 2, 98) is None     # what the first was lent is called back
    answers = talk.ask(3, 1, 4, pins=4)
    assert [one.commit for one in limits(answers, 3)] == [4 * GIB]
    refused, = (one for one in limits(answers, 2) if one.number == 1)
    assert refused.commit < 98 * GIB        # as it could not run beside what the third pins


def test_while_it_only_listens_nobody_grows() -> None:
    talk = Talk(gather=1)
    talk.join(1, commit=10)
    assert talk.ask(1, 1, 50) == []
    assert [a.number for a in limits(talk.wait(1), 1)] == [1]


def test_a_commit_of_before_a_restart_holds() -> None:
    talk = Talk(gather=1)
    first, *_ = talk.join(1, 10, 10, commit=30)
    assert isinstance(first, Limits)
    assert first.commit == 30 * GIB
