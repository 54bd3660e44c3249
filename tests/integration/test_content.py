# SPDX-License-Identifier: Apache-2.0
"""An eviction copies changed blocks, and neither blocks of zeros nor unchanged blocks."""

import pytest

from nvshared.hook.protocol import Flag, OrderRecord, Type
from nvshared.units import GIB, MIB
from tests.integration.conftest import Site
from tests.integration.fakedaemon import FakeDaemon, begin
from tests.integration.programs import Program
from tests.integration.test_bus_sharing import MOVES

BLOCK = 32 * MIB

CHANGED = '''
size = 96 * MIB
address = allocate(size)
data = bytearray(noise(64 * MIB) + bytes(32 * MIB))
put(address, bytes(data))
away()                                   # evicts two blocks of noise and one of zeros
assert get(address, size) == data        # loads all blocks
away()                                   # evicts unchanged blocks
data[40 * MIB + 12345] ^= 1
put(address + 40 * MIB + 12345, bytes(data[40 * MIB + 12345:40 * MIB + 12346]))
data[size - 1] = 1
put(address + size - 1, bytes([1]))
away()                                   # one bit of the second block, one byte of the last
assert get(address, size) == data
data[32 * MIB:64 * MIB] = bytes(32 * MIB)
fill(address + 32 * MIB, 0, 32 * MIB)
away()                                   # evicts after the second block became zero
assert get(address, size) == data
a, b = bytes(data[:32 * MIB]), bytes(data[64 * MIB:])
put(address, b)
put(address + 64 * MIB, a)
data[:32 * MIB], data[64 * MIB:] = b, a
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
away()                                   # evicts the first block, still zero, and copies another
assert get(address, size) == data
away()                                   # the copied block has not changed since: no new copy
assert get(address, size) == data
data[size - 40] ^= 1
put(address + size - 40, bytes(data[size - 40:size - 39]))
away()                                   # that block has changed, in the part that is read last
assert get(address, size) == data
'''


def copied_out(site: Site) -> int:
    """Number of blocks that evictions have copied so far."""
    sizes: list[int] = [entry["bytes"] for entry in site.trace() if entry.get("event") == "evicted"]
    return sum(sizes) // BLOCK


@pytest.mark.parametrize(("body", "much", "expected"), [
    (CHANGED, 1000 * MIB, [2, 0, 2, 0, 2]), (CHOICE, 904 * MIB, [0, 2, 1, 0, 1]),
], ids=["all blocks evicted", "some blocks evicted"])
def test_eviction_copies_only_changed_blocks(
    site: Site, body: str, much: int, expected: list[int]
) -> None:
    site.start("--tq", "1", "--trace", str(site.folder / "trace"))
    program = Program(site, body)
    copied = []
    for _ in expected:
        assert program.hears() == "away"
        before = copied_out(site)
        hook = site.holding(much)
        copied.append(copied_out(site) - before)
        program.go_on()
        hook.close()
    program.ends_well()
    assert copied == expected


def test_eviction_of_a_megabyte_moves_a_single_block_of_the_cards_block_size(site: Site) -> None:
    site.environment["NVSHARE_EXAMINE"] = "0"
    daemon, program = begin(
        site, "fill(allocate(256 * MIB), 7, 256 * MIB)\naway()", total=16 * GIB, host_slab=0)
    daemon.stop()
    assert daemon.move(Type.EVICT, 255 * MIB).moved == 64 * MIB
    daemon.let_return(program)


def test_memory_is_compared_with_its_host_copy_once_for_several_partial_writeback_orders(
    site: Site
) -> None:
    """Each examination takes the card from its holder, so a single one must do for all orders.

    The launch of the examining kernel fails from the sixth time on: the first launch tests the
    kernel, and each examination has two. Blocks that are not examined are copied.
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
