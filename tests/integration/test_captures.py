# SPDX-License-Identifier: Apache-2.0
"""Driver calls during a capture have the same results as without the library."""

from tests.integration.conftest import Site
from tests.integration.programs import FUTEX, PRELUDE, alone, ends_well, under

GLOBAL, THREAD_LOCAL, RELAXED = range(3)
MODES = "GLOBAL, THREAD_LOCAL, RELAXED = range(3)\n"
REFUSED, BROKEN, IS_BROKEN = 900, 901, 2

ASK = PRELUDE + '''
import threading
address, other, pitch = c_uint64(), c_uint64(allocate(4 * MIB)), c_uint64()
stream, side = new_stream(), new_stream()

def allocated(size):
    call("cuMemAlloc_v2", byref(address), size)
def allocated_in_stream():
    call("cuMemAllocAsync", byref(address), 4096, side)
    call("cuStreamSynchronize", side)
def free():
    if address.value:
        call("cuMemFree_v2", address)
def nothing():
    pass

# Name of a case: the call under test, its preparation, and its clean-up. Preparation and clean-up
# run outside the capture. None: a successful call has cleaned up, else free() does.
CALLS = {
    "allocate little": (lambda: cuda.cuMemAlloc_v2(byref(address), c_size_t(4096)), nothing, free),
    "allocate much": (lambda: cuda.cuMemAlloc_v2(byref(address), c_size_t(8 * MIB)), nothing, free),
    "allocate nothing": (lambda: cuda.cuMemAlloc_v2(byref(address), c_size_t(0)), nothing, free),
    "allocate too much":
        (lambda: cuda.cuMemAlloc_v2(byref(address), c_size_t(1 << 45)), nothing, free),
    "allocate rows": (lambda: cuda.cuMemAllocPitch_v2(
        byref(address), byref(pitch), c_size_t(100), c_size_t(100), 4), nothing, free),
    "allocate managed":
        (lambda: cuda.cuMemAllocManaged(byref(address), c_size_t(4096), 1), nothing, free),
    "allocate in a stream":
        (lambda: cuda.cuMemAllocAsync(byref(address), c_size_t(4096), side), nothing, free),
    "free little": (lambda: cuda.cuMemFree_v2(address), lambda: allocated(4096), None),
    "free much": (lambda: cuda.cuMemFree_v2(address), lambda: allocated(8 * MIB), None),
    "free a pool's": (lambda: cuda.cuMemFree_v2(address), allocated_in_stream, None),
    "free managed": (lambda: cuda.cuMemFree_v2(address), lambda: call(
        "cuMemAllocManaged", byref(address), 4096, c_uint(1)), None),
    "free in a stream": (lambda: cuda.cuMemFreeAsync(address, side), allocated_in_stream, None),
    "free an inner address":
        (lambda: cuda.cuMemFree_v2(c_uint64(other.value + 512)), nothing, nothing),
    "set an attribute": (lambda: cuda.cuPointerSetAttribute(
        byref(c_int(1)), c_int(6), other), nothing, nothing),
    "free none": (lambda: cuda.cuMemFree_v2(c_uint64(0)), nothing, nothing),
}

def asked(make, thread_mode):
    mode = c_int(thread_mode)
    call("cuCtxSetCurrent", context)
    call("cuThreadExchangeStreamCaptureMode", byref(mode))
    answers.append(make())
    call("cuThreadExchangeStreamCaptureMode", byref(mode))

found = {}
for name, (make, before, after) in CALLS.items():
    for mode in range(3):
        for elsewhere, thread_mode in ((False, 0), (False, 2), (True, 0), (True, 1)):
            address.value, status, graph, answers = 0, c_int(), c_void_p(), []
            before()
            call("cuStreamBeginCapture_v2", stream, c_int(mode))
            if elsewhere:
                thread = threading.Thread(target=asked, args=(make, thread_mode))
                thread.start()
                thread.join()
            else:
                asked(make, thread_mode)
            call("cuStreamIsCapturing", stream, byref(status))
            ended = cuda.cuStreamEndCapture(stream, byref(graph))
            if graph:
                call("cuGraphDestroy", graph)
            if after is not None:
                after()
            elif answers == [900]:
                free()              # the memory is still allocated and intact
            found[f"{name}, {mode}, {elsewhere}, {thread_mode}"] = (*answers, status.value, ended)
call("cuCtxSynchronize")
print(json.dumps(found))
'''


