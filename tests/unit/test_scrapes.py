# SPDX-License-Identifier: Apache-2.0
"""The metrics server answers beside slow and silent connections and leaves no task."""

import asyncio
import contextlib
import errno
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from prometheus_client.core import GaugeMetricFamily

from nvshared.quantity import Endpoint
from nvshared.report import metrics
from nvshared.report.families import Samples
from nvshared.report.metrics import SCRAPES_AT_MOST, Scrapes
from nvshared.sharing.manager import Manager
from tests.unit.scripted import DEFAULTS, Time, script

GENEROUS = 600.0                        # seconds until a failing test ends
LIMIT = 0.2                             # seconds that a scrape may take, in tests of the time limit
SLOW = 100                              # number of slow connections
ASK = b"GET /metrics HTTP/1.0\r\n\r\n"
BIG = 1000                              # number of 10 kB samples; more than a socket buffer holds


def a_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))         # noqa: PTH208


class Site:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        script(monkeypatch)
        time = Time()
        self.before = descriptors()
        self.port = a_port()
        self._manager = Manager(lambda: DEFAULTS, time.clock, time.timer)
        self._slow: list[socket.socket] = []
        self.scrapes: Scrapes

    async def start(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Watched(Scrapes):
            def __init__(made, manager: Manager) -> None:   # noqa: N805
                super().__init__(manager)
                self.scrapes = made

        monkeypatch.setattr(metrics, "Scrapes", Watched)
        self.stop = await metrics.publish(self._manager, Endpoint("127.0.0.1", self.port))

    def connect(self, sends: bytes = b"", **buffers: int) -> socket.socket:
        one = socket.socket()
        one.setblocking(False)
        for option, size in buffers.items():
            one.setsockopt(socket.SOL_SOCKET, getattr(socket, option), size)
        with contextlib.suppress(BlockingIOError):
            one.connect(("127.0.0.1", self.port))
        self._slow.append(one)
        one.setblocking(True)
        one.settimeout(GENEROUS)
        if sends:
            one.sendall(sends)
        return one

    async def ask(self, sends: bytes = ASK) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(sends)
        said = await asyncio.wait_for(reader.read(), GENEROUS)
        writer.close()
        await writer.wait_closed()
        return said.decode(errors="replace")

    @property
    def count(self) -> int:
        return len(self.scrapes._tasks)

    def leave(self) -> None:
        for one in self._slow:
            one.close()
        self._slow.clear()


@pytest.fixture
async def site(monkeypatch: pytest.MonkeyPatch,
               capfd: pytest.CaptureFixture[str]) -> AsyncIterator[Site]:
    """Checks that the server leaves no descriptors and logs nothing. Its time limits exceed what
    any scrape takes on a busy machine."""
    monkeypatch.setattr(metrics, "LONGEST", GENEROUS)
    monkeypatch.setattr(metrics, "PATIENCE", GENEROUS)
    site = Site(monkeypatch)
    await site.start(monkeypatch)
    yield site
    await site.stop()                   # a second stop() has no effect
    site.leave()
    await until(lambda: (descriptors(), site.count) == (site.before, 0))
    assert capfd.readouterr().err == ""


async def until(there: Callable[[], bool]) -> None:
    end = time.monotonic() + GENEROUS
    while not there():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


async def test_scrape_is_answered_among_a_hundred_slow_connections(site: Site) -> None:
    """Each of 100 clients sends a byte each 0.2 s and reconnects when the server closes."""
    ended = asyncio.Event()
    most = 0

    async def crawl() -> None:
        while not ended.is_set():
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", site.port)
                with contextlib.closing(writer):
                    for byte in ASK[:10] + b"X" * 1000:
                        writer.write(bytes([byte]))
                        await writer.drain()
                        await asyncio.sleep(0.2)
                        if ended.is_set():
                            return

    crawlers = [asyncio.create_task(crawl()) for _ in range(SLOW)]
    await until(lambda: site.count >= SCRAPES_AT_MOST)
    answered = 0
    while answered < 20:                # a slow client may take the freed place
        await asyncio.sleep(0.05)
        with contextlib.suppress(OSError):
            answered += "nvshare_gpu_capacity_bytes" in await site.ask()
        most = max(most, site.count)
    assert most <= SCRAPES_AT_MOST
    ended.set()
    await asyncio.gather(*crawlers)


@pytest.mark.parametrize("sends", [b"", b"GET /met", ASK[:-2], b"\r\n" * 3])
async def test_metrics_connection_without_a_whole_request_is_closed_after_the_time_limit(
        site: Site, sends: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "LONGEST", LIMIT)
    idle = [site.connect(sends) for _ in range(SCRAPES_AT_MOST)]
    for one in idle:
        with contextlib.suppress(ConnectionResetError):
            while await asyncio.to_thread(one.recv, 4096):
                """The server may answer half of a request with an error."""
    await until(lambda: site.count == 0)


async def test_metrics_connection_that_never_reads_is_closed_after_the_time_limit(
        site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async def read(figures: Scrapes) -> None:
        figures._read_at = time.monotonic()
        samples = [((f"{number}" + "x" * 10_000,), number) for number in range(BIG)]
        figures._samples = [
            Samples(GaugeMetricFamily, "nvshare_gpu_capacity_bytes", "big", ("of",), samples)]

    monkeypatch.setattr(Scrapes, "read", read)
    await site.ask()                    # the formatted metrics are cached from now on
    deaf = [site.connect(ASK, SO_RCVBUF=4096) for _ in range(SCRAPES_AT_MOST)]
    await until(lambda: site.count == SCRAPES_AT_MOST)
    assert "nvshare_gpu_capacity_bytes" in await site.ask()
    monkeypatch.setattr(metrics, "LONGEST", LIMIT)
    deaf += [site.connect(ASK, SO_RCVBUF=4096) for _ in range(SCRAPES_AT_MOST)]
    await until(lambda: site.count == 0)
    assert len(deaf) == 2 * SCRAPES_AT_MOST


async def test_metrics_server_stops_while_figures_are_collected(
        site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    never = asyncio.Event()
    asked = asyncio.Event()

    async def read(_figures: Scrapes) -> None:
        asked.set()
        await never.wait()

    monkeypatch.setattr(Scrapes, "read", read)
    waiting = [site.connect(ASK) for _ in range(3)]
    waiting += [site.connect(ASK[:-2]) for _ in range(SCRAPES_AT_MOST - 3)]  # incomplete requests
    await until(lambda: site.count == len(waiting))
    await asyncio.wait_for(asked.wait(), GENEROUS)
    await site.stop()                   # before any connection reaches its time limit
    assert site.count == 0


async def test_scrape_is_answered_503_when_the_event_loop_is_stalled(
        site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async def read(_figures: Scrapes) -> None:
        await asyncio.sleep(GENEROUS)

    monkeypatch.setattr(metrics, "PATIENCE", 0.1)
    monkeypatch.setattr(Scrapes, "read", read)
    said = await site.ask()
    assert said.startswith("HTTP/1.0 503 Service Unavailable")
    assert said.endswith("\r\n\r\nnvshared is busy\n")


ODD = [
    "GET /favicon.ico HTTP/1.0",
    "GET /metrics?name[]=nvshare_gpu_info HTTP/1.0", "GET /%ff%00?%ff=%zz&name[]=%ff HTTP/1.0",
    *(f"GET /{number} HTTP/1.0" for number in range(5)),
    *(f"GET /metrics HTTP/1.0\r\nAccept: application/openmetrics-text;version={version}"
      for version in ("1.0.0", "x", "")),
    "GET /metrics HTTP/1.0\r\nAccept: text/plain;version=\N{LATIN SMALL LETTER Y WITH DIAERESIS}",
    "GET /metrics HTTP/1.0\r\nAccept-Encoding: identity;q=0,gzip",
    "GET /metrics HTTP/1.0\r\nContent-Length: -1", "GET /metrics HTTP/1.0\r\nAccept:\r\n folded",
]


async def test_metrics_server_when_a_request_is_unusual_answers_in_the_same_format(
        site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    written = 0
    collect = Scrapes.collect

    def counted(figures: Scrapes) -> Any:
        nonlocal written
        written += 1
        return collect(figures)

    monkeypatch.setattr(Scrapes, "collect", counted)
    monkeypatch.setattr(metrics, "FRESH", GENEROUS)
    for method in ("POST", "HEAD", "X" * 1000):
        said = await site.ask(f"{method} /metrics HTTP/1.0\r\n\r\n".encode())
        assert said.startswith("HTTP/1.0 405 Method Not Allowed")
    for asked in ODD:
        assert (await site.ask(f"{asked}\r\n\r\n".encode("latin-1"))).startswith("HTTP/1.0 200 OK")
    assert written == 1


@pytest.mark.parametrize("sends", [
    b"\xff\xfe\x00\r\n\r\n", b"GET\r\n\r\n", b"GET /metrics HTTP/9.9\r\n\r\n",
    b"GET /" + b"x" * 70_000,
    b"GET /metrics HTTP/1.0\r\nA: " + b"x" * 70_000 + b"\r\n\r\n",
])
async def test_invalid_http_request_is_refused_and_the_next_request_answered(
        site: Site, sends: bytes) -> None:
    with contextlib.suppress(OSError):
        assert "200" not in (await site.ask(sends)).partition("\n")[0]
    assert "nvshare_gpu_capacity_bytes" in await site.ask()


@pytest.mark.parametrize("has_ipv6", [True, False])
async def test_metrics_server_on_a_port_without_an_address_serves_ipv4_and_ipv6(
        monkeypatch: pytest.MonkeyPatch, has_ipv6: bool) -> None:
    port = a_port()
    start_server = asyncio.start_server

    async def start(serve: Any, host: Any, at: int) -> asyncio.Server:
        if host is metrics.ANY and not has_ipv6:
            raise OSError(errno.EADDRNOTAVAIL, "no such address")
        return await start_server(serve, host, at)

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"figures")
        writer.close()

    monkeypatch.setattr(asyncio, "start_server", start)
    server = await metrics.listen(Endpoint("", port), serve)
    for address in ("127.0.0.1", "::1")[:2 if has_ipv6 else 1]:
        reader, writer = await asyncio.open_connection(address, port)
        assert await reader.read() == b"figures"
        writer.close()
    server.close()
