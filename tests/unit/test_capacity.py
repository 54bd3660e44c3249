# SPDX-License-Identifier: Apache-2.0
"""Capacity: bytes of a card that its clients may fill."""


from nvshared.machine.capacity import YOUNG_MOST, Allowances, Capacity
from nvshared.units import GIB, MIB

CONTEXT = 600 * MIB


def test_configured_capacity_is_the_maximum_and_the_size_offered_to_clients() -> None:
    card = Capacity(64 * GIB, Allowances(configured=16 * GIB))
    assert card.bytes == card.offered == 16 * GIB
    card.sampled(60 * GIB, 0)
    assert card.bytes == 4 * GIB - 256 * MIB - CONTEXT
    assert card.offered == 16 * GIB


def test_capacity_counts_memory_of_other_processes_after_a_second_sample_confirms_a_rise() -> None:
    card = Capacity(64 * GIB)
    for used, held, outside in ((1, 0, 1), (9, 3, 1), (9, 3, 6), (2, 0, 2)):
        card.sampled(used * GIB, held * GIB)
        assert card.outside == outside * GIB


def test_memory_of_other_processes_does_not_rise_while_memory_of_clients_grows() -> None:
    card = Capacity(64 * GIB)
    card.sampled(1 * GIB, 0)
    for held in range(0, 20 * GIB, GIB):
        card.sampled(held + 2 * GIB, held)
        assert card.outside == 1 * GIB
    for outside in (1, 20):
        card.sampled(40 * GIB, 20 * GIB)
        assert card.outside == outside * GIB


def test_capacity_reserves_a_context_for_a_new_client_until_two_samples_show_it() -> None:
    card = Capacity(64 * GIB, Allowances(reserve=0))
    assert card.bytes == 64 * GIB - CONTEXT     # reserved for the first client's context
    card.joined(1)
    assert card.bytes == 64 * GIB - 2 * CONTEXT
    card.sampled(500 * MIB, 0)
    assert card.bytes == 64 * GIB - 2 * CONTEXT
    card.sampled(500 * MIB, 0)
    assert card.bytes == 64 * GIB - 500 * MIB - CONTEXT
    card.joined(2)
    card.forget(2)
    card.forget(2)
    assert card.bytes == 64 * GIB - 500 * MIB - CONTEXT


def test_capacity_grows_by_the_memory_of_a_process_that_becomes_a_client() -> None:
    card = Capacity(64 * GIB, Allowances(reserve=0))
    card.sampled(20 * GIB, 0)
    before = card.bytes
    card.take_in(15 * GIB)
    assert card.bytes == before + 15 * GIB
    card.sampled(20 * GIB, 15 * GIB)    # used bytes are unchanged; 15 GiB now belong to a client
    assert card.bytes == before + 15 * GIB
    card.take_in(-15 * GIB)
    assert card.bytes == before
    card.sampled(20 * GIB, 0)
    assert card.bytes == before


def test_context_reserve_grows_with_the_connections_of_a_user_up_to_a_bound() -> None:
    capacity = Capacity(16 * GIB, Allowances(reserve=0, context_reserve=GIB))
    for client in range(100):
        capacity.joined(client, "user:1000")
    assert capacity.bytes == (16 - YOUNG_MOST - 1) * GIB
    capacity.joined(100, "user:1001")
    assert capacity.bytes == (16 - YOUNG_MOST - 2) * GIB
    for client in range(101, 104):      # clients of root
        capacity.joined(client)
    assert capacity.bytes == (16 - YOUNG_MOST - 5) * GIB
    for client in range(104):
        capacity.forget(client)
    assert capacity.bytes == 15 * GIB
