# SPDX-License-Identifier: Apache-2.0
"""Entry points, settings and injected failures of the simulated libraries."""

from pathlib import Path

import pytest

from libhook.tests.hook.recorded_driver import RECORDED, recorded
from libhook.tests.simulator.conftest import Python

LOAD = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
"""


def test_simulator_returns_the_recorded_entry_points_of_get_proc_address(python: Python) -> None:
    answers = [(one.symbol, one.flags, one.version, one.entry) for one in recorded(RECORDED)]
    assert len(answers) > 1000
    found = python(
        LOAD
        + f"""
for name, flag, version, symbol in {answers!r}:
    got, status = ctypes.c_void_p(), ctypes.c_int(9)
    code = cuda.cuGetProcAddress_v2(
        name.encode(), ctypes.byref(got), version, ctypes.c_uint64(flag), ctypes.byref(status))
    wanted = ctypes.cast(getattr(cuda, symbol), ctypes.c_void_p).value
    if (code, status.value, got.value) != (0, 0, wanted):
        print(name, flag, version, symbol)
""")
    assert found == ""


FORK = """
    import os
    child = os.fork()
    if child == 0:
        os._exit(cuda.cuInit(0))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_simulated_driver_is_not_initialised_in_a_forked_child(python: Python) -> None:
    assert python(LOAD + "if True:" + FORK) == "3\n"


CREATE = """
import struct
context = ctypes.c_void_p()
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
address = ctypes.c_uint64()
print([cuda.{call}(ctypes.byref(address), ctypes.c_size_t(4096)) for _ in range(4)])
"""


@pytest.mark.parametrize(("setting", "codes"), [
    ("cuMemAlloc_v2:2", [0, 2, 0, 0]),
    ("cuMemAlloc:3:719", [0, 0, 719, 0]),
    ("cuMemAlloc:2+:1,cuMemAlloc_v2:1", [2, 1, 1, 1]),
    ("cuMemAllocAsync:1", [0, 0, 0, 0]),
])
def test_simulator_returns_errors_for_calls_named_in_sim_fail(
    python: Python, setting: str, codes: list[int]
) -> None:
    printed = python(LOAD + CREATE.format(call="cuMemAlloc_v2"), NVSHARE_SIM_FAIL=setting)
    assert printed == f"{codes}\n"


@pytest.mark.parametrize(("variable", "value"), [
    ("NVSHARE_SIM_FAIL", "cuMemAlloc"), ("NVSHARE_SIM_FAIL", "cuMemAlloc:0"),
    ("NVSHARE_SIM_DRIVER", "53"), ("NVSHARE_SIM_MEMORY", "much"), ("NVSHARE_SIM_MEMORY", "-1"),
    ("NVSHARE_SIM_MEMORY", "1GB"),
])
def test_invalid_setting_of_the_simulator_is_reported_with_its_value(
    python: Python, variable: str, value: str
) -> None:
    with pytest.raises(AssertionError, match=rf"(?s){variable}.*{value}"):
        python(LOAD, **{variable: value})


NONE = """
import os, subprocess, sys
print(subprocess.run(
    [sys.executable, "-c", %r], env=os.environ | {"NVSHARE_SIM_GPUS": "0"},
    capture_output=True, text=True, check=True).stdout)
"""

COUNT = """
import ctypes
cuda, nvml = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")
code, count = nvml.nvmlInit_v2(), ctypes.c_uint(77)
nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
print(cuda.cuInit(0), code, count.value)
"""


def test_simulator_process_without_visible_cards_does_not_change_cards_of_other_processes(
    python: Python
) -> None:
    assert python(LOAD + CREATE.format(call="cuMemAlloc_v2") + NONE % COUNT + COUNT) == (
        "[0, 0, 0, 0]\n100 0 0\n\n0 0 2\n"
    )
    # Also if it is the first process, before another holds memory.
    assert python(COUNT + NONE % COUNT + COUNT) == "0 0 2\n100 0 0\n\n0 0 2\n"


TOTAL = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
count, total = ctypes.c_int(), ctypes.c_size_t()
print(cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(count)), count.value,
      cuda.cuDeviceTotalMem_v2(ctypes.byref(total), count.value - 1), total.value)
