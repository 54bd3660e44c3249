# SPDX-License-Identifier: Apache-2.0
"""Which of a program's copies are said to load the bus, and in which direction."""

from libhook.tests.hook.wrappers import Wrappers

COPIES = """
watched = ctypes.c_uint32.in_dll(library, "bus_sharing_watched")
IN, OUT, NONE = 0, 1, -1

def seen(name, *arguments):
    "Bytes, way, and whether it waits, of a call that copies; None if that does not count."
    core.copied = 0
    for suffix in (("", "_ptsz") if "Async" in name else ("", "_ptds")):
        answers(name + suffix)
        assert call(name + suffix, *arguments) == 0
        assert calls(name + suffix) > 0 and core.copies == 0
        found = (core.copied, core.way, core.waits) if core.copied else None
        assert suffix == "" or found == first, name
        first = found
    return first
"""


def test_large_ones_to_and_from_the_host_count_while_they_are_watched(wrappers: Wrappers) -> None:
    wrappers(COPIES + """
for name, way, waits in (
    ("cuMemcpyHtoD_v2", IN, 1), ("cuMemcpyDtoH_v2", OUT, 1),
    ("cuMemcpyHtoDAsync_v2", IN, 0), ("cuMemcpyDtoHAsync_v2", OUT, 0),
):
    watched.value = 0
    assert seen(name, 0x1000, 0x2000, 5 * MIB, 0) is None
    watched.value = 2
    assert seen(name, 0x1000, 0x2000, 5 * MIB, 0) == (5 * MIB, way, waits), name
    assert seen(name, 0x1000, 0x2000, MIB, 0) == (MIB, way, waits), name
    assert seen(name, 0x1000, 0x2000, MIB - 1, 0) is None, name
for name, way, waits in (
    ("cuMemcpyHtoA_v2", IN, 1), ("cuMemcpyHtoAAsync_v2", IN, 0),
):
    assert seen(name, 0x10, 0, 0x2000, MIB, 0) == (MIB, way, waits), name
for name, way, waits in (
    ("cuMemcpyAtoH_v2", OUT, 1), ("cuMemcpyAtoHAsync_v2", OUT, 0),
):
    assert seen(name, 0x2000, 0x10, 0, MIB, 0) == (MIB, way, waits), name
for name in ("cuMemcpyDtoD_v2", "cuMemcpyDtoDAsync_v2"):
    assert seen(name, 0x1000, 0x2000, 5 * MIB, 0) is None
""")


def test_addresses_alone_tell_the_way_if_the_driver_knows_them(wrappers: Wrappers) -> None:
    wrappers(COPIES + """
watched.value = 1
for name, waits in (("cuMemcpy", 1), ("cuMemcpyAsync", 0)):
    # Both are the card's, or both the host's: registered memory, or what no driver knows.
    for result, kind in ((0, 2), (0, 1), (1, 2)):
        answers("cuPointerGetAttribute", result, i0=kind)
        assert seen(name, 0x1000, 0x2000, MIB, 0) == (MIB, NONE, waits), name
""")


def test_copies_of_shapes_are_as_large_as_their_shape(wrappers: Wrappers) -> None:
    wrappers(COPIES + """
SIDE = [("x", ctypes.c_size_t), ("y", ctypes.c_size_t)]
PLACE = [("type", ctypes.c_uint), ("host", ctypes.c_void_p), ("device", ctypes.c_uint64),
         ("array", ctypes.c_void_p)]
def side(which, deep):
    fields = SIDE + ([("z", ctypes.c_size_t), ("lod", ctypes.c_size_t)] if deep else []) + PLACE
    fields += [("reserved", ctypes.c_void_p)] if deep else []
    fields += [("pitch", ctypes.c_size_t)] + ([("height", ctypes.c_size_t)] if deep else [])
    return [(which + name, kind) for name, kind in fields]
class Flat(ctypes.Structure):
    _fields_ = [*side("s_", False), *side("d_", False), ("width", ctypes.c_size_t),
                ("height", ctypes.c_size_t)]
class Deep(ctypes.Structure):
    _fields_ = [*side("s_", True), *side("d_", True), ("width", ctypes.c_size_t),
                ("height", ctypes.c_size_t), ("depth", ctypes.c_size_t)]
HOST, DEVICE, ARRAY, UNIFIED = 1, 2, 3, 4
watched.value = 1
answers("cuPointerGetAttribute", 0, i0=DEVICE)
for source, target, way in (
    (HOST, DEVICE, IN), (HOST, ARRAY, IN), (DEVICE, HOST, OUT), (ARRAY, HOST, OUT),
    (DEVICE, ARRAY, NONE), (HOST, HOST, NONE), (HOST, UNIFIED, IN), (UNIFIED, HOST, OUT),
    (UNIFIED, UNIFIED, NONE),
):
    flat = Flat(s_type=source, d_type=target, width=1024, height=2048)
    deep = Deep(s_type=source, d_type=target, width=1024, height=64, depth=32)
    for name, waits in (("cuMemcpy2D_v2", 1), ("cuMemcpy2DUnaligned_v2", 1),
                        ("cuMemcpy2DAsync_v2", 0)):
        assert seen(name, ctypes.byref(flat), 0) == (2 * MIB, way, waits), name
    for name, waits in (("cuMemcpy3D_v2", 1), ("cuMemcpy3DAsync_v2", 0)):
        assert seen(name, ctypes.byref(deep), 0) == (2 * MIB, way, waits), name
for name in ("cuMemcpy2D_v2", "cuMemcpy2DAsync_v2", "cuMemcpy3D_v2", "cuMemcpy3DAsync_v2"):
    assert seen(name, None, 0) is None
""")


