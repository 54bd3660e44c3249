# SPDX-License-Identifier: Apache-2.0
"""Stream-ordered allocation from swappable memory: results of calls, and use of the card."""

import select
from dataclasses import replace

from nvshared.hook.packets import decode_report
from nvshared.hook.protocol import ReportRecord, Type
from nvshared.units import MIB
from tests.integration.conftest import Site
from tests.integration.fakedaemon import FakeDaemon
from tests.integration.programs import Program, ends_well, evict_and_load, under
from tests.integration.test_peers import KERNEL, TWO

POOLS = '''
class PoolProperties(ctypes.Structure):
    _fields_ = [("type", c_int), ("handles", c_int), ("location", Location), ("win32", c_void_p),
                ("most", c_size_t), ("usage", ctypes.c_ushort), ("rest", ctypes.c_ubyte * 54)]
OPPORTUNISTIC, THRESHOLD = 2, 4
RESERVED, RESERVED_HIGH, USED, USED_HIGH = 5, 6, 7, 8
FOR_EVER = 2**64 - 1
OUT_OF_MEMORY = 2

def stream(flags=1):
    return new_stream(flags).value
def default_pool():
    pool = c_uint64()
    call("cuDeviceGetDefaultMemPool", byref(pool), 0)
    return pool.value
def make_pool(most=0, handles=0):
    pool = c_uint64()
    call("cuMemPoolCreate", byref(pool), byref(PoolProperties(1, handles, Location(1, 0), None,
                                                              most)))
    return pool.value
def figure(which, pool=None, kind=c_uint64):
    value = kind(77)
    call("cuMemPoolGetAttribute", pool or default_pool(), c_int(which), byref(value))
    return value.value
def figures(pool=None):
    return [figure(which, pool) for which in (USED, USED_HIGH, RESERVED, RESERVED_HIGH)]
def setting(which, value, pool=None, kind=c_uint64, result=0):
    call("cuMemPoolSetAttribute", pool or default_pool(), c_int(which), byref(kind(value)),
         result=result)
def take(size, stream, pool=None):
    address = c_uint64()
    if pool is None:
        call("cuMemAllocAsync", byref(address), size, stream)
    else:
        call("cuMemAllocFromPoolAsync", byref(address), size, pool, stream)
    return address.value
def give(address, stream, result=0):
    call("cuMemFreeAsync", address, stream, result=result)
def synchronize(stream):
    call("cuStreamSynchronize", stream)
class Held:
    "Work in a stream that ends at let_go()."
    def __init__(self, stream):
        self.stream, self.flag = stream, c_uint64()
        call("cuMemAlloc_v2", byref(self.flag), 4)
        put(self.flag, bytes(4))
        synchronize(1)
        call("cuStreamWaitValue32_v2", stream, self.flag, 1, 0)
    def let_go(self):
        other = stream()
        call("cuStreamWriteValue32_v2", other, self.flag, 1, 0)
        synchronize(other)
        synchronize(self.stream)
'''


def test_freed_pool_memory_is_reused_at_once_in_its_stream_and_later_in_other_streams(
    site: Site
) -> None:
    ends_well(site, POOLS + '''
setting(THRESHOLD, FOR_EVER)
a, b = stream(), stream()
for size in (1000, 40 * MIB):
    first = take(size, a)
    held = Held(a)
    give(first, a)
    assert take(size, b) != first            # not reused: work is in flight
    assert take(size, a) == first            # reused in the same stream, behind the work
    give(first, a)
    assert take(size, b) != first
    held.let_go()
    assert take(size, b) == first            # reused: the work is done
    # Freed in another stream than it was allocated in.
    held = Held(a)
    give(first, a)
    assert take(size, b) != first
    held.let_go()
    # A stream that is destroyed before its work is done, and a new stream.
    c = stream()
    kept = take(size + 512, c)
    held = Held(c)
    give(kept, c)
    call("cuStreamDestroy_v2", c)
    others = [stream() for _ in range(8)]
    assert kept not in [take(size + 512, other) for other in others]
    call("cuStreamWriteValue32_v2", b, held.flag, 1, 0)
# The default streams, by each of their handles.
for one, two in ((0, 1), (1, 0), (2, 2)):
    address = take(5000, one)
    give(address, one)
    assert take(5000, two) == address
# If the program forbids opportunistic reuse, another stream does not get finished memory either.
setting(OPPORTUNISTIC, 0, kind=c_int)
assert figure(OPPORTUNISTIC, kind=c_int) == 0
address = take(2000, a)
give(address, a)
synchronize(a)
assert take(2000, b) != address and take(2000, a) == address
''')