"""


def test_settings_file_of_the_simulator_overrides_environment_variables(
    python: Python, environment: dict[str, str]
) -> None:
    folder = Path(environment["NVSHARE_SIM_DIR"])
    folder.mkdir()
    (folder / "settings").write_text("gpus 3\nmemory 2147483648\n")
    assert python(TOTAL) == f"0 0 3 0 {2 << 30}\n"
    assert python(TOTAL, NVSHARE_SIM_MEMORY="64M", NVSHARE_SIM_GPUS="1") == f"0 0 3 0 {2 << 30}\n"
    assert python(COUNT, NVSHARE_SIM_GPUS="0") == "100 0 0\n"      # the settings do not apply to it


VISIBLE = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
code, count, bus = cuda.cuInit(0), ctypes.c_int(), ctypes.create_string_buffer(20)
cuda.cuDeviceGetCount(ctypes.byref(count))
cuda.cuDeviceGetPCIBusId(bus, 20, 0)
print(code, count.value, bus.value.decode())
"""


@pytest.mark.parametrize(("visible", "expected"), [
    ("1,0", "0 2 0000:18:00.0"), ("1", "0 1 0000:18:00.0"), ("0,7,1", "0 1 0000:17:00.0"),
    ("GPU-76", "0 1 0000:18:00.0"), ("", "100 0 "), ("0,0", "100 0 "),
])
def test_simulator_obeys_cuda_visible_devices(python: Python, visible: str, expected: str) -> None:
    assert python(VISIBLE, CUDA_VISIBLE_DEVICES=visible).rstrip("\n") == expected


MONITOR = (
    LOAD
    + """
import os
import pynvml
pynvml.nvmlInit()
assert pynvml.nvmlDeviceGetCount() == 2
card = pynvml.nvmlDeviceGetHandleByIndex(1)
assert pynvml.nvmlDeviceGetMemoryInfo(card).used == 0
assert pynvml.nvmlDeviceGetComputeRunningProcesses(card) == []

context, memory = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 1) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(100 << 20)) == 0

free, total = ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
old, new = pynvml.nvmlDeviceGetMemoryInfo(card), pynvml.nvmlDeviceGetMemoryInfo(
    card, version=pynvml.nvmlMemory_v2)
assert (old.total, old.free) == (new.total, new.free) == (total.value, free.value)
assert old.used == new.used == total.value - free.value > 100 << 20
(process,) = pynvml.nvmlDeviceGetComputeRunningProcesses(card)
assert (process.pid, process.usedGpuMemory) == (os.getpid(), old.used)
assert pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(0)) == []

uuid = ctypes.create_string_buffer(16)
assert cuda.cuDeviceGetUuid_v2(uuid, 1) == 0
text = pynvml.nvmlDeviceGetUUID(card)
assert text.removeprefix("GPU-").replace("-", "") == uuid.raw.hex()
bus = ctypes.create_string_buffer(20)
assert cuda.cuDeviceGetPCIBusId(bus, 20, 1) == 0
assert pynvml.nvmlDeviceGetPciInfo(card).busId.endswith(bus.value.decode())
assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(text)) == 1
assert "Simulated" in pynvml.nvmlDeviceGetName(card)
assert pynvml.nvmlSystemGetCudaDriverVersion() == 13000
assert pynvml.nvmlSystemGetDriverVersion().startswith("580.")
assert 0 <= pynvml.nvmlDeviceGetUtilizationRates(card).gpu <= 100
assert pynvml.nvmlDeviceGetTemperature(card, pynvml.NVML_TEMPERATURE_GPU) > 0
assert pynvml.nvmlDeviceGetPowerUsage(card) > 0
assert cuda.cuMemFree_v2(memory) == 0
assert cuda.cuDevicePrimaryCtxRelease_v2(1) == 0
assert pynvml.nvmlDeviceGetMemoryInfo(card).used == 0
try:
    pynvml.nvmlDeviceGetHandleByUUID("GPU-nothing")
except pynvml.NVMLError_NotFound:
    print("seen")
"""
)


def test_simulated_nvml_shows_memory_and_processes_of_the_simulated_driver(python: Python) -> None:
    assert python(MONITOR) == "seen\n"
