# SPDX-License-Identifier: Apache-2.0
"""nvshare-workload on the simulated GPU: checksums, messages and exit statuses."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nvshared import library

MASK = (1 << 64) - 1
OUT_OF_MEMORY, USAGE, NO_DRIVER = 3, 2, 5


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Variables of a program on a simulated GPU of 64 MiB that no other process uses."""
    return {
        "PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(library.simulator()),
        "NVSHARE_SOCKET": str(tmp_path / "nobody"), "NVSHARE_SIM_DIR": str(tmp_path / "simulator"),
        "NVSHARE_SIM_GPUS": "1", "NVSHARE_SIM_MEMORY": "64M",
    }


def workload(environment: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [library.workload(), *options], env=environment, capture_output=True, text=True)


def events(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    """The events printed with --json by name; of several equal events the last."""
    return {event["event"]: event for event in map(json.loads, done.stdout.splitlines())}


def mixed(seed: int, chunk: int) -> int:
    """The value with which a chunk is filled, as expectation.c computes it."""
    x = (seed * 0xD1B54A32D192ED03 + (chunk + 1) * 0x8CB92BA72F3D8DD7) & MASK
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def checksum(seed: int, chunks: list[int], steps: int) -> int:
    """The checksum of all memory, computed from the description of kernels.ptx alone."""
    total = 0
    for number, words in enumerate(chunks):
        value, part = mixed(seed, number), 0
        for i in range(words):
            x = (value + i * 0x9E3779B97F4A7C15) & MASK
            for step in range(1, steps + 1):
                x = ((x ^ x >> 29) * 0xBF58476D1CE4E5B9 + step + i) & MASK
            part += x * (2 * i + 1)
        total += part * (2 * number + 1)
    return total & MASK


@pytest.mark.parametrize("threads", [1, 3])
def test_workload_checksum_equals_the_documented_computation(
    environment: dict[str, str], threads: int
) -> None:
    done = workload(
        environment, "--json", "--memory", "20000", "--chunk", "8000", "--steps", "3",
        "--seed", "7", "--threads", str(threads))
    assert done.returncode == 0, done.stderr
    said = events(done)
    assert said["allocated"]["chunks"] == 3
    assert said["step"]["step"] == said["step"]["steps"] == 3
    assert said["finished"]["checksum"] == f"{checksum(7, [1000, 1000, 500], 3):016x}"
    assert said["checked"]["right"] is True


def test_workload_without_enough_memory_fails_with_a_single_line(
    environment: dict[str, str]
) -> None:
    done = workload(environment, "--memory", "1GiB", "--chunk", "8MiB")
    assert done.returncode == OUT_OF_MEMORY
    assert done.stderr.startswith("nvshare-workload: out of memory: ")
    assert "of the 1024.0 MiB asked for, and no 8.0 MiB more" in done.stderr
    assert done.stderr.count("\n") == 1


def test_workload_without_a_driver_fails_with_the_reason(
    environment: dict[str, str], tmp_path: Path
) -> None:
    done = workload({**environment, "LD_LIBRARY_PATH": str(tmp_path)})
    if done.returncode == 0:
        pytest.skip("this machine has a driver of its own")
    assert done.returncode == NO_DRIVER
    assert done.stderr.startswith("nvshare-workload: no CUDA driver: ")


@pytest.mark.parametrize(("option", "value", "words"), [
    ("--memory", "12x", "is not a size; write for example 512MiB or 70%"),
    ("--memory", "0", "is not a size"),
    ("--change", "101%", "is not a size"),
    ("--rounds", "0", "is not a number from 1 to"),
    ("--chunk", "50%", "is not a size; write for example 512MiB\n"),
    ("--steps", "-1", "is not a number from 0 to"),
    ("--seed", "7a", "is not a number"),
])
def test_workload_refuses_a_wrong_option_and_names_its_value(
    environment: dict[str, str], option: str, value: str, words: str
) -> None:
    done = workload(environment, option, value)
    assert done.returncode == USAGE
    assert done.stderr.startswith(f"nvshare-workload: {option}: '{value}' ")
    assert words in done.stderr


# Flips one bit of each copy to the host, after the simulated driver has copied.
FLIPPING = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t bytes)
{
    int (*real)(void *, unsigned long long, size_t) = dlsym(RTLD_NEXT, "cuMemcpyDtoH_v2");
    int result = real(to, from, bytes);
    ((unsigned char *)to)[bytes - 1] ^= 0x10;
    return result;
}
"""


def compile_flipping(folder: Path) -> None:
    """Compiles folder/libcuda.so.1, which needs a copy of the simulated driver of another name."""
    driver = (library.simulator() / "libcuda.so.1").read_bytes()
    copy = folder / "libreal.so.1"
    copy.write_bytes(driver.replace(b"libcuda.so.1", b"libreal.so.1"))
    command = ["gcc", "-shared", "-fPIC", "-xc", "-", "-xnone", "-Wl,--no-as-needed", str(copy),
               "-Wl,-rpath,$ORIGIN", "-o", str(folder / "libcuda.so.1")]
    subprocess.run(command, input=FLIPPING, text=True, check=True)


def test_workload_detects_a_single_wrong_bit(environment: dict[str, str], tmp_path: Path) -> None:
    compile_flipping(tmp_path)
    options = ("--memory", "3MiB", "--chunk", "1MiB", "--steps", "1")
    wrong = {**environment, "LD_LIBRARY_PATH": str(tmp_path)}
    done = workload(wrong, *options)
    assert done.returncode == 1, done.stderr
    last = done.stdout.splitlines()[-1]
    assert last == "WRONG: 1 of 3 chunks differ from what the CPU computes, number 2 first"
    assert events(workload(wrong, "--json", *options))["checked"]["right"] is False
