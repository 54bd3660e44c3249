# SPDX-License-Identifier: Apache-2.0
"""A program gets the error of a context that fails while swapped at the next call."""

import pytest

from nvshared.units import MIB
from tests.integration.conftest import SAMPLED_OFTEN, Site, wait_until
from tests.integration.programs import PRELUDE, Program
from tests.integration.test_pools import POOLS

ILLEGAL_ADDRESS = 700

# Calls the driver without the library's wrapper, and so without waiting for a turn: a kernel with a
# wrong address breaks the context of a program without a turn, as a failing card does.
BEHIND_THE_LIBRARY = '''
import struct
def behind_the_library(name):
    "Returns the driver's function of this name, found in the symbol table of its file."
    with open("/proc/self/maps") as maps:
        places = [line.split() for line in maps if "/libcuda.so" in line]
    place, path = next((p[0], p[-1]) for p in places if int(p[2], 16) == 0)
    with open(path, "rb") as file:
        image = file.read()
    start, = struct.unpack_from("<Q", image, 40)
    size, number = struct.unpack_from("<HH", image, 58)
    sections = [struct.unpack_from("<IIQQQQI", image, start + i * size) for i in range(number)]
    table = next(section for section in sections if section[1] == 11)
    names = sections[table[6]][4]
    for at in range(table[4], table[4] + table[5], 24):
        named, _, _, value, _ = struct.unpack_from("<IHHQQ", image, at)
        if image.startswith(name.encode() + b"\\0", names + named):
            return ctypes.CFUNCTYPE(c_int)(int(place.split("-")[0], 16) + value)
    raise LookupError(name)
'''
BROKEN = PRELUDE + BEHIND_THE_LIBRARY + '''
filling, stream, address = kernel("fill"), new_stream(), c_uint64(allocate(64 * MIB))
put(address, noise(64 * MIB))
away()
values = [c_uint64(reserve(2 * MIB)), c_uint64(8), c_uint64(1)]
passed = (c_void_p * 3)(*(ctypes.cast(byref(value), c_void_p) for value in values))
shape = [c_uint(1) for _ in range(6)] + [c_uint(0)]
results = [behind_the_library("cuLaunchKernel")(filling, *shape, stream, passed, None)]
results.append(behind_the_library("cuCtxSynchronize")())
two = ctypes.create_string_buffer(2)
results.append(cuda.cuMemcpyDtoH_v2(two, address, c_size_t(2)))
results.append(cuda.cuMemsetD8Async(address, 0, c_size_t(2), stream))
results.append(cuda.cuLaunchKernel(filling, *shape, stream, passed, None))
cuda.cuMemFree_v2(address)               # may succeed, as no block has to be loaded
results.append(cuda.cuCtxSynchronize())
say(results)
'''


def test_swapped_program_gets_the_drivers_error_when_the_card_is_lost(site: Site) -> None:
    """The holder, a played client, answers no STOP after the card is lost."""
    lost = site.folder / "lost"
    site.module = "tests.integration.changed"
    site.start("--tq", "1", NVSHARE_TEST_LOST=str(lost), **SAMPLED_OFTEN)
    program = Program(site, BROKEN.removeprefix(PRELUDE))
    assert program.hears() == "away"
    site.holding()
    program.go_on()
    lost.touch()
    assert program.hears() == [0, *[ILLEGAL_ADDRESS] * 5]
    program.ends_well()
    assert "fault gpu-lost: the driver does not find GPU 0" in site.log.read_text()


AWAY = PRELUDE + '''
address = allocate(256 * MIB)
data = noise(64 * MIB)                   # only a part of the memory, because the whole takes long
put(address, data)
away()
assert get(address, len(data)) == data
print(json.dumps("right"))
'''


