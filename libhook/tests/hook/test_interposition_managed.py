# SPDX-License-Identifier: Apache-2.0
"""Managed memory that can be sent away: who takes it, frees it, and is told of what."""

from libhook.tests.hook.wrappers import Wrappers

HEADER = """
class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]
core.sends = 1
DEVICE, HOST, NUMA, CPU, INVALID = 1, 2, 3, -1, -2
THERE = 0x300000000
def last(attribute, count=1):
    "What the driver says is 77."
    value = ctypes.c_int()
    answers("cuMemRangeGetAttribute", i0=77)
    assert call("cuMemRangeGetAttribute", ctypes.byref(value), 4, attribute, THERE, count) == 0
    return value.value
"""


def test_it_is_taken_and_freed_by_the_library(wrappers: Wrappers) -> None:
    wrappers(HEADER + """
address = u64()
assert call("cuMemAllocManaged", ctypes.byref(address), 4 * MIB, 2) == 0
assert address.value == THERE and core.wished == 4 * MIB + 2
assert calls("cuMemAllocManaged") == 0 and core.pinned == 0
assert call("cuMemFree_v2", THERE) == 0 and calls("cuMemFree_v2") == 0
# In the order of a stream only what cuMemAlloc gave, beyond the card.
for name in ("cuMemFreeAsync", "cuMemFreeAsync_ptsz"):
    answers(name, 1)
    assert call(name, THERE + 16, 0) == 0 and calls(name) == 0
    assert call(name, THERE, 0) == 1 and calls(name) == 1
# What is wrong, the driver says.
answers("cuMemAllocManaged", 1)
assert call("cuMemAllocManaged", ctypes.byref(address), 0, 1) == 1
answers("cuMemFree_v2", 1)
assert call("cuMemFree_v2", THERE + 8) == 1
""")


def test_what_the_program_prefetches_is_remembered_if_the_driver_agrees(
    wrappers: Wrappers,
) -> None:
    wrappers(HEADER + """
for name in ("cuMemPrefetchAsync", "cuMemPrefetchAsync_ptsz"):
    answers(name)
    before = core.prefetched, core.entered, core.left
    assert call(name, THERE, 100, ctypes.c_int(3), 0) == 0
    assert core.prefetched == before[0] + 100 and last(4) == 3
    assert (core.entered, core.left) == (before[1] + 1, before[2] + 1)
    answers(name, 1)
    assert call(name, THERE, 100, ctypes.c_int(2), 0) == 1 and last(4) == 3
    answers(name)
    assert call(name, THERE, 100, ctypes.c_int(CPU), 0) == 0 and last(4) == CPU
for name in ("cuMemPrefetchAsync_v2", "cuMemPrefetchAsync_v2_ptsz"):
    answers(name)
    assert call(name, THERE, 100, Location(NUMA, 5), 0, 0) == 0
    assert (last(4), last(7), last(8)) == (INVALID, NUMA, 5)
    assert call(name, THERE, 100, Location(DEVICE, 6), 0, 0) == 0
    assert (last(4), last(7), last(8)) == (6, DEVICE, 6)
# All else the driver knows, and of other memory all.
assert (last(1), last(2), last(5), last(6)) == (77, 77, 77, 77)
assert last(4, count=0) == 77
core.sends = 0
assert last(4) == 77
""")


def test_of_many_ranges_each_goes_to_its_own_place(wrappers: Wrappers) -> None:
    wrappers(HEADER + """
addresses = (ctypes.c_uint64 * 3)(THERE, THERE + 10, THERE + 20)
sizes = (ctypes.c_size_t * 3)(1, 2, 3)
places = (Location * 2)(Location(DEVICE, 1), Location(HOST, 0))
indices = (ctypes.c_size_t * 2)(0, 2)
for kind in ("cuMemPrefetchBatchAsync", "cuMemDiscardAndPrefetchBatchAsync"):
    for name in (kind, kind + "_ptsz"):
        answers(name)
        before = core.prefetched
        assert call(name, addresses, sizes, 3, places, indices, 2, 0, 0) == 0
        assert core.prefetched == before + 36 and last(4) == CPU
        assert call(name, addresses, sizes, 2, places, indices, 2, 0, 0) == 0 and last(4) == 1
        answers(name, 1)
        before = core.prefetched
        assert call(name, None, None, 3, None, None, 2, 0, 0) == 1 and core.prefetched == before
""")


def test_many_questions_at_once_are_answered_the_same(wrappers: Wrappers) -> None:
    wrappers(HEADER + """
answers("cuMemPrefetchAsync_v2")
call("cuMemPrefetchAsync_v2", THERE, 100, Location(DEVICE, 6), 0, 0)
values = [ctypes.c_int(77) for _ in range(3)]
data = (ctypes.c_void_p * 3)(*map(ctypes.addressof, values))
rooms = (ctypes.c_size_t * 3)(4, 4, 4)
attributes = (ctypes.c_int * 3)(4, 1, 7)
name = "cuMemRangeGetAttributes"
answers(name, 1)
assert call(name, data, rooms, attributes, 3, THERE, 1) == 1
assert [value.value for value in values] == [77, 77, 77]
answers(name)
assert call(name, data, rooms, attributes, 3, THERE, 1) == 0
assert [value.value for value in values] == [6, 77, DEVICE]
""")
