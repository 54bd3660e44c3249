# SPDX-License-Identifier: Apache-2.0
"""Freed memory stays mapped for a short time for reuse, and no client lacks memory for it."""

import pytest

from nvshared.units import MIB
from tests.integration.conftest import CARD, SAMPLED_ONCE, Site, Start, kill, wait_until
from tests.integration.programs import Program

HELPERS = '''
def filled(size):
    "Is on the card, with all else, when this returns."
    address = allocate(size)
    put(address, b"x")
    return address
def free(address):
    call("cuMemFree_v2", address)
def mapped(address):
    "Whether the driver finds memory there, whoever it belongs to."
    got = cuda.cuMemcpyDtoH_v2(ctypes.create_string_buffer(64), c_uint64(address), c_size_t(64))
    assert got in (0, INVALID), got
    return got == 0
first = filled(4096)                     # keeps no spares before the first turn
'''

FOR_AN_HOUR = "3600000"


def program(site: Site, body: str, keep: str = FOR_AN_HOUR) -> Program:
    """A program that keeps freed memory for an hour: only other causes unmap it."""
    site.environment = {**site.environment, "NVSHARE_KEEP_FREED_MS": keep}
    return Program(site, HELPERS + body)


def figures(site: Site) -> dict[str, int]:
    found: dict[str, int] = [entry["memory"] for entry in site.trace() if "memory" in entry][-1]
    return found


def copied_out(site: Site) -> int:
    return sum(entry["bytes"] for entry in site.trace() if entry.get("event") == "evicted")


REUSED = '''
size, kept = 64 * MIB - 4096, KEPT
before = left()
first = allocate(size)
put(first, noise(size))
old = attribute(7, first)                # CU_POINTER_ATTRIBUTE_BUFFER_ID
call("cuPointerSetAttribute", byref(c_int(1)), c_int(6), first)
assert attribute(6, first, c_int) == 1   # CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
free(first)
assert left() == before
assert mapped(first) == kept
value, base, length = c_uint64(), c_uint64(), c_size_t()
for which in (1, 2, 7):
    call("cuPointerGetAttribute", byref(value), c_int(which), first, result=INVALID)
cuda.cuMemGetAddressRange_v2.restype = c_int
assert cuda.cuMemGetAddressRange_v2(byref(base), byref(length), c_uint64(first)) != 0
handle = ctypes.create_string_buffer(64)
call("cuIpcGetMemHandle", handle, first, result=INVALID)
call("cuMemFree_v2", first, result=INVALID)
call("cuMemFreeAsync", first, 0, result=INVALID)
assert mapped(first) == kept

smaller = size - 4096                    # with the same number of pages
again = allocate(smaller)
assert again == first or not kept
assert left() == before - 64 * MIB
call("cuMemGetAddressRange_v2", byref(base), byref(length), again + 5 * MIB)
assert (base.value, length.value) == (again, smaller)
assert attribute(7, again) != old
assert attribute(6, again, c_int) == 0
data = noise(smaller)
put(again, data)
assert get(again, smaller) == data
away()
assert get(again, smaller) == data
free(again)
# Attributes of the freed allocation do not apply to the new one.
again = allocate(size)
fill(again, 0, size)
away()
assert get(again, size) == bytes(size)
free(again)
assert left() == before
'''


@pytest.mark.parametrize("keep", [FOR_AN_HOUR, "0"])
def test_freed_memory_is_used_by_the_next_allocation_of_equal_size(site: Site, keep: str) -> None:
    site.start("--tq", "1")
    one = program(site, REUSED.replace("KEPT", str(keep != "0")), keep)
    for _ in range(2):
        one.evict()
    one.ends_well()


WAYS = {
    "cuMemAlloc": "allocate(rest)",
    "cuMemAllocAsync": '''
address = c_uint64()
call("cuMemAllocAsync", byref(address), rest, 0)
call("cuMemsetD8_v2", address, 1, rest)''',
    # Smaller because the driver rounds, but more than is free beside the freed memory.
    "cuArrayCreate": "new_array(rest - 8 * MIB)",
}


