# SPDX-License-Identifier: Apache-2.0
"""Who gets room on the card, and who gives it."""

from nvshared.scheduler.actions import ClientState, Evict, Load
from nvshared.scheduler.events import CapacityChanged
from nvshared.scheduler.settings import AntiThrash
from nvshared.units import GIB
from tests.unit.scheduler_talk import Talk, evicts, loads, runs, stops

TQ = 30


def test_evict_takes_only_the_missing_bytes() -> None:
    talk = Talk(137)
    talk.run(1, 80)
    talk.run(2, 80)
    talk.wait(TQ)
    actions = talk.obey(talk.stopped(1))
    assert evicts(actions)[0] == (1, 57)
    assert talk.memory[1].resident == 57 * GIB
    assert runs(actions)[0] == 2


def test_evict_takes_the_longest_idle_client_first() -> None:
    talk = Talk()
    for client in (1, 2):
        talk.join(client, 40, 40)
        talk.wait(1)
    talk.join(3, 50)
    assert evicts(talk.want(3)) == [(1, 10)]


def test_evict_takes_the_last_in_the_queue_after_idle_clients() -> None:
    talk = Talk(stuck_after=1000)
    talk.join(1, 20, 20)
    talk.run(2, 40)
    talk.join(3, 80, 20)
    talk.want(3)
    talk.join(4, 90, 20)
    actions = talk.want(4)
    assert evicts(actions + talk.said)[0][0] == 1
    talk.wait(TQ)
    # 3 needs 60 more: all that is left of 4 goes before the least of 2, who ran just now
    talk.obey([])
    actions = talk.stopped(2)
    assert talk.view(3).state is ClientState.LOADING
    assert [client for client, _ in evicts(actions)][:1] == [2]


def test_evicts_and_loads_overlap_in_steps() -> None:
    talk = Talk(step=10)
    talk.run(1, 100)
    talk.join(2, 100)
    talk.want(2)
    talk.wait(TQ)
    actions = talk.stopped(1)
    assert evicts(actions) == [(1, 90), (1, 80)]
    first, second = (a for a in actions if isinstance(a, Evict))
    actions = talk.evicted(first)
    assert loads(actions) == [(2, 10)]
    assert evicts(actions) == [(1, 70)]
    load = next(a for a in actions if isinstance(a, Load))
    assert loads(talk.evicted(second)) == [(2, 20)]
    talk.loaded(load)
    assert talk.memory[2].resident == 10 * GIB


def test_chosen_client_is_loaded_into_free_room_before_evictions_end() -> None:
    talk = Talk()
    talk.join(1, 60, 60)
    talk.join(2, 70)
    actions = talk.want(2)
    assert evicts(actions) == [(1, 30)]
    # the 40 that are free wait for the 30 that come with the same step
    talk.obey(actions)
    assert talk.view(2).state is ClientState.RUNNING

    talk = Talk(step=10)
    talk.join(1, 60, 60)
    talk.join(2, 70)
    assert loads(talk.want(2)) == [(2, 10), (2, 20)]


def test_room_under_eviction_counts_until_the_evict_is_acknowledged() -> None:
    talk = Talk()
    talk.join(1, 100, 100)
    talk.join(2, 50)
    actions = talk.want(2)
    assert evicts(actions) == [(1, 50)]
    assert loads(actions) == []
    assert talk.view(1).room == 100 * GIB
    talk.changed(1, resident=70, room=50)   # half way through
    assert talk.view(1).room == 100 * GIB


def test_chosen_client_that_grew_after_its_load_is_given_more() -> None:
    talk = Talk()
    talk.join(1, 50)
    actions = talk.want(1)
    talk.obey(actions)
    actions = talk.need_room(1, allocated=70)
    assert loads(actions)[-1][1] >= 70
    talk.obey(actions)
    assert talk.view(1).memory.resident == 70 * GIB
    assert stops(talk.said) == []


def test_holder_that_grows_gets_room_of_clients_without_a_turn() -> None:
    talk = Talk()
    talk.join(1, 60, 60)
    talk.run(2, 40)
    actions = talk.need_room(2, allocated=60)
    assert evicts(actions) == [(1, 40)]
    talk.obey(actions)
    assert talk.view(2).state is ClientState.RUNNING
    assert talk.memory[2].resident == 60 * GIB


