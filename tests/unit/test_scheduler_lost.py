# SPDX-License-Identifier: Apache-2.0
"""A card that is gone: its programs can be seen until they end, and none waits for ever."""

from dataclasses import replace

import pytest

from nvshared.scheduler.actions import (
    ClientState,
    Evict,
    Limits,
    Load,
    Run,
    TurnEnd,
    TurnEnded,
)
from nvshared.scheduler.events import (
    CommitAsked,
    Evicted,
    GPULost,
    Left,
    Loaded,
    Memory,
    MemoryChanged,
    Stopped,
    TermsChanged,
)
from nvshared.scheduler.settings import Terms
from nvshared.scheduler.snapshot import CardState
from nvshared.units import GIB
from tests.unit.scheduler_talk import Talk, loads, runs


@pytest.fixture
def talk() -> Talk:
    """One runs, one waits, one has nothing to do; and then the card is gone."""
    talk = Talk()
    talk.run(1, 70)
    talk.run(2, 70)
    talk.join(3, 10)
    return talk


def test_lost_card_ends_all_turns_and_opens_all_gates(talk: Talk) -> None:
    actions = talk.tell(GPULost())
    assert [a for a in actions if isinstance(a, TurnEnded)] == [TurnEnded(1, TurnEnd.LOST, 0)]
    assert [a for a in actions if isinstance(a, Run)] == [
        Run(1), Run(2), Run(3),
    ]
    assert talk.join(4, 10) == []
    assert talk.scheduler.snapshot().state is CardState.LOST


def test_lost_card_keeps_clients_until_they_leave(talk: Talk) -> None:
    talk.tell(GPULost())
    seen = talk.scheduler.snapshot()
    assert sorted(seen.clients) == [1, 2, 3]
    assert {view.state for view in seen.clients.values()} == {ClientState.IDLE}
    assert (seen.holders, seen.queue_length) == ((), 0)
    talk.wait(5)
    assert talk.view(2).waited == seen.clients[2].waited
    talk.tell(TermsChanged(2, Terms(weight=7)))
    assert talk.view(2).terms.weight == 7
    for client in (1, 2, 3):
        assert not [a for a in talk.tell(Left(client)) if not isinstance(a, Load)]
    assert not talk.scheduler.snapshot().clients


def test_lost_card_opens_the_gate_of_a_client_that_comes_later(talk: Talk) -> None:
    talk.tell(GPULost())
    memory = Memory(allocated=GIB)
    assert runs(talk.tell(MemoryChanged(3, memory, wants=True))) == [3]
    assert runs(talk.tell(Stopped(1, memory, wants=True))) == [1]
    assert talk.tell(MemoryChanged(9, memory, wants=True)) == []           # it has left
    assert talk.view(3).memory == memory


def test_lost_card_grants_every_commit_request_and_memory_beyond_the_card(talk: Talk) -> None:
    talk.tell(GPULost())
    memory = replace(talk.memory[3], beyond=2 * GIB)
    asked, = talk.tell(CommitAsked(3, memory, 5, 500 * GIB))
    assert isinstance(asked, Limits)
    assert (asked.number, asked.commit) == (5, 500 * GIB)
    asked, = talk.tell(CommitAsked(3, memory, 6, 0))
    assert isinstance(asked, Limits)
    assert (asked.number, asked.beyond) == (6, 2 * GIB)


def test_lost_card_grants_a_commit_request_that_waits_for_gathering() -> None:
    talk = Talk(capacity=100, host=0, gather=5)
    talk.join(1, 10)
    memory = talk.memory[1]
    assert talk.tell(CommitAsked(1, memory, 1, 20 * GIB)) == []
    answer, = (a for a in talk.tell(GPULost()) if isinstance(a, Limits))
    assert (answer.number, answer.commit) == (1, 20 * GIB)


def test_lost_card_loads_all_memory_of_a_client() -> None:
    """For its hook keeps it shut, until it sees that nothing can come in."""
    talk = Talk()
    talk.run(1, 70)
    talk.join(2, allocated=60, resident=20)
    talk.join(3, allocated=10)
    actions = [a for a in talk.tell(GPULost()) if isinstance(a, Load | Run)]
    assert [(type(a), a.client) for a in actions] == [
        (Run, 1), (Load, 2), (Run, 2), (Load, 3), (Run, 3),
    ]
    assert loads([*actions]) == [(2, 60), (3, 10)]


def test_lost_card_loads_memory_whose_eviction_ends_afterwards() -> None:
    talk = Talk()
    talk.run(1, 70)
    order = next(a for a in talk.run(2, 70) + talk.idle(1) + talk.stopped(1)
                 if isinstance(a, Evict))
    assert loads(talk.tell(GPULost())) == [(2, 70)]
    memory = talk.set(1, resident=30, room=30)
    assert loads(talk.tell(Evicted(1, memory, order.number, 40 * GIB))) == [(1, 70)]


def test_lost_card_repeats_a_failed_load_each_second() -> None:
    talk = Talk()
    talk.run(1, 70)
    talk.join(2, allocated=60)
    order, = (a for a in talk.tell(GPULost()) if isinstance(a, Load))
    assert talk.wait(5) == []
    memory = talk.set(2, resident=20, room=60)
    actions = talk.tell(Loaded(2, memory, order.number, 20 * GIB, no_memory=True))
    assert loads(actions) == [(2, 60)]
    memory = talk.set(2, allocated=65)
    order, = (a for a in actions if isinstance(a, Load))
    assert talk.tell(Loaded(2, memory, order.number, 0, no_memory=True)) == []
    assert loads(talk.wait(1)) == [(2, 65)]


def test_lost_card_orders_no_move_when_all_clients_are_resident() -> None:
    talk = Talk()
    talk.run(1, 70)
    assert loads(talk.tell(GPULost())) == []
    assert talk.scheduler.deadline() is None
