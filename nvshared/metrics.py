# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics over HTTP: the predecessors' names, and ours in base units.

Everything is read from the manager when it is asked for, once in a while at the
most: anybody may ask, and drawing a thousand clients takes the event loop a while.
The HTTP server has threads of its own, so each scrape waits until the event loop
has drawn the figures; it never looks at a scheduler while that decides.

Nor can those who ask, or connect and do not, take threads and descriptors that
programs need: there are few at a time, and none of them for long.
"""

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nvshared.clock import SECOND
from nvshared.errors import NvshareError
from nvshared.gpu import GPU, Client
from nvshared.manager import Manager
from nvshared.quantity import Endpoint

logger = logging.getLogger(__name__)

PATIENCE = 5.0                          # seconds a scrape waits for the event loop, or we for it
FRESH = 1.0                             # seconds for which figures are as good as new ones
SCRAPES_AT_MOST = 16                    # at a time

CARD = ("gpu", "uuid")
CLIENT = (*CARD, "client", "pid")


class Figures(Collector):
    """Draws everything at once, in the event loop it was made in."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._loop = asyncio.get_running_loop()
        self._drawn: list[Metric] = []
        self._drawn_at = float("-inf")

    def describe(self) -> Iterable[Metric]:
        """Nothing ahead of time: registering must not wait for the loop it is called from."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Called in a thread of the HTTP server."""
        return asyncio.run_coroutine_threadsafe(self._draw(), self._loop).result(PATIENCE)

    async def _draw(self) -> list[Metric]:
        now = self._loop.time()
        if now - self._drawn_at >= FRESH:
            for gpu in self._manager.gpus:
                gpu.look()
            everyone = tuple(self._manager.clients)
            self._drawn = [*_cards(self._manager.gpus), *_clients(everyone)]
            self._drawn_at = now
        return self._drawn


class _Handler(WSGIRequestHandler):
    timeout = PATIENCE

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nobody wants to read of scrapes."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, *given: Any, **more: Any) -> None:
        self._scrapes: set[int] = set()     # descriptors
        super().__init__(*given, **more)

    def server_bind(self) -> None:
        """As HTTPServer's, but nobody is asked which name the address has."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether there is room for one more."""
        if len(self._scrapes) >= SCRAPES_AT_MOST:
            return False
        self._scrapes.add(request.fileno())
        return True

    def close_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        """One has ended, or there was no room for it."""
        assert isinstance(request, socket.socket)
        self._scrapes.discard(request.fileno())
        super().close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who goes away or never asks is no news, and could be so a thousand times a second."""
        logger.debug("a scrape by %s failed", client_address, exc_info=True)


class _Server6(_Server):
    address_family = socket.AF_INET6


def serve(manager: Manager, where: Endpoint) -> Callable[[], None]:
    """Serves until the returned function is called. Raises NvshareError if it cannot listen."""
    registry = CollectorRegistry()
    registry.register(Figures(manager))
    try:
        kind = _Server6 if ":" in where.address else _Server
        server = make_server(*where, make_wsgi_app(registry), kind, _Handler)
    except OSError as error:
        raise NvshareError(
            f"the metrics cannot be served on {where}: {error.strerror}",
            "choose another with --metrics, or 0 for none",
        ) from error

    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()

    def stop() -> None:
        server.shutdown()
        server.server_close()

    return stop


def _cards(gpus: Iterable[GPU]) -> Iterator[Metric]:
    gauges: list[tuple[str, str, Callable[[GPU], float | None]]] = [
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
    counters: list[tuple[str, str, Callable[[GPU], float]]] = [
        ("turns", "Turns begun", lambda gpu: gpu.snapshot().counters.turns),
        ("loaded_bytes", "Brought to the card", lambda gpu: gpu.snapshot().counters.bytes_in),
        ("evicted_bytes", "Moved to the host", lambda gpu: gpu.snapshot().counters.bytes_out),
        ("handover_seconds", "From the end of drains until the client that had waited ran",
         lambda gpu: gpu.snapshot().counters.handover / SECOND),
        ("reopened", "Drains that did not end", lambda gpu: gpu.snapshot().counters.reopened),
        ("stuck", "Orders not answered for long", lambda gpu: gpu.snapshot().counters.stuck),
    ]
    everyone = tuple(gpus)
    for name, words, of in gauges:
        gauge = GaugeMetricFamily(f"nvshare_{name}", words, labels=CARD)
        for gpu in everyone:
            value = of(gpu)
            if value is not None:
                gauge.add_metric(_card(gpu), value)
        yield gauge
    for name, words, count in counters:
        counter = CounterMetricFamily(f"nvshare_{name}", words, labels=CARD)
        for gpu in everyone:
            counter.add_metric(_card(gpu), count(gpu))
        yield counter


def _clients(clients: Iterable[Client]) -> Iterator[Metric]:
    everyone = tuple(clients)
    info = GaugeMetricFamily(
        "nvshare_client_info", "One for each client",
        labels=(*CLIENT, "uid", "name", "unit", "pod", "state"),
    )
    for client in everyone:
        peer = client.peer
        info.add_metric(
            (*_client(client), str(peer.uid), peer.name, peer.unit, peer.pod,
             str(client.view.state)),
            1,
        )
    yield info
    gauges: list[tuple[str, str, Callable[[Client], float]]] = [
        ("managed_allocated_bytes", "Allocated, on the card or not",
         lambda client: client.memory.allocated),
        ("resident_bytes", "Of these on the card", lambda client: client.memory.resident),
        ("pinned_bytes", "On the card and not swappable", lambda client: client.memory.pinned),
        ("host_bytes", "Host memory held for what is swapped", lambda client: client.memory.host),
    ]
    for name, words, of in gauges:
        gauge = GaugeMetricFamily(f"nvshare_client_{name}", words, labels=CLIENT)
        for client in everyone:
            gauge.add_metric(_client(client), of(client))
        yield gauge
    counters: list[tuple[str, str, Callable[[Client], float]]] = [
        ("held_seconds", "Time with the gate open", lambda client: client.held / SECOND),
        ("waited_seconds", "Time wanting it open", lambda client: client.waited / SECOND),
    ]
    for name, words, count in counters:
        counter = CounterMetricFamily(f"nvshare_client_{name}", words, labels=CLIENT)
        for client in everyone:
            counter.add_metric(_client(client), count(client))
        yield counter


def _card(gpu: GPU) -> tuple[str, ...]:
    return str(gpu.facts.index), gpu.facts.uuid


def _client(client: Client) -> tuple[str, ...]:
    return *_card(client.gpu), str(client.id), str(client.peer.pid)