def test_many_at_once_are_as_large_as_their_sum(wrappers: Wrappers) -> None:
    wrappers(COPIES + """
watched.value = 1
answers("cuPointerGetAttribute", 0, i0=2)
pair, sizes = (ctypes.c_uint64 * 2)(1, 2), (ctypes.c_size_t * 2)(MIB, 3 * MIB)
for name, failed in (("cuMemcpyBatchAsync", (None,)), ("cuMemcpyBatchAsync_v2", ())):
    assert seen(name, pair, pair, sizes, 2, None, None, 0, *failed, 0) == (4 * MIB, NONE, 0), name
    assert seen(name, pair, pair, sizes, 0, None, None, 0, *failed, 0) is None
    assert seen(name, None, None, sizes, 2, None, None, 0, *failed, 0) == (4 * MIB, NONE, 0)
    assert seen(name, pair, pair, None, 2, None, None, 0, *failed, 0) is None
""")


def test_prefetches_count_as_copies_to_where_they_go(wrappers: Wrappers) -> None:
    wrappers(COPIES + """
TO_DEVICE, TO_HOST, TO_NODE = 1, 2, 3
places = (ctypes.c_uint64 * 1)(TO_HOST)
starts, sizes = (ctypes.c_uint64 * 2)(1, 2), (ctypes.c_size_t * 2)(MIB, 3 * MIB)
indices = (ctypes.c_size_t * 1)(0)
def batch(name, count=2, where=places, places_count=1):
    return seen(name, starts, sizes, count, where, indices, places_count, 0, 0)
for large in (False, True):
    watched.value = large
    expected = lambda way: (5 * MIB, way, 0) if large else None
    assert seen("cuMemPrefetchAsync", 0x1000, 5 * MIB, 0, 0) == expected(IN)
    assert seen("cuMemPrefetchAsync", 0x1000, 5 * MIB, 2**32 - 1, 0) == expected(OUT)
    for place, way in ((TO_DEVICE, IN), (TO_HOST, OUT), (TO_NODE, OUT)):
        assert seen("cuMemPrefetchAsync_v2", 0x1000, 5 * MIB, place, 0, 0) == expected(way)
    assert seen("cuMemPrefetchAsync", 0x1000, MIB - 1, 0, 0) is None
assert batch("cuMemPrefetchBatchAsync") == (4 * MIB, OUT, 0)
places[0] = TO_DEVICE
assert batch("cuMemPrefetchBatchAsync") == (4 * MIB, IN, 0)
assert batch("cuMemPrefetchBatchAsync", count=0) is None
assert batch("cuMemDiscardAndPrefetchBatchAsync") is None
""")


def test_between_cards_that_are_no_peers_contexts_are_named(wrappers: Wrappers) -> None:
    wrappers(COPIES + """
THERE = OURS + 0x100000
for name, peer, more in (
    ("cuMemcpy", "cuMemcpyPeer", []), ("cuMemcpyDtoD_v2", "cuMemcpyPeer", []),
    ("cuMemcpyAsync", "cuMemcpyPeerAsync", [9]),
    ("cuMemcpyDtoDAsync_v2", "cuMemcpyPeerAsync", [9]),
):
    suffix = "_ptsz" if more else "_ptds"
    for variant in ("", suffix):
        answers(peer + variant, 42)
        assert call(name + variant, OURS, THERE, 4096, *more) == 42
        expected = [OURS, 0x77, THERE, 0x78, 4096, *more]
        assert arguments(peer + variant, len(expected)) == expected
        assert calls(name + variant) == 0
""")
