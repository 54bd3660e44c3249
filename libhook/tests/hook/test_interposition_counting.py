# SPDX-License-Identifier: Apache-2.0
"""Memory that cannot be swapped counts from when the driver takes it until it gives it back."""

from libhook.tests.hook.wrappers import Wrappers


def test_managed_memory_and_arrays_are_counted_while_they_exist(wrappers: Wrappers) -> None:
    wrappers("""
class Description(ctypes.Structure):
    _fields_ = [("width", ctypes.c_size_t), ("height", ctypes.c_size_t),
                ("depth", ctypes.c_size_t), ("format", ctypes.c_int),
                ("channels", ctypes.c_uint), ("flags", ctypes.c_uint)]
address, array = u64(), u64()
answers("cuMemAllocManaged", a0=0x9000)
assert call("cuMemAllocManaged", ctypes.byref(address), 4 * MIB, 1) == 0
assert core.pinned == 4 * MIB
answers("cuMemFree_v2", 1)
assert call("cuMemFree_v2", 0x9000) == 1 and core.pinned == 4 * MIB
answers("cuMemFree_v2")
assert call("cuMemFree_v2", 0x9000) == 0 and core.pinned == 0

# Figures of an H200: 262144000 for this array, 350224384 (167 x 2 MiB) for all its levels.
big = Description(4000, 4000, 0, 0x20, 4, 0)
answers("cuArray3DCreate_v2", a0=0x7000)
assert call("cuArray3DCreate_v2", ctypes.byref(array), ctypes.byref(big)) == 0
assert core.pinned == 262144000
answers("cuMipmappedArrayCreate", a0=0x7000)
assert call("cuMipmappedArrayCreate", ctypes.byref(array), ctypes.byref(big), 12) == 0
assert 0 <= 350224384 - (core.pinned - 262144000) < 2 * MIB
answers("cuArrayDestroy")
answers("cuMipmappedArrayDestroy")
assert call("cuMipmappedArrayDestroy", 0x7000) == 0 and core.pinned == 262144000
assert call("cuArrayDestroy", 0x7000) == 0 and core.pinned == 0
big.flags = 0x40
assert call("cuArray3DCreate_v2", ctypes.byref(array), ctypes.byref(big)) == 0
assert core.pinned == 0
# Refused: the driver is not asked. Failed: nothing counts.
core.refuses = 2
before = calls("cuMemAllocManaged")
assert call("cuMemAllocManaged", ctypes.byref(address), 1, 1) == 2
assert calls("cuMemAllocManaged") == before
core.refuses = 0
answers("cuMemAllocManaged", 2)
assert call("cuMemAllocManaged", ctypes.byref(address), MIB, 1) == 2 and core.pinned == 0
assert core.entered == core.left
""")


