# SPDX-License-Identifier: Apache-2.0
"""Failed and unanswered orders, unresponsive clients, and a lost card."""

from dataclasses import replace
from typing import Any

import pytest

from nvshared.scheduler.actions import (
    ClientState,
    Crowded,
    Evict,
    Limits,
    Load,
    Pinned,
    Run,
    Stuck,
    TurnEnd,
    TurnEnded,
)
from nvshared.scheduler.card import DEPTH
from nvshared.scheduler.events import (
    AntiThrash,
    CapacityChanged,
    CardLost,
    CommitAsked,
    Evicted,
    Left,
    Loaded,
    Memory,
    MemoryChanged,
    PinReason,
    Stopped,
    Terms,
    TermsChanged,
)
from nvshared.scheduler.moves import IGNORED_EVICTS
from nvshared.scheduler.snapshot import CardState
from nvshared.units import GIB, SECOND
from tests.unit.scheduler_talk import Talk, evicts, loads, runs, stops, two_programs

TQ = 30


def test_failed_evict_is_followed_by_an_evict_of_another_client_and_repeated_after_a_second(
        ) -> None:
    talk = Talk()
    talk.join(1, 50, 50)
    talk.wait(1)
    talk.join(2, 50, 50)
    talk.join(3, 30)
    order, = (a for a in talk.want(3) if isinstance(a, Evict))
    assert order.client == 1
    actions = talk.evicted(order, driver_error=True)
    assert evicts(actions) == [(2, 20)]
    assert talk.view(1).counters.failures == 1
    order, = (a for a in actions if isinstance(a, Evict))
    assert evicts(talk.evicted(order, driver_error=True)) == []
    assert evicts(talk.wait(0.999)) == []
    assert evicts(talk.wait(0.001)) == [(1, 20)]


def test_evict_that_lacked_host_memory_is_retried_once_with_more_host_memory() -> None:
    talk = Talk(host=30)
    talk.join(1, 100, 100)
    talk.changed(1, host=20)
    talk.join(2, 20)
    order, = (a for a in talk.want(2) if isinstance(a, Evict))
    assert order.host < 40 * GIB
    actions = talk.evicted(order, no_memory=True)
    again, = (a for a in actions if isinstance(a, Evict))
    assert again.host == 30 * GIB       # the host memory of client 1 may be too fragmented


def test_load_that_fails_for_lack_of_card_memory_evicts_more_of_other_clients() -> None:
    talk = Talk()
    talk.join(1, 60, 60)
    talk.join(2, 40)
    load, = (a for a in talk.want(2) if isinstance(a, Load))
    actions = talk.loaded(load, lacking=10, no_memory=True)
    assert talk.scheduler.snapshot().capacity == 90 * GIB
    assert evicts(actions) == [(1, 50)]
    assert loads(actions) == []
    talk.obey(actions)
    actions = talk.wait(0.25)
    assert loads(actions) == [(2, 40)]
    assert runs(talk.obey(actions)) == [2]
    talk.wait(10)
    talk.changed(1)
    assert talk.scheduler.snapshot().capacity == 100 * GIB


def test_failed_load_is_repeated_after_growing_pauses() -> None:
    talk = Talk()
    talk.join(1, 40)
    load, = (a for a in talk.want(1) if isinstance(a, Load))
    for pause in (0.25, 0.5, 1, 2, 2):
        assert loads(talk.loaded(load, lacking=40, driver_error=True)) == []
        assert loads(talk.wait(pause - 0.001)) == []
        load, = (a for a in talk.wait(0.001) if isinstance(a, Load))
    assert talk.view(1).counters.failures == 5
    assert runs(talk.loaded(load)) == [1]