def test_allocations_and_frees_during_a_capture_return_the_drivers_results(site: Site) -> None:
    site.start()
    expected = alone(site, ASK)
    assert under(site, ASK) == expected
    for name in ("allocate little", "free little", "allocate in a stream", "free in a stream"):
        assert expected[f"{name}, {GLOBAL}, {False}, 0"] == [REFUSED, IS_BROKEN, BROKEN]
        assert expected[f"{name}, {GLOBAL}, {True}, 0"] == [REFUSED, IS_BROKEN, BROKEN]
        assert expected[f"{name}, {THREAD_LOCAL}, {True}, 0"] == [0, 1, 0]
        assert expected[f"{name}, {RELAXED}, {False}, 0"] == [0, 1, 0]


FREED_MEANWHILE = '''
import threading, time
waiting, filling, graph = kernel("wait_flag"), kernel("fill"), c_void_p()
first, second = allocate(8 * MIB), allocate(8 * MIB)
streams = [new_stream() for _ in range(3)]
flags = c_void_p()
call("cuMemHostAlloc", byref(flags), 8, c_uint(2))
reached = (c_uint * 2).from_address(flags.value)
reached[:] = (0, 0)
def free_second():
    call("cuCtxSetCurrent", context)
    call("cuMemFree_v2", second)

launch(waiting, streams[0], flags.value, 1)
thread = threading.Thread(target=free_second)
thread.start()                           # its cuMemFree waits for the work in flight
looks = 0
while looks < 5:                         # 5 in sequence: one futex wait may be for Python's lock
    time.sleep(0.01)
    with open(f"/proc/self/task/{thread.native_id}/syscall") as file:
        looks = looks + 1 if file.read().startswith(f"{FUTEX} ") else 0
launch(waiting, streams[1], flags.value + 4, 1)
launch(filling, streams[1], first, MIB, 77, blocks=64, threads=256)
call("cuStreamBeginCapture_v2", streams[2], c_int(RELAXED))
call("cuMemFree_v2", first)              # during the capture no wait is possible
call("cuStreamEndCapture", streams[2], byref(graph))
reached[0] = 1
thread.join()
reached[1] = 1
call("cuStreamSynchronize", streams[1])
call("cuCtxSynchronize")
'''


def test_memory_freed_during_a_capture_stays_mapped_until_its_work_is_done(site: Site) -> None:
    """A free by another thread waits for earlier work, not for work that began after it."""
    # The newest driver: the library waits for whole contexts instead of querying streams.
    site.environment["NVSHARE_SIM_DRIVER"] = ""
    ends_well(site, f"{MODES}FUTEX = {FUTEX}\n" + FREED_MEANWHILE)