def test_stream_ordered_allocation_does_not_wait_for_work_in_its_stream(site: Site) -> None:
    """Each call returns while its stream waits for a flag that the program sets only later."""
    site.start()
    running = Program(site, POOLS + '''
a = stream()
plain = allocate(3 * MIB)
held = Held(a)
pieces = [take(size, a) for size in (100, 2 * MIB, 90 * MIB)]
for piece in pieces:
    call("cuMemsetD8Async", piece, 1, 100, a)
    give(piece, a)
give(plain, a)                               # memory of cuMemAlloc, freed in the stream's order
call("cuMemFree_v2", take(1000, a))          # without a wait; counts as used until the pool ends
call("cuMemPoolTrimTo", default_pool(), 0)
# Memory with work in flight is not released.
say([figure(USED), figure(RESERVED) >= 92 * MIB])
free = left()
held.let_go()
say([figure(USED), figure(RESERVED), left() - free >= 95 * MIB])
''')
    assert running.hears() == [1000, True]
    assert running.hears() == [1000, 0, True]
    running.ends_well()


def test_pool_attributes_and_release_threshold_equal_those_of_the_driver(site: Site) -> None:
    ends_well(site, POOLS + '''
a, own = stream(), make_pool(most=64 * MIB)
first, second = take(40 * MIB, a, own), take(1000, a, own)
assert figures(own) == [40 * MIB + 1000, 40 * MIB + 1000, 40 * MIB + 1024, 40 * MIB + 1024]
assert figures() == [0, 0, 0, 0]
# The pool's maxSize.
address = c_uint64()
call("cuMemAllocFromPoolAsync", byref(address), 30 * MIB, own, a, result=OUT_OF_MEMORY)
# The program can reset the high-water marks only.
give(second, a)
synchronize(a)
setting(USED_HIGH, 1, own, result=INVALID)
setting(USED, 0, own, result=INVALID)
setting(USED_HIGH, 0, own)
setting(RESERVED_HIGH, 0, own)
assert figures(own) == [40 * MIB] * 4
# Free memory beyond the threshold is released when its work is done; the rest stays.
setting(THRESHOLD, 30 * MIB, own)
assert figure(THRESHOLD, own) == 30 * MIB
third = take(20 * MIB, a, own)
for piece in (first, third):
    give(piece, a)
synchronize(a)
assert figures(own) == [0, 60 * MIB, 20 * MIB, 60 * MIB]
assert take(20 * MIB, a, own) == third
call("cuMemPoolTrimTo", own, 0)
assert figure(RESERVED, own) == 20 * MIB     # memory in use stays
call("cuMemFree_v2", third)
assert figures(own) == [20 * MIB, 60 * MIB, 20 * MIB, 60 * MIB]      # its bytes still count as used
call("cuMemPoolTrimTo", own, 20 * MIB)
assert figure(RESERVED, own) == 20 * MIB
call("cuMemPoolTrimTo", own, 20 * MIB - 1)
assert figure(RESERVED, own) == 0
# Free memory of other sizes is released before the pool grows.
setting(THRESHOLD, FOR_EVER)
for size in range(100, 300, 3):
    give(take(size * MIB, a), a)
    synchronize(a)
assert figure(RESERVED) < 500 * MIB
''')


def test_pool_may_be_destroyed_before_its_memory_is_freed(site: Site) -> None:
    evict_and_load(site, POOLS + '''
a, own, data = stream(), make_pool(), noise(30 * MIB)
setting(THRESHOLD, FOR_EVER, own)
call("cuDeviceSetMemPool", 0, own)
current = c_uint64()
call("cuDeviceGetMemPool", byref(current), 0)
assert current.value == own
address, other = take(len(data), a), take(1000, a)
put(address, data)
assert attribute(17, address + 5) == own     # CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE
assert attribute(17, other) == own and figure(USED) == 0 and figure(USED, own) > 30 * MIB
assert attribute(1, address) == 0            # memory of a pool belongs to no context
free = left()
call("cuMemPoolDestroy", own)
call("cuMemPoolDestroy", default_pool(), result=INVALID)
call("cuMemAllocFromPoolAsync", byref(current), 1000, own, a, result=INVALID)
call("cuMemPoolGetAttribute", own, c_int(USED), byref(current), result=INVALID)
away()
assert get(address, len(data)) == data
give(address, a)
give(other, a)
synchronize(a)
assert left() - free >= 30 * MIB
fresh = take(4 * MIB, a)
assert attribute(17, fresh) == default_pool() and figure(USED) == 4 * MIB
plain = allocate(1000)
assert attribute(17, plain) == 0
''')


def test_allocation_that_does_not_fit_releases_free_pool_memory_and_succeeds(site: Site) -> None:
    ends_well(site, POOLS + '''
setting(THRESHOLD, FOR_EVER)
a, b = stream(), stream()
whole = left() // MIB - 40
give(take(whole * MIB, a), a)
synchronize(a)
assert figure(RESERVED) >= whole * MIB
address = c_uint64()
call("cuMemAlloc_v2", byref(address), (whole - 100) * MIB)   # gets the pool's memory
assert figure(RESERVED) == 0
call("cuMemFree_v2", address)
give(take(whole * MIB, a), a)
give(take((whole - 10) * MIB, b), b)                         # also memory of another size
call("cuMemAllocAsync", byref(address), (whole + 500) * MIB, a, result=OUT_OF_MEMORY)
assert figure(USED) == 0
''')


