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

PROGRAM = """
import ctypes, json, sys
driver = ctypes.CDLL("libcuda.so.1")
process = ctypes.CDLL(None)

class Info(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p),
                ("symbol", ctypes.c_char_p), ("address", ctypes.c_void_p)]

def owner(address):
    info = Info()
    assert process.dladdr(ctypes.c_void_p(address), ctypes.byref(info)) != 0
    file = info.file.decode().rsplit("/", 1)[-1]
    if info.symbol:
        return [file, info.symbol.decode()]
    # A stub has no symbol; its function's result identifies it.
    return [file, ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * 12)(address)(*[0] * 12)]

def address_of(function):
    return ctypes.cast(function, ctypes.c_void_p).value

def proc_address(symbol, version, flags, old=False):
    entry = ctypes.c_void_p()
    ask = driver.cuGetProcAddress if old else driver.cuGetProcAddress_v2
    extra = [] if old else [None]
    assert ask(symbol.encode(), ctypes.byref(entry), version, ctypes.c_uint64(flags), *extra) == 0
    return entry.value

def say(answer):
    print(json.dumps(answer))
"""


def run(program: str, library: Path, driver: Path, *arguments: object) -> Any:
    """The JSON that `program`, appended to PROGRAM, prints; it must print nothing on stderr."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + program, *map(str, arguments)],
        env=recorded.environment(library, driver), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_get_proc_address_finds_no_entry_point_that_the_driver_lacks(
    library: Path, driver: Path
) -> None:
    assert run(
        "say([proc_address('cuMemAlloc', 1000, 0), proc_address('cuMemAlloc_v2', 12000, 0),"
        " proc_address('cuNothing', 12000, 0), hasattr(driver, 'cuNothing')])",
        library,
        driver) == [None, None, None, False]


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
    answers = run(
        """
zeros = ctypes.create_string_buffer(4096)
start = ctypes.addressof(zeros)
answers = {}
for name in sys.argv[1:]:
    passed = [ctypes.c_uint64(start + 264 * i) for i in range(12)]
    result = driver[name](*passed)
    arrived = (ctypes.c_uint64 * 12).in_dll(driver, "arguments_of_" + name)
    answers[name] = [result, [a.value for a in passed], list(arrived)]
say(answers)
""",
        library,
        driver,
        *wrapped)
    for hook, widths in wrapped.items():
        result, passed, arrived = answers[hook]
        assert result == recorded.result_of(hook), hook
        for i, width in enumerate(widths):
            mask = (1 << width) - 1
            assert arrived[i] & mask == passed[i] & mask, f"argument {i} of {hook}"


def test_wrapper_of_a_function_that_an_older_driver_lacks_is_not_found(
    library: Path, tmp_path: Path
) -> None:
    lacking = frozenset({"cuLaunchKernelEx", "cuLaunchKernelEx_ptsz", "cuMemcpyBatchAsync_v2"})
    driver = recorded.build(tmp_path, left_out=lacking)
    assert run(
        """
entry = ctypes.c_void_p
process.dlsym.restype = ctypes.c_void_p
say([hasattr(driver, "cuLaunchKernelEx"), hasattr(process, "cuLaunchKernelEx"),
     proc_address("cuLaunchKernelEx", 12000, 0), hasattr(process, "cuLaunchKernel"),
     owner(address_of(driver.cuLaunchKernel)), driver.cuMemcpyAsync(0, 0, 0, 0)])
""",
        library,
        driver) == [
        False, False, None, True, ["libnvshare.so", "cuLaunchKernel"],
        recorded.result_of("cuMemcpyAsync"),
    ]
