# SPDX-License-Identifier: Apache-2.0
"""Looking at blocks takes the card from whoever runs: as few launches as can be.

The simulated kernel fails after so many, and what nothing is known of is copied.
"""

from nvshared.hook.protocol import Flag, OrderRecord, Type
from nvshared.units import MIB
from tests.integration.conftest import Site
from tests.integration.test_bus_sharing import MOVES, Daemon, ahead
from tests.integration.test_own_memory import Program


def test_memory_written_back_in_parts_is_examined_once_for_many_orders(site: Site) -> None:
    """Each look takes the card from whoever runs: parts of all four, then the whole of them.

    The kernel fails from its sixth launch on: the first is to try it, two are for the first way
    out. What nothing is known of is copied.
    """
    site.environment |= {"NVSHARE_SIM_FAIL": "cuLaunchKernel:6+"}
    daemon = Daemon(site)
    compared = MOVES[MOVES.index("for number, "):]
    program = Program(site, "PIECES = 4\n" + MOVES + "away()\n" + compared)
    daemon.accept(Flag(0))
    while daemon.until(Type.MEMORY).memory.allocated < 128 * MIB:
        continue
    for turn in range(2):
        assert program.hears() == "away"
        daemon.send(OrderRecord(Type.STOP))
        daemon.until(Type.STOPPED)
        if turn == 0:
            daemon.send(OrderRecord(Type.EVICT, number=2, host=1 << 40))
            assert daemon.until(Type.MOVED).moved == 128 * MIB
        for number, blocks in enumerate((3, 2, 0) if turn == 1 else (), 3):
            daemon.send(ahead(Type.EVICT, number, blocks * 32 * MIB))
            answer = daemon.until(Type.MOVED)
            assert (answer.moved, answer.flags) == (0, 0)
            assert answer.memory.resident == blocks * 32 * MIB
        daemon.send(ahead(Type.LOAD, 9, 128 * MIB), OrderRecord(Type.RUN))
        daemon.until(Type.MOVED)
        program.go_on()
    daemon.rest()
    program.ends_well()


HALF_OF_MANY = """
addresses = []
for number in range(100):
    address = allocate(2 * MIB)
    addresses.append(address)
for value in (77, 78):
    for number, address in enumerate(addresses):
        if value == 77 or number % 2:
            call("cuMemsetD32_v2", address, number + value, MIB // 2)
    call("cuCtxSynchronize")
    away()
for number, address in enumerate(addresses):
    assert get(address, 2 * MIB) == (number + 77 + number % 2).to_bytes(4, "little") * (MIB // 2)
"""
