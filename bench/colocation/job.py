# SPDX-License-Identifier: Apache-2.0
"""Runs the program job.c: its amounts of work, the time for each of them, and its rates."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from bench.harness import ROOT
from bench.program import Program, started

PROGRAM = ROOT / "build" / "bench-colocation" / "job"


@dataclass(frozen=True, slots=True)
class Work:
    units: int                          # on the CPU
    steps: int                          # on the GPU, each over all of its memory
    bursts: int = 1                     # number of alternations of CPU and GPU work


@dataclass(frozen=True, slots=True)
class Done:
    seconds: float                      # from the order until the answer
    cpu: float                          # of these, for work on the CPU,
    gpu: float                          # and on the GPU; the rest is the digest
    digest: str                         # of all that was computed since it was filled


@dataclass(frozen=True, slots=True)
class Rates:
    """Work of one program in a second when the program is alone."""

    units: float                        # on the CPU
    steps: float                        # on the GPU

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
    """A program with `size` bytes on the card, gone when the block is left."""
    with started([str(PROGRAM), str(size), str(seed)], environment) as program:
        yield Job(program)


def calibrate(one: Job, seconds: float) -> Rates:
    """Measures for about so long on each of CPU and GPU, after less of it for warming up."""
    one.fill()
    units = steps = 1
    while (done := one.work(Work(units, 0))).cpu < seconds / 2:
        units *= 2
    on_cpu = units / done.cpu
    while (done := one.work(Work(0, steps))).gpu < seconds / 2:
        steps *= 2
    return Rates(on_cpu, steps / done.gpu)