def test_chosen_client_that_cannot_get_memory_goes_to_the_end_of_the_queue() -> None:
    talk = Talk()
    talk.join(1, 100, 100)
    talk.join(2, 50)
    order, = (a for a in talk.want(2) if isinstance(a, Evict))
    talk.want(1)
    assert talk.view(1).state is ClientState.EVICTING
    talk.evicted(order, driver_error=True)
    actions = talk.wait(5)
    assert 1 in runs(actions)
    assert talk.scheduler.snapshot().counters.gave_way >= 1


def test_client_that_does_not_drain_is_reported_as_stuck_once() -> None:
    talk = two_programs(70)
    talk.wait(TQ)
    actions = talk.wait(100)
    assert [a for a in actions if isinstance(a, Stuck)] == [
        Stuck(1, ClientState.DRAINING, 10 * SECOND)]
    assert 2 in runs(talk.obey(talk.stopped(1)))


def test_client_that_ignores_an_evict_is_reported_as_stuck_and_other_clients_run() -> None:
    talk = Talk()
    talk.join(1, 90, 90)
    talk.join(2, 50)
    talk.want(2)                        # client 1 gets an EVICT and does not reply
    assert talk.scheduler.orders_unanswered() == 1
    actions = talk.wait(10)
    assert [a.client for a in actions if isinstance(a, Stuck)] == [1]
    # only the LOAD of client 2
    assert talk.scheduler.orders_unanswered() == len(loads(actions)) == 1
    assert 3 in runs(talk.run(3, 0))
    talk.obey(actions)                  # client 2 takes the free memory, and gets no more
    assert [a for a in talk.wait(100) if isinstance(a, Stuck)] == []


def test_evict_chooses_another_client_when_the_victim_does_not_reply() -> None:
    """Both clients are idle, and one process is stopped with Ctrl-Z."""
    talk = Talk()
    talk.join(1, 40, 40)
    talk.wait(1)
    talk.join(2, 40, 40)
    talk.join(3, 60)
    order, = (a for a in talk.want(3) if isinstance(a, Evict))
    assert order.client == 1
    assert evicts(talk.wait(9.9)) == []
    actions = talk.wait(0.1)
    assert evicts(actions) == [(2, 0)]
    assert runs(talk.obey(actions)) == [3]
    assert evicts(talk.evicted(order)) == []    # client 1 replies, and gets no further order


def test_client_that_does_not_fit_beside_an_unresponsive_client_delays_no_third_client() -> None:
    talk = Talk()
    talk.join(1, 60, 60)
    talk.join(2, 80)
    order, = (a for a in talk.want(2) if isinstance(a, Evict))
    talk.obey([a for a in talk.wait(12) if isinstance(a, Load)])
    actions = talk.run(3, 40)
    assert runs(actions + talk.obey(talk.wait(1))) == [3]       # client 2 is tried for 1 s first
    talk.wait(3 * TQ)
    assert stops(talk.said) == []               # client 3 runs alone
    talk.obey(talk.evicted(order))
    talk.wait(TQ)
    assert stops(talk.said) == [3]
    talk.obey(talk.stopped(3, wants=False))
    assert talk.view(2).state is ClientState.RUNNING


@pytest.mark.parametrize("mode", list(AntiThrash))
def test_clients_run_beside_a_client_that_does_not_reply_to_a_stop_order(mode: AntiThrash) -> None:
    """A process stopped by SIGSTOP in its turn does not reply, and keeps its memory."""
    talk = Talk(mode=mode)
    talk.run(1, 60)
    talk.join(2, 80)
    talk.obey(talk.want(2))
    talk.wait(TQ)
    talk.idle(1)
    assert talk.view(1).state is ClientState.DRAINING
    talk.wait(10)
    ran = set()
    for client in (3, 4):
        talk.join(client, 15)
        ran |= set(runs(talk.obey(talk.want(client))))
    for _ in range(5):
        for stopping in set(stops(talk.wait(TQ))) - {1}:
            ran |= set(runs(talk.obey(talk.stopped(stopping))))
    assert ran == {3, 4}
    talk.leave(3)
    talk.leave(4)
    assert runs(talk.obey(talk.stopped(1, wants=False))) == [2]


