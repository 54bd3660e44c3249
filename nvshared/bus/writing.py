# SPDX-License-Identifier: Apache-2.0
"""Messages on their way out to the bus, which may be slower than we are.

dbus-next takes a socket whose buffer is full for one that is broken: a thousand
clients that leave at once, and the daemon has lost the bus. Here the rest waits.
What there is goes out together, as much at a time as the bus takes at once, for
each message of its own would cost both sides a wake-up.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable

from dbus_next.message import Message

AT_A_TIME = 1 << 16                     # bytes; then others have their turn


class Writer:
    """What is to go out, in order. Stands in for dbus-next's own."""

    def __init__(
        self,
        connected: socket.socket,
        loop: asyncio.AbstractEventLoop,
        allowed: Callable[[], bool],
        broken: Callable[[OSError], None],
    ) -> None:
        """`allowed`: whether the bus has let us in, which is asked whenever there is something
        to send; `broken`: called when the socket fails."""
        self._allowed = allowed
        self._broken = broken
        self._socket = connected
        self._loop = loop
        self._bytes = bytearray()
        self._gone = 0                  # bytes, since the beginning
        self._ends: deque[tuple[int, asyncio.Future[None]]] = deque()   # of messages, likewise

    def schedule_write(
        self, msg: Message | None = None, future: "asyncio.Future[None] | None" = None
    ) -> None:
        """Sends a message when its turn comes; `future`: done when it is sent, or cannot be."""
        if msg is not None:
            self._bytes += msg._marshall()              # type: ignore[no-untyped-call]
            if future is not None:
                self._ends.append((self._gone + len(self._bytes), future))
        if self._allowed():
            self._loop.add_writer(self._socket, self._write)

    def _write(self) -> None:
        try:
            with memoryview(self._bytes) as all_of_it:
                sent = self._socket.send(all_of_it[:AT_A_TIME]) if all_of_it else 0
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._fail(error)
            return
        self._gone += sent
        del self._bytes[:sent]
        while self._ends and self._ends[0][0] <= self._gone:
            _, future = self._ends.popleft()
            if not future.done():
                future.set_result(None)
        if not self._bytes:
            self._loop.remove_writer(self._socket)

    def _fail(self, error: OSError) -> None:
        ends, self._ends = self._ends, deque()
        for _, future in ends:
            if not future.done():
                future.set_exception(error)
        self._broken(error)
