# SPDX-License-Identifier: Apache-2.0
"""What each wrapper asks of the core, and what it does with what the driver answers."""

from libhook.tests.hook.wrappers import Wrappers


def test_launches_name_their_stream_at_the_gate_and_leave_it(wrappers: Wrappers) -> None:
    wrappers("""
class Config(ctypes.Structure):
    _fields_ = [("sizes", ctypes.c_uint * 7), ("stream", ctypes.c_void_p),
                ("attributes", ctypes.c_void_p), ("count", ctypes.c_uint)]
config = Config(stream=0x55)
for name, expected in (
    ("cuLaunchKernel", 0x55), ("cuLaunchKernel_ptsz", 0x55),
    ("cuLaunchCooperativeKernel", 0x55), ("cuLaunchCooperativeKernel_ptsz", 0x55),
):
    call(name, 0, 1, 1, 1, 1, 1, 1, 0, 0x55, 0, 0)
    assert core.stream == expected, name
    call(name, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
    assert core.stream == (PER_THREAD if name.endswith("_ptsz") else 0), name
for name in ("cuLaunchKernelEx", "cuLaunchKernelEx_ptsz"):
    call(name, ctypes.byref(config), 0, 0, 0)
    assert core.stream == 0x55
    call(name, ctypes.byref(Config()), 0, 0, 0)
    assert core.stream == (PER_THREAD if name.endswith("_ptsz") else 0), name
for name in ("cuGraphLaunch", "cuGraphUpload"):
    call(name, 0, 0x55)
    assert core.stream == 0x55
    call(name + "_ptsz", 0, 0)
    assert core.stream == PER_THREAD
assert core.entered == core.left == 16
""")


def test_copies_wait_even_in_a_capture_and_fills_do_not(wrappers: Wrappers) -> None:
    wrappers("""
for name in ("cuMemcpyAsync", "cuMemcpyDtoDAsync_v2_ptsz"):
    call(name, *[0x55] * 12)
    assert core.stream == NO_STREAM, name
for name in ("cuMemsetD8Async", "cuMemsetD2D32Async_ptsz", "cuStreamWriteValue32_v2"):
    call(name, *[0x55] * 12)
    assert core.stream == 0x55, name
""")


def test_allocations_come_from_us_where_there_is_a_client(wrappers: Wrappers) -> None:
    wrappers("""
address, pitch = u64(), u64()
assert call("cuMemAlloc_v2", ctypes.byref(address), 1000) == 0 and address.value == OURS
answers("cuDeviceGetAttribute", i0=512)
assert call("cuMemAllocPitch_v2", ctypes.byref(address), ctypes.byref(pitch), 1093, 10, 4) == 0
assert (pitch.value, core.wished) == (1536, 15360)
assert call("cuMemFree_v2", OURS) == 0 and call("cuMemFreeAsync", OURS, 0) == 0
for name in ("cuMemAlloc_v2", "cuMemAllocPitch_v2", "cuMemFree_v2", "cuMemFreeAsync"):
    assert calls(name) == 0
# What is wrong with the arguments, the driver says: a size of 0, elements of 3 bytes, an overflow.
answers("cuMemAllocPitch_v2", 1)
for width, height, element in ((0, 1, 4), (1, 0, 4), (1, 1, 3), (2**63, 4, 4), (2**64 - 1, 1, 4)):
    assert call("cuMemAllocPitch_v2", ctypes.byref(address), ctypes.byref(pitch),
                width, height, element) == 1
core.attached = 0
answers("cuMemAlloc_v2", a0=0x9000)
assert call("cuMemAlloc_v2", ctypes.byref(address), 1000) == 0 and address.value == 0x9000
answers("cuMemFree_v2")
assert call("cuMemFree_v2", 0x9000) == 0 and calls("cuMemFree_v2") == 1
""")


