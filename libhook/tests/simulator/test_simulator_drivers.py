# SPDX-License-Identifier: Apache-2.0
"""The simulator as an older driver: it lacks the functions that the driver lacks."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from libhook.tests.simulator.conftest import LIBHOOK, Python

CUDA = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"
DRIVERS = {"535": 12020, "550": 12040, "570": 12080, "580": 13000}


def version(text: str) -> int:
    """A version such as "12.8" as CUDA encodes it."""
    major, minor = text.split(".")
    return int(major) * 1000 + int(minor) * 10


def since() -> dict[str, int]:
    """The oldest of DRIVERS that has each function; functions that are not listed are in all of
    them."""
    lines = (Path(__file__).parent / "since.txt").read_text().splitlines()
    return {line.split()[1]: version(line.split()[0]) for line in lines if line[0] != "#"}


def entries() -> dict[str, int]:
    """The version of CUDA in which each symbol of the simulator appeared."""
    table = (LIBHOOK / "simulator" / "table" / "entries.def").read_text()
    return {
        symbol: int(came)
        for symbol, came in re.findall(r"^(?:ENTRY|UNSUPPORTED)\((\w+), \w+, (\d+),", table, re.M)
    }


@pytest.mark.parametrize("driver", DRIVERS.values())
def test_simulator_table_lists_the_functions_that_each_driver_lacks(driver: int) -> None:
    lacking = {symbol for symbol, came in entries().items() if came > driver}
    assert lacking == {symbol for symbol, came in since().items() if came > driver}


@pytest.mark.skipif(not (CUDA / "cuda.h").exists(), reason=f"no cuda.h in {CUDA}; set CUDA_HOME")
def test_simulator_functions_equal_the_declarations_of_cuda_h() -> None:
    declared: set[str] = set()
    for options in ("", "-D__CUDA_API_VERSION_INTERNAL", "-D__CUDA_API_PER_THREAD_DEFAULT_STREAM"):
        read = subprocess.run(
            ["gcc", "-E", "-dD", *options.split(), CUDA / "cuda.h"],
            capture_output=True, text=True, check=True).stdout
        declared |= set(re.findall(r"\bcu[A-Z]\w+(?=\s*\()", read))
    header = int(re.findall(r"#define CUDA_VERSION (\d+)", read)[0])
    assert {symbol for symbol in since() if symbol in declared} == {
        symbol for symbol, came in since().items() if came <= header
    }


ASK = """
import ctypes, pynvml
cuda, version = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
assert cuda.cuInit(0) == cuda.cuDriverGetVersion(ctypes.byref(version)) == 0
pynvml.nvmlInit()
assert pynvml.nvmlSystemGetCudaDriverVersion() == version.value
print(version.value, pynvml.nvmlSystemGetDriverVersion().split(".")[0])
for symbol in {symbols!r}:
    got = ctypes.c_void_p()
    assert cuda.cuGetProcAddress(symbol.encode(), ctypes.byref(got), version.value, 1) == 0
    if not hasattr(cuda, symbol):
        print(symbol)
        assert got.value is None
    elif "_" not in symbol:
        assert got.value is not None
"""


@pytest.mark.parametrize("driver", DRIVERS)
def test_simulated_driver_lacks_exactly_the_functions_newer_than_its_version(
    python: Python, driver: str
) -> None:
    said = python(ASK.format(symbols=[*since()]), NVSHARE_SIM_DRIVER=driver).splitlines()
    assert said == [
        f"{DRIVERS[driver]} {driver}",
        *(symbol for symbol, came in since().items() if came > DRIVERS[driver]),
    ]
