# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics over HTTP, to which anybody may talk.

Everything is read from the manager when it is asked for, once in a while at the most: to note a
thousand clients takes the event loop a while. To write their figures down takes longer, so that is
done in another thread, one form after the other. There are four forms, and nothing else that is
asked makes a difference.

There are few connections at a time, and none lasts long, whatever it sends or reads. Where there is
no room for one more, the oldest has to go. An honest one takes milliseconds, so it is hardly ever
the oldest.
"""

import asyncio
import errno
import gzip
import io
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from http import HTTPStatus
from http.client import HTTPException, parse_headers

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from nvshared.errors import NvshareError
from nvshared.quantity import Endpoint
from nvshared.report.families import Noted, note
from nvshared.sharing.manager import Manager
from nvshared.sharing.sampler import look
from nvshared.sharing.totals import TenantTotals

logger = logging.getLogger(__name__)

PATIENCE = 5.0                          # seconds a scrape waits for its figures
FRESH = 1.0                             # seconds for which figures are as good as new ones
LONGEST = 10.0                          # seconds for all of a scrape; Prometheus waits no longer
SCRAPES_AT_MOST = 16                    # at a time
OPENMETRICS = "application/openmetrics-text"
VERSIONS = ("HTTP/1.0", "HTTP/1.1")

Form = tuple[str, bool]                 # what is accepted: OPENMETRICS or ""; and gzip


class Figures(Collector):
    """All figures, noted at once in the event loop it was made in."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._totals = TenantTotals()
        for gpu in manager.gpus:
            self._totals.follow(gpu)
        self._clock = asyncio.get_running_loop().time
        self._noted: Sequence[Noted] = []
        self._noted_at = float("-inf")

    @property
    def fresh(self) -> bool:
        """Whether what was noted last is as good as new."""
        return self._clock() - self._noted_at < FRESH

    async def note(self) -> None:
        """Notes them, unless that was done just now."""
        if not self.fresh:
            await look(self._manager.gpus)
            clients = tuple(self._manager.clients)
            self._noted = note(self._manager.gpus, clients, self._totals)
            self._noted_at = self._clock()

    def collect(self) -> Iterable[Metric]:
        """What was noted; may be called in any thread."""
        return [one.family() for one in self._noted]


class Scrapes:
    """Answers, each in a task of its own."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures
        self._registry = CollectorRegistry()
        self._registry.register(figures)
        ProcessCollector(registry=self._registry)   # what Prometheus wants to know of every program
        self._writing = asyncio.Lock()
        self._answers: dict[Form, asyncio.Task[bytes]] = {}     # the last of each form
        self._tasks: dict[asyncio.Task[None], None] = {}    # the oldest first

    @property
    def count(self) -> int:
        """How many there are now."""
        return len(self._tasks)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, from its first byte to its end."""
        task = asyncio.current_task()
        assert task is not None
        if self.count == SCRAPES_AT_MOST:
            oldest = next(iter(self._tasks))
            del self._tasks[oldest]
            oldest.cancel()
        self._tasks[task] = None
        # Who goes away or never asks is no news, and could be so a thousand times a second.
        try:
            async with asyncio.timeout(LONGEST):
                writer.write(await self._answer(reader))
                writer.close()
                await writer.wait_closed()          # until all of it is sent
        except (OSError, TimeoutError, asyncio.CancelledError, EOFError) as error:
            logger.debug("a scrape failed: %r", error)
        finally:
            writer.transport.abort()
            self._tasks.pop(task, None)

    async def close(self) -> None:
        """Nobody is served any more."""
        ending = [*self._tasks, *self._answers.values()]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            question = await reader.readuntil(b"\r\n\r\n")
            first, _, rest = question.partition(b"\r\n")
            method, _, version = first.decode("latin-1").split()
            headers = parse_headers(io.BytesIO(rest))
        except (ValueError, HTTPException, asyncio.LimitOverrunError):
            return _said(HTTPStatus.BAD_REQUEST)
        if version not in VERSIONS:
            return _said(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
        if method != "GET":
            return _said(HTTPStatus.METHOD_NOT_ALLOWED, "Allow: GET")
        form = (OPENMETRICS if OPENMETRICS in headers.get("Accept", "") else "",
                "gzip" in headers.get("Accept-Encoding", ""))
        try:
            answer = self._answers.get(form)
            if answer is None or (answer.done() and not self._figures.fresh):
                answer = self._answers[form] = asyncio.create_task(self._figures_as(form))
            async with asyncio.timeout(PATIENCE):
                return await asyncio.shield(answer)     # others wait for it as well
        except TimeoutError:
            return _said(HTTPStatus.SERVICE_UNAVAILABLE, "Content-Type: text/plain",
                         body=b"nvshared is busy\n")

    async def _figures_as(self, form: Form) -> bytes:
        async with self._writing:
            await self._figures.note()
            return await asyncio.to_thread(self._write, form)

    def _write(self, form: Form) -> bytes:
        accepted, zipped = form
        encode, kind = choose_encoder(accepted)
        body = encode(self._registry)
        head = [f"Content-Type: {kind}"]
        if zipped:
            body = gzip.compress(body)
            head.append("Content-Encoding: gzip")
        return _said(HTTPStatus.OK, *head, body=body)


def _said(status: HTTPStatus, *head: str, body: bytes = b"") -> bytes:
    lines = [f"HTTP/1.0 {status.value} {status.phrase}", *head, f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def listen(
    where: Endpoint,
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> asyncio.Server:
    """On the address, or else on all of IPv6 and of IPv4. Raises OSError."""
    try:
        return await asyncio.start_server(serve, where.address or None, where.port)
    except OSError as error:
        if where.address or error.errno != errno.EADDRNOTAVAIL:
            raise
        return await asyncio.start_server(serve, "0.0.0.0", where.port)     # no IPv6 here


async def publish(manager: Manager, where: Endpoint) -> Callable[[], Awaitable[None]]:
    """Serves until the returned function is called. Raises NvshareError if it cannot listen."""
    scrapes = Scrapes(Figures(manager))
    try:
        server = await listen(where, scrapes.serve)
    except OSError as error:
        raise NvshareError(
            # asyncio's own words name the address a second time.
            f"the metrics cannot be served on {where}: "
            f"{os.strerror(error.errno) if error.errno else error}",
            "choose another with --metrics, or 0 for none",
        ) from error

    async def stop() -> None:
        server.close()
        await scrapes.close()
        await server.wait_closed()

    return stop
