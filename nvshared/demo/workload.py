# SPDX-License-Identifier: Apache-2.0
"""One of the two programs: nvshare-workload, what it is told and what it says."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nvshared import library
from nvshared.demo.process import running

OUT_OF_MEMORY = 3                       # nvshare-workload's exit status

Event = dict[str, Any]                  # one line of nvshare-workload --json


@dataclass(frozen=True, slots=True)
class Task:
    """What a program is to do."""

    name: str                           # for people
    memory: int                         # bytes
    chunk: int                          # bytes
    steps: int
    cpu_ms: int                         # on the CPU after each step
    kernel_us: int                      # on the GPU for each chunk and step, besides computing
    seed: int

    def command(self) -> list[str]:
        """As nvshare-workload is called."""
        return [
            str(library.workload()), "--json",
            "--memory", str(self.memory), "--chunk", str(self.chunk),
            "--steps", str(self.steps), "--cpu-ms", str(self.cpu_ms),
            "--kernel-us", str(self.kernel_us), "--seed", str(self.seed),
        ]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it went."""

    task: Task
    status: int                         # exit status, negative for a signal
    checksum: str                       # of all its memory, "" if it did not get that far
    right: bool                         # every chunk is what the CPU computes
    seconds: float                      # from its start to its results, the check left out
    message: str                        # its last words on stderr

    @property
    def out_of_memory(self) -> bool:
        """It was refused memory and ended for it."""
        return self.status == OUT_OF_MEMORY


async def perform(
    task: Task,
    environment: Mapping[str, str],
    began: Callable[[int], None],
    said: Callable[[Event], None],
) -> Outcome:
    """Runs the program to its end. `began` is told its pid, `said` everything it says."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    seconds = 0.0
    checksum = ""
    right = False
    async with running(task.command(), environment) as process:
        began(process.pid)
        assert process.stdout is not None
        assert process.stderr is not None
        errors = asyncio.create_task(process.stderr.read())
        async for line in process.stdout:
            event: Event = json.loads(line)
            if event["event"] == "finished":
                seconds = loop.time() - start
                checksum = event["checksum"]
            elif event["event"] == "checked":
                right = event["right"]
            said(event)
        status = await process.wait()
        words = (await errors).decode(errors="replace").strip().splitlines()
    return Outcome(
        task=task,
        status=status,
        checksum=checksum,
        right=right and status == 0,
        seconds=seconds,
        message=words[-1].removeprefix("nvshare-workload: ") if words else "",
    )
