# SPDX-License-Identifier: Apache-2.0
"""Serves the Prometheus metrics over HTTP, to any process that can connect.

Figures are read once per FRESH seconds at most, as reading them delays the event loop noticeably,
and formatted in another thread. Of too many connections the oldest is closed."""

import asyncio
import errno
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from http import HTTPStatus

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from nvshared.quantity import Endpoint
from nvshared.report.families import Samples, read_metrics
from nvshared.sharing.manager import Manager
from nvshared.sharing.sampler import take_samples

logger = logging.getLogger(__name__)

PATIENCE = 5.0                          # most seconds that a scrape waits for its response
FRESH = 1.0                             # seconds for which all responses use the same figures
RETRY = 10.0                            # seconds between two tries to listen at the address
LONGEST = 10.0                          # most seconds per connection; Prometheus' default timeout
SCRAPES_AT_MOST = 16                    # most connections at a time
ANY = ("0.0.0.0", "::")
VERSIONS = ("HTTP/1.0", "HTTP/1.1")


class Scrapes(Collector):
    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._clock = asyncio.get_running_loop().time
        self._samples: Sequence[Samples] = []
        self._read_at = float("-inf")
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)   # CPU time, memory and descriptors of the daemon
        self._response: asyncio.Task[bytes] | None = None   # the last one
        self._tasks: dict[asyncio.Task[None], None] = {}    # the oldest task first

    @property
    def fresh(self) -> bool:
        return self._clock() - self._read_at < FRESH

    async def read(self) -> None:
        await take_samples(self._manager.gpus)
        await self._manager.look_for_faults()
        self._samples = read_metrics(
            self._manager.gpus, tuple(self._manager.clients), self._manager.faults)
        self._read_at = self._clock()

    def collect(self) -> Iterable[Metric]:
        return [one.family() for one in self._samples]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection; closes the oldest one if there are too many."""
        task = asyncio.current_task()
        assert task is not None
        if len(self._tasks) == SCRAPES_AT_MOST:
            oldest = next(iter(self._tasks))
            del self._tasks[oldest]
            oldest.cancel()
        self._tasks[task] = None
        # Logged at debug only: many peers may disconnect early or send nothing.
        try:
            async with asyncio.timeout(LONGEST):
                writer.write(await self._respond(reader))
                writer.close()
                await writer.wait_closed()          # until the whole response is sent
        except (OSError, TimeoutError, asyncio.CancelledError, EOFError) as error:
            logger.debug("a scrape failed: %r", error)
        finally:
            writer.transport.abort()
            self._tasks.pop(task, None)

    async def close(self) -> None:
        ending = [*self._tasks, *([] if self._response is None else [self._response])]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def _respond(self, reader: asyncio.StreamReader) -> bytes:
        try:
            request = await reader.readuntil(b"\r\n\r\n")
            method, _, version = request.partition(b"\r\n")[0].decode("latin-1").split()
        except (ValueError, asyncio.LimitOverrunError):
            return _response(HTTPStatus.BAD_REQUEST)
        if version not in VERSIONS:
            return _response(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
        if method != "GET":
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, "Allow: GET")
        try:
            if self._response is None or (self._response.done() and not self.fresh):
                self._response = asyncio.create_task(self._formatted())
            async with asyncio.timeout(PATIENCE):
                return await asyncio.shield(self._response)     # others may wait for it, too
        except TimeoutError:
            return _response(HTTPStatus.SERVICE_UNAVAILABLE, "Content-Type: text/plain",
                         body=b"nvshared is busy\n")

    async def _formatted(self) -> bytes:
        await self.read()
        return await asyncio.to_thread(self._write)

    def _write(self) -> bytes:
        encode, kind = choose_encoder("")       # the text format, which all scrapers read
        return _response(HTTPStatus.OK, f"Content-Type: {kind}", body=encode(self._registry))


def _response(status: HTTPStatus, *head: str, body: bytes = b"") -> bytes:
    lines = [f"HTTP/1.0 {status.value} {status.phrase}", *head, f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def listen(
    endpoint: Endpoint,
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> asyncio.Server:
    """Listens at the endpoint's address; if it has none, at all addresses. Raises OSError.

    All are given as numbers: for any other text asyncio would ask getaddrinfo(3), which may hang.
    """
    try:
        return await asyncio.start_server(serve, endpoint.address or ANY, endpoint.port)
    except OSError as error:
        if endpoint.address or error.errno != errno.EADDRNOTAVAIL:
            raise
        return await asyncio.start_server(serve, "0.0.0.0", endpoint.port)  # the kernel lacks IPv6


async def publish(manager: Manager, endpoint: Endpoint) -> Callable[[], Awaitable[None]]:
    """Serves metrics until the returned function is called.

    Any user's process may have taken the port, and the address may come up later. No program must
    wait for a daemon because of that: it is a fault, and each RETRY seconds there is a new try."""
    scrapes = Scrapes(manager)
    servers: list[asyncio.Server] = []      # empty until the address is free

    async def serve() -> None:
        try:
            servers.append(await listen(endpoint, scrapes.serve))
        except OSError as error:
            # The message of asyncio's error would repeat the address.
            reason = os.strerror(error.errno) if error.errno else str(error)
            manager.faults.set("metrics-unserved", f"{endpoint}: {reason}")
        else:
            manager.faults.set("metrics-unserved", "")

    async def serve_later() -> None:
        while not servers:
            await asyncio.sleep(RETRY)
            await serve()

    await serve()
    later = asyncio.create_task(serve_later())

    async def stop() -> None:
        later.cancel()
        await asyncio.gather(later, return_exceptions=True)
        for server in servers:
            server.close()
        await scrapes.close()
        for server in servers:
            await server.wait_closed()

    return stop