def test_physical_memory_counts_until_no_handle_and_no_mapping_is_left(
    wrappers: Wrappers,
) -> None:
    wrappers("""
class Properties(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("location", ctypes.c_int),
                ("id", ctypes.c_int), ("win32", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)]
handle = u64()
def create(value, size, location=1, place=0):
    answers("cuMemCreate", a0=value)
    properties = Properties(1, 0, location, place)
    assert call("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(properties), 0) == 0
for name in ("cuMemRelease", "cuMemMap", "cuMemUnmap"):
    answers(name)
create(0x50, 2 * MIB)
create(0x51, 4 * MIB)
for host in 2, 3, 4:
    create(0x52, 8 * MIB, location=host)
assert core.pinned == 6 * MIB
# A locality domain of a card, whose number is the lowest byte; and what no driver of today knows.
for location, place, device in ((6, 0x0301, 1), (77, 0x0309, 0)):
    create(0x53, 32 * MIB, location, place)
    assert core.pinned == 38 * MIB and core.device_wished == device
    assert call("cuMemRelease", 0x53) == 0 and core.pinned == 6 * MIB
# Released at once, used on.
assert call("cuMemMap", 0x10000000, 2 * MIB, 0, 0x50, 0) == 0
assert call("cuMemRelease", 0x50) == 0 and core.pinned == 6 * MIB
# The handle's number is used again for something else.
create(0x50, 16 * MIB)
assert call("cuMemRelease", 0x50) == 0 and core.pinned == 6 * MIB
# Another handle of the first one, found by an address in the middle.
answers("cuMemRetainAllocationHandle", a0=0x60)
answers("cuMemGetAddressRange_v2", a0=0x10000000, a1=2 * MIB)
assert call("cuMemRetainAllocationHandle", ctypes.byref(handle), 0x10001000) == 0
# Two mappings that follow one another go in one call.
assert call("cuMemMap", 0x10000000 + 2 * MIB, 4 * MIB, 0, 0x51, 0) == 0
assert call("cuMemRelease", 0x51) == 0 and core.pinned == 6 * MIB
assert call("cuMemUnmap", 0x10000000, 6 * MIB) == 0 and core.pinned == 2 * MIB
assert call("cuMemRelease", 0x60) == 0 and core.pinned == 0 and core.remembered == 0
# A reservation is known until the driver has taken it back.
answers("cuMemAddressReserve", a0=0x20000000)
answers("cuMemAddressFree", 1)
assert call("cuMemAddressReserve", ctypes.byref(handle), 8 * MIB, 0, 0, 0) == 0
assert call("cuMemAddressFree", 0x20000000, 8 * MIB) == 1 and core.reserved == 8 * MIB
answers("cuMemAddressFree")
assert call("cuMemAddressFree", 0x20000000, 8 * MIB) == 0 and core.reserved == 0
assert core.mixed == 0x10000000 + 2 * MIB
# Ours is not the program's to change.
for name in ("cuMemMap", "cuMemUnmap", "cuMemSetAccess", "cuMemAddressFree"):
    before = calls(name)
    assert call(name, OURS + 4096, 4096, 0, 0x50, 0) == 1 and calls(name) == before, name
assert call("cuMemRetainAllocationHandle", ctypes.byref(handle), OURS) == 1
assert call("cuMulticastBindAddr", 0, 0, OURS, 4096, 0) == 801
assert core.entered == core.left
""")