def test_unresponsive_client_gets_no_turn_before_the_reply() -> None:
    """Otherwise no other client would run for ten seconds each time it is chosen."""
    talk = Talk(mode=AntiThrash.ON)
    talk.join(1, 30)
    order, = (a for a in talk.want(1) if isinstance(a, Load))
    talk.wait(12)                       # no other client wants the card
    assert runs(talk.run(2, 30)) == [2]
    talk.run(3, 30)
    for stopping, following in ((2, 3), (3, 2), (2, 3), (3, 2)):
        assert stops(talk.wait(TQ)) == [stopping]
        assert runs(talk.obey(talk.stopped(stopping))) == [following]
    talk.loaded(order)
    talk.wait(TQ)
    assert runs(talk.obey(talk.stopped(2))) == [1]


def test_unexpected_reply_and_messages_of_a_disconnected_client_cause_no_order() -> None:
    talk = Talk()
    talk.run(1, 50)
    room = talk.view(1).room
    assert talk.evicted(Evict(1, 999, 0, 0), driver_error=True) == []
    assert talk.view(1).room == room
    assert talk.view(1).counters.failures == 0
    memory = talk.memory[1]
    talk.leave(1)
    talk.memory[1] = memory
    assert talk.want(1) == talk.idle(1) == []
    assert talk.scheduler.snapshot().clients == {}


@pytest.mark.parametrize("said", ["", "no_memory", "driver_error"])
def test_client_that_ignores_evicts_counts_as_pinned(said: str) -> None:
    talk = Talk()
    talk.join(1, 60, 60)
    talk.join(2, 70)
    new, asked = talk.want(2), 0
    while orders := [action for action in new if isinstance(action, Evict)]:
        assert (asked := asked + 1) < 10, "it is asked for ever"
        flags: dict[str, Any] = {said: True} if said else {}
        # The reply claims 10 GiB, but the client's memory figures show no evicted byte.
        new = talk.tell(Evicted(1, talk.memory[1], orders[0].number, 10 * GIB, **flags))
        for order in [action for action in new if isinstance(action, Load)]:
            talk.loaded(order)
        new += talk.wait(2)
    assert [a for a in talk.said if isinstance(a, Pinned)] == [Pinned(1, PinReason.KEPT)]
    assert not talk.view(2).fits
    talk.join(3, 35)
    assert 3 in runs(talk.obey(talk.want(3)))
    assert 1 in dict(evicts(talk.wait(60)))     # after a while the scheduler tries again
    assert talk.view(2).fits


def test_simultaneous_evicts_count_as_a_single_ignored_evict() -> None:
    talk = Talk(step=5)
    talk.join(1, 60, 60)
    talk.join(2, 70)
    new = talk.want(2)
    for _ in range(IGNORED_EVICTS - 1):
        orders = [action for action in new if isinstance(action, Evict)]
        assert len(orders) == DEPTH
        for order in orders:
            talk.tell(Evicted(1, talk.memory[1], order.number, 0))
        new = talk.wait(1)
    assert not [a for a in talk.said if isinstance(a, Pinned)]


def test_client_larger_than_the_capacity_is_reported_once_for_each_wait() -> None:
    talk = Talk(100)
    talk.run(1, 60)
    talk.obey([*talk.idle(1), *talk.stopped(1, wants=False)])
    talk.obey(talk.tell(CapacityChanged(50 * GIB)))
    talk.obey(talk.want(1))
    assert talk.view(1).state is ClientState.CROWDED
    assert not talk.wait(9)
    assert [a for a in talk.wait(100) if isinstance(a, Crowded)] == [Crowded(1, 60 * GIB, 50 * GIB)]
    assert 1 in runs(talk.obey(talk.tell(CapacityChanged(60 * GIB))))


@pytest.fixture
def talk() -> Talk:
    """A running, a waiting and an idle client of a card that is lost."""
    talk = two_programs(70)
    talk.join(3, 10)
    return talk