def test_holder_that_grows_beyond_the_free_room_is_stopped_and_waits() -> None:
    talk = Talk(stuck_after=1000)
    talk.run(1, 50)
    talk.run(2, 40)
    assert stops(talk.need_room(2, allocated=60)) == [2]
    actions = talk.stopped(2)
    assert talk.view(2).state is ClientState.WAITING
    assert runs(actions) == [1]         # others wait now
    assert stops(talk.wait(TQ)) == [1]
    talk.obey(talk.stopped(1))
    assert talk.view(2).state is ClientState.RUNNING


def test_holder_gets_spare_room_until_another_client_needs_it() -> None:
    talk = Talk()
    talk.run(1, 50)
    assert talk.view(1).room == 51 * GIB
    talk.join(2, 50)
    actions = talk.want(2)
    assert evicts(actions) == [(1, 50)]
    talk.obey(actions)
    assert talk.view(2).state is ClientState.RUNNING


def test_holder_gets_no_spare_room_that_waiting_clients_need() -> None:
    talk = Talk()
    talk.run(1, 50)
    talk.join(2, 60)
    talk.obey(talk.want(2))
    talk.obey(talk.need_room(1, allocated=52))
    assert talk.view(1).room == 52 * GIB


def test_head_is_fully_loaded_before_its_turn_when_others_can_be_evicted() -> None:
    talk = Talk(mode=AntiThrash.ON)
    talk.join(3, 40, 40)
    talk.run(1, 40)
    talk.run(2, 40)
    assert talk.memory[2].resident == 40 * GIB
    talk.wait(TQ)
    talk.stopped(1)
    assert talk.view(2).state is ClientState.RUNNING


def test_head_gets_room_that_a_holder_freed() -> None:
    talk = Talk(mode=AntiThrash.ON)
    talk.run(1, 80)
    talk.run(2, 70)
    assert talk.memory[2].resident < 20 * GIB
    talk.obey(talk.changed(1, allocated=20, resident=20))
    assert talk.memory[2].resident == 70 * GIB
    assert stops(talk.said) == []
    # It may grow a little before it has to ask.
    assert talk.view(1).room >= 21 * GIB


def test_capacity_that_shrinks_stops_holders_last() -> None:
    talk = Talk()
    talk.run(1, 50)
    talk.wait(1)
    talk.run(2, 50)
    assert stops(talk.tell(CapacityChanged(80 * GIB))) == [1]
    assert evicts(talk.stopped(1)) == [(1, 30)]


def test_capacity_that_shrinks_does_not_stop_a_client_alone() -> None:
    talk = Talk()
    talk.run(1, 90)
    actions = talk.tell(CapacityChanged(80 * GIB))
    assert stops(actions) == []
    talk.obey(actions)
    assert talk.view(1).state is ClientState.RUNNING


def test_chosen_client_that_no_longer_fits_waits_until_capacity_grows() -> None:
    talk = Talk()
    talk.join(1, 90)
    talk.want(1)
    talk.join(2, 60)
    talk.want(2)
    talk.tell(CapacityChanged(80 * GIB))
    assert talk.view(1).state is ClientState.CROWDED
    assert talk.view(2).state is ClientState.LOADING
    talk.tell(CapacityChanged(100 * GIB))
    assert [*talk.scheduler.snapshot().waits][-1] == 1


def test_hand_over_with_little_host_memory_alternates_small_moves() -> None:
    talk = Talk(137, 110, step=4)
    for client in (1, 2, 3):
        talk.run(client, 0)
        answers = talk.ask(client, 1, 80)
        talk.obey(answers)
        talk.obey(talk.need_room(client, allocated=80))
        for other in stops(talk.said)[-1:]:
            if talk.view(other).state is ClientState.DRAINING:
                talk.obey(talk.stopped(other))
    for _ in range(9):
        stopping = stops(talk.wait(TQ + 1))
        assert len(stopping) == 1
        actions = talk.obey(talk.stopped(stopping[0]))
        assert runs(actions)
        held = sum(memory.host for memory in talk.memory.values())
        assert held <= 110 * GIB
    turns = [talk.view(client).turns for client in (1, 2, 3)]
    assert min(turns) >= 3
