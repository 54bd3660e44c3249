# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics over HTTP: the predecessors' names, and ours in base units.

Everything is read from the manager when it is asked for, once in a while at the
most: anybody may ask, and drawing a thousand clients takes the event loop a while.
The HTTP server has threads of its own, so each scrape waits until the event loop
has drawn the figures; it never looks at a scheduler while that decides.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nvshared.errors import NvshareError
from nvshared.quantity import Endpoint
from nvshared.report.scrapes import Answer, listen
from nvshared.sharing.gpu import GPU, Client
from nvshared.sharing.manager import Manager
from nvshared.sharing.sampler import look
from nvshared.units import SECOND

logger = logging.getLogger(__name__)

PATIENCE = 5.0                          # seconds a scrape waits for the event loop
FRESH = 1.0                             # seconds for which figures are as good as new ones
ASKED = ("REQUEST_METHOD", "PATH_INFO", "QUERY_STRING", "HTTP_ACCEPT", "HTTP_ACCEPT_ENCODING")
ANSWERS_KEPT = 4                        # one for each way to ask; a large one has a few MB

CARD = ("gpu", "uuid")
CLIENT = (*CARD, "client", "pid", "user", "tenant", "namespace", "pod", "container", "name")

Thing = TypeVar("Thing")
# Names, words about them, and what makes the figure.
Table = list[tuple[str, str, Callable[[Thing], float | None]]]


class Figures(Collector):
    """Draws everything at once, in the event loop it was made in."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._loop = asyncio.get_running_loop()
        self._drawn: list[Metric] = []
        self._drawn_at = float("-inf")
        self._awaited: set[Future[list[Metric]]] = set()
        self._closed = False

    @property
    def fresh(self) -> bool:
        """Whether what was drawn last is as good as new; for any thread."""
        return self._loop.time() - self._drawn_at < FRESH

    def describe(self) -> Iterable[Metric]:
        """Nothing ahead of time: registering must not wait for the loop it is called from."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Called in a thread of the HTTP server. Raises TimeoutError, CancelledError."""
        drawing = asyncio.run_coroutine_threadsafe(self._draw(), self._loop)
        self._awaited.add(drawing)
        if self._closed:
            drawing.cancel()
        try:
            return drawing.result(PATIENCE)
        finally:
            drawing.cancel()
            self._awaited.discard(drawing)

    def close(self) -> None:
        """Called in the loop: who waits for it to draw would wait in vain from now on."""
        self._closed = True
        for drawing in tuple(self._awaited):
            drawing.cancel()

    async def _draw(self) -> list[Metric]:
        if not self.fresh:
            await look(self._manager.gpus)
            everyone = tuple(self._manager.clients)
            self._drawn = [*_cards(self._manager.gpus), *_clients(everyone)]
            self._drawn_at = self._loop.time()
        return self._drawn


def serve(manager: Manager, where: Endpoint) -> Callable[[], None]:
    """Serves until the returned function is called. Raises NvshareError if it cannot listen."""
    registry = CollectorRegistry()
    figures = Figures(manager)
    registry.register(figures)
    try:
        stop_listening = listen(where, _Answers(figures, make_wsgi_app(registry)))
    except OSError as error:
        raise NvshareError(
            f"the metrics cannot be served on {where}: {error.strerror}",
            "choose another with --metrics, or 0 for none",
        ) from error

    def stop() -> None:
        figures.close()
        stop_listening()

    return stop


class _Answers:
    """What is said to a scrape: written down once as long as its figures are fresh.

    To write down those of a thousand clients keeps a processor busy for a while. Threads do
    so one after the other, which leaves the event loop its turns.
    """

    def __init__(self, figures: Figures, write: Answer) -> None:
        self._figures = figures
        self._write = write
        self._turn = threading.Lock()   # protects what follows, and is held while that is made
        self._written: dict[tuple[str, ...], tuple[str, list[tuple[str, str]], bytes]] = {}

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """A WSGI application, called in a thread of the HTTP server."""
        status, headers = "503 Service Unavailable", [("Content-Type", "text/plain")]
        body = b"nvshared is busy\n"
        if self._turn.acquire(timeout=PATIENCE):
            try:
                status, headers, body = self._answer(environ)
            except (TimeoutError, CancelledError):
                logger.debug("figures could not be drawn in time")
            finally:
                self._turn.release()
        start(status, headers)
        return [body]

    def _answer(self, environ: dict[str, Any]) -> tuple[str, list[tuple[str, str]], bytes]:
        asked = tuple(environ.get(name, "") for name in ASKED)
        if not self._figures.fresh or len(self._written) >= ANSWERS_KEPT:
            self._written.clear()
        if asked not in self._written:
            said: list[tuple[str, list[tuple[str, str]]]] = []
            body = b"".join(self._write(environ, lambda *words: said.append(words)))
            self._written[asked] = (*said[0], body)
        return self._written[asked]


