# SPDX-License-Identifier: Apache-2.0
"""Runs several nvshare-workload at the same time, which share the card; how each ended."""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import IO, Any

from bench.program import INTERRUPTS, die_with_us
from nvshared import library
from nvshared.errors import NvshareError

PATIENCE = 120.0                        # seconds for a program to end after Task.seconds
CALIBRATION = 5                         # number of calibrating steps
TRIED = 32                              # rounds of computing in a calibrating step


def workload(memory: int, chunk: int, seed: int, *options: object) -> list[str]:
    """The command of nvshare-workload; sizes in bytes."""
    return [str(library.workload()), "--json", "--memory", str(memory), "--chunk", str(chunk),
            "--seed", str(seed), *map(str, options)]


def calibrated(
    command: Callable[[int, int], list[str]], seconds: float, environment: Mapping[str, str]
) -> int:
    """Returns the number of rounds of computing in a step that takes `seconds`.

    `command`: returns a command for a number of steps, and of rounds in each step.
    Raises NvshareError if the program fails.
    """
    words = command(CALIBRATION, TRIED)
    done = subprocess.run(words, env={**os.environ, **environment}, capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        raise NvshareError(
            f"{' '.join(words)} ended with {done.returncode}: {done.stderr.strip()}")
    # Not from the duration of programs: the first start on a machine can take seconds longer.
    events = map(json.loads, done.stdout.splitlines())
    ends = [event["at"] for event in events if event["event"] == "step"]
    took: float = median(later - earlier for earlier, later in pairwise(ends)) / 1e6
    return max(1, round(TRIED * seconds / took))


@dataclass(frozen=True, slots=True)
class Task:
    memory: int
    seconds: float                      # seconds for which it computes, from its start
    seed: int
    chunk: int                          # bytes of each allocation
    used: int = 0                       # bytes at the memory's end that it uses; 0: all
    changed: int = 0                    # bytes at the end of `used` that it writes; 0: all
    rounds: int = 1                     # rounds of computing on each word in a step
    copied: int = 0                     # bytes copied from the host before each step
    visible: str = ""                   # CUDA_VISIBLE_DEVICES; "": inherited
    after: float = 0.0                  # seconds from the first program's start to its start

    @property
    def environment(self) -> dict[str, str]:
        return {"CUDA_VISIBLE_DEVICES": self.visible} if self.visible else {}

    def command(self) -> list[str]:
        command = workload(self.memory, self.chunk, self.seed, "--seconds",
                           max(1, round(self.seconds)), "--rounds", self.rounds)
        if self.used:
            command += ["--used", str(self.used)]
        if self.changed:
            command += ["--change", str(self.changed)]
        if self.copied:
            command += ["--copy", str(self.copied)]
        return command


@dataclass(frozen=True, slots=True)
class Outcome:
    task: Task
    pid: int
    started: int                        # microseconds of CLOCK_MONOTONIC
    steps: tuple[int, ...]              # microseconds of CLOCK_MONOTONIC: the end of each step
    right: bool                         # every word equals the CPU's result
    message: str                        # the end of its output if it failed, else ""


@dataclass(frozen=True, slots=True)
class Running:
    task: Task
    process: subprocess.Popen[bytes]
    started: int
    output: IO[bytes]
    errors: IO[bytes]


def perform(tasks: Sequence[Task], environment: Mapping[str, str]) -> list[Outcome]:
    """Runs all programs and waits until they have ended.

    Raises NvshareError if a program does not end in time. No program is left running in any case.
    """
    began = time.monotonic()
    running: list[Running] = []
    try:
        for task in tasks:
            time.sleep(max(0.0, began + task.after - time.monotonic()))
            # Block signals: an interrupt during a start would leave a program outside of the list.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)
            try:
                running.append(_start(task, environment))
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        limit = began + max(task.after + task.seconds for task in tasks) + PATIENCE
        for one in running:
            try:
                one.process.wait(max(0.0, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise NvshareError(
                    f"a program did not end within {PATIENCE:.0f} s after its time: "
                    + " ".join(one.task.command())) from None
        return [_outcome(one) for one in running]
    finally:
        for one in running:
            one.process.kill()          # no-op if the process has been waited for
        for one in running:
            one.process.wait()
            one.output.close()
            one.errors.close()


def _start(task: Task, environment: Mapping[str, str]) -> Running:
    # perform() closes both. They are files, because an unread pipe would stop the program.
    output = tempfile.TemporaryFile()  # noqa: SIM115
    errors = tempfile.TemporaryFile()  # noqa: SIM115
    process = subprocess.Popen(task.command(),
                               env={**os.environ, **environment, **task.environment},
                               stdin=subprocess.DEVNULL, stdout=output, stderr=errors,
                               start_new_session=True, preexec_fn=die_with_us)
    return Running(task, process, time.monotonic_ns() // 1000, output, errors)


def _outcome(one: Running) -> Outcome:
    one.output.seek(0)
    one.errors.seek(0)
    events: list[dict[str, Any]] = [json.loads(line) for line in one.output]
    checked = [event["right"] for event in events if event["event"] == "checked"]
    right = one.process.returncode == 0 and checked == [True]
    words = one.errors.read().decode(errors="replace").strip().splitlines()
    if checked == [False]:
        words.append("WRONG RESULT: its memory does not hold what the CPU computes")
    message = words[-1] if words else f"it ended with status {one.process.returncode}"
    return Outcome(one.task, one.process.pid, one.started,
                   tuple(int(event["at"]) for event in events if event["event"] == "step"), right,
                   "" if right else message)
