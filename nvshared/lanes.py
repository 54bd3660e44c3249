# SPDX-License-Identifier: Apache-2.0
"""Makes calls that may block in threads, so that the event loop does not wait for them.

Calls of one key (usually the account of a user) are made in order, and keys take turns. So a call
that blocks delays later calls of its key only. docs/internals/bounds.md lists the calls."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from nvshared.clock import Clock, Timer
from nvshared.units import SECOND

logger = logging.getLogger(__name__)

AGAIN = SECOND                          # us from a failed start of a thread to another attempt

Result = TypeVar("Result")
Post = Callable[[Callable[[], None]], None]
Run = Callable[..., None]               # Lanes.run


def here(_key: Hashable, call: Callable[[], Result], answer: Callable[[Result | None], None],
         _patience: int | None = None) -> None:
    """Makes the call in the caller's thread; used for Lanes.run where the caller may block."""
    answer(call())


async def call(run: Run, key: Hashable, function: Callable[[], Result],
               patience: int | None = None) -> Result | None:
    """Calls `run` (Lanes.run or here()), and returns the result that it passes to `answer`."""
    answer: asyncio.Future[Result | None] = asyncio.get_running_loop().create_future()
    # `answer` is done already if this coroutine was cancelled before the call returned.
    run(key, function, lambda result: None if answer.done() else answer.set_result(result),
        patience)
    return await answer


@dataclass(slots=True, eq=False)
class _Job:
    call: Callable[[], Any]
    answer: Callable[[Any], None]
    done: bool = False                  # answered, or its patience is over; set in the event loop
    disarm: Callable[[], None] = field(default=lambda: None)    # cancels the timer for the patience


class Lanes:
    """A lane for each key, and a few threads for all of them.

    Only the event loop changes `_lanes` and `_threads`: with a lock, it would wait for the threads.
    A thread waits for work until the process ends."""

    def __init__(self, name: str, threads: int, post: Post, clock: Clock, timer: Timer) -> None:
        """`post` runs a function in the event loop; the threads call it."""
        self._name = name
        self._most = threads
        self._post, self._clock, self._timer = post, clock, timer
        # Jobs by key. The first job of each lane is in _ready, or runs in a thread.
        self._lanes: dict[Hashable, deque[_Job]] = {}
        self._ready: SimpleQueue[tuple[Hashable, _Job]] = SimpleQueue()
        self._threads = 0

    def run(self, key: Hashable, call: Callable[[], Result],
            answer: Callable[[Result | None], None], patience: int | None = None) -> None:
        """Makes `call` in a thread, and passes its result to `answer` in the event loop.

        `answer` gets None if the call raises or takes longer than `patience` microseconds; a later
        result is dropped. Must be called in the event loop."""
        job = _Job(call, answer)
        if patience is not None:
            job.disarm = self._timer(self._clock() + patience, partial(self._expire, key, job))
        lane = self._lanes.setdefault(key, deque())
        lane.append(job)
        if len(lane) == 1:
            self._ready.put((key, job))
            self._add_thread()

    def _add_thread(self) -> None:
        if self._threads < min(self._most, len(self._lanes)):
            # A daemon thread: a call that blocks must not keep the process from ending.
            thread = Thread(target=self._work, name=self._name, daemon=True)
            try:
                thread.start()
            except (RuntimeError, MemoryError):     # the system has no thread or memory left
                if self._threads == 0:
                    self._timer(self._clock() + AGAIN, self._add_thread)
                return
            self._threads += 1

    def _work(self) -> None:
        while True:
            key, job = self._ready.get()
            result = None
            try:
                if not job.done:
                    result = job.call()
            except Exception:
                logger.exception("a call of %s failed", self._name)
            self._post(partial(self._call_ended, key, job, result))

    def _call_ended(self, key: Hashable, job: _Job, result: Any) -> None:
        lane = self._lanes[key]
        lane.popleft()
        if lane:
            self._ready.put((key, lane[0]))
        else:
            del self._lanes[key]
        _finish(job, result)

    def _expire(self, key: Hashable, job: _Job) -> None:
        """Ends a job at the end of its patience: behind a call that blocks, jobs would pile up."""
        if job is not self._lanes[key][0]:
            self._lanes[key].remove(job)
        _finish(job, None)


def _finish(job: _Job, result: Any) -> None:
    if not job.done:
        job.done = True
        job.disarm()
        job.answer(result)
