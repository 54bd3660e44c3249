# SPDX-License-Identifier: Apache-2.0
"""Contexts are created and destroyed while other contexts of the process have work in flight."""

import shutil

from tests.integration.conftest import ROOT, Site
from tests.integration.programs import PRELUDE, alike, under
from tests.integration.test_pools import POOLS

# wait_in() submits work that waits until the program sets the word `reached`.
WAITING = PRELUDE + '''
import threading, time
GLOBAL, THREAD_LOCAL, RELAXED = range(3)
home, flag = c_void_p(context.value), c_void_p()
call("cuMemHostAlloc", byref(flag), 64, c_uint(3))           # for all contexts
reached = c_uint.from_address(flag.value)
reached.value = 0
def wait_in(stream):
    launch(kernel("wait_flag"), stream, flag.value, 1)
def in_thread(name, *arguments):
    results = []
    def runs():
        results.append(cuda[name](*arguments))
    thread = threading.Thread(target=runs)
    thread.start()
    time.sleep(0.2)                      # by now the thread waits in its call
    return thread, results
'''


RETAINED = WAITING + '''
again = c_void_p()
wait_in(None)
thread, results = in_thread("cuDevicePrimaryCtxRelease_v2", 0)
threading.Timer(0.3, lambda: setattr(reached, "value", 1)).start()
call("cuDevicePrimaryCtxRetain", byref(again), 0)
call("cuCtxSetCurrent", again)
address, data = allocate(64 * MIB), noise(64 * MIB)
put(address, data)
thread.join()
call("cuCtxSynchronize")
print(json.dumps([results, get(address, len(data)) == data]))
'''


def test_primary_context_retained_during_its_release_behaves_as_without_the_library(
    site: Site
) -> None:
    alike(site, RETAINED)


IN_VAIN = PRELUDE + '''
results = [cuda.cuDevicePrimaryCtxRelease_v2(0) for _ in range(3)]
address = c_uint64()
call("cuDevicePrimaryCtxRetain", byref(context), 0)
call("cuCtxSetCurrent", context)
call("cuMemAlloc_v2", byref(address), 64 * MIB)
call("cuDevicePrimaryCtxReset_v2", 0)
results += [cuda.cuDevicePrimaryCtxRelease_v2(0) for _ in range(2)]
call("cuDevicePrimaryCtxRetain", byref(context), 0)
call("cuCtxSetCurrent", context)
call("cuMemAlloc_v2", byref(address), 900 * MIB)
print(json.dumps(results))
'''


def test_release_of_an_unretained_primary_context_fails_as_without_the_library(site: Site) -> None:
    alike(site, IN_VAIN)


FROM_A_POOL = WAITING + POOLS + '''
setting(THRESHOLD, FOR_EVER)
captured, graph, mine, own = new_stream(), c_void_p(), stream(), new_context()
theirs, size = stream(), 8 * MIB
first = take(size, theirs)
wait_in(c_uint64(theirs))
call("cuMemsetD8Async", first, 1, size, theirs)
give(first, theirs)
call("cuCtxSetCurrent", home)
call("cuStreamBeginCapture_v2", captured, c_int(RELAXED))
thread, results = in_thread("cuCtxDestroy_v2", own)
call("cuThreadExchangeStreamCaptureMode", byref(c_int(RELAXED)))
second = take(size, mine)
put(second, bytes([7]) * size)
reached.value = 1
thread.join()
call("cuStreamEndCapture", captured, byref(graph))
print(json.dumps([results, first == second, get(second, 4)[0]]))
'''


def test_pool_memory_is_not_reused_until_the_work_of_an_ending_context_is_done(site: Site) -> None:
    alike(site, FROM_A_POOL)


TAKEN_BEHIND_BOTH = WAITING + POOLS + '''
made = []
for _ in range(2):                       # the work of each context waits for its own flag
    made.append(new_context())
    own = stream()
    address = take(300 * MIB, own)
    wait_in(c_uint64(own))
    give(address, own)
    flag = c_void_p(flag.value + 4)
taken = c_uint64()
call("cuCtxSetCurrent", home)
call("cuMemAlloc_v2", byref(taken), 900 * MIB, result=2)     # fails at once, like the driver
flags = [c_uint.from_address(flag.value - 4 * i) for i in (2, 1)]
flags[GOES].value = 1
threading.Timer(0.3, lambda: setattr(flags[1 - GOES], "value", 1)).start()
call("cuCtxDestroy_v2", made[GOES])      # waits for the work of both contexts
call("cuCtxSetCurrent", made[1 - GOES])
call("cuCtxSynchronize")
call("cuCtxSetCurrent", home)
call("cuMemAlloc_v2", byref(taken), 900 * MIB)
print(json.dumps(taken.value != 0))
'''


def test_context_destruction_succeeds_while_pool_memory_of_two_contexts_has_work_in_flight(
    site: Site
) -> None:
    site.start()
    for goes in range(2):
        assert under(site, TAKEN_BEHIND_BOTH.replace("GOES", str(goes))) is True


DEFAULT_STREAMS = WAITING + POOLS + '''
own, size = new_context(), 8 * MIB
first = take(size, 0)
wait_in(None)
call("cuMemsetD8Async", first, 1, size, 0)
give(first, 0)                           # freed in stream order behind this work
call("cuCtxSetCurrent", home)
second = take(size, 0)                   # in the default stream of another context
put(second, bytes([7]) * size)
reached.value = 1
call("cuCtxSetCurrent", own)
call("cuCtxSynchronize")
call("cuCtxSetCurrent", home)
print(json.dumps([first == second, get(second, 4)[0]]))
'''


def test_pool_memory_freed_in_a_default_stream_is_not_reused_in_another_contexts_default_stream(
    site: Site
) -> None:
    """With a driver older than CUDA 12, which has no cuStreamGetId."""
    old = site.folder / "old"
    shutil.copytree(ROOT / "libhook" / "build" / "simulator", old, symlinks=True)
    for file in old.iterdir():
        if file.is_file() and not file.is_symlink() and "cuda" in file.name:
            file.write_bytes(file.read_bytes().replace(b"\0cuStreamGetId\0", b"\0cuStreamGetIx\0"))
    site.environment["LD_LIBRARY_PATH"] = str(old)
    alike(site, DEFAULT_STREAMS)
