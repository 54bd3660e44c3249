# SPDX-License-Identifier: Apache-2.0
"""A CUPTI tool calls the driver in its callback, also while the library itself calls the driver."""

import pytest

from tests.integration import conftest
from tests.integration.conftest import Site
from tests.integration.programs import Program
from tests.integration.test_random_handovers import built


@pytest.fixture(autouse=True, params=["", pytest.param("locks", marks=pytest.mark.long)])
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With "locks", the library checks the order of its locks, in callbacks, too (locks.def)."""
    if request.param:
        with built(request.param) as folder:
            monkeypatch.setattr(conftest, "BUILD", folder)


WATCHED = '''
import faulthandler, threading
faulthandler.dump_traceback_later(120, exit=True)
library = ctypes.CDLL("libcuda.so.1")
seen, wrong = set(), []
@ctypes.CFUNCTYPE(None, ctypes.c_char_p)
def watches(name):
    seen.add(name.decode())
    for asks in asks_for_room, asks_about_memory, allocates:
        code = asks()
        if code not in (0, 201):             # 201: a thread of the library has no context yet
            wrong.append((name.decode(), asks.__name__, code))
def asks_for_room():
    free, total = c_size_t(), c_size_t()
    return cuda.cuMemGetInfo_v2(byref(free), byref(total))
def asks_about_memory():
    kind = c_uint()
    code = cuda.cuPointerGetAttribute(byref(kind), c_int(2), address)
    return code if code != 1 else 0          # INVALID_VALUE, for an unknown address, is an answer
def allocates():
    there = c_uint64()
    return cuda.cuMemAlloc_v2(byref(there), c_size_t(1 * MIB)) or cuda.cuMemFree_v2(there)
address, other = c_uint64(), c_uint64()
library.simulator_subscribe(watches)
address.value = allocate(64 * MIB)
put(address, b"a" * (1 * MIB))
here, handle = map_memory(8 * MIB)
stream = new_stream()
call("cuMemAllocAsync", byref(other), 1 * MIB, stream)
call("cuMemFreeAsync", other, stream)
call("cuStreamSynchronize", stream)
away()
assert get(address, 1 * MIB) == b"a" * (1 * MIB)
call("cuMemUnmap", here, 8 * MIB)
call("cuMemRelease", handle)
call("cuMemFree_v2", address)
library.simulator_subscribe(None)
assert not wrong, wrong
# Driver calls that the library makes with memory_lock held, on both threads.
assert {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease"} <= seen, seen
'''


# One thread begins a capture, another ends a context; both make the library call the driver. The
# tool's callback in the second thread lasts until that in the first has begun to ask for memory.
CAPTURE_BESIDE_END = '''
import faulthandler, threading
faulthandler.dump_traceback_later(120, exit=True)
library = ctypes.CDLL("libcuda.so.1")
captures, ends, called, answers = threading.get_ident(), threading.Event(), threading.Event(), []
@ctypes.CFUNCTYPE(None, ctypes.c_char_p)
def watches(name):
    if threading.get_ident() == captures and name == b"cuEventCreate" and not called.is_set():
        called.set()
        free, total = c_size_t(), c_size_t()
        answers.append(cuda.cuMemGetInfo_v2(byref(free), byref(total)))
    elif threading.get_ident() == other.ident and name == b"cuMemRelease" and not ends.is_set():
        ends.set()
        called.wait()
def end_a_context():
    context, memory = new_context(), allocate(8 * MIB)
    fill(memory, 1, 8 * MIB)
    call("cuMemFreeAsync", memory, new_stream())
    call("cuCtxDestroy_v2", context)     # releases that memory
stream, graph = new_stream(), c_uint64()
other = threading.Thread(target=end_a_context)
library.simulator_subscribe(watches)
other.start()
ends.wait()
call("cuStreamBeginCapture_v2", stream, c_int(2))
call("cuStreamEndCapture", stream, byref(graph))
other.join()
library.simulator_subscribe(None)
assert answers == [0], answers
'''


CALLS = '''
import faulthandler, threading
faulthandler.dump_traceback_later(120, exit=True)
library = ctypes.CDLL("libcuda.so.1")
class Pool(ctypes.Structure):
    _fields_ = [("type", c_int), ("handles", c_int), ("location", Location),
                ("rest", c_uint64 * 10)]
def make(name, *arguments):
    made = c_uint64()
    assert cuda[name](byref(made), *arguments) == 0, name
    return made
def calls():
    "The functions, with their arguments."
    reserved, mapped = c_uint64(reserve(GRAIN)), c_uint64(reserve(GRAIN))
    pools = [make("cuMemPoolCreate", byref(Pool(1, 0, Location(1, 0)))) for _ in range(2)]
    streams, handle = [new_stream(), new_stream()], c_uint64(create(GRAIN))
    other = new_context()
    call("cuCtxSetCurrent", context)
    shared, size, there = Handle(), c_size_t(GRAIN), c_uint64()
    text, graph = (c_uint64 * 8)(), c_uint64()
    memory = allocate(8 * MIB)
    fill(memory, 1, 8 * MIB)              # from now on there is room, and memory is mapped at once
    return list({
        "cuMemGetInfo_v2": (byref(text), byref(there)),
        "cuMemAlloc_v2": (byref(text), size), "cuMemFree_v2": (c_uint64(memory),),
        "cuMemAllocManaged": (byref(text), size, c_uint(1)),
        "cuMemAllocAsync": (byref(there), size, None), "cuMemFreeAsync": (there, None),
        "cuMemAddressReserve": (byref(text), size, size, c_uint64(), c_uint64()),
        "cuMemAddressFree": (reserved, size),
        "cuMemCreate": (byref(text), size, byref(Properties(1, 0, Location(1, 0))), c_uint64()),
        "cuMemMap": (mapped, size, c_size_t(), handle, c_uint64()),
        "cuMemSetAccess": (mapped, size, byref(Access(Location(1, 0), 3)), c_size_t(1)),
        "cuMemUnmap": (mapped, size), "cuMemRelease": (handle,),
        "cuMemExportToShareableHandle": (byref(text), handle, c_int(1), c_uint64()),
        "cuMemPoolCreate": (byref(text), byref(Pool(1, 0, Location(1, 0)))),
        "cuMemPoolTrimTo": (pools[0], size), "cuMemPoolSetAccess": (pools[0], None, c_size_t()),
        "cuMemPoolGetAttribute": (pools[0], c_int(5), byref(text)),
        "cuMemPoolSetAttribute": (pools[0], c_int(4), byref(c_uint64())),
        "cuMemPoolDestroy": (pools[0],),
        "cuIpcGetMemHandle": (byref(shared), c_uint64(memory)),
        "cuIpcOpenMemHandle_v2": (byref(text), shared, c_uint(1)),
        "cuIpcCloseMemHandle": (reserved,),
        "cuStreamCreate": (byref(text), c_uint(1)), "cuStreamDestroy_v2": (streams[0],),
        "cuStreamBeginCapture_v2": (streams[1], c_int(2)),
        "cuStreamEndCapture": (streams[1], byref(graph)),
        "cuArrayCreate_v2": (byref(text), (c_uint64 * 3)(64, 64, 1 << 32 | 0x20)),
        "cuPointerGetAttribute": (byref(text), c_int(2), c_uint64(memory)),
        "cuMemsetD32Async": (c_uint64(memory), c_uint(1), c_size_t(1), None),
        "cuCtxEnablePeerAccess": (context, c_uint()),
        "cuDevicePrimaryCtxRetain": (byref(text), c_int()),
        "cuDevicePrimaryCtxRelease_v2": (c_int(),),
        "cuCtxDestroy_v2": (other,), "cuCtxCreate_v2": (byref(text), c_uint(), c_int()),
    }.items())
def make_next(calls):
    """Makes the first of the calls. A capture that it begins ends at once, as a drain waits for its
    end; a context that it creates does not stay current."""
    function, arguments = calls.pop(0)
    cuda[function](*arguments)
    if function == "cuStreamBeginCapture_v2":
        make_next(calls)
    elif function == "cuCtxCreate_v2":
        cuda.cuCtxPopCurrent_v2(byref(c_uint64()))
'''

# In the callback of a driver call that the library makes under memory_lock, in a thread of the
# program and in the library's own, a tool calls one function after the other, each thread with
# handles of its own: the driver may give a destroyed one to another object.
ALL_FUNCTIONS = CALLS + '''
of_program, of_library = calls(), calls()
todo = {threading.get_native_id(): of_program}
@ctypes.CFUNCTYPE(None, ctypes.c_char_p)
def watches(name):
    mine = todo.setdefault(threading.get_native_id(), of_library)
    if name == b"cuMemCreate" and mine:
        make_next(mine)
library.simulator_subscribe(watches)
while of_program:
    call("cuMemFree_v2", allocate(9 * MIB))
call("cuCtxSetCurrent", context)
blocks = [allocate(9 * MIB) for _ in range(2 * len(of_library))]
fill(blocks[0], 1, 9 * MIB)
away()
assert get(blocks[0], 9 * MIB) == bytes([1]) * (9 * MIB)
library.simulator_subscribe(None)
assert of_library == []
'''


# A drain for an exclusive action holds service_lock, and in some calls capture_lock, too. Meanwhile
# the gate is closed, and the service thread carries out no order.
IN_A_DRAIN = CALLS + '''
main, todo, shared = threading.get_ident(), [], Handle()
@ctypes.CFUNCTYPE(None, ctypes.c_char_p)
def watches(name):
    if threading.get_ident() == main and todo and name == todo[0]:
        make_next(todo[1])
        todo.clear()
library.simulator_subscribe(watches)
for place in b"cuCtxRecordEvent", b"cuEventQuery", b"cuCtxSetCurrent":
    mine = calls()
    while mine:
        memory = allocate(8 * MIB)
        todo[:] = [place, mine]
        call("cuIpcGetMemHandle", byref(shared), memory)
        assert not todo, todo
library.simulator_subscribe(None)
'''


def test_each_function_returns_in_a_cupti_callback_under_the_librarys_lock(site: Site) -> None:
    site.environment["NVSHARE_KEEP_FREED_MS"] = "0"
    site.start("--tq", "200ms")
    program = Program(site, ALL_FUNCTIONS)
    program.evict()
    program.ends_well()


def test_driver_call_in_a_cupti_callback_returns_while_the_library_calls_the_driver(
    site: Site
) -> None:
    site.start("--tq", "200ms")
    program = Program(site, WATCHED)
    program.evict()
    program.ends_well()


def test_capture_begins_in_a_tools_callback_beside_the_end_of_a_context(site: Site) -> None:
    site.environment["NVSHARE_KEEP_FREED_MS"] = "0"
    site.start()
    Program(site, CAPTURE_BESIDE_END).ends_well()


def test_each_function_returns_in_a_cupti_callback_under_the_lock_of_orders(site: Site) -> None:
    site.start()
    Program(site, IN_A_DRAIN).ends_well()
