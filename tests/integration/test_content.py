# SPDX-License-Identifier: Apache-2.0
"""What is all zero or as it came in does not cross the bus; whatever has changed does."""

import pytest

from nvshared.units import MIB
from tests.integration.conftest import Site
from tests.integration.test_own_memory import Program, give_it_back, take_the_card

BLOCK = 32 * MIB

BODY = '''
size = 160 * MIB
address = allocate(size)
data = bytearray(noise(96 * MIB) + bytes(size - 96 * MIB))
put(address, bytes(data))
away()                                   # three blocks of noise, two of zeros
assert get(address, size) == data
away()                                   # nothing has changed
assert get(address, size) == data
data[40 * MIB + 12345] ^= 1
put(address + 40 * MIB + 12345, bytes(data[40 * MIB + 12345:40 * MIB + 12346]))
away()                                   # one bit of the second block
data[size - 1] = 1
put(address + size - 1, bytes([1]))
assert get(address, size) == data
away()                                   # one byte of the last
assert get(address, size) == data
data[32 * MIB:64 * MIB] = bytes(32 * MIB)
call("cuMemsetD8_v2", address + 32 * MIB, 0, 32 * MIB)
away()                                   # the second is now zero
assert get(address, size) == data
a, b = bytes(data[:32 * MIB]), bytes(data[64 * MIB:96 * MIB])
put(address, b)
put(address + 64 * MIB, a)
data[:32 * MIB], data[64 * MIB:96 * MIB] = b, a
away()                                   # two have changed places
assert get(address, size) == data
'''


def moved(site: Site) -> list[int]:
    """Blocks that were copied out at each absence, as the daemon heard it."""
    found: list[int] = []
    for entry in site.trace():
        if entry.get("report") == "turn-ended":
            found.append(0)
        if entry.get("event") == "evicted" and entry["pid"] != 0 and found:
            found[-1] += entry["bytes"]
    return [size // BLOCK for size in found]


@pytest.mark.parametrize("setting", ["1", pytest.param("0", marks=pytest.mark.long)])
def test_eviction_copies_only_changed_memory(site: Site, setting: str) -> None:
    site.start("--tq", "1", "--trace", str(site.folder / "trace"))
    site.environment = {**site.environment, "NVSHARE_EXAMINE": setting}
    program = Program(site, BODY)
    copied = []
    for _ in range(6):
        assert program.hears() == "away"
        before = sum(moved(site))
        hook = take_the_card(site)
        copied.append(sum(moved(site)) - before)
        program.go_on()
        give_it_back(hook)
    program.ends_well()
    assert copied == ([3, 0, 1, 1, 0, 2] if setting == "1" else [5] * 6)


RESERVED = '''
size = 160 * MIB
address = allocate(size)
call("cuMemsetD8_v2", address, 0, 96 * MIB)
data = bytearray(bytes(96 * MIB) + noise(64 * MIB))
put(address + 96 * MIB, bytes(data[96 * MIB:]))
away()                                   # three blocks of zeros, and what is used at the end
assert get(address, size) == data
data[64 * MIB] = data[32 * MIB] = 1
put(address + 64 * MIB, bytes([1]))
put(address + 32 * MIB, bytes([1]))
away()                                   # the two that left are no zeros any more
assert get(address, size) == data
away()                                   # the first is; another one is tried, and has to be copied
assert get(address, size) == data
away()                                   # which has not changed since
assert get(address, size) == data
data[size - 40] ^= 1
put(address + size - 40, bytes(data[size - 40:size - 39]))
away()                                   # and now has, where nobody looks first
assert get(address, size) == data
'''


@pytest.mark.parametrize("setting", ["1", pytest.param("0", marks=pytest.mark.long)])
def test_unchanged_memory_is_evicted_before_changed_memory(site: Site, setting: str) -> None:
    """Two of a program's five blocks have to leave, a choice it has."""
    site.start("--tq", "1", "--trace", str(site.folder / "trace"))
    site.environment = {**site.environment, "NVSHARE_EXAMINE": setting}
    program = Program(site, RESERVED)
    copied = []
    for _ in range(5):
        assert program.hears() == "away"
        before = sum(moved(site))
        hook = take_the_card(site, 904 * MIB)
        copied.append(sum(moved(site)) - before)
        program.go_on()
        give_it_back(hook)
    program.ends_well()
    assert copied == ([0, 2, 1, 0, 1] if setting == "1" else [2] * 5)
