# SPDX-License-Identifier: Apache-2.0
"""A program gets the wrapper of exactly the entry point that it asks for.

A Python program with the preloaded library asks through ctypes, which calls dlsym().
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from libhook.tests.hook import recorded_driver as recorded


def run(program: str, library: Path, driver: Path, *arguments: object) -> Any:
    """The JSON that `program` prints; it must print nothing on stderr."""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env=recorded.environment(library, driver), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


# The driver gets functions of the library in place of the program's, which they call.
CALL_BACK = ("cuLaunchHostFunc", "cuStreamAddCallback")
CALL_EACH = """
import ctypes, json, sys
driver = ctypes.CDLL("libcuda.so.1")
zeros = ctypes.create_string_buffer(4096)
start = ctypes.addressof(zeros)
answers = {}
for name in sys.argv[1:]:
    passed = [ctypes.c_uint64(start + 264 * i) for i in range(12)]
    result = driver[name](*passed)
    arrived = (ctypes.c_uint64 * 12).in_dll(driver, "arguments_of_" + name)
    answers[name] = [result, [a.value for a in passed], list(arrived)]
print(json.dumps(answers))
"""


def test_wrapper_passes_arguments_to_the_same_entry_point_and_returns_the_result(
    library: Path, driver: Path
) -> None:
    """Each wrapper is called with distinct pointers to zeros. The entry point receives the same
    arguments, compared up to the widths of their types, and the wrapper returns its result."""
    wrapped = {
        hook: widths
        for hook, widths in recorded.hooks().items()
        if not hook.startswith("cuGetProcAddress")
    }
    answers = run(CALL_EACH, library, driver, *wrapped)
    for hook, widths in wrapped.items():
        result, passed, arrived = answers[hook]
        assert result == recorded.result_of(hook), hook
        for i, width in enumerate(widths):
            mask = (1 << width) - 1
            if not (i in (1, 2) and hook.startswith(CALL_BACK)):
                assert arrived[i] & mask == passed[i] & mask, f"argument {i} of {hook}"


ASK = """
import ctypes, json
driver, process = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(None)
def proc_address(symbol, version):
    entry = ctypes.c_void_p()
    arguments = symbol, ctypes.byref(entry), version, ctypes.c_uint64(0), None
    assert driver.cuGetProcAddress_v2(*arguments) == 0
    return entry.value
print(json.dumps([
    proc_address(b"cuMemAlloc", 1000), proc_address(b"cuMemAlloc_v2", 12000),
    proc_address(b"cuNothing", 12000), proc_address(b"cuLaunchKernelEx", 12000),
    hasattr(driver, "cuNothing"), hasattr(driver, "cuLaunchKernelEx"),
    hasattr(process, "cuLaunchKernelEx"), hasattr(process, "cuLaunchKernel"),
    driver.cuMemcpyAsync(0, 0, 0, 0),
]))
"""


def test_entry_point_that_the_driver_lacks_is_not_found(library: Path, tmp_path: Path) -> None:
    lacking = frozenset({"cuLaunchKernelEx", "cuLaunchKernelEx_ptsz", "cuMemcpyBatchAsync_v2"})
    driver = recorded.build(tmp_path, left_out=lacking)
    assert run(ASK, library, driver) == [
        None, None, None, None, False, False, False, True, recorded.result_of("cuMemcpyAsync"),
    ]
