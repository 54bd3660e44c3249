# SPDX-License-Identifier: Apache-2.0
"""Samples each card in use through NVML, and computes the card's capacity from the samples.

NVML may stall for seconds, so each card has a lane of its own with one query in flight. Readers of
figures wait for a new sample unless the last is fresh: at most PATIENCE, not while NVML stalls."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from nvshared.clock import Clock, Timer
from nvshared.errors import GPULost, NvshareError
from nvshared.lanes import Run, call
from nvshared.machine.nvml import Sample
from nvshared.sharing.gpu import GPU, Client
from nvshared.units import MILLISECOND, SECOND

logger = logging.getLogger(__name__)

SAMPLE_INTERVAL = SECOND                # NVML's utilisation covers a second at most
SOON = 50 * MILLISECOND                 # from a client's join or disconnect to the next sample
FRESH = SECOND                          # a younger sample is used instead of a new query
PATIENCE = SECOND                       # longest wait of readers for a sample
LENDS = 100 * MILLISECOND               # between samples of a card that lends
GROWN = 10 * SECOND                     # from a client's join until its context surely exists
FAILURES = 3                            # failed queries in a row, after which the card has a fault
SILENCE = 10 * SECOND                   # a card has a fault if a query about it takes longer


@dataclass(slots=True)
class _Watch:
    gpu: GPU
    in_flight: bool = False             # a query has not been answered yet
    queried_at: int = -FRESH            # time of the last query
    waiting: list[Callable[[], None]] = field(default_factory=list)     # to call after the query
    failures: int = 0                   # failed queries in a row
    disarm: Callable[[], None] = lambda: None   # cancels the next scheduled query
    overdue: Sequence[Callable[[], None]] = ()  # functions to cancel the query's timers
    occupied: dict[int, int] = field(default_factory=dict)      # gpu.occupied at the query's start
    still: bool = False                 # at the query's start no order to a client was unanswered


async def take_samples(gpus: Iterable[GPU]) -> None:
    """Returns once the samples of these cards are fresh, as far as NVML answers in time."""
    requests = []
    for gpu in gpus:
        done = asyncio.Event()
        gpu.request_sample(done.set)
        requests.append(done.wait())
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE / SECOND):
            await asyncio.gather(*requests)


class Sampler:
    def __init__(
        self, query: Callable[[str], Sample], run: Run, clock: Clock, timer: Timer,
        memory: Callable[[str, int | None], int | None] = lambda *_: None,
    ) -> None:
        """`query`, `memory`: NVML.sample and .memory, which block."""
        self._query, self._memory, self._run = query, memory, run
        self._clock, self._timer = clock, timer
        self._watches: dict[str, _Watch] = {}

    def add(self, gpu: GPU) -> None:
        watch = _Watch(gpu)
        self._watches[gpu.facts.uuid] = watch

        growing: dict[Client, Callable[[], None]] = {}      # by client: cancels its GROWN timer

        def client_left(client: Client) -> None:
            if client in growing:
                growing.pop(client)()
            self._query_in(watch, SOON)

        def client_joined(client: Client) -> None:
            def grown() -> None:        # NVML's memory figure now includes the client's context
                gpu.capacity.forget(client.id)
                gpu.apply_capacity()

            growing[client] = self._timer(self._clock() + GROWN, grown)
            self._query_in(watch, SOON)
            for other in gpu.others:
                if other.may_lend and not other.clients:
                    self._query_in(self._watches[other.facts.uuid], SOON)

        gpu.client_new.connect(client_joined)
        gpu.client_removed.connect(client_left)
        gpu.use_sampler(partial(self._request, watch), partial(self._measure, gpu))

    async def _measure(self, gpu: GPU, pid: int | None) -> int | None:
        def read() -> int | None:
            with contextlib.suppress(NvshareError):     # the next sample reports it
                return self._memory(gpu.facts.uuid, pid)
            return None

        return None if gpu.lost else await call(self._run, gpu.facts.uuid, read, PATIENCE)

    def remove(self, gpu: GPU) -> None:
        watch = self._watches[gpu.facts.uuid]
        if watch.gpu is gpu:
            watch.disarm()
            del self._watches[gpu.facts.uuid]

    def _query_in(self, watch: _Watch, delay: int) -> None:
        watch.disarm()
        watch.disarm = self._timer(self._clock() + delay, lambda: self._start_query(watch))

    def _request(self, watch: _Watch, done: Callable[[], None]) -> None:
        age = self._clock() - watch.queried_at
        if watch.gpu.lost or (age >= PATIENCE if watch.in_flight else age < FRESH):
            done()
        else:
            watch.waiting.append(done)
            self._start_query(watch)

    def _start_query(self, watch: _Watch) -> None:
        if watch.in_flight or watch.gpu.lost:
            return
        watch.disarm()
        watch.in_flight, watch.queried_at = True, self._clock()
        watch.overdue = (
            self._timer(watch.queried_at + PATIENCE, partial(
                setattr, watch.gpu, "sample", Sample())),
            self._timer(watch.queried_at + SILENCE, partial(
                watch.gpu.faults.set, "gpu-silent", "NVML does not answer questions about it")))
        watch.occupied = watch.gpu.occupied
        watch.still = not watch.gpu.scheduler.orders_unanswered()
        uuid = watch.gpu.facts.uuid
        self._run(uuid, partial(self._sample, uuid), partial(self._answered, watch))

    def _sample(self, uuid: str) -> Sample | NvshareError:
        try:
            return self._query(uuid)
        except NvshareError as error:
            return error

    def _answered(self, watch: _Watch, result: Sample | NvshareError | None) -> None:
        watch.in_flight = False
        for cancel in watch.overdue:
            cancel()
        # None: an unexpected exception, which Lanes has logged.
        self._evaluate(watch, result or NvshareError("its figures cannot be read"))
        waiting, watch.waiting = watch.waiting, []
        for done in waiting:
            done()

    def _evaluate(self, watch: _Watch, result: Sample | NvshareError) -> None:
        gpu = watch.gpu
        if isinstance(result, GPULost):
            gpu.lose(result.message)
            return
        trouble = str(result) if isinstance(result, NvshareError) else result.trouble
        if trouble:
            watch.failures += 1
            logger.debug("%s: %s", gpu, trouble)
        else:
            watch.failures = 0
        gpu.faults.set("gpu-silent", trouble if watch.failures >= FAILURES else "")
        # Old figures must not be shown as current.
        sample = Sample() if isinstance(result, NvshareError) else result
        gpu.take(sample)
        still = watch.still and not gpu.scheduler.orders_unanswered()
        still = still and watch.occupied == gpu.occupied
        gpu.evaluate_processes(sample, watch.occupied)
        if still and sample.memory_used is not None:
            held = gpu.scheduler.filled()
            gpu.capacity.sampled(sample.memory_used, held, alone=not gpu.clients)
            gpu.apply_capacity()
        if gpu.clients or gpu.may_lend:
            lends = bool(gpu.neighbour.loans)
            self._query_in(watch, min(LENDS, SAMPLE_INTERVAL) if lends else SAMPLE_INTERVAL)