@pytest.mark.parametrize("way", WAYS)
def test_allocation_of_all_free_memory_succeeds_while_freed_memory_is_kept_mapped(
    small_site: Site, way: str
) -> None:
    site = small_site
    site.environment = {**site.environment, "NVSHARE_SIM_CONTEXT": "0"}
    # NVML may show mapped memory before the library reports the memory, so NVML is not sampled.
    site.start("--swap-budget", "0", **SAMPLED_ONCE)
    one = program(site, '''
for size in (8, 16, 24):
    made = [filled(size * MIB // 4) for _ in range(4)]
    for address in made:
        free(address)
assert mapped(made[0])
rest = left() // MIB * MIB
''' + WAYS[way] + '''
put(first, b"y")                         # the copy needs all memory resident
assert left() <= 10 * MIB
''')
    one.ends_well()


def test_freed_memory_kept_mapped_is_unmapped_without_a_copy_when_a_client_waits(
        site: Site) -> None:
    site.start("--tq", "1", "--trace", str(site.folder / "trace"))
    one = program(site, '''
stays = allocate(96 * MIB)
data = noise(96 * MIB)
put(stays, data)
goes = allocate(64 * MIB)
put(goes, noise(64 * MIB))
free(goes)
assert mapped(goes)
away()
assert get(stays, len(data)) == data
assert not mapped(goes)
''')
    assert one.hears() == "away"
    hook = site.holding()
    assert hook.memory.resident == 1000 * MIB
    assert copied_out(site) == 96 * MIB
    one.go_on()
    hook.close()
    one.ends_well()


def test_freed_memory_kept_mapped_is_unmapped_after_the_configured_time(site: Site) -> None:
    site.start("--trace", str(site.folder / "trace"))
    one = program(site, '''
addresses = [filled(size * MIB) for size in (2, 16, 64)]
for address in addresses:
    free(address)
sys.stdin.readline()
assert not any(mapped(address) for address in addresses)
''', keep="100")
    wait_until(lambda: any("memory" in entry for entry in site.trace())
               and figures(site)["allocated"] > 2 * MIB)
    wait_until(lambda: figures(site)["allocated"] == figures(site)["resident"] == 2 * MIB)
    one.finish()


def test_freed_memory_kept_mapped_is_bounded_and_the_oldest_unmapped_first(site: Site) -> None:
    site.start()
    assert CARD // 8 == 128 * MIB
    program(site, '''
# All memory is resident before the first spare: a spare is released first if room is missing.
large, *addresses = [filled(size * MIB) for size in (130, *[20] * 8)]
for address in addresses:
    free(address)
assert [mapped(address) for address in addresses] == [False] * 2 + [True] * 6
free(large)
assert not mapped(large)
assert [mapped(address) for address in addresses] == [False] * 2 + [True] * 6
# The latest spare is reused first.
assert [allocate(20 * MIB) for _ in range(6)] == addresses[:1:-1]
assert allocate(20 * MIB) not in addresses[2:]
''').ends_well()


def test_freed_memory_is_not_kept_on_a_nearly_full_card(site: Site) -> None:
    """The driver allocates memory for modules and stacks without a call of the library."""
    site.environment = {**site.environment, "NVSHARE_SIM_CONTEXT": "0"}
    site.start()
    assert CARD // 16 == 64 * MIB
    program(site, '''
most = filled(900 * MIB)
spare, more = filled(40 * MIB), filled(20 * MIB)
free(more)
assert not mapped(more)
free(spare)
assert mapped(spare)
''').ends_well()


def test_freed_memory_is_unmapped_at_once_while_little_memory_is_unpromised(site: Site) -> None:
    """Where card and host budget are nearly promised, a free must be reported at once."""
    site.start("--swap-budget", "0")
    program(site, '''
filled(left() - 220 * MIB)
one, two = filled(60 * MIB), filled(60 * MIB)
free(one)
assert not mapped(one)                   # no spare: it would leave 100 MiB only
free(two)
assert mapped(two)                       # a spare: 160 MiB are left
''').ends_well()


