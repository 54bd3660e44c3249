# SPDX-License-Identifier: Apache-2.0
"""A compute limit bounds the GPU time of a program, also of a program with short kernels."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.harness import run, sharing
from tests.integration.programs import PRELUDE

Record = Callable[[str, dict[str, Any]], None]

POINTS = 2
SECONDS = 10
# The program records an event after each 20 kernels of 10 us. The time between two events is that
# of these kernels, and sometimes the far longer time of a closed gate. The result is the median
# share of the kernels in a second, since a busy machine may stop the program once for 0.3 s. The
# first two seconds do not count, because a limit's account begins with a full window.
SHORT_KERNELS = PRELUDE + f'''
import time
from statistics import median
module, spin, stream = c_void_p(), c_void_p(), c_uint64()
with open("libhook/demo/kernels.ptx", "rb") as file:
    call("cuModuleLoadData", byref(module), file.read())
call("cuModuleGetFunction", byref(spin), module, b"nvshare_spin")
call("cuStreamCreate", byref(stream), 1)
microseconds = c_uint64(10)
passed = (c_void_p * 1)(ctypes.cast(byref(microseconds), c_void_p))
events, counted, began = [], 0, time.monotonic()
while time.monotonic() < began + 2 + {SECONDS}:
    for _ in range(20):
        call("cuLaunchKernel", spin, *(1, 1, 1, 1, 1, 1, 0), stream, passed, None)
    events.append(c_void_p())
    call("cuEventCreate", byref(events[-1]), 0)
    call("cuEventRecord", events[-1], stream)
    if time.monotonic() < began + 2:
        counted = len(events)
    if len(events) % 25 == 0:
        call("cuStreamSynchronize", stream)
call("cuStreamSynchronize", stream)
took, milliseconds = [], ctypes.c_float()
for before, after in zip(events[counted:], events[counted + 1:]):
    call("cuEventElapsedTime", byref(milliseconds), before, after)
    took.append(milliseconds.value)
usual = median(took)
shares, ran, elapsed = [], 0.0, 0.0
for each in took:
    ran, elapsed = ran + min(each, 1.5 * usual), elapsed + each
    if elapsed >= 1000:
        shares.append(100 * ran / elapsed)
        ran = elapsed = 0.0
print(json.dumps({{"percent": median(shares), "shares": shares, "usual_ms": usual}}))
'''


@pytest.mark.parametrize("percent", [25, 50, 75])
def test_program_of_short_kernels_gets_at_most_its_compute_limit(
    percent: int, tmp_path: Path, record: Record
) -> None:
    rules = tmp_path / "nvshared.conf"
    rules.write_text(f"[tenant user:*]\ncompute-limit = {percent}%\n")
    command = [sys.executable, "-c", SHORT_KERNELS]
    alone = run([command])[0]
    with sharing("--config", str(rules)) as daemon:
        limited = run([command], daemon.environment)[0]
        turns = [line["held_time"] for line in daemon.trace()
                 if line.get("report") == "turn-ended"]
    assert alone.code == limited.code == 0, alone.errors + limited.errors
    record(f"short kernels limited to {percent} %", {
        "alone": alone.output, "limited": limited.output, "turns": len(turns)})
    # Without a limit, kernels take nearly all of the time.
    share = 100 * limited.output["percent"] / alone.output["percent"]
    assert share <= percent + POINTS, json.dumps(limited.output)
    # On a busy machine the program may get less, but more than under the next lower limit.
    assert share > percent - 12, json.dumps(limited.output)