def test_a_pool_of_the_drivers_counts_what_it_holds(wrappers: Wrappers) -> None:
    """The driver's figures: a pool takes 32 MiB at a time, keeps what is freed, and gives it up
    later."""
    wrappers("""
address, made = u64(), u64()
answers("cuDeviceGetMemPool", a0=0xDD)
answers("cuDeviceGetDefaultMemPool", a0=0xDD)
for name in ("cuMemAllocAsync", "cuMemAllocFromPoolAsync_ptsz", "cuMemFreeAsync",
             "cuMemFree_v2", "cuMemPoolTrimTo", "cuMemPoolDestroy"):
    answers(name)
def allocate(size):
    return call("cuMemAllocAsync", ctypes.byref(address), size, 0x10)
def reserved(value):
    answers("cuMemPoolGetAttribute", a2=value)
# Reserved and used are read through the same entry point: equal means that nothing is spare.
reserved(0)
assert allocate(1000) == 0
assert core.wished == 32 * MIB and core.pinned == 0
reserved(32 * MIB)
assert allocate(100 * MIB) == 0
assert core.wished == 128 * MIB and core.pinned == 32 * MIB
reserved(160 * MIB)
assert allocate(1) == 0 and core.pinned == 160 * MIB
reserved(64 * MIB)
assert call("cuMemFreeAsync", 0x9000, 0x10) == 0 and core.pinned == 64 * MIB
reserved(32 * MIB)
assert call("cuMemFree_v2", 0x9000) == 0 and core.pinned == 32 * MIB
reserved(0)
assert call("cuMemPoolTrimTo", 0xDD, 0) == 0 and core.pinned == 0
# In a capture nothing is allocated, and the pool is not asked, which would break it.
asked = calls("cuMemPoolGetAttribute")
answers("cuStreamIsCapturing", i1=1)
reserved(64 * MIB)
assert allocate(1000) == 0 and core.pinned == 0 and core.stream == 0x10
assert call("cuMemFreeAsync", 0x9000, 0x10) == 0
assert calls("cuMemPoolGetAttribute") == asked
answers("cuStreamIsCapturing", i1=0)
# Pools of the program's own that do not move: on the card for others too, and in host memory.
class Properties(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("location", ctypes.c_int),
                ("id", ctypes.c_int), ("security", ctypes.c_void_p), ("most", ctypes.c_size_t),
                ("rest", ctypes.c_ubyte * 56)]
for handle, location, handles in ((0xE1, 1, 1), (0xE2, 2, 0)):
    answers("cuMemPoolCreate", a0=handle)
    properties = Properties(1, handles, location, 0)
    assert call("cuMemPoolCreate", ctypes.byref(made), ctypes.byref(properties)) == 0
assert core.pool_added == 0
reserved(0)
def from_pool(handle):
    return call("cuMemAllocFromPoolAsync_ptsz", ctypes.byref(address), 3 * MIB, handle, 0)
core.wished = 0
assert from_pool(0xE2) == 0 and core.wished == 0 and core.stream == PER_THREAD
reserved(32 * MIB)
assert from_pool(0xE1) == 0 and core.wished == 32 * MIB and core.pinned == 32 * MIB
assert core.device_wished == 0
reserved(0)
assert call("cuMemPoolDestroy", 0xE1) == 0 and core.pinned == 0
# Of a locality domain of a card.
answers("cuMemPoolCreate", a0=0xE5)
properties = Properties(1, 0, 6, 0x0201)
assert call("cuMemPoolCreate", ctypes.byref(made), ctypes.byref(properties)) == 0
reserved(0)
assert from_pool(0xE5) == 0 and core.device_wished == 1 and core.pool_added == 0
assert call("cuMemPoolDestroy", 0xE5) == 0
# Each counts for the device it is of, whichever is current; where that is not shared, for none.
for handle, device in ((0xE3, 1), (0xE4, 9)):
    answers("cuMemPoolCreate", a0=handle)
    properties = Properties(1, 1, 1, device)
    assert call("cuMemPoolCreate", ctypes.byref(made), ctypes.byref(properties)) == 0
assert from_pool(0xE3) == 0 and core.device_wished == 1
reserved(96 * MIB)
assert from_pool(0xE3) == 0 and core.pinned == 96 * MIB
reserved(64 * MIB)
assert call("cuMemPoolTrimTo", 0xDD, 0) == 0 and core.pinned == 64 * MIB
assert core.device_released == 1
core.device_released = -1
reserved(32 * MIB)
assert from_pool(0xE3) == 0 and core.pinned == 32 * MIB and core.device_released == 1
core.wished, core.device_released, core.stream = 0, -1, 0
assert from_pool(0xE4) == 0 and (core.wished, core.pinned) == (0, 32 * MIB)
assert core.stream == PER_THREAD
reserved(0)
assert call("cuMemPoolDestroy", 0xE4) == 0 and core.pinned == 32 * MIB
assert call("cuMemPoolDestroy", 0xE3) == 0 and core.pinned == 0 and core.device_released == 1
core.refuses = 2
before = calls("cuMemAllocAsync")
assert allocate(1) == 2 and calls("cuMemAllocAsync") == before
assert core.entered == core.left
""")