def test_free_pool_memory_is_unmapped_without_a_copy_when_another_client_waits(site: Site) -> None:
    site.start("--tq", "1")
    running = Program(site, POOLS + '''
setting(THRESHOLD, FOR_EVER)
a, data = stream(), noise(50 * MIB)
kept, large = take(len(data), a), take(700 * MIB, a)
put(kept, data)
give(large, a)
say(figure(RESERVED))
away()
say(figure(RESERVED))
assert get(kept, len(data)) == data
''')
    assert running.hears() == 750 * MIB
    hook = running.lose_card()
    assert running.hears() == 50 * MIB
    hook.close()
    running.ends_well()


def test_peer_access_to_a_pool_survives_eviction(site: Site) -> None:
    evict_and_load(site, POOLS + TWO + KERNEL + '''
def opened(pool, flags):
    call("cuMemPoolSetAccess", pool, byref(Access(Location(1, 1), flags)), 1)
    got = c_int(77)
    call("cuMemPoolGetAccess", byref(got), pool, byref(Location(1, 1)))
    assert got.value == flags
on(context)
a, own = stream(), make_pool()
call("cuMemPoolSetAccess", own, byref(Access(Location(1, 0), 3)), 1)
call("cuMemPoolSetAccess", own, byref(Access(Location(1, 9), 3)), 1, result=101)
call("cuMemPoolSetAccess", own, None, 1, result=INVALID)
before = take(size, a, own)
put(before, data)
opened(own, 3)                                           # opens present and later memory
opened(own, 3)
behind = take(size, a, own)
put(behind, data[::-1])
on(other)
assert copied(before) == data and copied(behind) == data[::-1]
away()
assert copied(before) == data and copied(behind) == data[::-1]
opened(own, 0)
copied(before, result=700)
''')


def test_peer_access_to_a_pool_can_be_set_before_its_device_has_a_context(site: Site) -> None:
    site.start("--tq", "1")
    running = Program(site, POOLS + '''
pool = c_uint64()
call("cuMemPoolCreate", byref(pool), byref(PoolProperties(1, 0, Location(1, 1))))
call("cuMemPoolSetAccess", pool, byref(Access(Location(1, 0), 3)), 1)
''' + TWO + '''
address = take(size, 0, pool)                            # memory on the other card
assert attribute(9, address, c_int) == 1                 # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
on(context)
second, zeros = allocate(size), allocate(size)
fill(zeros, 0, size)
''' + KERNEL + '''
on(other)
put(address, data)
on(context)
assert copied(address) == data
away()
assert copied(address) == data
''')
    running.evict()
    running.ends_well()


def test_peer_access_to_a_pool_can_be_set_again_after_a_failed_call(
    site: Site
) -> None:
    site.environment["NVSHARE_SIM_FAIL"] = "cuMemSetAccess:5"
    site.start()
    first_result = under(site, POOLS + TWO + KERNEL + '''
on(context)
a, own = stream(), make_pool()
address = take(size, a, own)
put(address, data)
reader = byref(Access(Location(1, 1), 3))
first_result = cuda.cuMemPoolSetAccess(c_void_p(own), reader, c_size_t(1))
call("cuMemPoolSetAccess", own, reader, 1)
on(other)
assert copied(address) == data
say(first_result)
''')
    assert first_result != 0, "the simulated driver's error was returned to another call"


def test_pool_maximum_holds_when_two_threads_wait_for_their_commits(site: Site) -> None:
    daemon = FakeDaemon(site)
    daemon.limits = replace(daemon.limits, commit=64 * MIB)
    program = Program(site, POOLS + '''
import threading
context, own, streams = c_uint64(), make_pool(most=150 * MIB), (stream(), stream())
call("cuCtxGetCurrent", byref(context))
results = []
def allocate_in(stream):
    call("cuCtxSetCurrent", context)
    results.append(cuda.cuMemAllocFromPoolAsync(byref(c_uint64()), c_size_t(100 * MIB),
                                                c_uint64(own), c_uint64(stream)))
threads = [threading.Thread(target=allocate_in, args=[stream]) for stream in streams]
away()                               # during accept() the daemon would refuse
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert sorted(results) == [0, OUT_OF_MEMORY], results
assert figure(RESERVED, own) == 100 * MIB
''')
    daemon.accept()
    assert program.hears() == "away"
    program.tell()
    asked: list[ReportRecord] = []
    # A COMMIT of the second thread would follow soon; the library waits 2 s for the first answer.
    while len(asked) < 2 and select.select(
            [daemon.connection], [], [], 0.2 if asked else 60)[0]:
        report = decode_report(daemon.connection.recv(4096))
        if report.type is Type.COMMIT:
            asked.append(report)
    daemon.limits = replace(daemon.limits, commit=daemon.room)
    for request in asked:
        daemon.send(daemon.answer(request))
    daemon.rest()
    program.ends_well()