def test_freed_memory_kept_mapped_is_unmapped_when_a_context_needs_memory(site: Site) -> None:
    site.environment = {**site.environment, "NVSHARE_SIM_CONTEXT": "200M"}
    site.start()
    program(site, '''
most = filled(560 * MIB)
spare = filled(80 * MIB)
free(spare)
assert mapped(spare)
new_context()
assert not mapped(spare)
''').ends_well()


def test_freed_memory_kept_mapped_is_unmapped_when_the_driver_is_out_of_memory(site: Site) -> None:
    site.start()
    # The first three calls are for the first allocation and the blocks that are freed.
    site.environment = {**site.environment, "NVSHARE_SIM_FAIL": "cuMemCreate:4:2"}
    program(site, '''
first = filled(64 * MIB)
free(first)
assert mapped(first)
second = allocate(32 * MIB)
assert mapped(second)
assert not mapped(first)
''').ends_well()


def test_freed_memory_kept_mapped_is_unmapped_when_the_context_ends(site: Site) -> None:
    site.start()
    program(site, '''
before = left()
mine = new_context()
spare = filled(64 * MIB)
free(spare)
other = new_context()
address = allocate(64 * MIB)
assert address != spare and attribute(1, address) == other.value
put(address, b"x" * MIB)
call("cuCtxDestroy_v2", mine)
assert not mapped(spare)
assert get(address, MIB) == b"x" * MIB
free(address)
assert mapped(address)
call("cuCtxDestroy_v2", other)
call("cuCtxSetCurrent", context)
assert not mapped(address)
assert left() == before
spare = filled(64 * MIB)
put(spare, b"y" * MIB)
free(spare)
call("cuCtxSetCurrent", c_void_p())
call("cuDevicePrimaryCtxReset_v2", c_int(0))
call("cuDevicePrimaryCtxRetain", byref(context), 0)
call("cuCtxSetCurrent", context)
assert not mapped(spare)
assert left() == before + 2 * MIB        # the spare from the beginning was released, too
free(allocate(left()))
''').ends_well()


def test_freed_memory_kept_mapped_is_unmapped_when_the_daemon_ends(site: Site) -> None:
    """While the memory is being unmapped the program does not read it: a part may be gone."""
    daemon = site.start()
    one = program(site, '''
from nvshared.machine.nvml import NVML
nvml = NVML()
card = nvml.find()[0].uuid
def used():
    return nvml.sample(card).memory_used
spare = filled(64 * MIB)
before = used()
free(spare)
assert mapped(spare)
pause("freed")
while used() > before - 64 * MIB:
    continue
assert not mapped(spare)
assert allocate(left())
''')
    assert one.hears() == "freed"
    kill(daemon)
    one.finish()


def test_memory_limit_bounds_allocations_alike_while_freed_memory_is_kept_mapped(
    site: Site, start: Start
) -> None:
    control = start()
    one = program(site, '''
spare = filled(96 * MIB)
free(spare)
assert mapped(spare)
pause("freed")
total = c_size_t()
while total.value != 80 * MIB:           # until the program's hook has received the limit
    call("cuDeviceTotalMem_v2", byref(total), c_int(0))
assert left() == 78 * MIB                # the limit less the first allocation
address = c_uint64()                     # unused commit granted before may still be used
while (got := cuda.cuMemAlloc_v2(byref(address), c_size_t(96 * MIB))) == 0:
    free(address)
assert got == 2                          # out of memory
for size in (40, 30, 60):
    free(allocate(size * MIB))
    assert left() == 78 * MIB
assert allocate(78 * MIB) and left() == 0
''')
    assert one.hears() == "freed"
    (client,) = control.clients_of(one.popen.pid)
    control.set_client_term(client, "memory-limit", 80 * MIB)
    one.finish()
