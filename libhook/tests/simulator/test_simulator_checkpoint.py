# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of the simulated driver, made by nvshare-checkpoint as by the daemon."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from libhook.tests.simulator.conftest import LIBHOOK, Python

HELPER = LIBHOOK / "build" / "nvshare-checkpoint"

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
def export():
    call("cuIpcGetMemHandle", ctypes.create_string_buffer(64), memory)
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
import ctypes
class Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_uint64), ("free", ctypes.c_uint64), ("used", ctypes.c_uint64)]
nvml = ctypes.CDLL("libnvidia-ml.so.1")
assert nvml.nvmlInit_v2() == 0
for index in range(2):
    device, memory = ctypes.c_void_p(), Memory()
    assert nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) == 0
    assert nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) == 0
    print(memory.used >> 20)
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
    environment: dict[str, str], *words: object, command: Sequence[object] = (HELPER,),
) -> list[list[str]]:
    """Runs nvshare-checkpoint; returns the words of its lines, and of steps only name and code."""
    said = subprocess.run(
        [*map(str, command), *map(str, words)], env=environment, capture_output=True, text=True,
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


def test_checkpoint_helper_without_a_driver_reports_state_none_and_refuses_wrong_commands(
    environment: dict[str, str],
) -> None:
    alone = {name: text for name, text in environment.items() if name != "LD_LIBRARY_PATH"}
    if subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=False
                      ).stdout.count("libcuda.so.1"):
        pytest.skip("there is a driver")
    assert helper(alone, "state", 1) == [["open", "-1"], ["state", "none"]]
    for words in (["park"], ["park", "x"], ["park", "-1"], ["wake", "1", "GPU-12=GPU-13"]):
        said = subprocess.run([HELPER, *words], env=alone, capture_output=True, check=False)
        assert said.returncode == 2


# Starts threads that query the driver without pause, and counts the queries.
POLLING = """
import threading
asked = [0, 0]
def poll(number):
    call("cuCtxSetCurrent", context)
    while True:
        assert cuda.cuStreamQuery(None) in (0, 600)
        asked[number] += 1
for number in range(2):
    threading.Thread(target=poll, args=(number,), daemon=True).start()
"""

# Runs a command with control groups of version 2 mounted at a folder.
GROUPS = 'mount -t cgroup2 none "$1" && shift && exec "$@"'


@pytest.fixture
def inside(tmp_path: Path) -> list[str]:
    """The first words of a command that runs with control groups."""
    folder = tmp_path / "groups"
    folder.mkdir()
    command = [
        "unshare", "--mount", "--propagation", "private", "sh", "-c", GROUPS, "sh", str(folder)]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("control groups of version 2 cannot be mounted here; root may")
    return command


@pytest.fixture
def grouped(inside: list[str]) -> Callable[..., list[list[str]]]:
    def ask(environment: dict[str, str], *words: object) -> list[list[str]]:
        return helper(environment, *words, command=[*inside, HELPER])

    return ask


def test_frozen_program_whose_threads_poll_is_checkpointed_and_continues(
    environment: dict[str, str], python: Python, grouped: Callable[..., list[list[str]]],
) -> None:
    environment = environment | {"NVSHARE_SIM_RESTORER": "1"}
    with program(environment) as (process, ask):
        ask(f"exec({POLLING!r})")
        for _ in range(3):
            before = eval(ask("asked"))
            assert grouped(environment, "hold", process.pid, "tag-1") == [
                ["init", "0"], ["lock", "0"], ["state", "locked"]]
            assert ["held", str(process.pid), "tag-1"] in grouped(environment, "held")
            assert grouped(environment, "park", process.pid)[-1] == ["state", "checkpointed"]
            assert used(python) == [0, 0]
            process.send_signal(signal.SIGCONT)     # frozen threads do not continue
            assert grouped(environment, "restore", process.pid)[-1] == ["state", "locked"]
            assert used(python)[0] >= 64
            assert grouped(environment, "wake", process.pid)[-1] == ["state", "running"]
            assert ask("read()") == "{7}"
            while any(now <= then for now, then in zip(eval(ask("asked")), before, strict=True)):
                pass
        assert ["held", str(process.pid), "tag-1"] not in grouped(environment, "held")


