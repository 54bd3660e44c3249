# SPDX-License-Identifier: Apache-2.0
"""Entry points of the simulated driver, also of older versions."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from libhook.tests.hook.recorded_driver import RECORDED, recorded
from libhook.tests.simulator.conftest import Python

CUDA = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"
DRIVERS = {"535": 12020, "550": 12040, "570": 12080, "580": 13000}


def since() -> dict[str, int]:
    """The oldest CUDA version of DRIVERS that has each function; functions that are not listed are
    in all versions."""
    lines = (Path(__file__).parent / "since.txt").read_text().splitlines()
    rows = [re.split("[. ]", line) for line in lines if line[0] != "#"]
    return {symbol: int(major) * 1000 + int(minor) * 10 for major, minor, symbol in rows}


@pytest.mark.skipif(not (CUDA / "cuda.h").exists(), reason=f"no cuda.h in {CUDA}; set CUDA_HOME")
def test_functions_of_since_txt_are_declared_by_cuda_h_from_the_listed_version_on() -> None:
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


def test_simulator_returns_the_recorded_entry_points_of_get_proc_address(python: Python) -> None:
    answers = [(one.symbol, one.flags, one.version, one.entry) for one in recorded(RECORDED)]
    assert len(answers) > 1000
    found = python(f"""
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
for name, flag, version, symbol in {answers!r}:
    got, status = ctypes.c_void_p(), ctypes.c_int(9)
    code = cuda.cuGetProcAddress_v2(
        name.encode(), ctypes.byref(got), version, ctypes.c_uint64(flag), ctypes.byref(status))
    wanted = ctypes.cast(getattr(cuda, symbol), ctypes.c_void_p).value
    if (code, status.value, got.value) != (0, 0, wanted):
        print(name, flag, version, symbol)
""")
    assert found == ""


SERIAL = """
import pynvml
pynvml.nvmlInit()
print(pynvml.nvmlDeviceGetSerial(pynvml.nvmlDeviceGetHandleByIndex(0)))
"""


def test_serial_is_the_same_for_all_processes_and_another_where_the_inode_is_used_again(
    python: Python, environment: dict[str, str]
) -> None:
    first = python(SERIAL)
    assert python(SERIAL) == first
    os.truncate(Path(environment["NVSHARE_SIM_DIR"]) / "gpus", 0)
    assert python(SERIAL) != first


FILL = """
import ctypes, pynvml
cuda = ctypes.CDLL("libcuda.so.1")
pynvml.nvmlInit()
assert cuda.cuInit(0) == 0
for index in range(3):
    there = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(index)).total
    total, context, memory = ctypes.c_size_t(), ctypes.c_void_p(), ctypes.c_uint64()
    assert cuda.cuDeviceTotalMem_v2(ctypes.byref(total), index) == 0
    assert total.value == there
    assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, index) == 0
    print(there >> 20, cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(100 << 20)))
"""


def test_simulated_card_beyond_the_list_of_sizes_has_the_last_size(
    python: Python
) -> None:
    said = python(FILL, NVSHARE_SIM_GPUS="3", NVSHARE_SIM_MEMORY="256M,65536K")
    assert said.splitlines() == ["256 0", "64 2", "64 2"]
