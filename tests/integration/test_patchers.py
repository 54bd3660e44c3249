# SPDX-License-Identifier: Apache-2.0
"""Libraries that patch the entries of driver functions, or define the functions themselves, see the
program's calls."""

import importlib.util
import platform
import subprocess
from pathlib import Path

import pytest

from tests.integration.conftest import BUILD, SIMULATOR, Process, Site
from tests.integration.fakehook import PATIENCE
from tests.integration.programs import Program

# As UCX does: a jump in place of the first instructions, which are copied elsewhere.
PATCH = '''
import mmap, platform
PATCHES = {           # copied bytes; a jump from behind the copy; a jump to the replacement
    "x86_64": (15, bytes.fromhex("ff2500000000"), bytes.fromhex("ff2500000000")),
    "aarch64": (16, bytes.fromhex("4900005820011fd6"), bytes.fromhex("4f000058e0011fd6")),
}
copied, back, jump = PATCHES[platform.machine()]
calls, kept = [], []
def patch(name, *types):
    "Notes calls of a function."
    entry = ctypes.cast(cuda[name], c_void_p).value
    copy = mmap.mmap(-1, mmap.PAGESIZE, prot=7)
    copy.write(ctypes.string_at(entry, copied) + back + (entry + copied).to_bytes(8, "little"))
    kind = ctypes.CFUNCTYPE(c_int, *types)
    original = kind(ctypes.addressof(ctypes.c_char.from_buffer(copy)))
    def replacement(*arguments):
        calls.append(name)
        return original(*arguments)
    hook = kind(replacement)
    code = jump + ctypes.cast(hook, c_void_p).value.to_bytes(8, "little")
    first = entry & -mmap.PAGESIZE
    assert ctypes.CDLL(None).mprotect(c_void_p(first), c_size_t(2 * mmap.PAGESIZE), 7) == 0
    ctypes.memmove(entry, code[:copied], min(len(code), copied))
    kept.append((copy, original, hook))
'''


def test_patched_driver_function_is_called_for_each_call_of_the_program(site: Site) -> None:
    site.start("--tq", "1")
    functions = {"cuMemAlloc_v2": "POINTER(c_uint64), c_size_t", "cuMemFree_v2": "c_uint64",
                 "cuMemsetD8_v2": "c_uint64, c_uint, c_size_t",
                 "cuMemFreeHost": "c_void_p"}               # this one has no wrapper
    if platform.machine() == "aarch64":
        del functions["cuMemFreeHost"]                      # the copy of a stub needs a translation
    program = Program(site, PATCH + "".join(
        f'patch("{name}", {types})\n' for name, types in functions.items()) + '''
address, host, found = c_uint64(), c_void_p(), c_void_p()
call("cuMemAllocHost_v2", byref(host), 4096)
call("cuGetProcAddress_v2", b"cuMemAlloc", byref(found), c_int(12000), 0, None)
allocate = ctypes.CFUNCTYPE(c_int, POINTER(c_uint64), c_size_t)(found.value)
assert allocate(byref(address), 3 * MIB) == 0
away()
fill(address.value, 7, 3 * MIB)
assert get(address.value, 3 * MIB) == bytes([7]) * 3 * MIB
call("cuMemFree_v2", address)
call("cuMemFreeHost", host)
say(calls)
''')
    program.evict()
    assert program.hears() == [
        "cuMemAlloc_v2", "cuMemsetD8_v2", "cuMemFree_v2", "cuMemFreeHost"][:len(functions)]
    program.ends_well()


LIBUCX = importlib.util.find_spec("libucx")
UCX = '''
import ctypes, os
ALLOCATED, FREED = 1 << 20, 1 << 21
for name in "libucs.so.0", "libucm.so.0", "libucm_cuda.so.0":
    ucm = ctypes.CDLL(name, ctypes.RTLD_GLOBAL) if name != "libucm_cuda.so.0" else ucm
    ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
seen = []
kind = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
event = kind(lambda number, event, unused: seen.append(number))
assert ucm.ucm_set_event_handler(ALLOCATED | FREED, 1000, event, None) == 0
'''


@pytest.mark.skipif(LIBUCX is None, reason="Python lacks libucx (package libucx-cu12)")
@pytest.mark.parametrize("far", ["n", "y"], ids=["near jumps", "far jumps"])
@pytest.mark.parametrize("early", [False, True], ids=["after cuInit", "before cuInit"])
def test_ucx_sees_each_allocation_and_free(site: Site, early: bool, far: str) -> None:
    assert LIBUCX is not None
    assert LIBUCX.origin is not None
    folder = Path(LIBUCX.origin).parent
    folders = [folder / "lib", folder / "lib" / "ucx", folder.parent / "libucx_cu12.libs"]
    site.environment |= {
        "LD_LIBRARY_PATH": ":".join([site.environment["LD_LIBRARY_PATH"], *map(str, folders)]),
        "UCX_MEM_BISTRO_FORCE_FAR_JUMP": far}
    site.start()
    program = Program(site, ("" if early else UCX) + '''
seen.clear()
memory = allocate(8 * MIB)
call("cuMemFree_v2", memory)
say(seen)
''', before=UCX if early else "")
    assert program.hears() == [1 << 20, 1 << 21]
    program.ends_well()


COUNTER = """
#include <dlfcn.h>
int allocated, filled, freed;
int cuMemAlloc_v2(unsigned long long *address, unsigned long size)
{
    allocated++;
    return ((int (*)(void *, long))dlsym(RTLD_NEXT, "cuMemAlloc_v2"))(address, size);
}
int cuMemsetD32_v2(unsigned long long address, unsigned value, unsigned long size)
{
    void *next = dlsym(dlopen("libcuda.so.1", RTLD_LAZY), "cuMemsetD32_v2");
    filled++;
    return ((int (*)(long long, unsigned, long))next)(address, value, size);
}
int cuMemFree_v2(unsigned long long address)
{
    freed++;
    return ((int (*)(long long))dlsym(RTLD_NEXT, "cuMemFree_v2"))(address);
}
"""
COUNTED = """
#include "holder.h"
extern int allocated, filled, freed;
int main(void)
{
    begin();
    pause_here("away");
    check();
    must(cuMemFree_v2(memory) == 0, "freeing");
    printf("%d %d %d\\n", allocated, filled, freed);
}
"""


@pytest.mark.parametrize("preloaded", [False, True], ids=["linked", "preloaded last"])
def test_library_that_defines_driver_functions_sees_each_call_of_a_shared_program(
    site: Site, tmp_path: Path, preloaded: bool
) -> None:
    def compiled(code: str, target: Path, *flags: object) -> Path:
        command = ["gcc", "-w", "-D_GNU_SOURCE", f"-I{Path(__file__).parent}", "-x", "c", "-",
                   "-x", "none", "-o", target, *flags, f"-L{SIMULATOR}", "-l:libcuda.so.1"]
        subprocess.run(list(map(str, command)), input=code, text=True, check=True)
        return target

    counter = compiled(COUNTER, tmp_path / "libcounter.so", "-shared", "-fPIC")
    program = compiled(COUNTED, tmp_path / "counted", counter, f"-Wl,-rpath,{tmp_path}")
    site.start("--tq", "1")
    preload = {"LD_PRELOAD": f"{BUILD}/libnvshare.so:{counter}"}
    running = Process(site.program([program], preload if preloaded else {}))
    running.wait_for("away")
    site.holding().close()
    running.tell()
    output, _ = running.popen.communicate(timeout=PATIENCE)
    assert (running.popen.returncode, output) == (0, "1 1 1\n")
