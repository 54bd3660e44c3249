# SPDX-License-Identifier: Apache-2.0
"""Memory that a program registers with a network card is never evicted. A program is pinned if it
uses the video encoder, or a function unknown to the library that may share memory."""

import subprocess
from pathlib import Path

import pytest

from nvshared.units import MIB
from tests.integration.conftest import SIMULATOR, Site, wait_until
from tests.integration.programs import Program

SOURCE = Path(__file__).with_name("others.c")

VERBS, ENCODER = ("libibverbs.so.1", "VERBS"), ("libnvidia-encode.so.1", "ENCODER")
MEMORY = '''
size = 64 * MIB
given, kept, data = c_uint64(allocate(size)), c_uint64(allocate(size)), noise(size)
for one in (given, kept):
    put(one.value, data)
'''
END = '''
away()
for one in (given, kept):
    assert get(one.value, size) == data
away()
'''
OPEN = '''
import ctypes
from ctypes import byref, c_int, c_size_t, c_uint64
other = ctypes.CDLL("LIBRARY")
'''
CALLS = {
    VERBS: '''
other.ibv_reg_mr.restype = ctypes.c_void_p
got = other.ibv_reg_mr(c_uint64(1000), given, c_size_t(size), 5)
assert got == 1005 + given.value % 7 + size % 11, got
''',
    ENCODER: '''
assert other.NvEncodeAPICreateInstance(byref(c_int(7))) == 7
''',
}


def library(folder: Path, which: tuple[str, str], name: str = "") -> Path:
    name, macro = name or which[0], which[1]
    target = folder / name
    command = ["gcc", "-shared", "-fPIC", "-w", f"-D{macro}", f"-Wl,-soname,{name}", str(SOURCE)]
    if which == VERBS:
        versions = folder / "versions"
        versions.write_text("IBVERBS_1.0 { };\nIBVERBS_1.1 { } IBVERBS_1.0;\n")
        command.append(f"-Wl,--version-script={versions}")
    subprocess.run([*command, "-o", str(target)], check=True)
    return target


def linked(target: Path) -> Path:
    """A library that is linked to `target` and forwards calls to ibv_reg_mr()."""
    code = """
    void *ibv_reg_mr(void *, void *, unsigned long, int);
    void *reg(void *a, void *b, unsigned long c, int d) { return ibv_reg_mr(a, b, c, d); }
    """
    needing = target.with_name("needing.so")
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-x", "none", str(target)]
    command += [f"-Wl,-rpath,{target.parent}", "-o", str(needing)]
    subprocess.run(command, input=code, text=True, check=True)
    return needing


def is_granted(site: Site, size: int) -> bool:
    hook = site.hook()
    assert hook.hello() is not None
    granted = hook.allocate(size)
    hook.close()
    return granted


def check(site: Site, program: Program, limits: tuple[int, int]) -> None:
    much, too_much = limits
    for _ in range(2):
        assert program.hears() == "away"
        wait_until(lambda: not is_granted(site, too_much))
        wait_until(lambda: is_granted(site, much))      # the daemon knows that the pinning is over
        site.holding(much).close()
        program.go_on()
    program.ends_well()


PARTS = (900 * MIB, 990 * MIB)          # sizes of holders, if unregistered memory is evicted
WHOLE = (850 * MIB, 910 * MIB)


@pytest.mark.parametrize(
    ("which", "limits"), [(VERBS, PARTS), (ENCODER, WHOLE)], ids=["network", "encoder"])
def test_memory_registered_with_another_device_is_never_evicted(
    site: Site, tmp_path: Path, which: tuple[str, str], limits: tuple[int, int]
) -> None:
    site.start("--tq", "1")
    opening = OPEN.replace("LIBRARY", str(library(tmp_path, which)))
    check(site, Program(site, MEMORY + opening + CALLS[which] + END), limits)


# The words behind the first argument, of which `given` and `size` are the memory's.
REGISTRATIONS = {
    "gdr_pin_buffer": "given, size, 0, 0, 0",
    "gdr_pin_buffer_v2": "given, size, 0, 0, 0",
    "mlx5dv_devx_umem_reg": "given, size, 7, 0, 0",
    "mlx5dv_devx_umem_reg_ex": "(c_uint64 * 6)(given.value, size), 0, 0, 0, 0",
    "bnxt_re_dv_umem_reg": "(c_uint64 * 6)(given.value, size), 0, 0, 0, 0",
    "ibv_reg_mr_ex": "(c_uint64 * 8)(size, 7, 1, 0, given.value), 0, 0, 0, 0",
    "ibv_reg_mr_iova": "given, size, 0, 7, 0",
    "ibv_reg_mr_iova2": "given, size, 0, 7, 0",
    "ibv_rereg_mr": "1, 0, given, size, 7",
    "cxil_map": "given, size, 0, 0, 0",
    "doca_mmap_set_memrange": "given, size, 0, 0, 0",
}


