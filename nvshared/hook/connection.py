# SPDX-License-Identifier: Apache-2.0
"""One program's connection: a socket, a queue of packets that it has not taken yet, and
a descriptor that tells when its process dies (a forked child may hold the socket for ever).

A keeper outside of this process (systemd's file descriptor store) holds a copy
of each client's socket, so that its connection outlives us. What is to end for
good must therefore be shut down, which closing alone no longer does.

asyncio has no streams for SOCK_SEQPACKET, so this uses its readers and writers.
"""

import asyncio
import errno
import logging
import os
import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from nvshared.errors import ProtocolError
from nvshared.hook import packets, protocol
from nvshared.hook.protocol import Refusal
from nvshared.hook.rotation import Rotation
from nvshared.hook.session import Session
from nvshared.machine import peer
from nvshared.machine.peer import Peer
from nvshared.report.systemd import KEPT_AS
from nvshared.settings.config import Config
from nvshared.sharing.manager import Manager
from nvshared.units import SECOND

logger = logging.getLogger(__name__)

PACKETS_AT_A_TIME = 4                   # then the others have their turn
QUEUE_LONGEST = 256                     # packets; the kernel holds about as many before these
LINGER = 1.0                            # seconds for a refused client to ask, and to read why


class Keeper(Protocol):
    """Holds sockets for the daemon that comes after us."""

    def keep(self, name: str, descriptor: int) -> None:
        """Holds a copy, if it can."""

    def forget(self, name: str) -> None:
        """Lets go of it. Harmless when it holds nothing of that name."""


class Listener(Protocol):
    """What a connection needs of the server that accepted it."""

    manager: Manager
    config: Config
    keeper: Keeper
    rotation: Rotation
    complain: Callable[[Peer, str, str], None]

    def forget(self, connection: "HookConnection") -> None:
        """A connection has ended."""


