# SPDX-License-Identifier: Apache-2.0
"""Memory that a program maps itself (cuMemMap) is evicted and loaded as any other."""

from nvshared.units import MIB
from tests.integration.conftest import Site, wait_until
from tests.integration.programs import Program, ends_well


def said_while_away(site: Site, body: str) -> None:
    """Runs the program from "away" to "done" while another client holds the card."""
    site.start("--tq", "1")
    program = Program(site, body)
    hook = program.lose_card()
    assert program.hears() == "done"
    assert hook.running
    hook.close()
    program.ends_well()


def test_unmap_of_program_mapped_memory_does_not_wait_for_a_turn(site: Site) -> None:
    said_while_away(site, '''
size = 64 * MIB
data = noise(size)
first, second = reserve(2 * size), reserve(size)
handles = [create(size), create(size)]
for index, handle in enumerate(handles):
    call("cuMemMap", first + index * size, size, 0, handle, 0)
allow(first, 2 * size)
put(first, data)
map_at(second, handles[0], size)
away()
call("cuMemUnmap", first, GRAIN, result=INVALID)      # invalid: a part of a mapping
call("cuMemUnmap", first, 2 * size)
call("cuMemRelease", handles[1])
call("cuMemAddressFree", first, 2 * size)
call("cuMemUnmap", first, size, result=INVALID)
say("done")
assert get(second, size) == data
call("cuMemUnmap", second, size)
call("cuMemRelease", handles[0])
assert used() == 0
''')


def test_cumemmap_of_swapped_memory_does_not_wait_for_a_turn(site: Site) -> None:
    said_while_away(site, '''
size = 64 * MIB
data = noise(size)
(first, handle), second = map_memory(size), reserve(3 * size)
put(first, data)
away()
new = create(2 * size)
call("cuMemMap", second, size, 0, handle, 0)
call("cuMemMap", second + size, 2 * size, 0, new, 0)
# invalid: another mapping is there
call("cuMemMap", second + size, size, 0, handle, 0, result=INVALID)
allow(second, 3 * size)
assert attribute(11, second + size) == second and attribute(12, second + size) == 3 * size
call("cuMemUnmap", first, size)
say("done")
assert get(second, size) == data
put(second + size, data + data)
assert get(second, 3 * size) == 3 * data
call("cuMemUnmap", second, 3 * size)
call("cuMemRelease", handle)
call("cuMemRelease", new)
call("cuMemAddressFree", second, 3 * size)
''')


def test_unused_graph_memory_is_trimmed_at_the_end_of_a_turn(site: Site) -> None:
    site.start("--tq", "1")
    program = Program(site, '''
stream, address, graph, launched = new_stream(), c_uint64(), c_void_p(), c_void_p()
allocate(200 * MIB)                      # does not fit beside the other program's memory
def held(reserved):
    value = c_uint64()
    call("cuDeviceGetGraphMemAttribute", c_int(0), c_int(2 if reserved else 0), byref(value))
    return value.value
call("cuStreamBeginCapture_v2", stream, c_int(0))
call("cuMemAllocAsync", byref(address), 600 * MIB, stream)
call("cuMemFreeAsync", address, stream)
call("cuStreamEndCapture", stream, byref(graph))
call("cuGraphInstantiateWithFlags", byref(launched), graph, 0)
call("cuGraphLaunch", launched, stream)
call("cuStreamSynchronize", stream)
assert held(True) == 600 * MIB
call("cuGraphExecDestroy", launched)
call("cuGraphDestroy", graph)
assert (held(True), held(False)) == (600 * MIB, 0)
away()
assert held(True) == 0
''')
    hook = program.lose_card()
    program.ends_well()
    hook.close()


def test_memory_mapped_by_the_program_keeps_its_content_over_an_eviction(site: Site) -> None:
    site.start("--tq", "1")
    program = Program(site, '''
size = 64 * MIB
data = noise(size)
(first, handle), second = map_memory(size), reserve(size)
put(first, data)
away()                                   # evicted while mapped once
assert get(first, size) == data
map_at(second, handle, size)
put(second + 40 * MIB, b"seen through the other" * 1000)
data = get(first, size)
assert b"seen through the other" in data
away()                                   # evicted while mapped twice
assert get(second, size) == data and get(first, size) == data
call("cuMemUnmap", first, size)
call("cuMemUnmap", second, size)
away()                                   # evicted while not mapped
call("cuMemMap", first, size, 0, handle, 0)
call("cuMemRelease", handle)
call("cuMemRelease", handle, result=INVALID)
allow(first, size)
away()                                   # evicted while mapped, but without a handle
again = c_uint64()
call("cuMemRetainAllocationHandle", byref(again), first + 33 * MIB)
call("cuMemUnmap", first, size)
map_at(second, again, size)
assert get(second, size) == data
call("cuMemUnmap", second, size)
call("cuMemRelease", again)
say(left())
''')
    for _ in range(4):
        assert program.hears() == "away"
        hook = site.holding()
        assert hook.memory.resident == 1000 * MIB
        program.go_on()
        hook.close()
    assert program.hears() > 900 * MIB
    program.ends_well()


