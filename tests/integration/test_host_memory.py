# SPDX-License-Identifier: Apache-2.0
"""The place and the amount of host memory for swapped blocks."""

import ctypes
import mmap
import platform
from pathlib import Path

import pytest

from nvshared.hook.protocol import OrderRecord, Type
from nvshared.units import MIB
from tests.integration.conftest import Site, wait_until
from tests.integration.fakedaemon import begin
from tests.integration.programs import Program, evict_and_load

MBIND = {"x86_64": 237, "aarch64": 235}
PREFERRED = 1


ALONE = '''
size = 96 * MIB
address = allocate(size)
fill(address, 1, size)
away()
fill(address, 2, size)
call("cuCtxSynchronize")
pause("back")
call("cuMemFree_v2", address)
pause("freed")
'''

NEAR = '''
size = 64 * MIB
address = allocate(size)
put(address, noise(size))
away()
with open("/proc/self/numa_maps") as file:
    lines = [line.split() for line in file]
placed = [line for line in lines if line[1] == "prefer:0"]
assert any("anon=" in text for line in placed for text in line), lines
'''


KEPT = '''
def kept():
    "Addresses and sizes of mappings with MADV_DONTFORK and MADV_DONTDUMP: host memory of blocks."
    found, here, size = [], 0, 0
    with open("/proc/self/smaps") as file:
        for line in file:
            word, *rest = line.split()
            if "-" in word and ":" not in word:
                here = int(word.split("-")[0], 16)
            elif word == "Size:":
                size = int(rest[0]) * 1024
            elif word == "VmFlags:" and {"dc", "dd"} <= set(rest):
                found.append((here, size))
    return found
'''


def may_choose_nodes() -> bool:
    if not Path("/proc/self/numa_maps").exists() or platform.machine() not in MBIND:
        return False
    scratch = mmap.mmap(-1, mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(scratch))
    node = ctypes.c_ulong(1)
    answer: int = ctypes.CDLL(None).syscall(
        ctypes.c_long(MBIND[platform.machine()]), ctypes.c_void_p(address),
        ctypes.c_ulong(mmap.PAGESIZE), ctypes.c_int(PREFERRED), ctypes.byref(node),
        ctypes.c_ulong(8), ctypes.c_uint(0))
    return answer == 0


def counted(site: Site) -> list[int]:
    return [line["memory"]["host"] for line in site.trace() if "memory" in line]


def test_host_memory_of_the_only_client_is_kept_until_the_client_frees_card_memory(
    site: Site
) -> None:
    site.start("--tq", "1", "--trace", str(site.folder / "trace"))
    program = Program(site, ALONE)
    program.evict()
    assert program.hears() == "back"
    assert counted(site)[-1] > 0
    program.go_on()
    assert program.hears() == "freed"
    wait_until(lambda: counted(site)[-1] == 0)
    program.finish()


@pytest.mark.skipif(not may_choose_nodes(), reason="mbind() is not allowed here")
def test_host_memory_of_evicted_blocks_is_on_the_cards_numa_node(site: Site) -> None:
    evict_and_load(site, NEAR)


ODD = '''
size = 72 * MIB                         # not a multiple of the slab size
address = allocate(size)
data = noise(size)
put(address, data)
away()
assert get(address, size) == data
print(sum(size for _, size in kept()), flush=True)
'''


@pytest.mark.parametrize("refused", [(), (1, 2)])
def test_host_memory_mapped_for_evicted_blocks_equals_the_host_bytes_that_the_client_reports(
    site: Site, refused: tuple[int, ...]
) -> None:
    """The library reserves addresses for all slabs at once; the driver may refuse to register a
    slab."""
    failing = ",".join(f"cuMemHostRegister_v2:{call}" for call in refused)
    site.environment = {**site.environment, "NVSHARE_SIM_FAIL": failing}
    site.start("--tq", "1", "--trace", str(site.folder / "trace"))
    program = Program(site, KEPT + ODD)
    program.evict()
    mapped = program.hears()
    program.ends_well()
    assert mapped == [each for each in counted(site) if each > 0][-1]
    assert mapped >= 72 * MIB


ENDS = '''
import time
call("cuDevicePrimaryCtxRelease_v2", 0)
def begin():
    if primary:
        call("cuDevicePrimaryCtxRetain", byref(context), 0)
        call("cuCtxSetCurrent", context)
    else:
        call("cuCtxCreate_v2", byref(context), 0, 0)
def end():
    if primary:
        call("cuDevicePrimaryCtxRelease_v2", 0)
    else:
        call("cuCtxDestroy_v2", context)
for turn in range(2):
    begin()
    address = allocate(120 * MIB)
    fill(address, turn + 1, 120 * MIB)
    away()
    assert get(address + 120 * MIB - 1, 1) == bytes([turn + 1])
    held = sum(size for _, size in kept())
    end()
    while kept():
        time.sleep(0.01)
    say(held)
    sys.stdin.readline()
'''


