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
