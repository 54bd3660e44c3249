# SPDX-License-Identifier: Apache-2.0
"""Memory on its way from one program to another, as descriptors that the daemon has."""

import os

from nvshared.scheduler import Scheduler
from nvshared.scheduler.events import Evidence
from nvshared.scheduler.settings import Settings
from nvshared.sharing.handover import PLACES, Handover
from nvshared.units import GIB, MIB


def send(handover: Handover, client: int, count: int, tenant: str) -> None:
    for _ in range(count):
        handover.announce(client, tenant, os.open("/dev/null", os.O_RDONLY), 64 * MIB)


def test_what_has_left_a_program_counts_as_its_own_until_it_has_answered() -> None:
    """Else one that tells the truth would be taken for a liar: the driver shows less with it."""
    handover = Handover()
    send(handover, 1, 2, "ann")
    seen = {1: Evidence(MIB, 5), 2: Evidence(MIB, 5), 3: Evidence(None, None)}
    counted = handover.counted(seen)
    assert counted == {**seen, 1: Evidence(129 * MIB, 5)}
    handover.arrive(1)
    assert handover.counted(seen) == seen
    handover.claim([1, 2])


def test_however_much_one_tenant_sends_others_find_places() -> None:
    handover = Handover()
    for client in range(4):
        send(handover, client, PLACES, "ann")
    anns = [handover.arrive(client) for client in range(4)]
    assert sum(map(len, anns)) == PLACES // 2
    send(handover, 10, PLACES, "bob")
    send(handover, 11, PLACES, "eve")
    bobs, eves = (len(handover.arrive(client)) for client in (10, 11))
    assert bobs == PLACES // 4
    assert eves == PLACES // 8
    for id, _ in anns[0]:
        os.close(*handover.claim([id]))
    send(handover, 10, PLACES, "bob")
    assert len(handover.arrive(10)) > PLACES // 8, "places that are given back are there again"
    card = Scheduler(Settings(capacity=GIB, total=GIB, host_budget=GIB), 0)
    handover.keep(card)
    send(handover, 12, PLACES, "ann")
    handover.withdraw(12)
    send(handover, 13, PLACES, "ann")
    assert len(handover.arrive(13)) == PLACES // 2
    handover.keep(card)
