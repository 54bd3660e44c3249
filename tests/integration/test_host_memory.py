# SPDX-License-Identifier: Apache-2.0
"""Which memory of the host swapped blocks get, and how much of it."""

import ctypes
import json
import mmap
import platform
from pathlib import Path

import pytest

from tests.integration.conftest import MIB, Site
from tests.integration.test_own_memory import Program, give_it_back, take_the_card

MBIND = {"x86_64": 237, "aarch64": 235}
PREFERRED = 1

WRITTEN = '''
size = 512 * MIB
address = c_uint64()
call("cuMemAlloc_v2", byref(address), size)
for turn in range(3):
    call("cuMemsetD8_v2", address.value, turn + 1, size)
    away()
    assert get(address.value + size - 1, 1) == bytes([turn + 1])
'''

NEAR = '''
size = 64 * MIB
address = c_uint64()
call("cuMemAlloc_v2", byref(address), size)
put(address.value, os.urandom(size))
away()
with open("/proc/self/numa_maps") as file:
    lines = [line.split() for line in file]
placed = [line for line in lines if line[1] == "prefer:0"]
assert any("anon=" in text for line in placed for text in line), lines
'''


def may_choose_nodes() -> bool:
    """Whether this kernel, or the container around us, lets a program say where memory lies."""
    if not Path("/proc/self/numa_maps").exists() or platform.machine() not in MBIND:
        return False
    scratch = mmap.mmap(-1, mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(scratch))
    node = ctypes.c_ulong(1)
    answer: int = ctypes.CDLL(None).syscall(
        ctypes.c_long(MBIND[platform.machine()]), ctypes.c_void_p(address),
        ctypes.c_ulong(mmap.PAGESIZE), ctypes.c_int(PREFERRED), ctypes.byref(node),
        ctypes.c_ulong(8), ctypes.c_uint(0),
    )
    return answer == 0


def test_what_leaves_again_needs_no_more_host_memory(site: Site) -> None:
    """The same part of it leaves each time, and has kept its place in the host's memory."""
    site.start("--tq", "1", "--trace", str(site.folder / "trace"))
    program = Program(site, WRITTEN)
    held = []
    for _ in range(3):
        assert program.hears() == "away"
        hook = take_the_card(site, 700 * MIB)
        lines = (json.loads(line) for line in (site.folder / "trace").read_text().splitlines())
        held.append([
            line["memory"]["host"] for line in lines
            if line.get("event") == "evicted" and line["bytes"] > 0
        ][-1])
        program.go_on()
        give_it_back(hook)
    program.ends_well()
    assert held == [held[0]] * 3


@pytest.mark.skipif(not may_choose_nodes(), reason="nobody here may say where memory lies")
def test_it_lies_near_the_card(site: Site) -> None:
    site.start("--tq", "1")
    program = Program(site, NEAR)
    assert program.hears() == "away"
    hook = take_the_card(site)
    program.go_on()
    give_it_back(hook)
    program.ends_well()


ODD = '''
size = 200 * MIB                        # no whole number of slabs
address = c_uint64()
call("cuMemAlloc_v2", byref(address), size)
data = os.urandom(size)
put(address.value, data)
away()
assert get(address.value, size) == data
with open("/proc/self/smaps") as file:
    kept, size = 0, 0
    for line in file:
        word, *rest = line.split()
        if word == "Size:":
            size = int(rest[0]) * 1024
        elif word == "VmFlags:" and {"dc", "dd"} <= set(rest):
            kept += size                # neither for children nor for core dumps
print(kept, flush=True)
'''


@pytest.mark.parametrize("refused", [(), (1,), (1, 2), (2, 4)])
def test_what_was_mapped_for_it_and_not_used_is_given_back(
    site: Site, refused: tuple[int, ...]
) -> None:
    """Addresses are taken for all slabs at once; the driver may refuse to register some."""
    failing = ",".join(f"cuMemHostRegister_v2:{call}" for call in refused)
    site.environment = {**site.environment, "NVSHARE_SIM_FAIL": failing}
    site.start("--tq", "1", "--trace", str(site.folder / "trace"))
    program = Program(site, ODD)
    assert program.hears() == "away"
    hook = take_the_card(site)
    program.go_on()
    give_it_back(hook)
    mapped = program.hears()
    program.ends_well()
    lines = (json.loads(line) for line in (site.folder / "trace").read_text().splitlines())
    held = [line["memory"]["host"] for line in lines if "memory" in line]
    assert mapped == [each for each in held if each > 0][-1]
    assert mapped >= 200 * MIB