def _cards(gpus: Iterable[GPU]) -> Iterator[Metric]:
    gauges: Table[GPU] = [
        ("gpu_utilization_ratio", "Share of time with a kernel running, as NVML says",
         lambda gpu: gpu.sample.utilisation),
        ("gpu_memory_used_bytes", "Memory of the card used by everybody, as NVML says",
         lambda gpu: gpu.sample.memory_used),
        ("gpu_memory_outside_bytes", "Memory used outside of nvshared's clients",
         lambda gpu: gpu.capacity.outside),
        ("gpu_capacity_bytes", "Memory that can be handed out", lambda gpu: gpu.capacity.bytes),
        ("scheduler_running_clients", "Clients whose gate is open",
         lambda gpu: len(gpu.holders)),
        ("scheduler_waiting_clients", "Clients that wait for their turn",
         lambda gpu: gpu.queue_length),
        ("scheduler_quantum_seconds", "How long a client may keep the GPU while others wait",
         lambda gpu: gpu.tq_usec / SECOND),
    ]
    counters: Table[GPU] = [
        ("turns", "Turns begun", lambda gpu: gpu.snapshot().counters.turns),
        ("loaded_bytes", "Brought to the card", lambda gpu: gpu.snapshot().counters.bytes_in),
        ("evicted_bytes", "Moved to the host", lambda gpu: gpu.snapshot().counters.bytes_out),
        ("handover_seconds", "From the end of drains until the client that had waited ran",
         lambda gpu: gpu.snapshot().counters.handover / SECOND),
        ("reopened", "Drains that did not end", lambda gpu: gpu.snapshot().counters.reopened),
        ("stuck", "Orders not answered for long", lambda gpu: gpu.snapshot().counters.stuck),
    ]
    labelled = [(_card(gpu), gpu) for gpu in gpus]
    yield from _families(GaugeMetricFamily, "nvshare_", CARD, gauges, labelled)
    yield from _families(CounterMetricFamily, "nvshare_", CARD, counters, labelled)


def _clients(clients: Iterable[Client]) -> Iterator[Metric]:
    labelled = [(_client(client), client) for client in clients]
    info = GaugeMetricFamily(
        "nvshare_client_info", "One for each client",
        labels=(*CLIENT, "uid"),
    )
    state = GaugeMetricFamily(
        "nvshare_client_state", "1 for what each client does", labels=(*CLIENT, "state")
    )
    for labels, client in labelled:
        info.add_metric((*labels, str(client.peer.uid)), 1)
        state.add_metric((*labels, str(client.view.state)), 1)
    yield from (info, state)
    gauges: Table[Client] = [
        ("managed_allocated_bytes", "Allocated, on the card or not",
         lambda client: client.memory.allocated),
        ("resident_bytes", "Of these on the card", lambda client: client.memory.resident),
        ("pinned_bytes", "On the card and not swappable", lambda client: client.memory.pinned),
        ("host_bytes", "Host memory held for what is swapped", lambda client: client.memory.host),
    ]
    counters: Table[Client] = [
        ("held_seconds", "Time with the gate open", lambda client: client.held_time / SECOND),
        ("waited_seconds", "Time wanting it open", lambda client: client.waited / SECOND),
    ]
    yield from _families(GaugeMetricFamily, "nvshare_client_", CLIENT, gauges, labelled)
    yield from _families(CounterMetricFamily, "nvshare_client_", CLIENT, counters, labelled)


def _families(
    kind: type[GaugeMetricFamily | CounterMetricFamily], prefix: str, labels: Sequence[str],
    table: Table[Thing], labelled: Iterable[tuple[Sequence[str], Thing]],
) -> Iterator[Metric]:
    """The metrics of a table, of things with their labels."""
    for name, words, figure in table:
        family = kind(prefix + name, words, labels=labels)
        for its_labels, thing in labelled:
            value = figure(thing)
            if value is not None:
                family.add_metric(its_labels, value)
        yield family


def _card(gpu: GPU) -> tuple[str, ...]:
    return str(gpu.facts.index), gpu.facts.uuid


def _client(client: Client) -> tuple[str, ...]:
    user, pod = client.peer.tenants[0].name, client.pod
    return (
        *_card(client.gpu), str(client.id), str(client.peer.pid), user, client.tenant,
        *(("", "") if pod is None else pod[:2]), client.container, client.peer.name,
    )
