# SPDX-License-Identifier: Apache-2.0
"""Managed memory is evicted with its program, and the processor can always access it."""

from dataclasses import replace

from nvshared.units import MIB
from tests.integration.conftest import Site
from tests.integration.fakehook import pump
from tests.integration.programs import PRELUDE, Program, alone

CAPACITY = 240 * MIB
CONTEXTS = 64 * MIB                     # bytes of contexts on the card, and a margin

MANAGED = '''
GLOBAL, DEVICE_CPU = c_uint(1), c_int(-1)
READ_MOSTLY, PREFERRED, PREFETCHED = 1, 2, 4
def managed(size, result=0):
    address = c_uint64()
    call("cuMemAllocManaged", byref(address), size, GLOBAL, result=result)
    return address.value
def view(address, size):
    "Bytes that the processor reads and writes."
    return (ctypes.c_ubyte * size).from_address(address)
def filled(value, size):
    address = managed(size)
    fill(address, value, size)
    call("cuCtxSynchronize")
    return address
def said(which, address, size):
    value = c_int(77)
    call("cuMemRangeGetAttribute", byref(value), 4, c_int(which), address, size)
    return value.value
'''


def program(site: Site, body: str) -> Program:
    return Program(site, MANAGED + body)


def on_the_card(site: Site) -> int:
    found = alone(site, PRELUDE + "say(used())")
    assert isinstance(found, int)
    return found


def test_managed_memory_is_evicted_and_stays_readable_by_the_processor(site: Site) -> None:
    site.start("--tq", "1")
    one = program(site, '''
size = 120 * MIB + 12345
address, small = filled(7, size), filled(9, 100)
call("cuMemPrefetchAsync", address, size, c_int(0), 0)
call("cuCtxSynchronize")
def asked():
    base, length = c_uint64(), c_size_t()
    call("cuMemGetAddressRange_v2", byref(base), byref(length), address + 5 * MIB)
    return [base.value == address, length.value, attribute(2, address, c_uint),
            attribute(8, address, ctypes.c_bool), attribute(9, address, c_int),
            said(PREFETCHED, address, size), said(PREFERRED, address, size), used() // MIB]
before = asked()
away()
assert asked() == before
bytes_of = view(address, size)
assert bytes(bytes_of[::4096]) == bytes([7]) * len(range(0, size, 4096))
assert bytes(view(small, 100)) == bytes([9]) * 100
bytes_of[size - 1] = 8
pause("changed")
assert get(address, size) == bytes([7]) * (size - 1) + bytes([8])
assert asked() == before
pause("back")
call("cuMemFree_v2", address)
call("cuMemFree_v2", address, result=INVALID)
call("cuMemFree_v2", small)
assert used() == 0, used()
''')
    assert one.hears() == "away"
    assert on_the_card(site) > 120 * MIB
    hook = site.holding()
    assert on_the_card(site) < CONTEXTS
    one.go_on()
    assert one.hears() == "changed"
    assert hook.running                 # the changes needed no turn
    one.go_on()
    hook.close()
    assert one.hears() == "back"
    assert on_the_card(site) > 120 * MIB
    one.finish()


def test_advice_on_managed_memory_survives_eviction(site: Site) -> None:
    site.start("--tq", "1")
    one = program(site, '''
size = 96 * MIB
read, home = filled(3, size), managed(size)
call("cuMemAdvise", read, size, c_int(READ_MOSTLY), c_int(0))
call("cuMemAdvise", home, size, c_int(3), DEVICE_CPU)            # SET_PREFERRED_LOCATION: the host
fill(home, 4, size)
def advice():
    return [said(READ_MOSTLY, read, size), said(PREFERRED, read, size),
            said(READ_MOSTLY, home, size), said(PREFERRED, home, size),
            said(PREFETCHED, read, size), said(PREFETCHED, home, size)]
assert advice() == [1, -2, 0, -1, -2, -2]
away()
assert advice() == [1, -2, 0, -1, -2, -2]
sys.stdin.readline()
assert get(read, size) == bytes([3]) * size
assert get(home, size) == bytes([4]) * size
assert advice() == [1, -2, 0, -1, -2, -2]
pause("back")
''')
    assert one.hears() == "away"
    hook = site.holding()
    assert on_the_card(site) < CONTEXTS
    one.go_on()
    one.go_on()
    hook.close()
    assert one.hears() == "back"
    assert 96 * MIB < on_the_card(site) < 192 * MIB  # memory preferred on the host was not loaded
    one.finish()


def test_managed_memory_may_be_freed_and_allocated_while_swapped(site: Site) -> None:
    site.start("--tq", "1")
    one = program(site, '''
gone, kept = filled(1, 96 * MIB), filled(2, 40 * MIB)
away()
call("cuMemFree_v2", gone)
more = managed(64 * MIB)
view(more, 64 * MIB)[5] = 6             # an access by the processor needs no turn
assert used() == 104 * MIB, used()
say("taken")
fill(kept, 3, 40 * MIB)                 # this fill waits for the program's turn
assert view(more, 64 * MIB)[5] == 6
assert get(kept, 40 * MIB) == bytes([3]) * (40 * MIB)
managed(1 << 40, result=2)
managed(0, result=INVALID)
assert used() == 104 * MIB, used()
call("cuDevicePrimaryCtxReset_v2", c_int(0))
call("cuDevicePrimaryCtxRetain", byref(context), c_int(0))
call("cuCtxSetCurrent", context)
assert used() == 0, used()
''')
    hook = one.lose_card()
    assert one.hears() == "taken"
    assert hook.running
    hook.close()
    one.ends_well()


def test_managed_memory_without_concurrent_access_is_pinned(site: Site) -> None:
    site.environment = {**site.environment, "NVSHARE_SIM_CONCURRENT": "0"}
    site.start("--tq", "1")
    one = program(site, '''
address = filled(5, 96 * MIB)
away()
assert used() == 96 * MIB
call("cuMemFree_v2", address)
assert used() == 0
''')
    assert one.hears() == "away"
    hook = site.hook()
    assert hook.hello() is not None
    assert not hook.allocate(1000 * MIB)
    hook.memory = replace(hook.memory, allocated=0)
    assert hook.allocate(800 * MIB)
    hook.want()
    pump([hook], lambda: hook.running)
    assert on_the_card(site) > 96 * MIB
    one.finish()