def test_pools_whose_memory_moves_are_handed_on_after_the_driver(wrappers: Wrappers) -> None:
    wrappers("""
POOL = 0xA0                              # the only one that the double says is ours
address, made, value = u64(), u64(), u64()
class Properties(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("location", ctypes.c_int),
                ("id", ctypes.c_int), ("security", ctypes.c_void_p), ("most", ctypes.c_size_t),
                ("usage", ctypes.c_ushort), ("rest", ctypes.c_ubyte * 54)]
answers("cuMemPoolCreate", a0=POOL)
for usage, type in ((1, 1), (0, 2)):     # for a decoder; managed
    properties = Properties(type, 0, 1, 0, None, 5, usage)
    assert call("cuMemPoolCreate", ctypes.byref(made), ctypes.byref(properties)) == 0
    assert core.pool_added == 0
core.attached = 0                        # a pool may be made before there is a context
properties = Properties(1, 0, 1, 0, None, 5)
assert call("cuMemPoolCreate", ctypes.byref(made), ctypes.byref(properties)) == 0
assert (core.pool_added, core.pool_most) == (POOL, 5)
core.attached = 1

def from_pool(name, stream, pool=POOL):
    return call(name, ctypes.byref(address), 1000, pool, stream)
for name, stream, seen in (("cuMemAllocFromPoolAsync", 0x10, 0x10),
                           ("cuMemAllocFromPoolAsync", 0, 0),
                           ("cuMemAllocFromPoolAsync_ptsz", 0, PER_THREAD)):
    assert from_pool(name, stream) == 0 and address.value == OURS
    assert core.pool_stream == seen and calls(name) == 0
for name, stream, seen in (("cuMemFreeAsync", 0x10, 0x10), ("cuMemFreeAsync_ptsz", 0, PER_THREAD)):
    assert call(name, OURS, stream) == 0 and core.pool_stream == seen and calls(name) == 0
assert core.entered == 0                 # nothing waits
# What is wrong, the driver says.
answers("cuMemAllocFromPoolAsync", 1)
assert call("cuMemAllocFromPoolAsync", None, 1000, POOL, 0) == 1
assert call("cuMemAllocFromPoolAsync", ctypes.byref(address), 0, POOL, 0) == 1
answers("cuStreamIsCapturing", 400)
assert from_pool("cuMemAllocFromPoolAsync", 0x66) == 1 and call("cuMemFreeAsync", OURS, 0x66) == 400
# In a capture allocating is the driver's, and memory from elsewhere cannot be freed.
answers("cuStreamIsCapturing", i1=1)
answers("cuMemAllocFromPoolAsync", a0=0x9000)
assert from_pool("cuMemAllocFromPoolAsync", 0x10) == 0 and address.value == 0x9000
assert call("cuMemFreeAsync", OURS, 0x10) == 1 and calls("cuMemFreeAsync") == 0
answers("cuStreamIsCapturing", i1=0)

# Figures, settings, access and trimming: the driver first.
THRESHOLD, USED = ctypes.c_int(4), ctypes.c_int(7)
answers("cuMemPoolGetAttribute", a2=3)
assert call("cuMemPoolGetAttribute", POOL, USED, ctypes.byref(value)) == 0
assert value.value == 0x1000 + 3
assert call("cuMemPoolGetAttribute", 0xB0, USED, ctypes.byref(value)) == 0 and value.value == 3
answers("cuMemPoolGetAttribute", 1)
assert call("cuMemPoolGetAttribute", POOL, USED, ctypes.byref(value)) == 1 and value.value == 3
answers("cuMemPoolSetAttribute", 1)
assert call("cuMemPoolSetAttribute", POOL, THRESHOLD, ctypes.byref(u64(9))) == 1
assert core.pool_threshold == 0
answers("cuMemPoolSetAttribute")
assert call("cuMemPoolSetAttribute", POOL, THRESHOLD, ctypes.byref(u64(9))) == 0
assert core.pool_threshold == 9
answers("cuMemPoolTrimTo", 1)
assert call("cuMemPoolTrimTo", POOL, 7) == 1 and core.pool_kept == 0
answers("cuMemPoolTrimTo")
settled = core.settled
assert call("cuMemPoolTrimTo", POOL, 7) == 0 and core.pool_kept == 7 and core.settled > settled
for name, arguments in (("cuMemPoolSetAccess", (u64(), 0)), ("cuMemPoolDestroy", ())):
    for result in (0, 1):
        answers(name, result)
        before = calls(name)
        passed = [ctypes.byref(a) if not isinstance(a, int) else a for a in arguments]
        assert call(name, POOL, *passed) == result and calls(name) == before + 1, name
# A stream's handle will be another's.
answers("cuStreamDestroy_v2")
assert call("cuStreamDestroy_v2", 0x10) == 0 and core.streams_ended == 1
core.pooled = 1
assert call("cuPointerGetAttribute", ctypes.byref(value), ctypes.c_int(17), OURS + 5) == 0
assert value.value == POOL
""")
