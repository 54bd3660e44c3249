# SPDX-License-Identifier: Apache-2.0
"""A process of model.c: started, asked, and ended whatever happens."""

import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

from bench.handover.program import die_with_us, finish
from bench.harness import ROOT
from nvshared.errors import NvshareError

PROGRAM = ROOT / "build" / "bench-models" / "model"
PATIENCE = 300.0                        # seconds for any answer


class Answer(NamedTuple):
    """A request and when it was answered; microseconds of CLOCK_MONOTONIC."""

    model: int
    due: int
    began: int
    ended: int
    right: bool


@dataclass(frozen=True, slots=True)
class Weights:
    """Of models that are alike; sizes in bytes."""

    size: int
    chunk: int                          # of each allocation
    seed: int
    count: int = 1
    resident: int = 1                   # of them, at the start
    file: str = ""                      # where weights come from; "": made on the card

    def command(self) -> list[str]:
        """As the program is called."""
        numbers = self.size, self.chunk, self.seed, self.count, self.resident
        return [str(PROGRAM), "serve", *map(str, numbers), *filter(None, [self.file])]


class Program:
    """It is ready for requests."""

    def __init__(self, process: "subprocess.Popen[bytes]", errors: IO[bytes]) -> None:
        self._process = process
        self._errors = errors
        self._buffer = b""
        self.said()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def ask(self, *numbers: int) -> None:
        """Sends a line of these, without waiting for the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(b" ".join(b"%d" % one for one in numbers) + b"\n")
        self._process.stdin.flush()

    def answer(self) -> Answer:
        """To the first request that has none. Raises NvshareError if there comes none."""
        return Answer(**self.said())

    def conclude(self, what: str = "same") -> bool:
        """Whether all words on the card are right, after the last request. Waits until it ends."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        right = bool(self.said()[what])
        self._process.wait(PATIENCE)
        return right

    def said(self) -> dict[str, Any]:
        """The next line. Raises NvshareError if there comes none within PATIENCE."""
        assert self._process.stdout is not None
        limit, file = time.monotonic() + PATIENCE, self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([file], [], [], max(0.0, limit - time.monotonic()))
            if not ready:
                raise NvshareError(f"a program did not answer within {PATIENCE:.0f} s")
            more = os.read(file, 1 << 16)
            if not more:
                self._errors.seek(0)
                words = self._errors.read().decode(errors="replace").strip()
                raise NvshareError(f"a program ended with status {self._process.wait()}: {words}")
            self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        return said


@contextmanager
def started(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[Program]:
    """A process that is ready for requests; killed at the end, if it has not ended."""
    with tempfile.TemporaryFile() as errors, subprocess.Popen(
        command, env={**os.environ, **environment}, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=errors, start_new_session=True, preexec_fn=die_with_us,
    ) as process:
        try:
            yield Program(process, errors)
        finally:
            process.kill()


def speed(chunk: int, environment: Mapping[str, str]) -> dict[str, float]:
    """What the bus carries one way: `in_gbps`, `out_gbps`."""
    done = finish([PROGRAM, "speed", str(chunk)], environment, PATIENCE)
    if done.returncode != 0:
        raise NvshareError(f"the bus was not measured: {done.stderr.strip()}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def write(weights: Weights) -> None:
    """Makes the file that they are loaded from."""
    done = finish(
        [PROGRAM, "write", str(weights.size), str(weights.chunk), weights.file], {}, PATIENCE)
    if done.returncode != 0:
        raise NvshareError(f"{weights.file} was not written: {done.stderr.strip()}")


def wrong(answers: Iterable[Answer]) -> tuple[str, ...]:
    """What answers say that are not right."""
    return tuple(f"model {one.model}: a wrong sum" for one in answers if not one.right)
