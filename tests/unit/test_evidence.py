# SPDX-License-Identifier: Apache-2.0
"""What the driver's list of processes says of clients, and what it does not."""

from nvshared.machine.capacity import YOUNG_MOST, Allowances, Capacity
from nvshared.machine.nvml import Process
from nvshared.scheduler.events import Evidence, Memory
from nvshared.sharing.evidence import Witness
from nvshared.units import GIB, MIB

BIG = Memory(resident=3 * GIB, pinned=GIB, host=2 * GIB)


def test_evidence_of_a_list_without_clients_is_unknown() -> None:
    witness = Witness()
    witness.hear([Process(7, GIB, GIB)], [8])
    assert witness.evidence([(1, 8, BIG)]) == {1: Evidence(None, None)}
    witness.hear([Process(8, GIB, MIB)], [8])
    assert witness.evidence([(1, 8, BIG), (2, 9, BIG)]) == {
        1: Evidence(GIB, MIB), 2: Evidence(0, 0),
    }
    witness.hear([], [8, 9])            # now we know that it would name it
    assert witness.evidence([(1, 8, BIG)]) == {1: Evidence(0, 0)}


def test_evidence_without_a_figure_is_unknown() -> None:
    witness = Witness()
    witness.hear([Process(8, None, GIB)], [8])
    assert witness.evidence([(1, 8, BIG)]) == {1: Evidence(None, GIB, hidden=True)}


def test_evidence_of_a_process_is_divided_among_its_clients() -> None:
    witness = Witness()
    witness.hear([Process(8, 5 * GIB, 3 * GIB)], [8])
    assert witness.evidence([(one, 8, BIG) for one in (1, 2, 3)]) == {
        1: Evidence(5 * GIB, 3 * GIB), 2: Evidence(GIB, GIB), 3: Evidence(0, 0),
    }


def test_context_reserve_counts_a_users_connections_up_to_a_bound() -> None:
    capacity = Capacity(16 * GIB, Allowances(reserve=0, context_reserve=GIB))
    for client in range(100):
        capacity.joined(client, "user:1000")
    assert capacity.bytes == (16 - YOUNG_MOST - 1) * GIB
    capacity.joined(100, "user:1001")
    assert capacity.bytes == (16 - YOUNG_MOST - 2) * GIB
    for client in range(101, 104):      # root's
        capacity.joined(client)
    assert capacity.bytes == (16 - YOUNG_MOST - 5) * GIB
    for client in range(104):
        capacity.left(client)
    assert capacity.bytes == 15 * GIB
