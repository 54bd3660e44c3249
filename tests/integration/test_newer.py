# SPDX-License-Identifier: Apache-2.0
"""With a driver newer than the library, work of unknown functions finds its memory loaded."""

import subprocess
from pathlib import Path

import pytest

from nvshared.units import MIB
from tests.integration.conftest import SIMULATOR, Site, wait_until
from tests.integration.programs import Program
from tests.integration.test_others import is_granted

SOURCE = Path(__file__).with_name("tomorrow.c")


@pytest.fixture
def tomorrow(site: Site, tmp_path: Path) -> Path:
    """A folder with a driver of tomorrow, which the programs of this site find."""
    libhook = SIMULATOR.parents[1]
    command = ["gcc", "-shared", "-fPIC", "-pthread", "-Wl,-Bsymbolic"]
    command += [f"-I{libhook / folder}" for folder in ("simulator", "include")]
    command += ["-Wl,-soname,libcuda.so.1", str(SOURCE)]
    command += ["-Wl,--whole-archive", str(SIMULATOR / "libcuda.a"), "-Wl,--no-whole-archive"]
    subprocess.run([*command, "-o", str(tmp_path / "libcuda.so.1")], check=True)
    site.environment["LD_LIBRARY_PATH"] = f"{tmp_path}:{SIMULATOR}"
    return tmp_path


OPEN = '''
import ctypes
copy = ctypes.CDLL("PLUGIN").plugin_copy
'''
COPY = '''
size, address, stream = 64 * MIB, c_uint64(), c_uint64()
call("cuMemAlloc_v2", byref(address), 2 * size)
call("cuStreamCreate", byref(stream), 1)
data = noise(size)
put(address.value, data)
away()
ways = (c_uint64 * 2)(address.value + size, address.value)
assert copy(1, 2, 3, 4, 5, 6, ways, c_size_t(size), stream) == 0
call("cuStreamSynchronize", stream)
assert get(address.value + size, size) == data
say("copied")
'''


@pytest.fixture
def linked(tomorrow: Path) -> Path:
    code = """
    int cuMemcpyTomorrowAsync(int, int, int, int, int, int, const void *, unsigned long, void *);
    int plugin_copy(int a, int b, int c, int d, int e, int f, const void *ways, unsigned long size,
                    void *stream)
    {
        return cuMemcpyTomorrowAsync(a, b, c, d, e, f, ways, size, stream);
    }
    """
    target = tomorrow / "plugin.so"
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(target), "-x", "none"]
    subprocess.run([*command, str(tomorrow / "libcuda.so.1")], input=code, text=True, check=True)
    return target


def test_copy_function_unknown_to_the_library_waits_until_its_memory_is_loaded(
    site: Site, linked: Path
) -> None:
    site.start("--tq", "1")
    program = Program(site, COPY, before=OPEN.replace("PLUGIN", str(linked)))
    program.evict(1000 * MIB)
    assert program.hears() == "copied"
    program.ends_well()


def test_call_of_a_capture_function_unknown_to_the_library_pins_the_programs_memory(
    site: Site, tomorrow: Path
) -> None:
    assert tomorrow.exists()
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