FREED_AND_NEEDED = '''
address, other, graph = c_uint64(), c_uint64(), c_void_p()
kind = Properties(1, 0, Location(1, 0))
square = (c_uint64 * 3)(30720, 30720, 1 << 32 | 1)           # 30720 * 30720 bytes: 900 MiB
def allocated(result=0):
    call("cuMemAlloc_v2", byref(other), 900 * MIB, result=result)
def allocated_in_stream(result=0):
    call("cuMemAllocAsync", byref(other), 900 * MIB, stream, result=result)
def created(result=0):
    call("cuMemCreate", byref(other), 900 * MIB, byref(kind), 0, result=result)
def arranged(result=0):
    call("cuArrayCreate_v2", byref(other), square, result=result)
def made_managed(result=0):
    call("cuMemAllocManaged", byref(other), 900 * MIB, c_uint(1), result=result)
def created_to_be_shared(result=0):
    call("cuMemCreate", byref(other), 900 * MIB, byref(Properties(1, 1, Location(1, 0))), 0,
         result=result)
def freed_in_stream():
    call("cuMemFreeAsync", other, stream)
    call("cuStreamSynchronize", stream)  # no allocation itself waits like this
WAYS = {
    "plain": (allocated, lambda: call("cuMemFree_v2", other)),
    "in a stream": (allocated_in_stream, freed_in_stream),
    "created": (created, lambda: call("cuMemRelease", other)),
    "array": (arranged, lambda: call("cuArrayDestroy", other)),
    "managed": (made_managed, lambda: call("cuMemFree_v2", other)),
    "to be shared": (created_to_be_shared, lambda: call("cuMemRelease", other)),
    "in another context": (allocated, lambda: call("cuMemFree_v2", other)),
}
another = new_context()
call("cuCtxSetCurrent", context)
stream = new_stream()
for way, (take, give) in WAYS.items():
    print(way, file=sys.stderr)          # the test's report shows the failed one last
    call("cuMemAlloc_v2", byref(address), 900 * MIB)
    call("cuMemsetD8Async", address, 1, 64 * MIB, stream)
    call("cuStreamBeginCapture_v2", stream, c_int(RELAXED))
    call("cuMemFree_v2", address)
    if way != "in a stream":             # an allocation in a stream would become a graph node
        take(result=2)
    call("cuStreamEndCapture", stream, byref(graph))
    if way == "in another context":
        call("cuCtxPushCurrent_v2", another)
    take()
    give()
    call("cuCtxSetCurrent", context)
'''


def test_memory_freed_during_a_capture_is_reused_when_the_card_is_full(site: Site) -> None:
    """The card has 1024 MiB. No thread can wait for work during a capture."""
    ends_well(site, MODES + FREED_AND_NEEDED)


SHARED_MEANWHILE = '''
import threading, time
address, stream, graph = allocate(4 * MIB), new_stream(), c_void_p()
handle = (ctypes.c_ubyte * 64)()
begun = threading.Event()
def captures():
    call("cuCtxSetCurrent", context)
    call("cuStreamBeginCapture_v2", stream, c_int(THREAD_LOCAL))
    begun.set()
    time.sleep(0.5)
    call("cuStreamEndCapture", stream, byref(graph))
thread = threading.Thread(target=captures)
thread.start()
begun.wait()
call("cuIpcGetMemHandle", handle, address)
thread.join()
assert graph.value
'''


def test_memory_export_waits_until_another_threads_capture_has_ended(site: Site) -> None:
    ends_well(site, MODES + SHARED_MEANWHILE)


BESIDE_A_COPY = PRELUDE + '''
import threading
address, stream = allocate(4 * MIB), new_stream()
entered, goes_on = threading.Event(), threading.Event()
@ctypes.CFUNCTYPE(None, c_void_p)
def wait(unused):
    entered.set()
    goes_on.wait()
def copy():
    call("cuCtxSetCurrent", context)
    get(address, 1 * MIB)
def sleeps():
    "How often this thread has slept."
    with open("/proc/thread-self/status") as file:
        return int(dict(line.split(":") for line in file)["voluntary_ctxt_switches"])
fill(address, 1, 4 * MIB)
call("cuLaunchHostFunc", None, wait, None)
entered.wait()
copying = threading.Thread(target=copy)
copying.start()
graph = c_uint64()
def captures(count):
    before = sleeps()
    for _ in range(count):
        call("cuStreamBeginCapture_v2", stream, c_int(2))
        call("cuStreamEndCapture", stream, byref(graph))
        call("cuGraphDestroy", graph)
    return sleeps() - before
slept = captures(100)
goes_on.set()
copying.join()
assert slept < 100, slept
'''


def test_capture_does_not_wait_for_a_copy_of_another_thread(site: Site) -> None:
    """The copy waits for work, and so is inside the gate for as long as all the captures."""
    ends_well(site, BESIDE_A_COPY)
