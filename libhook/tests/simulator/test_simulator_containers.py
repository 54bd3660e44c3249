# SPDX-License-Identifier: Apache-2.0
"""Containers share the simulated GPUs of one folder, although each has a process 1."""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from libhook.tests.simulator.conftest import Python

APART = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
MIB = 1 << 20

LOAD = """
import ctypes, os
cuda = ctypes.CDLL("libcuda.so.1")
context, address = ctypes.c_void_p(), ctypes.c_uint64()
free, total = ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
def used():
    assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    return total.value - free.value
"""
HOLDS = LOAD + """
assert os.getpid() == 1
assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(300 << 20)) == 0
print("has it", flush=True)
input()
assert cuda.cuMemFree_v2(address) == 0
print(used())
"""


def can_be_apart() -> bool:
    return shutil.which("unshare") is not None and subprocess.run(
        [*APART, "true"], capture_output=True, check=False).returncode == 0


@pytest.fixture
def start(environment: dict[str, str]) -> Iterator[Callable[[], "subprocess.Popen[str]"]]:
    """Starts a process 1 that holds 300 MiB until the test ends it."""
    with ExitStack() as stack:

        def begin() -> "subprocess.Popen[str]":
            process = stack.enter_context(subprocess.Popen(
                [*APART, sys.executable, "-c", HOLDS], env=environment, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "has it\n"
            return process

        yield begin


@pytest.mark.skipif(not can_be_apart(), reason="no pid namespace can be made here")
def test_simulated_container_holds_allocated_memory_until_its_end(
    start: Callable[[], "subprocess.Popen[str]"], python: Python
) -> None:
    def used() -> int:
        return int(python(LOAD + "print(used())"))

    first, second = start(), start()
    with_both = used()
    assert with_both >= 600 * MIB
    first.kill()
    first.wait()
    while (with_one := used()) > with_both - 300 * MIB:
        time.sleep(0.01)                # process 1 ends a moment after unshare
    assert with_one >= 300 * MIB
    said, _ = second.communicate("\n")
    assert int(said) <= with_one - 300 * MIB
    assert used() < 300 * MIB
