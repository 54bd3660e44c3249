# SPDX-License-Identifier: Apache-2.0
"""Runs the program model.c: its options, its requests and its replies."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from bench.harness import ROOT
from bench.program import PATIENCE, Program, finish
from nvshared.errors import NvshareError

PROGRAM = ROOT / "build" / "bench-models" / "model"


class Answer(NamedTuple):
    """A request and when it was answered; microseconds of CLOCK_MONOTONIC."""

    model: int
    due: int
    began: int
    ended: int
    right: bool


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of models of one size; sizes in bytes."""

    size: int
    chunk: int                          # bytes of each allocation
    seed: int
    count: int = 1
    resident: int = 1                   # number of models on the card at the start
    file: str = ""                      # the file to read weights from; "": made on the card

    def command(self) -> list[str]:
        numbers = self.size, self.chunk, self.seed, self.count, self.resident
        return [str(PROGRAM), "serve", *map(str, numbers), *filter(None, [self.file])]


def answer(program: Program) -> Answer:
    """Waits for the answer to the oldest unanswered request. Raises NvshareError if none comes."""
    return Answer(**program.receive())


def speed(chunk: int, environment: Mapping[str, str]) -> dict[str, float]:
    """Measures the bus: GB/s in each direction, as `in_gbps` and `out_gbps`."""
    done = finish([PROGRAM, "speed", str(chunk)], environment, PATIENCE)
    if done.returncode != 0:
        raise NvshareError(f"the bus was not measured: {done.stderr.strip()}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def write(weights: Weights) -> None:
    done = finish(
        [PROGRAM, "write", str(weights.size), str(weights.chunk), weights.file], {}, PATIENCE)
    if done.returncode != 0:
        raise NvshareError(f"{weights.file} was not written: {done.stderr.strip()}")


def wrong(answers: Iterable[Answer]) -> tuple[str, ...]:
    return tuple(f"model {one.model}: a wrong sum" for one in answers if not one.right)
