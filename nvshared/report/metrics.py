# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics over HTTP.

Everything is read from the manager when it is asked for, once in a while at the
most: anybody may ask, and noting a thousand clients takes the event loop a while.
The HTTP server has threads of its own, so each scrape waits until the event loop
has noted the figures; it never looks at a scheduler while that decides.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from nvshared.errors import NvshareError
from nvshared.quantity import Endpoint
from nvshared.report.families import Noted, note
from nvshared.report.scrapes import Answer, listen
from nvshared.sharing.manager import Manager
from nvshared.sharing.sampler import look
from nvshared.sharing.totals import TenantTotals

logger = logging.getLogger(__name__)

PATIENCE = 5.0                          # seconds a scrape waits for the event loop
FRESH = 1.0                             # seconds for which figures are as good as new ones
OPENMETRICS = "application/openmetrics-text"

_Answer = tuple[str, list[tuple[str, str]], bytes]      # status, headers, body


class Figures(Collector):
    """Notes all figures at once, in the event loop it was made in."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._totals = TenantTotals()
        for gpu in manager.gpus:
            self._totals.follow(gpu)
        self._loop = asyncio.get_running_loop()
        self._noted: Sequence[Noted] = []
        self._noted_at = float("-inf")
        self._awaited: set[Future[Sequence[Noted]]] = set()
        self._closed = False

    @property
    def fresh(self) -> bool:
        """Whether what was noted last is as good as new; for any thread."""
        return self._loop.time() - self._noted_at < FRESH

    def describe(self) -> Iterable[Metric]:
        """Nothing ahead of time: registering must not wait for the loop it is called from."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Called in a thread of the HTTP server. Raises TimeoutError, CancelledError."""
        noting = asyncio.run_coroutine_threadsafe(self._note(), self._loop)
        self._awaited.add(noting)
        if self._closed:
            noting.cancel()
        try:
            noted = noting.result(PATIENCE)
        finally:
            noting.cancel()
            self._awaited.discard(noting)
        return [one.family() for one in noted]

    def close(self) -> None:
        """Called in the loop: who waits for it to note figures would wait in vain from now on."""
        self._closed = True
        for noting in tuple(self._awaited):
            noting.cancel()

    async def _note(self) -> Sequence[Noted]:
        if not self.fresh:
            await look(self._manager.gpus)
            everyone = tuple(self._manager.clients)
            self._noted = note(self._manager.gpus, everyone, self._totals)
            self._noted_at = self._loop.time()
        return self._noted


def serve(manager: Manager, where: Endpoint) -> Callable[[], None]:
    """Serves until the returned function is called. Raises NvshareError if it cannot listen."""
    registry = CollectorRegistry()
    figures = Figures(manager)
    registry.register(figures)
    ProcessCollector(registry=registry)     # what Prometheus wants to know of every program
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
    """What is said to a scrape: written down once in each form as long as its figures are fresh.

    To write down those of a thousand clients keeps a processor busy for a while. Threads do
    so one after the other, which leaves the event loop its turns. There are four forms, and
    nothing else that is asked makes a difference, so nobody can have more written.
    """

    def __init__(self, figures: Figures, write: Answer) -> None:
        self._figures = figures
        self._write = write
        self._turn = threading.Lock()   # protects what follows, and is held while that is made
        self._written: dict[tuple[str, str], _Answer] = {}

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """A WSGI application, called in a thread of the HTTP server."""
        accept, encoding = environ.get("HTTP_ACCEPT", ""), environ.get("HTTP_ACCEPT_ENCODING", "")
        form = (OPENMETRICS if OPENMETRICS in accept else "", "gzip" if "gzip" in encoding else "")
        answer: _Answer = (
            "503 Service Unavailable", [("Content-Type", "text/plain")], b"nvshared is busy\n")
        if environ["REQUEST_METHOD"] != "GET":
            answer = "405 Method Not Allowed", [("Allow", "GET")], b""
        elif self._turn.acquire(timeout=PATIENCE):
            try:
                answer = self._answer(form)
            except (TimeoutError, CancelledError):
                logger.debug("figures could not be had in time")
            finally:
                self._turn.release()
        start(*answer[:2])
        return [answer[2]]

    def _answer(self, form: tuple[str, str]) -> _Answer:
        if not self._figures.fresh:
            self._written.clear()
        if form not in self._written:
            said: list[tuple[str, list[tuple[str, str]]]] = []
            asked = {
                "REQUEST_METHOD": "GET", "PATH_INFO": "/metrics", "HTTP_ACCEPT": form[0],
                "HTTP_ACCEPT_ENCODING": form[1],
            }
            body = b"".join(self._write(asked, lambda *words: said.append(words)))
            self._written[form] = (*said[0], body)
        return self._written[form]