@pytest.mark.parametrize(("failing", "primary"), [("", False), ("cuMemHostUnregister:1+", True)])
def test_host_memory_without_swapped_blocks_is_freed_after_the_context_ends(
    site: Site, failing: str, primary: bool
) -> None:
    site.environment |= {"NVSHARE_SIM_FAIL": failing}
    site.start("--tq", "1", "--trace", str(site.folder / "trace"))
    program = Program(site, f"primary = {primary}\n" + KEPT + ENDS)
    for _ in range(2):
        program.evict()
        assert program.hears() >= 120 * MIB
        wait_until(lambda: counted(site)[-1] == 0)
        program.go_on()
    program.ends_well()
    assert 120 * MIB <= max(counted(site)) < 240 * MIB


OUTLIVES = '''
call("cuDevicePrimaryCtxRelease_v2", 0)
one = new_context()
if both:
    other = new_context()
    address = allocate(32 * MIB)
else:                                   # memory that belongs to no context
    address, _ = map_memory(32 * MIB)
def registered():
    flags = c_uint()
    call_of = cuda.cuMemHostGetFlags
    return [call_of(byref(flags), c_void_p(here + size // 2)) == 0 for here, size in kept()]
for turn in range(3):
    data = noise(32 * MIB)
    put(address, data)
    away()
    if turn == 0:
        call("cuCtxDestroy_v2", one)    # its host memory still has bytes that are needed
        if not both:
            other = new_context()
    say("gone")
    sys.stdin.readline()
    assert get(address, 32 * MIB) == data
    say(registered())
'''


@pytest.mark.parametrize(("failing", "both"), [
    ("", True), ("cuMemHostRegister:2+", False), ("cuMemHostUnregister:1", True)])
def test_host_memory_of_a_destroyed_context_is_registered_again_in_another_context(
    site: Site, failing: str, both: bool
) -> None:
    """If the driver refuses to register it, copies are slower and equally correct."""
    site.environment |= {"NVSHARE_SIM_FAIL": failing}
    site.start("--tq", "1", "--writeback", "off", "--trace", str(site.folder / "trace"))
    program = Program(site, f"both = {both}\n" + KEPT + OUTLIVES)
    for _ in range(3):
        hook = program.lose_card()
        assert program.hears() == "gone"
        program.go_on()
        hook.close()
        assert program.hears() == ["Register:" not in failing]
    program.ends_well()
    assert max(counted(site)) == 32 * MIB


EXPORTABLE = '''
size = SIZE * MIB
mapped, handle = map_memory(size, handles=1)
data = noise(size)
put(mapped, data)
away()
assert get(mapped, size) == data
'''


@pytest.mark.parametrize("size", [160, 256])
def test_exportable_memory_is_evicted_although_its_block_exceeds_the_usual_step_of_host_memory(
    site: Site, size: int
) -> None:
    evict_and_load(site, EXPORTABLE.replace("SIZE", str(size)), much=900 * MIB)


LARGE = '''
size = 256 * MIB
address = allocate(size)
data = noise(size)
put(address, data)
away()
assert get(address, size) == data
'''
SIZE, BLOCK, TRIES = 256 * MIB, 32 * MIB, 50


def test_eviction_is_answered_before_host_memory_beyond_its_need_is_complete(site: Site) -> None:
    daemon, program = begin(site, LARGE, allocated=SIZE, host_slab=2 * MIB)
    daemon.stop()
    filled = daemon.memory.resident + daemon.memory.pinned
    for _ in range(TRIES):              # all of it may be there in time on a busy machine
        held = daemon.move(Type.EVICT, filled - BLOCK).memory.host
        if held < SIZE:
            break
        assert daemon.move(Type.LOAD, daemon.room, host=0).memory.host == 0
    assert BLOCK <= held < SIZE
    assert daemon.move(Type.EVICT, filled - BLOCK).memory.host == held
    daemon.let_return(program)


def test_host_memory_stays_within_the_last_of_several_evictions_that_arrive_together(
    site: Site
) -> None:
    daemon, program = begin(site, LARGE, allocated=SIZE, host_slab=2 * MIB)
    daemon.stop()
    filled = daemon.memory.resident + daemon.memory.pinned
    allowed = [BLOCK * number + 8 * MIB for number in (1, 2, 3)]
    daemon.send_at_once(program, *[
        OrderRecord(Type.EVICT, number=100 + number, room=filled - BLOCK * number, host=host)
        for number, host in enumerate(allowed, 1)])
    for number, host in enumerate(allowed[1:] + allowed[-1:], 1):
        answer = daemon.until(Type.MOVED, number=100 + number)
        assert answer.moved == BLOCK
        assert BLOCK * number <= answer.memory.host <= host
    assert daemon.move(Type.EVICT, filled - 3 * BLOCK).memory.host == answer.memory.host
    daemon.let_return(program)
