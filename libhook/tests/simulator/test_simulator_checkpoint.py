# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of the simulated driver, made by nvshare-checkpoint as by the daemon."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from libhook.tests.simulator.conftest import LIBHOOK, Python

HELPER = (sys.executable, "-I", str(LIBHOOK.parent / "nvshared" / "checkpointer.py"))

# Evaluates each line of its input, and prints the result.
PROGRAM = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    assert code == 0, (name, code)
context, memory = ctypes.c_void_p(), ctypes.c_uint64()
call("cuInit", 0)
call("cuCtxCreate_v2", ctypes.byref(context), 0, 0)
call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(64 << 20))
call("cuMemsetD8_v2", memory, ctypes.c_ubyte(7), ctypes.c_size_t(64 << 20))
def read():
    there = ctypes.create_string_buffer(64 << 20)
    call("cuMemcpyDtoH_v2", there, memory, ctypes.c_size_t(64 << 20))
    data = there.raw
    return set(data[:1] if data == data[:1] * len(data) else data)
def uuid():
    there = ctypes.create_string_buffer(16)
    call("cuDeviceGetUuid", there, 0)
    return there.raw.hex()
print("ready", flush=True)
for line in sys.stdin:
    print(eval(line), flush=True)
"""

# Prints the used memory of both cards by NVML, in MiB.
USED = """
import pynvml
pynvml.nvmlInit()
for index in range(2):
    print(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(index)).used >> 20)
"""

UUIDS = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
for index in range(2):
    there = ctypes.create_string_buffer(16)
    assert cuda.cuDeviceGetUuid(there, index) == 0
    print(there.raw.hex())
"""

Ask = Callable[[str], str]


@contextmanager
def program(environment: dict[str, str]) -> Iterator[tuple[subprocess.Popen[str], Ask]]:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        questions, answers = process.stdin, process.stdout
        assert questions is not None
        assert answers is not None

        def ask(line: str) -> str:
            print(line, file=questions, flush=True)
            return answers.readline().strip()

        assert answers.readline() == "ready\n"
        yield process, ask
        questions.close()


def helper(
    environment: dict[str, str], *words: object,
) -> list[list[str]]:
    """Runs nvshare-checkpoint; returns the words of its lines, and of steps only name and code."""
    said = subprocess.run(
        HELPER, input=" ".join(map(str, words)), env=environment, capture_output=True, text=True,
        check=True)
    lines = [line.split() for line in said.stdout.splitlines()]
    return [line[1:3] if line[0] == "step" else line for line in lines]


def used(python: Python) -> list[int]:
    return [int(line) for line in python(USED).split()]


def test_restore_with_gpu_pairs_for_two_of_four_gpus_keeps_the_other_gpus(
    environment: dict[str, str], python: Python,
) -> None:
    four = environment | {"NVSHARE_SIM_GPUS": "4"}
    visible = four | {"CUDA_VISIBLE_DEVICES": "0"}      # applies to the helper
    with program(four) as (process, ask):
        first, second = python(UUIDS).split()
        helper(visible, "park", process.pid)
        pairs = (f"{first}={second}", f"{second}={first}")
        assert helper(visible, "wake", process.pid, *pairs)[-1] == ["state", "running"]
        assert ask("read()") == "{7}"
        assert ask("uuid()") == second


def test_restore_that_lacks_memory_is_final_for_the_process(
    environment: dict[str, str], python: Python,
) -> None:
    """As driver 580 answers on an H200."""
    small = environment | {"NVSHARE_SIM_MEMORY": "128M"}
    with program(small) as (process, _):
        assert helper(small, "park", process.pid)[-1] == ["state", "checkpointed"]
        with program(small):
            assert helper(small, "wake", process.pid) == [
                ["init", "0"], ["restore", "2"], ["state", "checkpointed"]]
        for _ in range(2):
            assert helper(small, "wake", process.pid) == [
                ["init", "0"], ["restore", "304"], ["state", "checkpointed"]]
        assert used(python) == [0, 0]
        process.kill()


def test_checkpoint_helper_without_a_driver_reports_state_none_and_refuses_wrong_commands(
    environment: dict[str, str],
) -> None:
    alone = {name: text for name, text in environment.items() if name != "LD_LIBRARY_PATH"}
    if subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=False
                      ).stdout.count("libcuda.so.1"):
        pytest.skip("there is a driver")
    assert helper(alone, "state", 1) == [["open", "-1"], ["state", "none"]]
    for words in (["park"], ["park", "x"], ["park", "-1"], ["wake", "1", "GPU-12=GPU-13"],
                  ["hold", "1", "x"], ["held"]):
        said = subprocess.run(HELPER, input=" ".join(words), env=alone, capture_output=True,
                              text=True, check=False)
        assert said.returncode == 2
