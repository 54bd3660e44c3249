# SPDX-License-Identifier: Apache-2.0
"""The metrics' server among those who are slow, or never read: in time, and nothing stays."""

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from prometheus_client.core import GaugeMetricFamily

from nvshared.quantity import Endpoint
from nvshared.report import metrics, scrapes
from nvshared.report.families import Noted
from nvshared.report.metrics import Figures, serve
from nvshared.report.scrapes import SCRAPES_AT_MOST
from nvshared.sharing.manager import Manager
from tests.unit.scripted import DEFAULTS, Time, script

GENEROUS = 600.0                        # seconds; only a test that fails waits so long
LIMIT = 1.0                             # seconds for a whole scrape, here, where it may end so
SLOW = 100                              # clients
ASK = b"GET /metrics HTTP/1.0\r\n\r\n"
BIG = 1000                              # samples of 10 kB, more than the kernel takes at once


def a_port() -> int:
    """One that is free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def descriptors() -> int:
    """How many are open."""
    return len(os.listdir("/proc/self/fd"))         # noqa: PTH208


class Site:
    """A server in the running loop, and who talks to it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        script(monkeypatch)
        time = Time()
        self.before = descriptors()
        self.port = a_port()
        manager = Manager(lambda: DEFAULTS, time.clock, time.timer)
        self.stop = serve(manager, Endpoint("127.0.0.1", self.port))
        self._slow: list[socket.socket] = []

    def connect(self, sends: bytes = b"", **buffers: int) -> socket.socket:
        """Somebody who sends this and then waits."""
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
        """An honest scrape, or what else is sent."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(sends)
        said = await asyncio.wait_for(reader.read(), GENEROUS)
        writer.close()
        await writer.wait_closed()
        return said.decode(errors="replace")

    def threads(self) -> int:
        """That the server has now."""
        return sum(
            one.name == "metrics" or "process_request_thread" in one.name
            for one in threading.enumerate()
        )

    def leave(self) -> None:
        """Nobody but the server is there any more."""
        for one in self._slow:
            one.close()
        self._slow.clear()


@pytest.fixture
async def site(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> AsyncIterator[Site]:
    """Nothing stays of it, and it says nothing. No scrape ends for its length, nor on a machine
    that is busy for another's that takes long to end."""
    monkeypatch.setattr(scrapes, "LONGEST", GENEROUS)
    monkeypatch.setattr(scrapes, "SOON", GENEROUS)
    monkeypatch.setattr(metrics, "PATIENCE", GENEROUS)
    site = Site(monkeypatch)
    yield site
    site.stop()                         # again, where the test has done so
    site.leave()
    assert (descriptors(), site.threads()) == (site.before, 0)
    assert capfd.readouterr().err == ""


async def until(there: Callable[[], bool]) -> None:
    """Fails when that takes too long."""
    end = time.monotonic() + GENEROUS
    while not there():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


async def test_an_honest_scrape_goes_on_among_slow_ones(site: Site) -> None:
    """Each of a hundred sends a byte now and then, for ever, and comes again when it is cut."""
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
    await until(lambda: site.threads() > SCRAPES_AT_MOST)
    answered = 0
    while answered < 20:                # it comes again, too, if it is ever cut
        await asyncio.sleep(0.05)
        with contextlib.suppress(OSError):
            answered += "nvshare_gpu_capacity_bytes" in await site.ask()
        most = max(most, site.threads())
    assert most <= SCRAPES_AT_MOST + 1
    ended.set()
    await asyncio.gather(*crawlers)


@pytest.mark.parametrize("sends", [b"", b"GET /met", ASK[:-2], b"\r\n" * 3])
async def test_nobody_stays_for_long(
    site: Site, sends: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrapes, "LONGEST", LIMIT)
    idle = [site.connect(sends) for _ in range(SCRAPES_AT_MOST)]
    for one in idle:
        with contextlib.suppress(ConnectionResetError):
            while await asyncio.to_thread(one.recv, 4096):
                """Whoever has sent half of it hears that this is wrong."""
    await until(lambda: site.threads() == 1)


