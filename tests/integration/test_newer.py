# SPDX-License-Identifier: Apache-2.0
"""A driver that is newer than the library: work that it submits finds the memory there."""

import subprocess
from pathlib import Path

import pytest

from nvshared.units import MIB
from tests.integration.conftest import SIMULATOR, Site
from tests.integration.test_own_memory import Program, give_it_back, take_the_card

SOURCE = Path(__file__).with_name("tomorrow.c")


@pytest.fixture
def tomorrow(site: Site, tmp_path: Path) -> None:
    """The programs of this site find a driver of tomorrow."""
    rooms = SIMULATOR.parents[1] / "simulator"
    objects = [path for path in SIMULATOR.rglob("*.o") if path.parent.name != "nvml"]
    command = ["gcc", "-shared", "-fPIC", "-pthread", f"-I{rooms}", "-Wl,-Bsymbolic"]
    command += ["-Wl,-soname,libcuda.so.1", str(SOURCE), *map(str, objects)]
    subprocess.run([*command, "-o", str(tmp_path / "libcuda.so.1")], check=True)
    site.environment["LD_LIBRARY_PATH"] = f"{tmp_path}:{SIMULATOR}"


COPY = '''
size, address, stream = 64 * MIB, c_uint64(), c_uint64()
call("cuMemAlloc_v2", byref(address), 2 * size)
call("cuStreamCreate", byref(stream), 1)
data = os.urandom(size)
put(address.value, data)
away()
ways = (c_uint64 * 2)(address.value + size, address.value)
call("cuMemcpyTomorrowAsync", 1, 2, 3, 4, 5, 6, ways, size, stream)
call("cuStreamSynchronize", stream)
assert get(address.value + size, size) == data
print(json.dumps("copied"), flush=True)
'''


@pytest.mark.usefixtures("tomorrow")
def test_a_copy_that_the_library_does_not_know_finds_its_memory(site: Site) -> None:
    site.start("--tq", "1")
    program = Program(site, COPY)
    assert program.hears() == "away"
    hook = take_the_card(site, 1000 * MIB)
    program.go_on()
    give_it_back(hook)
    assert program.hears() == "copied"
    program.ends_well()