@pytest.mark.parametrize("function", [*REGISTRATIONS, "NvOFAPICreateInstanceCuda"])
def test_memory_given_to_a_function_of_another_library_is_never_evicted(
    site: Site, tmp_path: Path, function: str
) -> None:
    site.start("--tq", "1")
    opening = OPEN.replace("LIBRARY", str(library(tmp_path, ("other.so", f"FUNCTION={function}"))))
    words = REGISTRATIONS.get(function, "0, 0, 0, 0, 0")
    call = f'''
other.{function}.restype = c_uint64
passed = [c_uint64(word) if isinstance(word, int) else word for word in (1, {words})]
got = other.{function}(*passed)
words = [word.value if isinstance(word, c_uint64) else ctypes.addressof(word) for word in passed]
assert got == sum(words), (got, words)
'''
    check(site, Program(site, MEMORY + opening + call + END),
          PARTS if function in REGISTRATIONS else WHOLE)


def test_memory_in_a_registered_range_that_begins_before_it_is_never_evicted(
    site: Site, tmp_path: Path
) -> None:
    """As UCX does with GDRCopy: the range begins at the driver's page, outside the allocation."""
    site.start("--tq", "1")
    other = library(tmp_path, ("other.so", "FUNCTION=gdr_pin_buffer"))
    check(site, Program(site, OPEN.replace("LIBRARY", str(other)) + '''
small = sorted(allocate(MIB) for _ in range(64))     # two in a page
for index, address in enumerate(small):
    fill(address, index, MIB)
assert small[-1] == small[0] + 63 * MIB
call("cuMemFree_v2", small[0])
other.gdr_pin_buffer(c_uint64(1), c_uint64(small[0]), c_size_t(64 * MIB), 0, 0, None)
away()
assert all(get(address, MIB) == bytes([index]) * MIB
           for index, address in enumerate(small) if index)
away()
'''), PARTS)


def test_memory_registered_through_a_linked_library_is_never_evicted(
    site: Site, tmp_path: Path
) -> None:
    site.start("--tq", "1")
    opening = OPEN.replace("LIBRARY", str(linked(library(tmp_path, VERBS, "libvendor.so.3"))))
    calls = CALLS[VERBS].replace("ibv_reg_mr", "reg")
    check(site, Program(site, MEMORY + opening + calls + END), PARTS)


def test_memory_of_a_program_that_opened_nvenc_before_cuda_is_pinned(
    site: Site, tmp_path: Path
) -> None:
    site.start("--tq", "1")
    opening = OPEN.replace("LIBRARY", str(library(tmp_path, ENCODER)))
    check(site, Program(site, MEMORY + END, before=opening + CALLS[ENCODER]), WHOLE)


def test_host_and_mapped_memory_can_be_registered_with_other_devices(
    site: Site, tmp_path: Path
) -> None:
    site.start("--tq", "1")
    opening = OPEN.replace("LIBRARY", str(library(tmp_path, VERBS)))
    mapped = '''
size = 64 * MIB
given, kept, data = c_uint64(map_memory(size)[0]), c_uint64(map_memory(size)[0]), noise(size)
for one in (given, kept):
    put(one.value, data)
'''
    host = '''
buffer = ctypes.create_string_buffer(4096)
got = other.ibv_reg_mr(c_uint64(1000), buffer, c_size_t(11), 5)
assert got == 1005 + ctypes.addressof(buffer) % 7
'''
    check(site, Program(site, mapped + opening + CALLS[VERBS] + host + END), PARTS)


# a driver with a function newer than the library, after which the library would have to track work
NEWER = """
__attribute__((visibility("default"))) int cuStreamBeginTomorrow(void *stream)
{
    return stream != 0;
}
"""


def test_call_of_a_capture_function_unknown_to_the_library_pins_the_programs_memory(
    site: Site, tmp_path: Path
) -> None:
    command = ["gcc", "-shared", "-fPIC", "-pthread", "-Wl,-Bsymbolic,-soname,libcuda.so.1",
               "-x", "c", "-", "-x", "none", "-Wl,--whole-archive", f"{SIMULATOR}/libcuda.a",
               "-Wl,--no-whole-archive", "-o", f"{tmp_path}/libcuda.so.1"]
    subprocess.run(command, input=NEWER, text=True, check=True)
    site.environment["LD_LIBRARY_PATH"] = f"{tmp_path}:{SIMULATOR}"
    site.start("--tq", "1")
    program = Program(site, '''
address = allocate(64 * MIB)
fill(address, 1, 64 * MIB)
away()
call("cuStreamBeginTomorrow", 0)
pause("begun")
''')
    assert program.hears() == "away"
    assert is_granted(site, 1000 * MIB)
    program.go_on()
    assert program.hears() == "begun"
    wait_until(lambda: not is_granted(site, 1000 * MIB))
    program.finish()
