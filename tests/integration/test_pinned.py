# SPDX-License-Identifier: Apache-2.0
"""A grant to pin memory ends when the memory is pinned; pinned memory ends with its context."""

import select

from nvshared.units import MIB
from tests.integration.conftest import Site
from tests.integration.programs import Program, ends_well

# Several threads allocate and free pinned memory at once.
CHURNED = '''
import threading
refused = []
def pin_and_free(times):
    call("cuCtxSetCurrent", context)
    for _ in range(times):
        array = c_void_p()
        error = cuda.cuArrayCreate_v2(byref(array), (c_uint64 * 3)(1024, MIB >> 12, 1 << 32 | 0x20))
        if error:
            refused.append(error)
        else:
            call("cuArrayDestroy", array)
'''


def test_pin_requests_of_threads_that_pin_and_free_arrays_repeatedly_are_all_granted(
    site: Site
) -> None:
    """Beside the 600 MiB of another client the card has room for all arrays of 1 MiB that exist at
    once, and not for the sum of all arrays ever created. A grant counts until its array exists."""
    site.start("--tq", "1")
    hook = site.allocating(600 * MIB)
    program = Program(site, CHURNED + '''
threads = [threading.Thread(target=pin_and_free, args=(150,)) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not refused, (len(refused), set(refused))
''')
    # If host memory is short, the hook requested a COMMIT for its 600 MiB and was granted more; the
    # daemon asks it to return the unused part.
    while program.popen.poll() is None:
        if select.select([hook.socket], [], [], 0.1)[0]:
            hook.obey_next()
    program.ends_well()


# Each function allocates pinned memory, which ends with its context, except physical()'s.
CONTEXTS = '''
def mipmap(size):
    made = c_void_p()
    shape = (c_uint64 * 5)(4096, size >> 16, 0, 4 << 32 | 0x20, 0)
    call("cuMipmappedArrayCreate", byref(made), byref(shape), c_uint(1))
    return made
def managed(size):                       # on devices without concurrent managed access
    made = c_uint64()
    call("cuMemAllocManaged", byref(made), size, c_uint(1))
    return made
def physical(size):                      # memory for sparse arrays, which cannot be evicted
    made, tiles = c_uint64(), Properties(1, 0, Location(1, 0))
    tiles.flags[2] = 1
    call("cuMemCreate", byref(made), size, byref(tiles), 0)
    return made
'''


def test_pinned_memory_is_freed_when_the_context_ends(site: Site) -> None:
    """Pinned memory of other contexts stays. In all, more is allocated than the card has."""
    site.environment = {**site.environment, "NVSHARE_SIM_CONCURRENT": "0"}
    ends_well(site, CONTEXTS + '''
kept = new_array(64 * MIB)
before = used()
for make in (new_array, mipmap, managed):
    for _ in range(5):
        own = new_context()
        make(256 * MIB)
        make(64 * MIB)
        assert used() == before + 320 * MIB
        call("cuCtxDestroy_v2", own)
        assert used() == before, make.__name__
own = new_context()
gone = new_array(128 * MIB)
call("cuCtxDestroy_v2", own)
cuda.cuArrayDestroy(gone)                # any result is right: the handle is stale
assert used() == before                  # not subtracted again
fresh = [new_array(32 * MIB) for _ in range(4)]
assert used() == before + 128 * MIB
for one in fresh:
    call("cuArrayDestroy", one)
own = new_context()
handle = physical(128 * MIB)
call("cuCtxDestroy_v2", own)
assert used() == before + 128 * MIB
call("cuMemRelease", handle)
call("cuArrayDestroy", kept)
assert used() == before - 64 * MIB
# The end of the primary context, by a release or a reset, frees pinned memory of that context.
for end in ("cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxReset_v2"):
    new_array(256 * MIB)
    handle = physical(128 * MIB)
    call(end, 0)
    call("cuDevicePrimaryCtxRetain", byref(context), 0)
    call("cuCtxSetCurrent", context)
    assert used() == before + 64 * MIB, end
    call("cuMemRelease", handle)
    assert used() == before - 64 * MIB
''')
