# SPDX-License-Identifier: Apache-2.0
"""Random sequences of driver calls return the same under the library as without it.

The program of libhook/tests/random writes each call's results to a transcript.
Its transcripts without the library, and with it under random orders, must be
equal byte for byte. calls.c there lists the results that may differ, and why.

NVSHARE_TEST_SEQUENCES: the number of sequences.
"""

import os
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tests.integration.commander import Commander
from tests.integration.randomcalls import CARD, LIBHOOK, Run, Runner, difference, hooked
from tests.integration.test_random_handovers import SECOND_CARD

SEQUENCES = int(os.environ.get("NVSHARE_TEST_SEQUENCES", "80"))
# the first seed; SEQUENCES seeds from here call every function
FIRST = 20_520
AT_ONCE = 500                           # sequences in one process

# Seeds of sequences that showed a bug of the library or the simulator when run alone.
ONCE_WRONG = (123, 1006, 1049, 2046)

# Functions that no sequence calls, each with the reason.
EXCUSED = {
    "cuGetProcAddress*": "asks for functions and calls none",
    "cuCtxCreate": "of CUDA 2: today's driver says that there is no memory, or crashes",
    "cuLaunch": "of CUDA 2; no parameters can be set, as no hooked function does",
    "cuLaunchGrid*": "of CUDA 2, as cuLaunch",
    "cuLaunchCooperativeKernelMultiDevice": "for several devices, and gone from CUDA 13",
    "*ExternalSemaphores*": "needs a semaphore of a graphics library",
    "cuGraphExecChildGraphNodeSetParams": "the simulator has no such entry point",
    "cuMemBatchDecompress*": "needs compressed data and an engine for it",
    "cuMemDiscard*": "leaves contents undefined, and nothing could be compared",
    "cuMemMapArrayAsync*": "needs sparse arrays, which no framework uses",
    "cuMulticastBind*": "needs several devices with NVSwitch",
    "cuModuleLoad": "of the ways to load code one is enough: their wrappers are one macro",
    **dict.fromkeys((
        "cuModuleLoadDataEx", "cuModuleLoadFatBinary", "cuLibrary*", "cuKernel*", "cuFunc*",
        "cuOccupancy*"), "as cuModuleLoad"),
    "cuLaunchHostFunc*": "test_called_back.py, test_dependent_work.py",
    "cuStreamAddCallback*": "as cuLaunchHostFunc",
    "cuGreenCtx*": "test_green_contexts.py",
    "cuCtxPushCurrent*": "as cuCtxSetCurrent",
    "cuGLCtxCreate*": "needs a window",
    "cuVDPAUCtxCreate*": "needs a window",
    **dict.fromkeys((
        "cuFabricCpy*", "cuGraphAddNode_v3", "cuGraphNodeSetParams_v2", "cuLogicalEndpoint*",
        "cuMemGetLocationInfo", "cuMemcpy*WithAttributes*", "cuStreamBeginRecapture*",
    ), "newer than the driver whose answers were recorded"),
    "cuMemAlloc": "of CUDA 2: no address of a 64-bit program fits",
    **dict.fromkeys((
        "cuMemAllocPitch", "cuMemFree", "cuMemGetInfo", "cuDeviceTotalMem", "cuArrayCreate",
        "cuArray3DCreate", "cuMemcpy[HDA]to[HDA]", "cuMemcpy[HDA]to[HDA]Async", "cuMemcpy[23]D",
        "cuMemcpy2DUnaligned", "cuMemcpy[23]DAsync", "cuMemsetD8", "cuMemsetD16", "cuMemsetD32",
        "cuMemsetD2D8", "cuMemsetD2D16", "cuMemsetD2D32"), "of CUDA 2, as cuMemAlloc"),
}


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    """A runner with two linked cards, of which one lends memory, and without sanitizers."""
    build = LIBHOOK / "build"
    if not (build / "random").exists():
        pytest.fail(f"{build / 'random'} is missing; make it with: make -C libhook random")
    return Runner(tmp_path, build, {
        "LD_LIBRARY_PATH": str(build / "simulator"), "NVSHARE_SIM_DIR": str(tmp_path),
        "NVSHARE_SIM_MEMORY": str(CARD), "NVSHARE_SIM_GPUS": "2", "NVSHARE_SIM_COPY_RATE": "0",
    }, SECOND_CARD)


def compare(runner: Runner, seed: int, sequences: int) -> tuple[Run, Commander]:
    """Returns the run under the library, and the commander that gave it orders."""
    alone = runner.alone(seed, sequences)
    under, commander = runner.ordered(seed, sequences)
    found = difference(alone, under)
    assert not found, found
    return under, commander


def test_random_calls_that_once_failed_return_the_same_as_without_the_library(
    runner: Runner
) -> None:
    for seed in ONCE_WRONG:
        compare(runner, seed, 1)


def test_random_calls_return_the_same_as_without_the_library(runner: Runner) -> None:
    called: set[str] = set()
    turns = borrowed = stored = 0
    for done in range(0, SEQUENCES, AT_ONCE):
        run, commander = compare(runner, FIRST + done, min(AT_ONCE, SEQUENCES - done))
        called |= run.called
        turns += commander.turns
        borrowed += commander.borrowed
        stored += commander.stored
    missing = sorted(
        name for name in hooked() - called
        if not any(fnmatchcase(name, excused) for excused in EXCUSED))
    unneeded = [
        excused for excused in EXCUSED
        if any(fnmatchcase(name, excused) for name in hooked() & called)
    ]
    print(f"{SEQUENCES} sequences, {turns} turns, {len(called)} functions called")
    assert turns > SEQUENCES // 10, "the program was hardly ever evicted"
    assert SEQUENCES < 400 or borrowed > 0      # few evictions of a short run find a loan
    assert SEQUENCES < 400 or stored > 0
    assert not missing, f"no sequence calls {', '.join(missing)}"
    assert not unneeded, f"called, and excused: {', '.join(unneeded)}"
