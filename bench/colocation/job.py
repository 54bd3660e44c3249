# SPDX-License-Identifier: Apache-2.0
"""Runs the program job.c: amounts of work, the duration of each amount, and the rates of work."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from bench.harness import ROOT
from bench.program import Program, started

PROGRAM = ROOT / "build" / "bench-colocation" / "job"


@dataclass(frozen=True, slots=True)
class Work:
    units: int                          # number of units of CPU work
    steps: int                          # number of GPU steps, each over all of its memory
    bursts: int = 1                     # number of alternations of CPU and GPU work


@dataclass(frozen=True, slots=True)
class Done:
    seconds: float                      # from the request until the answer
    cpu: float                          # seconds of these for CPU work,
    gpu: float                          # and for GPU work; the rest is for the digest
    digest: str                         # checksum of all that it computed since fill()


@dataclass(frozen=True, slots=True)
class Rates:
    """Work of one program in a second when the program is alone."""

    units: float                        # units of CPU work per second
    steps: float                        # GPU steps per second

    def work(self, cpu: float, gpu: float, bursts: int = 1) -> Work:
        return Work(round(cpu * self.units), max(1, round(gpu * self.steps)), bursts)


class Job:
    """A program that has allocated its memory."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._began = 0.0

    def fill(self) -> None:
        self._program.send("fill")
        self._program.receive()

    def begin(self, work: Work) -> None:
        self._began = time.perf_counter()
        self._program.send("work", work.units, work.steps, work.bursts)

    def end(self) -> Done:
        said = self._program.receive()
        return Done(time.perf_counter() - self._began, float(said["cpu"]), float(said["gpu"]),
                    str(said["digest"]))

    def work(self, work: Work) -> Done:
        self.begin(work)
        return self.end()


@contextmanager
def job(size: int, seed: int, environment: Mapping[str, str]) -> Iterator[Job]:
    """Runs a program with `size` bytes on the card while the `with` block runs."""
    with started([str(PROGRAM), str(size), str(seed)], environment) as program:
        yield Job(program)


def calibrate(one: Job, seconds: float) -> Rates:
    """Measures CPU work and GPU work with growing amounts, each for about `seconds` at the end."""
    one.fill()
    units = steps = 1
    while (done := one.work(Work(units, 0))).cpu < seconds / 2:
        units *= 2
    on_cpu = units / done.cpu
    while (done := one.work(Work(0, steps))).gpu < seconds / 2:
        steps *= 2
    return Rates(on_cpu, steps / done.gpu)
