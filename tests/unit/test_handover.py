# SPDX-License-Identifier: Apache-2.0
"""Memory on its way from one program to another, as descriptors that the daemon has."""

import os

from nvshared.scheduler.events import Evidence
from nvshared.sharing.handover import Handover
from nvshared.units import MIB


def test_what_has_left_a_program_counts_as_its_own_until_it_has_answered() -> None:
    """Else one that tells the truth would be taken for a liar: the driver shows less with it."""
    handover = Handover()
    for _ in range(2):
        handover.announce(1, os.open("/dev/null", os.O_RDONLY), 64 * MIB)
    seen = {1: Evidence(MIB, 5), 2: Evidence(MIB, 5), 3: Evidence(None, None)}
    counted = handover.counted(seen)
    assert counted == {**seen, 1: Evidence(129 * MIB, 5)}
    handover.arrive(1)
    assert handover.counted(seen) == seen
