# SPDX-License-Identifier: Apache-2.0
"""COVERAGE.md is up to date, and lists every function that a driver exports."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from libhook import coverage
from libhook.tests.doubles import FLAGS, HERE, LIBRARY, SOURCE
from libhook.tests.hook import recorded_driver as recorded

CUDA = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
SIMULATOR = Path(__file__).parents[2] / "build" / "simulator" / "libcuda.so.1"


def installed_drivers() -> list[Path]:
    """Drivers of this machine, and the CUDA toolkit's stub libraries of the driver."""
    folders = [*Path("/usr/lib").glob("*-linux-gnu"), Path("/usr/lib64"), Path("/usr/lib/wsl/lib")]
    found = [folder / "libcuda.so.1" for folder in folders]
    found += [CUDA / "lib64" / "stubs" / "libcuda.so", *CUDA.glob("targets/*/lib/stubs/libcuda.so")]
    return [path for path in found if path.exists()]


def test_coverage_table_is_up_to_date() -> None:
    assert coverage.TABLE.read_text() == coverage.table(), (
        f"{coverage.TABLE.name} is out of date: make -C libhook coverage"
    )


def test_coverage_table_names_every_hooked_function_once() -> None:
    named = [hook for section in coverage.sections() for hook in section.hooks]
    assert sorted(named) == sorted(recorded.hooks())
    for section in coverage.sections():
        for hook in section.hooks:
            file = coverage.file_of(section, hook)
            assert hook in coverage.bodies(file), f"no wrapper {hook} in {section.file}"


# Files besides api/ that the wrappers need and that core_double.c does not replace. Other functions
# of the library are missing: a call ends the process and prints the function's name.
NEEDED = ["gate/contexts", "flight/capture", "flight/streams", "driver/log", "driver/newer",
          "driver/own_thread", "driver/real", "driver/setting", "driver/stub_code", "driver/stubs",
          "driver/symbols", "pool/driver_pools"]

CALLS = """
import ctypes, os, sys
driver, library = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(sys.argv[2], mode=os.RTLD_LAZY)
def counters(name):
    entered = ctypes.c_int.in_dll(library, "core_entered").value
    calls = ctypes.c_uint.in_dll(driver, "calls_of_" + name).value
    return entered, entered - library.core_inside(), calls
for name in sys.argv[3:]:
    before = counters(name)
    library[name](*[ctypes.c_uint64(0)] * 12)
    assert counters(name) == tuple(n + 1 for n in before), name
"""


def test_gated_wrapper_enters_the_gate_calls_the_driver_once_and_leaves_the_gate(
    driver: Path, tmp_path: Path
) -> None:
    gated = [
        hook
        for section in coverage.sections()
        for hook in section.hooks
        if coverage.only_gated(coverage.does(section, hook))
    ]
    assert len(gated) > 170
    api = (f"api/{path.stem}" for path in SOURCE.glob("api/*.c"))
    objects = [SOURCE.parent / "build" / "src" / f"{file}.o" for file in (*api, *NEEDED)]
    doubles = [HERE / "doubles.c", HERE / "hook" / "core_double.c"]
    library = tmp_path / "libwrappers.so"
    subprocess.run(["gcc", *FLAGS, *LIBRARY, *objects, *doubles, "-o", library], check=True)
    done = subprocess.run(
        [sys.executable, "-c", CALLS, driver / "libcuda.so.1", library, *gated],
        capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("driver", [SIMULATOR, *installed_drivers()], ids=str)
def test_every_function_that_a_driver_exports_has_a_hook_or_a_listed_reason(driver: Path) -> None:
    """On failure: hook the unknown function, write a reason into unhooked.def, or record the
    driver's answers again in entry_points.txt."""
    assert len(coverage.exported(driver)) > 300
    assert coverage.unknown(coverage.exported(driver)) == []