def test_captures_are_counted_exactly(wrappers: Wrappers) -> None:
    wrappers("""
STATUS = {"none": 0, "active": 1, "invalid": 2}
def status(now):
    answers("cuStreamIsCapturing", i1=STATUS[now])
answers("cuStreamGetCtx", a1=0xC0)
for name in ("cuStreamBeginCapture_v2", "cuStreamBeginCapture_ptsz", "cuStreamEndCapture",
             "cuStreamEndCapture_ptsz", "cuStreamDestroy_v2", "cuStreamBeginCaptureToGraph"):
    answers(name)
graph = u64()
# Begin and end, in two streams at once.
for stream in (0x10, 0x20):
    assert call("cuStreamBeginCapture_v2", stream, 0) == 0
assert core.captures == 2
status("none")
for stream in (0x10, 0x20):
    assert call("cuStreamEndCapture", stream, ctypes.byref(graph)) == 0
assert core.captures == 0
# A beginning that fails, an end where nothing began.
answers("cuStreamBeginCapture_v2", 401)
assert call("cuStreamBeginCapture_v2", 0x10, 0) == 401 and core.captures == 0
answers("cuStreamEndCapture", 401)
assert call("cuStreamEndCapture", 0x10, ctypes.byref(graph)) == 401 and core.captures == 0
# An end asked for in a stream that only joined leaves it going on, one that fails may end it.
answers("cuStreamBeginCapture_v2")
assert call("cuStreamBeginCapture_v2", 0x10, 0) == 0
status("invalid")
answers("cuStreamEndCapture", 903)
assert call("cuStreamEndCapture", 0x20, ctypes.byref(graph)) == 903 and core.captures == 1
status("none")
assert call("cuStreamEndCapture", 0x20, ctypes.byref(graph)) == 903 and core.captures == 1
answers("cuStreamEndCapture", 908)
assert call("cuStreamEndCapture", 0x10, ctypes.byref(graph)) == 908 and core.captures == 0
# The stream goes, or fails to; the context goes.
assert call("cuStreamBeginCaptureToGraph", 0x10, 0, 0, 0, 0, 0) == 0
answers("cuStreamDestroy_v2", 400)
assert call("cuStreamDestroy_v2", 0x10) == 400 and core.captures == 1
answers("cuStreamDestroy_v2")
assert call("cuStreamDestroy_v2", 0x10) == 0 and core.captures == 0
for stream in (0x10, 0x20):
    assert call("cuStreamBeginCapture_v2", stream, 0) == 0
answers("cuCtxDestroy_v2")
assert call("cuCtxDestroy_v2", 0xC1) == 0 and core.captures == 2
assert call("cuCtxDestroy_v2", 0xC0) == 0 and core.captures == 0
# The thread's own stream is another in each thread.
assert call("cuStreamBeginCapture_ptsz", 0) == 0
def elsewhere():
    assert call("cuStreamBeginCapture_ptsz", 0) == 0 and core.captures == 2
    assert call("cuStreamEndCapture_ptsz", 0, ctypes.byref(graph)) == 0 and core.captures == 1
    assert call("cuStreamEndCapture_ptsz", 0, ctypes.byref(graph)) == 0 and core.captures == 1
thread = threading.Thread(target=elsewhere)
thread.start()
thread.join()
assert core.captures == 1
assert call("cuStreamEndCapture_ptsz", 0, ctypes.byref(graph)) == 0 and core.captures == 0
""")


