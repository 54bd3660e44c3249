# SPDX-License-Identifier: Apache-2.0
"""An HTTP server for short requests, to which anybody may talk.

It is the standard library's, with a thread for each request. There are few threads at a time,
and none lasts long: the timeout of a socket would not do, since it says how long one byte may
take, and a client that sends one now and then, or never reads the answer, would stay for ever.
Where there is no room for one more, the oldest request has to go. An honest one takes
milliseconds, so it is hardly ever the oldest.
"""

import errno
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from nvshared.quantity import Endpoint

logger = logging.getLogger(__name__)

SCRAPES_AT_MOST = 16                    # at a time
LONGEST = 10.0                          # seconds for all of one; Prometheus waits no longer either
SOON = 1.0                              # seconds in which a thread ends whose connection has

Answer = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nobody wants to read of scrapes."""


class _Server(ThreadingMixIn, WSGIServer):
    request_queue_size = 64

    def __init__(self, *given: Any, **more: Any) -> None:
        # What lasts, oldest first, and until when it may; the thread that listens adds to it,
        # those of the requests take themselves out. None: it has been hung up.
        self._open: dict[socket.socket, float | None] = {}
        self._changed = threading.Condition()   # protects it; nothing else is taken meanwhile
        super().__init__(*given, **more)

    def server_bind(self) -> None:
        """As HTTPServer's, but nobody is asked which name the address has."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether there is room for one more, or soon will be."""
        with self._changed:
            if len(self._open) >= SCRAPES_AT_MOST:
                self._hang_up(1)
                self._changed.wait_for(lambda: len(self._open) < SCRAPES_AT_MOST, SOON)
            if len(self._open) >= SCRAPES_AT_MOST:
                return False
            self._open[request] = time.monotonic() + LONGEST
            return True

    def service_actions(self) -> None:
        """Called twice a second, and for each request."""
        now = time.monotonic()
        with self._changed:
            self._hang_up(sum(end is not None and end <= now for end in self._open.values()))

    def close_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        """One has ended, or there was no room for it."""
        assert isinstance(request, socket.socket)
        with self._changed:             # nobody hangs up on what has its descriptor next
            super().close_request(request)
            self._open.pop(request, None)
            self._changed.notify_all()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who goes away or never asks is no news, and could be so a thousand times a second."""
        logger.debug("a scrape by %s failed", client_address, exc_info=True)

    def stop(self) -> None:
        """Returns when nobody is served any more. What an answer waits for has to end by itself."""
        self.shutdown()
        with self._changed:
            self._hang_up(len(self._open))
        self.server_close()

    def _hang_up(self, count: int) -> None:
        """On the oldest; their threads then find that nothing comes, and nothing goes."""
        for request in [one for one, end in self._open.items() if end is not None][:count]:
            self._open[request] = None
            try:
                request.shutdown(socket.SHUT_RDWR)
            except OSError:
                logger.debug("a scrape had gone by itself")


class _Server6(_Server):
    address_family = socket.AF_INET6


class _ServerOfBoth(_Server6):
    """On all addresses of IPv6 and of IPv4."""

    def server_bind(self) -> None:
        """The kernel may have been told to keep the two apart."""
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


def _server(where: Endpoint, answer: Answer) -> _Server:
    if where.address:
        kind = _Server6 if ":" in where.address else _Server
        return make_server(*where, answer, kind, _Handler)
    try:
        return make_server("::", where.port, answer, _ServerOfBoth, _Handler)
    except OSError as error:
        if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            raise
        return make_server("", where.port, answer, _Server, _Handler)     # no IPv6 here


def listen(where: Endpoint, answer: Answer) -> Callable[[], None]:
    """Has requests answered until the returned function is called. Raises OSError."""
    server = _server(where, answer)
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()

    def stop() -> None:
        server.stop()
        thread.join()

    return stop