def test_invalid_calls_on_memory_mapped_by_the_program_return_the_drivers_errors(
    site: Site
) -> None:
    ends_well(site, '''
size = 64 * MIB
address, handle = reserve(4 * size), create(size)
call("cuMemMap", address, 4096, 0, handle, 0, result=NOT_SUPPORTED)
call("cuMemMap", address + 4096, size, 0, handle, 0, result=INVALID)
call("cuMemMap", address, 32 * MIB, 32 * MIB, handle, 0, result=NOT_SUPPORTED)
call("cuMemMap", address, size, 0, handle, 1, result=INVALID)
call("cuMemMap", address, size, 0, handle, 0)
allow(address, size)
# A block of the library (32 MiB) is only a part of the mapping, which the driver would refuse.
call("cuMemUnmap", address, 32 * MIB, result=INVALID)
call("cuMemUnmap", address, 4 * size)                       # the mapping and the gap behind it
call("cuMemRelease", handle)
''')


def test_exported_memory_is_never_evicted(site: Site) -> None:
    site.start("--tq", "1")
    program = Program(site, '''
size = 96 * MIB
data = noise(size)
(address, handle), there, file = map_memory(size, handles=1), reserve(size), c_int()
put(address, data)
call("cuMemExportToShareableHandle", byref(file), handle, 1, 0)
assert get(address, size) == data
imported = c_uint64()
call("cuMemImportFromShareableHandle", byref(imported), c_void_p(file.value), 1)
map_at(there, imported, size)
assert get(there, size) == data
beside, _ = map_memory(64 * MIB)         # another allocation mapped beside it
put(beside, data[:64 * MIB])
away()
put(there + MIB, b"written by the other" * 1000)
assert get(address, size) == get(there, size) != data
assert get(beside, 64 * MIB) == data[:64 * MIB]
call("cuMemUnmap", address, size)
call("cuMemUnmap", there, size)
call("cuMemRelease", handle)
call("cuMemRelease", imported)
say(used())
''')
    assert program.hears() == "away"
    hook = site.holding(800 * MIB)      # fits beside 96 MiB of exported memory and the context
    hook.close()
    program.go_on()
    # More than 64 MiB if a context has turned out to be larger than the reserve for contexts.
    assert 64 * MIB <= program.hears() < (64 + 96) * MIB
    program.ends_well()


def test_address_reservation_that_the_driver_refuses_is_repeated_with_a_smaller_size(
    site: Site
) -> None:
    """The driver refuses it, for example, under RLIMIT_AS or with 39 bits of addresses."""
    refused = ",".join(f"cuMemAddressReserve:{number}" for number in range(1, 12))
    site.environment |= {"NVSHARE_SIM_FAIL": refused}
    ends_well(site, '''
data, addresses = noise(MIB), [c_uint64() for _ in range(10)]
for address in addresses:                # more than the region that is reserved first
    call("cuMemAlloc_v2", byref(address), 64 * MIB)
    put(address, data)
assert all(get(address, MIB) == data for address in addresses)
''')


EXPORT = '''
file, imported = c_int(), c_uint64()
call("cuMemExportToShareableHandle", byref(file), handle, 1, 0)
call("cuCtxCreate_v2", byref(context), 0, 0)
there = reserve(size)
call("cuMemImportFromShareableHandle", byref(imported), c_void_p(file.value), 1)
map_at(there, imported, size)
'''


def test_exported_memory_swapped_before_the_last_context_ended_is_loaded_without_a_context(
    site: Site
) -> None:
    """Memory that was swapped when the last context ended has its content in other processes."""
    site.start("--tq", "1")
    program = Program(site, f'''
size = 96 * MIB
data = noise(size)
address, handle = map_memory(size, handles=1)
put(address, data)
call("cuMemUnmap", address, size)
away()
call("cuDevicePrimaryCtxRelease_v2", 0)
away()
{EXPORT}
assert get(there, size) == data
active, flags = c_int(), c_int()
call("cuDevicePrimaryCtxGetState", 0, byref(flags), byref(active))
assert not active.value                  # the library's own context is hidden from the program
''')
    hook = program.lose_card()
    assert program.hears() == "away"
    hook.close()
    wait_until(lambda: " left" in site.log.read_text())
    program.finish()
