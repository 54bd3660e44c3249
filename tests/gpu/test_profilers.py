# SPDX-License-Identifier: Apache-2.0
"""compute-sanitizer and ncu profile an undisturbed program although the library is preloaded.

A profiled program uses the GPU unshared, alone under the daemon and beside a program with frequent
turns. The library logs the reason in one line (libnvshare(7), libhook/src/service/attach.c). The
program is nvshare-workload, which checks every word of its results. The test of an absent tool is
skipped, and the test of a tool that fails without the library (ncu may need rights to the card's
counters).
"""

import os
import shutil
import subprocess
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from bench.harness import LIBRARY, Result, rival, sharing
from tests.gpu.test_sharing import BUDGET, check, competitor

WORKLOAD = LIBRARY.with_name("nvshare-workload")
STEPS = ("--memory", "64MiB", "--steps", "2")
FOLDERS = ["/usr/local/cuda/bin", *map(str, Path("/opt/nvidia/nsight-compute").glob("*"))]
RIVAL = 14                              # GiB
LIMIT = 300.0                           # seconds
OPTIONS = {
    "compute-sanitizer": ("--tool", "memcheck", "--error-exitcode", "9"),
    "ncu": ("--launch-count", "4"),
}
# Output by which each tool shows that it has watched the program until its end.
SEEN = {"compute-sanitizer": "ERROR SUMMARY: 0 errors", "ncu": "Duration"}


def found(name: str) -> str | None:
    """The path of a profiler of the CUDA toolkit, in PATH or its usual folders; None if absent."""
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *FOLDERS]))


def watched(
    name: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs nvshare-workload under the profiler; stdout includes stderr."""
    return subprocess.run(
        [found(name) or name, *OPTIONS[name], str(WORKLOAD), *STEPS],
        env={**os.environ, **(environment or {})}, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, timeout=LIMIT, check=False,
    )


@pytest.fixture(params=list(OPTIONS))
def name(request: pytest.FixtureRequest) -> str:
    """The name of each profiler that works on this machine without the library."""
    chosen: str = request.param
    if found(chosen) is None:
        pytest.skip(f"there is no {chosen} here")
    without = watched(chosen)
    if without.returncode != 0 or SEEN[chosen] not in without.stdout:
        pytest.skip(f"{chosen} does not work here without the library: {without.stdout[-500:]}")
    return chosen


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside-a-rival"])
def test_profiler_profiles_the_program_and_the_library_logs_a_single_line(
    name: str, beside: bool
) -> None:
    with sharing("--tq", "200ms", "--capacity", "20GiB", *BUDGET) as daemon:
        company: AbstractContextManager[list[Result]] = nullcontext([])
        if beside:
            company = rival(competitor(RIVAL, "--until-told"), daemon.environment)
        with company as other:
            result = watched(name, daemon.environment)
    assert result.returncode == 0, result.stdout
    assert SEEN[name] in result.stdout
    ours = [line for line in result.stdout.splitlines() if "libnvshare[" in line]
    assert len(ours) == 1, result.stdout
    assert "watches this program" in ours[0]
    for one in other:
        check(one, RIVAL)