def test_lost_card_ends_all_turns_and_opens_all_gates_and_keeps_connected_clients(
        talk: Talk) -> None:
    actions = talk.tell(CardLost())
    assert [a for a in actions if isinstance(a, TurnEnded)] == [TurnEnded(1, TurnEnd.LOST, 0)]
    assert [a for a in actions if isinstance(a, Run)] == [Run(1), Run(2), Run(3)]
    seen = talk.scheduler.snapshot()
    assert seen.state is CardState.LOST
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


def test_lost_card_opens_gates_and_grants_every_request_for_memory(
        talk: Talk) -> None:
    talk.tell(CardLost())
    memory = Memory(allocated=GIB)
    assert runs(talk.tell(MemoryChanged(3, memory, wants=True))) == [3]
    assert runs(talk.tell(Stopped(1, memory, wants=True))) == [1]
    assert talk.tell(MemoryChanged(9, memory, wants=True)) == []           # 9 has disconnected
    assert talk.view(3).memory == memory
    memory = replace(memory, beyond=2 * GIB)
    for number, size in ((5, 500), (6, 0)):
        asked, = talk.tell(CommitAsked(3, memory, number, size * GIB))
        assert isinstance(asked, Limits)
        assert (asked.number, asked.commit, asked.beyond) == (number, 500 * GIB, 2 * GIB)


def test_lost_card_grants_a_commit_request_that_waits_for_reconnecting_clients() -> None:
    talk = Talk(capacity=100, host=0, gather=5)
    talk.join(1, 10)
    memory = talk.memory[1]
    assert talk.tell(CommitAsked(1, memory, 1, 20 * GIB)) == []
    answer, = (a for a in talk.tell(CardLost()) if isinstance(a, Limits))
    assert (answer.number, answer.commit) == (1, 20 * GIB)


def test_lost_card_loads_all_memory_of_a_client() -> None:
    """The hook keeps the gate closed until it finds that nothing can be loaded."""
    talk = Talk()
    talk.run(1, 70)
    talk.join(2, allocated=60, resident=20)
    talk.join(3, allocated=10)
    actions = [a for a in talk.tell(CardLost()) if isinstance(a, Load | Run)]
    assert [(type(a), a.client) for a in actions] == [
        (Run, 1), (Load, 2), (Run, 2), (Load, 3), (Run, 3)]
    assert loads([*actions]) == [(2, 60), (3, 10)]


def test_client_on_a_lost_card_is_ordered_to_load_memory_evicted_after_the_loss() -> None:
    talk = Talk()
    talk.run(1, 70)
    order = next(a for a in talk.run(2, 70) + talk.idle(1) + talk.stopped(1)
                 if isinstance(a, Evict))
    assert loads(talk.tell(CardLost())) == [(2, 70)]
    memory = talk.set(1, resident=30, room=30)
    assert loads(talk.tell(Evicted(1, memory, order.number, 40 * GIB))) == [(1, 70)]


def test_lost_card_repeats_a_failed_load_each_second() -> None:
    talk = Talk()
    talk.run(1, 70)
    talk.join(2, allocated=60)
    order, = (a for a in talk.tell(CardLost()) if isinstance(a, Load))
    assert talk.wait(5) == []
    memory = talk.set(2, resident=20, room=60)
    actions = talk.tell(Loaded(2, memory, order.number, 20 * GIB, no_memory=True))
    assert loads(actions) == [(2, 60)]
    memory = talk.set(2, allocated=65)
    order, = (a for a in actions if isinstance(a, Load))
    assert talk.tell(Loaded(2, memory, order.number, 0, no_memory=True)) == []
    actions = talk.wait(1)
    assert loads(actions) == [(2, 65)]
    order, = (a for a in actions if isinstance(a, Load))
    assert talk.loaded(order) == []
    assert talk.scheduler.deadline() is None
