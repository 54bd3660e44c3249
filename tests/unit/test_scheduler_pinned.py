# SPDX-License-Identifier: Apache-2.0
"""Undrainable clients, whose memory counts as pinned, and the clients beside them."""

from dataclasses import replace

import pytest

from nvshared.scheduler.actions import Action, ClientState, Pinned, Run
from nvshared.scheduler.events import (
    AntiThrash,
    MemoryChanged,
    PinReason,
    Preempted,
    Reopened,
    Terms,
    TermsChanged,
)
from nvshared.units import GIB
from tests.unit.scheduler_talk import Talk, evicts, limits, loads, paced, runs, stops, two_programs

LONG = 1000


def stay(talk: Talk, client: int, reason: PinReason = PinReason.UNDRAINED) -> list[Action]:
    """Report the client's resident memory as pinned."""
    memory = talk.memory[client]
    talk.memory[client] = replace(
        memory, allocated=memory.allocated - memory.resident, resident=0,
        pinned=memory.pinned + memory.resident, pin_reason=reason)
    return talk.obey(talk.tell(MemoryChanged(client, talk.memory[client])))


@pytest.mark.parametrize("mode", AntiThrash)
def test_undrainable_client_is_never_stopped(mode: AntiThrash) -> None:
    talk = Talk(mode=mode)
    talk.run(1, 40)
    stay(talk, 1)
    before = len(talk.said)
    talk.run(2, 55)
    assert talk.view(2).state is ClientState.RUNNING
    talk.join(3, 50)
    talk.obey(talk.want(3))
    if mode is AntiThrash.OFF:
        stopped = stops(talk.idle(1)) + stops(talk.idle(2))
    else:
        stopped = stops(talk.tell(Preempted()))
    assert stopped == [2]
    talk.obey(talk.stopped(2))
    said = talk.said[before:]
    assert 1 not in stops(said)
    assert all(room >= 40 for client, room in evicts(said) if client == 1)
    assert {2, 3} <= {*runs(said)}
    assert talk.view(1).state is ClientState.RUNNING


def test_undrainable_client_is_reported_once_and_neither_paced_nor_asked_to_report_idleness(
        ) -> None:
    talk = Talk()
    talk.run(1, 40)
    talk.run(2, 70)
    assert (1, True) in paced(talk.said)
    actions = stay(talk, 1, PinReason.GIVEN)
    assert Pinned(1, PinReason.GIVEN) in actions
    assert (1, False) in paced(actions)
    assert not any(a.report_idle for a in actions if isinstance(a, Run) and a.client == 1)
    assert talk.view(2).state is ClientState.CROWDED        # 60 GiB are left
    assert not [a for a in talk.changed(1) if isinstance(a, Pinned)]


def test_undrainable_client_ends_no_turn_of_another_holder() -> None:
    """The undrainable client's turn began long before the turns of the other clients."""
    talk = Talk()
    talk.run(1, 40)
    stay(talk, 1)
    talk.wait(LONG)
    talk.run(2, 30)
    talk.run(3, 50)                     # client 3 does not fit beside the holders
    assert 4 in runs(talk.run(4, 20))   # client 4 fits
    assert stops(talk.wait(20)) == []


def test_swapped_memory_of_an_undrainable_client_is_loaded_at_the_next_turn() -> None:
    talk = two_programs(60)
    talk.wait(31)
    talk.obey(talk.stopped(1))
    assert talk.view(2).state is ClientState.RUNNING
    stay(talk, 1)
    assert talk.view(1).state is ClientState.WAITING
    assert stops(talk.wait(31)) == [2]
    actions = talk.obey(talk.stopped(2))
    assert loads(actions)[-1][0] == 1
    last = talk.memory[1]
    assert last.allocated == last.resident == 20 * GIB
    talk.set(1, allocated=0, resident=0, pinned=60)
    talk.obey(talk.tell(MemoryChanged(1, talk.memory[1])))
    assert talk.view(1).state is ClientState.RUNNING
    assert stops(talk.wait(LONG)) == []


def test_undrainable_client_is_granted_commits_that_leave_space_for_other_clients() -> None:
    talk = Talk()
    talk.run(1, 40)
    talk.ask(1, 1, 40)
    talk.run(2, 50)
    talk.ask(2, 1, 50)
    stay(talk, 1)
    talk.wait(LONG)
    assert limits(talk.obey(talk.ask(1, 2, 49)), 1)[-1].commit == 49 * GIB
    talk.obey(talk.changed(1, allocated=9))
    assert limits(talk.obey(talk.ask(1, 3, 51)), 1)[-1].commit < 51 * GIB


def test_commit_request_waits_until_an_undrainable_client_has_returned_unused_commit() -> None:
    talk = Talk()
    talk.run(1, 40)
    talk.obey(talk.ask(1, 1, 40))
    memory = talk.set(1, allocated=0, resident=0, pinned=40, pin_reason=PinReason.UNDRAINED)
    called_back = talk.tell(MemoryChanged(1, memory))
    talk.join(2)
    assert limits(talk.ask(2, 1, 60), 2) == []
    assert limits(talk.obey(called_back), 2)[-1].commit == 60 * GIB


def test_undrainable_client_that_is_suspended_does_not_run() -> None:
    talk = Talk()
    talk.run(1, 40)
    stay(talk, 1)
    assert stops(talk.tell(TermsChanged(1, Terms(suspended=True)))) == [1]
    actions = talk.obey(talk.stopped(1))
    assert all(room >= 40 for _, room in evicts(actions))
    assert talk.view(1).state is ClientState.SUSPENDED
    talk.run(2, 50)
    talk.run(3, 50)
    assert 1 in runs(talk.obey(talk.tell(TermsChanged(1, Terms()))))


def test_drain_that_never_ends_makes_a_client_undrainable() -> None:
    talk = Talk()
    talk.run(1, 40)
    talk.run(2, 70)
    for _ in range(3):
        assert stops(talk.wait(100))[-1:] == [1]
        talk.obey(talk.reopened(1))
    assert stops(talk.wait(100)) == [1]
    memory = talk.set(1, allocated=0, resident=0, pinned=40, pin_reason=PinReason.UNDRAINED)
    talk.obey(talk.tell(Reopened(1, memory)))
    assert stops(talk.wait(LONG)) == []
    assert not talk.view(2).fits
    talk.run(3, 60)
    assert talk.view(3).state is ClientState.RUNNING