async def test_who_never_reads_the_answer_does_not_stay_either(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def note(figures: Figures) -> list[Noted]:
        figures._noted_at = time.monotonic()
        samples = [((f"{number}" + "x" * 10_000,), number) for number in range(BIG)]
        return [Noted(GaugeMetricFamily, "nvshare_gpu_capacity_bytes", "big", ("of",), samples)]

    monkeypatch.setattr(Figures, "_note", note)
    await site.ask()                    # from now on it is written down
    deaf = [site.connect(ASK, SO_RCVBUF=4096) for _ in range(SCRAPES_AT_MOST)]
    await until(lambda: site.threads() == 1 + SCRAPES_AT_MOST)
    assert "nvshare_gpu_capacity_bytes" in await site.ask()
    monkeypatch.setattr(scrapes, "LONGEST", LIMIT)
    deaf += [site.connect(ASK, SO_RCVBUF=4096) for _ in range(SCRAPES_AT_MOST)]
    await until(lambda: site.threads() == 1)
    assert len(deaf) == 2 * SCRAPES_AT_MOST


async def test_it_stops_though_people_are_there(site: Site) -> None:
    for _ in range(SCRAPES_AT_MOST):
        site.connect(ASK[:-2])
    await until(lambda: site.threads() == 1 + SCRAPES_AT_MOST)
    site.stop()                         # before any of them would have been sent away
    assert site.threads() == 0


async def test_it_stops_though_figures_are_waited_for(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop in which they would be noted is the one that stops it."""
    never = asyncio.Event()

    async def note(_figures: Figures) -> Any:
        await never.wait()

    monkeypatch.setattr(Figures, "_note", note)
    waiting = [site.connect(ASK) for _ in range(3)]
    await until(lambda: site.threads() == 1 + len(waiting))
    time.sleep(0.1)                     # noqa: ASYNC251 - until one of them waits for this loop
    site.stop()
    assert site.threads() == 0
    await asyncio.sleep(0)              # what was to be noted is cancelled


async def test_a_loop_that_notes_nothing_is_said_in_a_line(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def note(_figures: Figures) -> Any:
        await asyncio.sleep(GENEROUS)

    monkeypatch.setattr(metrics, "PATIENCE", 0.1)
    monkeypatch.setattr(Figures, "_note", note)
    said = await site.ask()
    assert said.startswith("HTTP/1.0 503 Service Unavailable")
    assert said.endswith("\r\n\r\nnvshared is busy\n")


ODD = [
    "GET /favicon.ico HTTP/1.0",
    "GET /metrics?name[]=nvshare_gpu_info HTTP/1.0", "GET /%ff%00?%ff=%zz&name[]=%ff HTTP/1.0",
    *(f"GET /{number} HTTP/1.0" for number in range(5)),
    *(f"GET /metrics HTTP/1.0\r\nAccept: application/openmetrics-text;version={version}"
      for version in ("1.0.0", "9.9", "x", "")),
    *(f"GET /metrics HTTP/1.0\r\nAccept: text/plain;version={version};escaping=x"
      for version in ("1.0.0", "x", "\N{LATIN SMALL LETTER Y WITH DIAERESIS}")),
    *(f"GET /metrics HTTP/1.0\r\nAccept-Encoding: {number},gzip;q=0.{number}"
      for number in range(5)),
    "GET /metrics HTTP/1.0\r\nContent-Length: -1", "GET /metrics HTTP/1.0\r\nAccept:\r\n folded",
]


async def test_whatever_is_asked_an_answer_is_written_once_for_each_form(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain or OpenMetrics, compressed or not: so much work a second at the most."""
    written = 0
    collect = Figures.collect

    def counted(figures: Figures) -> Any:
        nonlocal written
        written += 1
        return collect(figures)

    monkeypatch.setattr(Figures, "collect", counted)
    monkeypatch.setattr(metrics, "FRESH", GENEROUS)
    for method in ("POST", "HEAD", "X" * 1000):
        said = await site.ask(f"{method} /metrics HTTP/1.0\r\n\r\n".encode())
        assert said.startswith("HTTP/1.0 405 Method Not Allowed")
    for asked in ODD:
        assert (await site.ask(f"{asked}\r\n\r\n".encode("latin-1"))).startswith("HTTP/1.0 200 OK")
    assert written <= 4
    assert "openmetrics" in await site.ask(
        b"GET /metrics HTTP/1.0\r\nAccept: application/openmetrics-text;version=1.0.0\r\n\r\n")


@pytest.mark.parametrize("sends", [
    b"\xff\xfe\x00\r\n\r\n", b"GET\r\n\r\n", b"GET /metrics HTTP/9.9\r\n\r\n",
    b"GET /" + b"x" * 70_000, b"GET /metrics HTTP/1.0\r\n" + b"A: b\r\n" * 200 + b"\r\n",
    b"GET /metrics HTTP/1.0\r\nA: " + b"x" * 70_000 + b"\r\n\r\n",
])
async def test_what_is_no_question_is_refused_without_a_word(site: Site, sends: bytes) -> None:
    with contextlib.suppress(OSError):
        assert "200" not in (await site.ask(sends)).partition("\n")[0]
    assert "nvshare_gpu_capacity_bytes" in await site.ask()


@pytest.mark.parametrize("family", [socket.AF_INET6, 9999], ids=["with IPv6", "without IPv6"])
def test_listen_on_a_port_alone_serves_all_protocols_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, family: int
) -> None:
    monkeypatch.setattr(scrapes._ServerOfBoth, "address_family", family)
    port = a_port()

    def answer(_environ: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
        start("200 OK", [])
        return [b"figures"]

    stop = scrapes.listen(Endpoint("", port), answer)
    try:
        for address in ("127.0.0.1", "::1")[:2 if family == socket.AF_INET6 else 1]:
            with socket.create_connection((address, port), GENEROUS) as asking:
                asking.sendall(ASK)
                assert asking.makefile("rb").read().endswith(b"figures")
    finally:
        stop()