def test_contexts_attach_when_they_are_made_and_end_before_the_driver_ends_them(
    wrappers: Wrappers,
) -> None:
    wrappers("""
context = u64()
for version in ("", "_v2"):
    answers("cuCtxCreate" + version, a0=0xC1)
    assert call("cuCtxCreate" + version, ctypes.byref(context), 0, 3) == 0
assert (core.contexts_attached, core.device_attached) == (2, 3)
answers("cuCtxCreate_v3", a0=0xC1)
assert call("cuCtxCreate_v3", ctypes.byref(context), 0, 0, 0, 4) == 0
answers("cuCtxCreate_v4", a0=0xC1)
assert call("cuCtxCreate_v4", ctypes.byref(context), 0, 0, 5) == 0
assert (core.contexts_attached, core.device_attached) == (4, 5)
answers("cuCtxCreate_v4", 2)
assert call("cuCtxCreate_v4", ctypes.byref(context), 0, 0, 6) == 2
assert core.contexts_attached == 4

# The primary one ends with the last release, whoever retained it.
for name in ("cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxReset_v2", "cuGreenCtxDestroy",
             "cuCtxDestroy_v2", "cuCtxDetach"):
    answers(name)
answers("cuDevicePrimaryCtxRetain", a0=0xA0)
answers("cuGreenCtxCreate", a0=0xB0)
green = u64()
for _ in range(2):
    assert call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 1) == 0
assert call("cuGreenCtxCreate", ctypes.byref(green), 0, 1, 1) == 0
assert core.contexts_attached == 7
assert calls("cuDevicePrimaryCtxRelease_v2") == 1
for _ in range(2):
    assert call("cuDevicePrimaryCtxRelease_v2", 1) == 0
assert core.contexts_ended == 0
assert call("cuGreenCtxDestroy", 0xB0) == 0
assert (core.contexts_ended, core.context_ended) == (1, 0xA0)
# A reset ends it for all.
for _ in range(2):
    assert call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 1) == 0
assert call("cuDevicePrimaryCtxReset_v2", 1) == 0
assert (core.contexts_ended, core.context_ended) == (2, 0xA0)
assert call("cuDevicePrimaryCtxReset_v2", 2) == 0 and core.contexts_ended == 2
# The first version also forgets who retained it: the next release is the last again.
answers("cuDevicePrimaryCtxRetain", a0=0xA3)
answers("cuDevicePrimaryCtxReset")
for _ in range(2):
    assert call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 3) == 0
assert call("cuDevicePrimaryCtxReset", 3) == 0
assert (core.contexts_ended, core.context_ended) == (3, 0xA3)
assert call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 3) == 0
assert call("cuDevicePrimaryCtxRelease_v2", 3) == 0 and core.contexts_ended == 4
# It cannot be destroyed; others can, or detached from.
assert call("cuCtxDestroy_v2", 0xA0) == 0 and core.contexts_ended == 4
assert call("cuCtxDestroy_v2", 0xC1) == 0 and core.context_ended == 0xC1
answers("cuCtxAttach", a0=0xC2)
assert call("cuCtxAttach", ctypes.byref(context), 0) == 0
assert call("cuCtxDetach", 0xC2) == 0 and core.context_ended == 0xC1
assert call("cuCtxDetach", 0xC2) == 0 and core.context_ended == 0xC2
""")