def test_frozen_program_continues_when_the_driver_refuses_or_names_no_restoring_thread(
    environment: dict[str, str], grouped: Callable[..., list[list[str]]],
) -> None:
    with program(environment) as (process, ask):
        assert grouped(environment, "hold", process.pid, "x") == [
            ["init", "0"], ["lock", "0"], ["restorer", "801"], ["unlock", "0"],
            ["state", "running"]]
        assert ask("read()") == "{7}"
    environment = environment | {"NVSHARE_SIM_RESTORER": "1"}
    with program(environment) as (process, ask):
        ask("export()")
        assert grouped(environment, "hold", process.pid, "x")[-1] == ["state", "locked"]
        assert grouped(environment, "park", process.pid) == [
            ["init", "0"], ["checkpoint", "801"], ["unlock", "0"], ["state", "running"]]
        assert ask("read()") == "{7}"


def test_frozen_program_continues_when_the_checkpoint_helper_is_killed_at_any_moment(
    environment: dict[str, str], inside: list[str], grouped: Callable[..., list[list[str]]],
) -> None:
    environment = environment | {"NVSHARE_SIM_RESTORER": "1"}
    random = Random(5)
    with program(environment) as (process, ask):
        ask(f"exec({POLLING!r})")
        for _ in range(4):
            for words, state in (
                (("hold", process.pid, "x"), "locked"), (("park", process.pid), "checkpointed"),
                (("restore", process.pid), "locked"), (("wake", process.pid), "running")):
                with subprocess.Popen(
                    [*inside, HELPER, *map(str, words)], env=environment, stdout=subprocess.PIPE,
                ) as cut:
                    time.sleep(random.uniform(0, 0.06))
                    cut.kill()
                assert grouped(environment, *words)[-1] == ["state", state]
            assert ask("read()") == "{7}"


def test_cgroup_of_a_frozen_program_is_removed_when_the_program_is_killed(
    environment: dict[str, str], grouped: Callable[..., list[list[str]]],
) -> None:
    environment = environment | {"NVSHARE_SIM_RESTORER": "1"}
    with program(environment) as (process, _):
        grouped(environment, "hold", process.pid, "x")
        group = Path(f"/proc/{process.pid}/cgroup").read_text().rpartition("0::")[2]
        assert group.endswith(f"nvshare-{process.pid}-x/stopped\n")
        grouped(environment, "park", process.pid)
        process.kill()
        process.wait()
        assert all(str(process.pid) not in line for line in grouped(environment, "held"))


def test_checkpoint_helper_does_not_freeze_a_program_that_loaded_the_library(
    environment: dict[str, str], grouped: Callable[..., list[list[str]]],
) -> None:
    loaded = environment | {"LD_PRELOAD": str(LIBHOOK / "build" / "libnvshare.so")}
    with program(loaded) as (process, ask):
        assert grouped(environment, "hold", process.pid, "x") == [
            ["init", "0"], ["hold", "-1"], ["state", "running"]]
        assert ask("read()") == "{7}"


def test_list_of_frozen_programs_ignores_cgroups_owned_by_users(
    environment: dict[str, str], grouped: Callable[..., list[list[str]]], inside: list[str],
) -> None:
    environment = environment | {"NVSHARE_SIM_RESTORER": "1"}
    with program(environment) as (process, ask):
        grouped(environment, "hold", process.pid, "x")
        group = Path(f"/proc/{process.pid}/cgroup").read_text().rpartition("0::")[2]
        folder = inside[-1] + group.removesuffix("/stopped\n")
        give = 'g="$1"; shift; chown 65534 "$g" && "$@" && chown 0 "$g"'
        said = helper(
            environment, "held", command=[*inside, "sh", "-c", give, "sh", folder, HELPER])
        assert said[-1] == ["state", "none"]
        assert all(str(process.pid) not in line for line in said)
        assert ["held", str(process.pid), "x"] in grouped(environment, "held")
        assert grouped(environment, "wake", process.pid)[-1] == ["state", "running"]
        assert ask("read()") == "{7}"
