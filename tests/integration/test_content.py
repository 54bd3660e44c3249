# SPDX-License-Identifier: Apache-2.0
"""Blocks that are all zero or unchanged since their load do not cross the bus; changed blocks
do."""

import pytest

from nvshared.hook.protocol import Flag, OrderRecord, Type
from nvshared.units import GIB, MIB
from tests.integration.conftest import Site
from tests.integration.fakedaemon import FakeDaemon, begin
from tests.integration.programs import Program
from tests.integration.test_bus_sharing import MOVES

BLOCK = 32 * MIB

CHANGED = '''
size = 128 * MIB
address = allocate(size)
data = bytearray(noise(96 * MIB) + bytes(32 * MIB))
put(address, bytes(data))
away()                                   # evicts three blocks of noise and one of zeros
assert get(address, size) == data        # loads all blocks
away()                                   # evicts unchanged blocks
data[40 * MIB + 12345] ^= 1
put(address + 40 * MIB + 12345, bytes(data[40 * MIB + 12345:40 * MIB + 12346]))
away()                                   # evicts after one changed bit in the second block
data[size - 1] = 1
put(address + size - 1, bytes([1]))
away()                                   # evicts after one changed byte in the last block
assert get(address, size) == data
data[32 * MIB:64 * MIB] = bytes(32 * MIB)
fill(address + 32 * MIB, 0, 32 * MIB)
away()                                   # evicts after the second block became zero
assert get(address, size) == data
a, b = bytes(data[:32 * MIB]), bytes(data[64 * MIB:96 * MIB])
put(address, b)
put(address + 64 * MIB, a)
data[:32 * MIB], data[64 * MIB:96 * MIB] = b, a
away()                                   # evicts after two blocks exchanged their bytes
assert get(address, size) == data
'''

# Two of five blocks must be evicted; the library chooses which.
CHOICE = '''
size = 160 * MIB
address = allocate(size)
fill(address, 0, 96 * MIB)
data = bytearray(bytes(96 * MIB) + noise(64 * MIB))
put(address + 96 * MIB, bytes(data[96 * MIB:]))
away()                                   # evicts two of the three blocks of zeros: without a copy
data[64 * MIB] = data[32 * MIB] = 1
put(address + 64 * MIB, bytes([1]))
put(address + 32 * MIB, bytes([1]))
away()                                   # evicts the two blocks that are no longer zero
assert get(address, size) == data
away()                                   # the first is zero; another block must be copied
assert get(address, size) == data
away()                                   # that block has not changed since
assert get(address, size) == data
data[size - 40] ^= 1
put(address + size - 40, bytes(data[size - 40:size - 39]))
away()                                   # it has changed, in the part that is read last
assert get(address, size) == data
'''


def copied_out(site: Site) -> int:
    sizes: list[int] = [entry["bytes"] for entry in site.trace() if entry.get("event") == "evicted"]
    return sum(sizes) // BLOCK


@pytest.mark.parametrize("examine", [True, pytest.param(False, marks=pytest.mark.long)])
@pytest.mark.parametrize(("body", "much", "examined", "unexamined"), [
    (CHANGED, 1000 * MIB, [3, 0, 1, 1, 0, 2], 4), (CHOICE, 904 * MIB, [0, 2, 1, 0, 1], 2),
], ids=["all leave", "some leave"])
def test_eviction_copies_only_changed_memory(
    site: Site, body: str, much: int, examined: list[int], unexamined: int, examine: bool
) -> None:
    site.start("--tq", "1", "--trace", str(site.folder / "trace"))
    site.environment["NVSHARE_EXAMINE"] = str(int(examine))
    program = Program(site, body)
    copied = []
    for _ in examined:
        assert program.hears() == "away"
        before = copied_out(site)
        hook = site.holding(much)
        copied.append(copied_out(site) - before)
        program.go_on()
        hook.close()
    program.ends_well()
    assert copied == (examined if examine else [unexamined] * len(examined))


HELD = '''
size = 256 * MIB
address, data = allocate(size), noise(size)
put(address, data)
away()
assert get(address, size) == data
'''


def test_eviction_of_a_megabyte_moves_a_single_block_of_the_cards_block_size(site: Site) -> None:
    daemon, program = begin(site, HELD, total=16 * GIB, host_slab=0)
    daemon.stop()
    assert daemon.move(Type.EVICT, 255 * MIB).moved == 64 * MIB
    daemon.let_return(program)


def test_memory_is_compared_with_its_host_copy_once_for_several_partial_writeback_orders(
    site: Site
) -> None:
    """Each examination takes the card from its holder: parts of all blocks, then the whole of them.

    The kernel fails from its sixth launch on: the first is to try it, two are for the first
    eviction. Blocks of which nothing is known are copied.
    """
    site.environment |= {"NVSHARE_SIM_FAIL": "cuLaunchKernel:6+"}
    daemon = FakeDaemon(site)
    compared = MOVES[MOVES.index("for number, "):]
    program = Program(site, "PIECES = 4\n" + MOVES + "away()\n" + compared)
    daemon.accept()
    daemon.until_allocated(128 * MIB)
    for turn in range(2):
        assert program.hears() == "away"
        daemon.stop()
        if turn == 0:
            assert daemon.move(Type.EVICT).moved == 128 * MIB
        for blocks in (3, 2, 0) if turn == 1 else ():
            answer = daemon.move(Type.EVICT, blocks * BLOCK, flags=Flag.AHEAD)
            assert (answer.moved, answer.flags) == (0, 0)
            assert answer.memory.resident == blocks * BLOCK
        daemon.move(Type.LOAD, 128 * MIB, flags=Flag.AHEAD)
        daemon.send(OrderRecord(Type.RUN))
        program.go_on()
    daemon.rest()
    program.ends_well()