def test_what_a_program_hears_of_its_memory_is_what_the_driver_says_of_its_own(
    wrappers: Wrappers,
) -> None:
    """The expected values were read on an H200 for memory of cuMemAlloc, and for an address where
    nothing is allocated; those for registration (15) and export (21) are ours."""
    wrappers("""
HERE = {1: 0x77, 2: 2, 3: OURS + 16, 6: 0, 7: 5 | 1 << 62, 8: 0, 9: 3, 10: 1, 11: OURS, 12: 4096,
        13: 1, 14: 0, 15: 0, 16: 3, 17: 0, 18: 4096, 19: OURS, 20: 5 | 1 << 62, 21: 0}
WIDE = {1, 3, 4, 7, 11, 12, 14, 17, 18, 19, 20}
UNTOUCHED = 0x5555555555555555
def ask(attribute, address, many):
    data = u64(UNTOUCHED)
    if many:
        pointer = ctypes.c_void_p(ctypes.addressof(data))
        result = call("cuPointerGetAttributes", 1, ctypes.byref(ctypes.c_int(attribute)),
                      ctypes.byref(pointer), address)
    else:
        result = call("cuPointerGetAttribute", ctypes.byref(data), attribute, address)
    wide = attribute in WIDE or data.value == UNTOUCHED
    assert wide or data.value >> 32 == 0x55555555
    return result, data.value if wide else data.value & 0xFFFFFFFF
for attribute, value in HERE.items():
    for many in (False, True):
        assert ask(attribute, OURS + 16, many) == (0, value), (attribute, many)
assert ask(4, OURS, False) == (1, 0) and ask(4, OURS, True) == (0, 0)
for attribute in (5, 22, 0, 99):
    for many in (False, True):
        assert ask(attribute, OURS, many) == (1, UNTOUCHED)
NOWHERE = {1: 0, 2: 0, 3: 0, 4: OURS + 4096, 6: 0, 7: 0, 8: 0, 9: 2**32 - 2, 10: 0, 11: UNTOUCHED,
           12: UNTOUCHED, 13: 0, 14: 0, 15: 0, 16: 0, 17: 0, 18: 0, 19: 0, 20: 0, 21: 0}
for attribute, value in NOWHERE.items():
    assert ask(attribute, OURS + 4096, True) == (0, value), attribute
    assert ask(attribute, OURS + 4096, False) == (1, UNTOUCHED), attribute
assert calls("cuPointerGetAttribute") == calls("cuPointerGetAttributes") == 0
answers("cuPointerGetAttribute", a0=0x1234)
assert ask(1, 0x4000, False) == (0, 0x1234)

one = ctypes.c_uint(1)
assert call("cuPointerSetAttribute", ctypes.byref(one), 6, OURS) == 0 and core.sync_memops == 1
assert ask(6, OURS, False) == (0, 1)
assert call("cuPointerSetAttribute", ctypes.byref(one), 7, OURS) == 1
base, size = u64(), u64()
assert call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), OURS + 4095) == 0
assert (base.value, size.value) == (OURS, 4096)
assert call("cuMemGetAddressRange_v2", None, None, OURS + 4096) == 500
assert call("cuIpcGetMemHandle", ctypes.byref(base), OURS) == 1
answers("cuMemGetHandleForAddressRange", a0=7)
assert call("cuMemGetHandleForAddressRange", ctypes.byref(base), OURS, 4096, 1, 0) == 0
assert base.value == 7 and core.kept == OURS

free, total = u64(), u64()
assert call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total)) == 0
assert (free.value, total.value) == (5 * GIB, 7)
assert call("cuMemGetInfo", ctypes.byref(free), ctypes.byref(total)) == 0
assert free.value == (5 * GIB & ~0xFFFFFFFF) + 0xFFFFFFFF and total.value == 7
assert call("cuDeviceTotalMem_v2", ctypes.byref(total), 2) == 0 and total.value == 6 * GIB + 2
location = (ctypes.c_int * 2)(1, 3)
assert call("cuMemGetAccess", ctypes.byref(base), ctypes.byref(location), OURS) == 0
assert base.value == 3
location[1] = 2
assert call("cuMemGetAccess", ctypes.byref(base), ctypes.byref(location), OURS) == 0
assert base.value == 0

HOST = 0x4000
answers("cuMemHostGetDevicePointer_v2", a0=HOST)
answers("cuMemHostGetFlags", i0=2)
answers("cuMemHostUnregister")
for memory, code in ((OURS, 1), (OURS + 4096, 1), (HOST, 0)):
    assert call("cuMemHostGetDevicePointer_v2", ctypes.byref(base), memory, 0) == code
    assert call("cuMemHostGetFlags", ctypes.byref(base), memory) == code
    assert call("cuMemHostUnregister", memory) == code
for name in ("cuMemHostGetDevicePointer_v2", "cuMemHostGetFlags", "cuMemHostUnregister"):
    assert calls(name) == 1, name
MAPPED = 0x70000000
core.mapped = 1
assert call("cuMemHostGetDevicePointer_v2", ctypes.byref(base), MAPPED, 0) == 0
assert base.value == MAPPED
assert call("cuMemHostGetFlags", ctypes.byref(base), MAPPED) == 0 and base.value & 2**32 - 1 == 3
assert call("cuMemHostUnregister", MAPPED) == 1
assert calls("cuMemHostGetDevicePointer_v2") == calls("cuMemHostUnregister") == 1
""")
