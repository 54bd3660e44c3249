# SPDX-License-Identifier: Apache-2.0
"""Calls that may block, made in threads, so that the event loop waits for none of them.

A call has a key, usually the user on whose account it is made. Calls of one key are made one after
the other, and keys take turns. So a call that blocks holds up the later calls of its own key, and
takes one of a few threads. Where every caller can do without an answer, it says for how long it
waits; what blocks for ever then costs one thread, and each caller no more than that time.

docs/security.md lists which calls are made here, and why the others do not block.
"""

import logging
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from nvshared.clock import Clock, Timer

logger = logging.getLogger(__name__)

IDLE = 10.0                             # seconds after which a thread without work ends

Result = TypeVar("Result")
Post = Callable[[Callable[[], None]], None]
Run = Callable[..., None]               # Lanes.run


def here(
    _key: Hashable, call: Callable[[], Result], answer: Callable[[Result | None], None],
    _patience: int | None = None,
) -> None:
    """Lanes.run for whoever may wait: without a thread."""
    answer(call())


@dataclass(slots=True, eq=False)
class _Job:
    call: Callable[[], Any]
    answer: Callable[[Any], None]
    done: bool = False                  # answered, or not waited for any more; set in the loop
    disarm: Callable[[], None] = field(default=lambda: None)


class Lanes:
    """A lane for each key, and a few threads for all of them.

    Only the event loop keeps account of lanes and threads: a lock that threads share with the loop
    would make the loop wait for whichever thread holds it and waits for the interpreter.
    """

    def __init__(self, name: str, threads: int, post: Post, clock: Clock, timer: Timer) -> None:
        """`post` runs a function in the event loop; it is called from the threads."""
        self._name = name
        self._most = threads
        self._post = post
        self._clock = clock
        self._timer = timer
        self._lanes: dict[Hashable, deque[_Job]] = {}   # the first of each waits for a thread,
        self._ready: SimpleQueue[tuple[Hashable, _Job]] = SimpleQueue()     # or runs in one
        self._threads = 0

    def run(
        self, key: Hashable, call: Callable[[], Result],
        answer: Callable[[Result | None], None], patience: int | None = None,
    ) -> None:
        """Has `call` made in a thread, and hands its result to `answer` in the event loop.

        `answer` gets None where the call raised an exception, or has not ended within `patience`
        microseconds. Its result is dropped then. Called in the event loop.
        """
        job = _Job(call, answer)
        if patience is not None:
            job.disarm = self._timer(self._clock() + patience, partial(_finish, job, None))
        lane = self._lanes.setdefault(key, deque())
        lane.append(job)
        if len(lane) == 1:
            self._ready.put((key, job))
            self._add_thread()

    def _add_thread(self) -> None:
        if self._threads < min(self._most, len(self._lanes)):
            self._threads += 1
            # A daemon thread: a call that blocks must not keep the process from ending.
            Thread(target=self._work, name=self._name, daemon=True).start()

    def _work(self) -> None:
        while True:
            try:
                key, job = self._ready.get(timeout=IDLE)
            except Empty:
                self._post(self._thread_ended)
                return
            result = None if job.done else self._result(job)
            self._post(partial(self._made, key, job, result))

    def _thread_ended(self) -> None:
        self._threads -= 1
        self._add_thread()              # a call may have been queued meanwhile

    def _made(self, key: Hashable, job: _Job, result: Any) -> None:
        lane = self._lanes[key]
        lane.popleft()
        if lane:
            self._ready.put((key, lane[0]))
        else:
            del self._lanes[key]
        _finish(job, result)

    def _result(self, job: _Job) -> Any:
        try:
            return job.call()
        except Exception:
            logger.exception("a call of %s failed", self._name)
            return None


def _finish(job: _Job, result: Any) -> None:
    if not job.done:
        job.done = True
        job.disarm()
        job.answer(result)
