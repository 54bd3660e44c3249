# SPDX-License-Identifier: Apache-2.0
"""Ways to share a card between models: the daemon; one program that moves weights itself ("by
hand"); a new process for each model that is not loaded ("anew"). See docs/internals/benchmarks.md.

The latter two serve one request after the other, without counting the wait for earlier requests.
"""

import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from bench.handover.card import Card
from bench.handover.program import Task
from bench.models.demand import Request
from bench.models.program import Answer, Weights, answer, write
from bench.program import Program, finish, started
from bench.trace import Line
from nvshared.errors import NvshareError

CHUNK = 256 << 20
SOON = 200_000                          # microseconds from the start until the first request
WARM = 2                                # uncounted rounds of requests to each model
IDLE = 3.0                              # seconds for which models idle
LATE_MOST = 60.0                        # seconds for the late program
ALONE = 5                               # number of requests to a resident model alone on the card
# Seconds between these, about as in most sequences: after a pause, a card is slower for a moment.
PAUSE = 1.0


@dataclass(frozen=True, slots=True)
class Shared:
    answers: list[Answer]
    trace: list[Line]
    pids: list[int]                     # by model: pid of its process
    wrong: tuple[str, ...]


def weights(card: Card, share: float, seed: int) -> Weights:
    return Weights(card.share(share), min(CHUNK, card.total // 32), seed)


def shared(card: Card, models: Sequence[Weights], requests: Iterable[Request], capacity: str,
           options: Sequence[str] = (), late: int = 0) -> Shared:
    """Runs a process for each model under a daemon with these options.

    `late`: bytes that a program allocates on the second card after the models were idle for IDLE.
    """
    with card.sharing("--capacity", capacity, *options) as daemon, ExitStack() as stack:
        programs = [
            stack.enter_context(started(one.command(), daemon.environment)) for one in models]
        answers = [_asked(one) for _ in range(WARM) for one in programs]
        start = _now() + SOON
        # Each process answers its requests in the order in which they were sent.
        timed = [(programs[one.model], start + round(1e6 * one.due)) for one in requests]
        for program, due in timed:
            program.send(0, due)
        found = [answer(program)._replace(model=programs.index(program)) for program, _ in timed]
        if late:
            time.sleep(IDLE)
            ended = finish(
                Task(late, 1, 9, models[0].chunk).command(),
                {**daemon.environment, "CUDA_VISIBLE_DEVICES": "1"}, LATE_MOST)
            if ended.returncode:
                raise NvshareError(f"the program on the second card failed: {ended.stderr}")
        trace = daemon.trace()
        same = [program.conclude()["same"] for program in programs]
        wrong = [f"model {number}: wrong words" for number, one in enumerate(same) if not one]
        wrong += [f"model {one.model}: a wrong sum" for one in [*answers, *found] if not one.right]
        return Shared(
            sorted(found, key=lambda one: one.ended), trace, [one.pid for one in programs],
            tuple(wrong))


def alone(card: Card, model: Weights) -> list[Answer]:
    with started(model.command(), card.plain) as program:
        found = []
        for _ in range(1 + ALONE):
            found.append(_asked(program))
            time.sleep(PAUSE)
        return found[1:]


def by_hand(card: Card, model: Weights, requests: Iterable[Request], seconds: float, fit: int,
            count: int) -> list[Answer]:
    """Runs one program with `count` models like `model`, of which `fit` are on the card at once."""
    with started(replace(model, count=count, resident=fit).command(), card.plain) as program:
        found = []
        for due, number in _paced(requests, seconds):
            program.send(number, due)
            found.append(answer(program))
        return found


def anew(card: Card, model: Weights, requests: Iterable[Request], seconds: float,
         fit: int) -> list[Answer]:
    one = replace(model, seed=0, file=str(Path(card.log.parent, "weights")))
    write(one)
    found: list[Answer] = []
    with ExitStack() as rest:
        running: OrderedDict[int, tuple[Program, ExitStack]] = OrderedDict()
        for due, number in _paced(requests, seconds):
            time.sleep(max(0.0, (due - _now()) / 1e6))
            began = _now()
            if number not in running:
                if len(running) >= fit:
                    running.popitem(last=False)[1][1].close()
                stack = rest.enter_context(ExitStack())
                running[number] = stack.enter_context(started(one.command(), card.plain)), stack
            running.move_to_end(number)
            found.append(_asked(running[number][0])._replace(model=number, due=due, began=began))
    Path(one.file).unlink()
    return found


def fitting(card: Card, model: Weights) -> int:
    return max(1, int(card.total * 0.98) // model.size)


def _paced(requests: Iterable[Request], seconds: float) -> Iterable[tuple[int, int]]:
    """Yields the due time and the model of each request, until `seconds` have passed."""
    start = _now() + SOON
    for one in requests:
        if _now() > start + 1e6 * seconds:
            return
        yield start + round(1e6 * one.due), one.model


def _asked(program: Program) -> Answer:
    program.send(0, _now())
    return answer(program)


def _now() -> int:
    return time.monotonic_ns() // 1000