# Allocates memory of each kind, then runs a kernel that accesses an unmapped address.
FAILED = PRELUDE + POOLS + '''
own, (mapped, handle), managed = stream(), map_memory(64 * MIB), c_uint64()
plain, little = c_uint64(allocate(600 * MIB)), c_uint64(allocate(4096))
call("cuMemAllocManaged", byref(managed), 64 * MIB, c_uint(1))
ordered = take(64 * MIB, own)
for address, size in ((mapped, 64), (plain.value, 64), (ordered, 64)):
    fill(address, 7, size * MIB)
ctypes.memset(managed.value, 7, 64 * MIB)
launch(kernel("fill"), own, reserve(2 * MIB), 8, 1)
call("cuCtxSynchronize", result=700)
away()
two = ctypes.create_string_buffer(2)
results = [cuda.cuMemcpyDtoH_v2(two, c_uint64(address), c_size_t(2))
           for address in (mapped, plain.value, little.value, ordered, managed.value)]
say(results)
cuda.cuMemFree_v2(plain)
cuda.cuMemFree_v2(little)
cuda.cuMemFreeAsync(c_uint64(ordered), c_uint64(own))
cuda.cuMemUnmap(c_uint64(mapped), c_size_t(64 * MIB))
cuda.cuMemRelease(c_uint64(handle))
cuda.cuMemFree_v2(managed)
cuda.cuMemAlloc_v2(byref(plain), c_size_t(64 * MIB))
results = [cuda.cuMemsetD8_v2(plain, 1, c_size_t(64 * MIB)), cuda.cuCtxSynchronize()]
say(results)
cuda.cuDevicePrimaryCtxRelease_v2(0)
'''


def test_memory_of_a_failed_context_is_freed_for_other_clients(site: Site) -> None:
    """The program keeps its process after the failure, as a notebook after a failed cell does."""
    site.start("--tq", "1")
    program = Program(site, FAILED.removeprefix(PRELUDE))
    assert program.hears() == "away"
    other = Program(site, AWAY.removeprefix(PRELUDE).replace("256", "900"))
    assert other.hears() == "away"
    other.go_on()
    assert other.hears() == "right"
    other.ends_well()
    program.go_on()
    assert program.hears() == [ILLEGAL_ADDRESS] * 5
    assert program.hears() == [ILLEGAL_ADDRESS] * 2
    program.ends_well()


# Another thread causes a LOAD of the memory, and the context fails during that LOAD.
COMING = BROKEN.replace("64 * MIB", "256 * MIB").replace("away()\n", '''away()
import threading, time
def wants():
    call("cuCtxSetCurrent", context)
    cuda.cuMemsetD8_v2(address, 0, c_size_t(2))
thread = threading.Thread(target=wants)
thread.start()
time.sleep(DELAY)
''').replace("two = ", "thread.join()\ntwo = ") + "sys.stdin.readline()\n"


@pytest.mark.parametrize("delay", [
    0.3, *(pytest.param(one, marks=pytest.mark.long) for one in (0.1, 0.2, 0.4, 0.5, 0.6)),
])
def test_context_failure_during_a_load_leaves_zero_bytes_allocated_and_resident_in_the_trace(
    site: Site, delay: float
) -> None:
    """A LOAD fails while copies of the next LOAD are in flight."""
    site.environment["NVSHARE_SIM_COPY_RATE"] = "250M"
    site.start("--tq", "1", "--trace", str(site.folder / "trace"))
    program = Program(site, COMING.replace("DELAY", str(delay)).removeprefix(PRELUDE))
    assert program.hears() == "away"
    site.holding().close()
    program.go_on()
    assert program.hears() == [0, *[ILLEGAL_ADDRESS] * 5]

    def empty() -> bool:
        memory = [one["memory"] for one in site.trace() if "memory" in one and one["client"] == 1]
        return (memory[-1]["allocated"], memory[-1]["resident"]) == (0, 0)

    wait_until(empty)
    site.holding(700 * MIB).close()     # other clients continue
    program.finish()
