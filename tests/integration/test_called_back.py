# SPDX-License-Identifier: Apache-2.0
"""A CUPTI tool calls the driver in its callback, also while the library itself calls the driver."""

from tests.integration.conftest import Site
from tests.integration.programs import Program

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


def test_driver_call_in_a_cupti_callback_returns_while_the_library_calls_the_driver(
    site: Site
) -> None:
    site.start("--tq", "200ms")
    program = Program(site, WATCHED)
    program.evict()
    program.ends_well()