class HookConnection:
    """Wire: one client's socket."""

    def __init__(
        self, server: Listener, connected: socket.socket, who: Peer, refusal: Refusal | None,
        name: str | None = None,
    ) -> None:
        """`name`: what an earlier daemon had it kept under; None if it is new.

        Raises ProcessLookupError if the process is dead already.
        """
        self.peer = who
        self.name = name or f"{KEPT_AS}{os.urandom(8).hex()}"
        self._kept = name is not None or refusal is None
        self.admitted = refusal is None
        self.session = Session(server.manager, who, self, refusal)
        self._server = server
        self._socket = connected
        self._queue: deque[tuple[bytes, int | None]] = deque()
        self._ended = False
        self._finishing = False
        self._listens = True            # not while it waits for its user's turn, or for a look
        self._loop = asyncio.get_running_loop()
        self._pidfd = peer.watch(connected, who.pid)
        self._timeout: asyncio.TimerHandle | None = None
        self._loop.add_reader(connected, self._readable)
        if self._pidfd is not None:
            self._loop.add_reader(self._pidfd, self._bereaved)
        if name is not None:
            # It may be in a long drain, and is known to be a client: no timeout.
            self.session.take_over((int.from_bytes(os.urandom(8)) >> 1) + 1)
            return
        if refusal is not None:
            self._again_in(LINGER)
            return
        self._timeout = self._loop.call_later(server.config.hello_timeout / SECOND, self._silent)
        if self._kept:
            server.keeper.keep(self.name, connected.fileno())

    def send(self, packet: bytes, descriptor: int | None = None) -> None:
        """Sends now if the kernel takes it, else as soon as it does. Closes the descriptor."""
        if self._ended:
            _close(descriptor)
            return
        if self._queue or not self._try(packet, descriptor):
            self._queue.append((packet, descriptor))
            if len(self._queue) == 1:
                self._loop.add_writer(self._socket, self._writable)
            if len(self._queue) > QUEUE_LONGEST:
                self._complain("unread", "it does not read what it is sent")
                # Not at once: the one who sends is in the middle of something.
                self._loop.call_soon(self.end, "it did not read")

    def drop(self, why: str) -> None:
        """Closes in a moment, as the client breaks its rules."""
        self._complain("malformed", f"dropped: {why}")
        self._loop.call_soon(self.end, why)

    def finish(self) -> None:
        """Closes when the other side has closed, or after a moment."""
        self._finishing = True
        if not self._queue:
            self._shut()
        self._again_in(LINGER)

    def end(self, why: str, *, for_good: bool = True) -> None:
        """Closes now; if not for good, the keeper keeps its copy. Harmless when repeated."""
        if self._ended:
            return
        self._ended = True
        logger.debug("%s: connection closed: %s", self.peer, why)
        if self._timeout is not None:
            self._timeout.cancel()
        if self._queue:
            self._loop.remove_writer(self._socket)
        for _, descriptor in self._queue:
            _close(descriptor)
        self._loop.remove_reader(self._socket)
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
        self.session.ended()
        if for_good:
            packets.close(self._socket, self._loop, self._emptied)
        else:
            packets.leave(self._socket)
            self._server.forget(self)

    def _emptied(self) -> None:
        if self._kept:
            self._server.keeper.forget(self.name)
        self._server.forget(self)

    def _readable(self) -> None:
        if not self._server.rotation.offer(self.peer.account, self._read):
            self._listen(on=False)

    def _bereaved(self) -> None:
        assert self._pidfd is not None
        self._loop.remove_reader(self._pidfd)
        self._server.rotation.offer(self.peer.account, partial(self.end, "its process ended"))

    def resume(self) -> None:
        """The session has looked up what it must know before its next record."""
        self._server.rotation.offer(self.peer.account, self._read)

    def _listen(self, *, on: bool) -> None:
        if on == self._listens or self._ended:
            return
        self._listens = on
        if on:
            self._loop.add_reader(self._socket, self._readable)
        else:
            self._loop.remove_reader(self._socket)

    def _read(self) -> None:
        for _ in range(PACKETS_AT_A_TIME):
            if self._ended or self.session.looks:
                break
            try:
                self._hear()
            except (BlockingIOError, InterruptedError):
                break
            except ProtocolError as error:
                self._complain("malformed", f"dropped: {error}")
                self.end(error.message)
                return
        self._listen(on=not self.session.looks)

    def _hear(self) -> None:
        """Raises BlockingIOError, InterruptedError or ProtocolError."""
        if self.session.deferred is not None:
            self.session.go_on()
            return
        try:
            packet = packets.receive(self._socket, protocol.SIZE + 1)
        except (BlockingIOError, InterruptedError):
            raise
        except OSError as error:
            self.end(error.strerror or str(error))
            return
        if packet is None:
            self.end("closed by the other side")
        else:
            self.session.received(packet)

    def _writable(self) -> None:
        while self._queue and not self._ended:
            if not self._try(*self._queue[0]):
                return
            self._queue.popleft()
        if not self._ended:
            self._loop.remove_writer(self._socket)
            if self._finishing:
                self._shut()

    def _try(self, packet: bytes, descriptor: int | None) -> bool:
        """False: the kernel takes no more now. A broken socket takes everything, and ends soon."""
        try:
            if descriptor is None:
                self._socket.send(packet)
            else:
                socket.send_fds(self._socket, [packet], [descriptor])
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            if descriptor is not None and error.errno == errno.ETOOMANYREFS:
                self._complain("crowded", "others do not read what they are sent, so it is not told"
                               " whom in the background to give way to")
            else:
                self._loop.call_soon(self.end, error.strerror or str(error))
        _close(descriptor)
        return True

    def _shut(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            self._loop.call_soon(self.end, error.strerror or str(error))

    def _again_in(self, seconds: float) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
        self._timeout = self._loop.call_later(seconds, self.end, "it was refused")

    def _silent(self) -> None:
        if self.session.client is not None or self.session.looks:
            return
        self._complain("silent", "it connected and did not say what it wants")
        self.end("it said nothing")

    def _complain(self, kind: str, what: str) -> None:
        self._server.complain(self.peer, kind, what)


def _close(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)
