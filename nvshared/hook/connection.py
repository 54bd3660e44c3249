# SPDX-License-Identifier: Apache-2.0
"""One client's connection: its socket, a queue of unsent packets, and a pidfd.

The pidfd reports the death of the client's process, because a forked child may keep the socket open
for ever.

systemd's file descriptor store holds a copy of each client's socket, so that the connection
survives a restart of the daemon. So a connection that must end is shut down: closing the daemon's
copy alone would not end it.

asyncio has no streams for SOCK_SEQPACKET, so this module uses add_reader and add_writer.
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
from nvshared.report.systemd import KEPT_AS, Notifier
from nvshared.settings.config import Config
from nvshared.sharing.manager import Manager
from nvshared.units import SECOND

logger = logging.getLogger(__name__)

PACKETS_AT_A_TIME = 4                   # read from one connection before other users' work
QUEUE_LONGEST = 256                     # packets, besides about as many in the socket's buffer
LINGER = 1.0                            # seconds for a refused client to send HELLO and read why


class Listener(Protocol):
    """The part of the server that its connections use."""

    manager: Manager
    config: Config
    keeper: Notifier
    rotation: Rotation
    complain: Callable[[Peer, str, str], None]

    def forget(self, connection: "HookConnection") -> None:
        """Removes a connection that has ended."""


class HookConnection:
    """Wire: one client's socket."""

    def __init__(
        self, server: Listener, connected: socket.socket, identity: Peer, refusal: Refusal | None,
        name: str | None = None,
    ) -> None:
        """`name`: systemd's name for a connection of an earlier daemon; None: a new connection.

        Raises ProcessLookupError if the process is dead already.
        """
        self.peer = identity
        self.name = name or f"{KEPT_AS}{os.urandom(8).hex()}"
        self._kept = name is not None or refusal is None
        self.admitted = refusal is None
        self._server = server
        self._socket = connected
        self._queue: deque[tuple[bytes, int | None]] = deque()
        self._ended = False
        self._finishing = False
        self._listens = True            # False: waits for its user's turn in Rotation, or a lookup
        self._loop = asyncio.get_running_loop()
        self._pidfd = peer.watch(connected, identity.pid)
        # After calls that may raise: the session and the connection refer to each other.
        self.session = Session(server.manager, identity, self, refusal)
        self._timeout: asyncio.TimerHandle | None = None
        self._loop.add_reader(connected, self._readable)
        if self._pidfd is not None:
            self._loop.add_reader(self._pidfd, self._process_ended)
        if name is not None:
            # The peer is known to be a client, and may be in a long drain: no timeout for HELLO.
            self.session.take_over((int.from_bytes(os.urandom(8)) >> 1) + 1)
            return
        if refusal is not None:
            self._end_in(LINGER)
            return
        self._timeout = self._loop.call_later(
            server.config.hello_timeout / SECOND, self._hello_overdue)
        if self._kept:
            server.keeper.keep(self.name, connected.fileno())

    def send(self, packet: bytes, descriptor: int | None = None) -> None:
        """Sends the packet, or queues it if the socket's buffer is full. Closes the descriptor."""
        if self._ended:
            _close(descriptor)
            return
        if self._queue or not self._try(packet, descriptor):
            self._queue.append((packet, descriptor))
            if len(self._queue) == 1:
                self._loop.add_writer(self._socket, self._writable)
            if len(self._queue) > QUEUE_LONGEST:
                self._complain("unread", "it does not read what it is sent")
                # Deferred: the caller may be in the middle of changing the client's state.
                self._loop.call_soon(self.end, "it did not read")

    def drop(self, why: str) -> None:
        """Closes the connection in the next pass of the event loop, for a protocol violation."""
        self._complain("malformed", f"dropped: {why}")
        self._loop.call_soon(self.end, why)

    def finish(self) -> None:
        """Closes when the client has closed its end, or after LINGER."""
        self._finishing = True
        if not self._queue:
            self._shut()
        self._end_in(LINGER)

    def end(self, why: str, *, for_good: bool = True) -> None:
        """Closes now; unless `for_good`, systemd keeps its copy. No-op when repeated."""
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
        # Without reference cycles, the memory of ended connections is free at once. Else a garbage
        # collection after many of them holds up the event loop for longer than any client may.
        del self.session
        if not for_good:
            packets.leave(self._socket)
            self._server.forget(self)
            return

        def emptied() -> None:
            if self._kept:
                self._server.keeper.forget(self.name)
            self._server.forget(self)

        packets.close(self._socket, self._loop, emptied)

    def _readable(self) -> None:
        if not self._server.rotation.offer(self.peer.account, self._read):
            self._listen(on=False)

    def _process_ended(self) -> None:
        assert self._pidfd is not None
        self._loop.remove_reader(self._pidfd)
        self._server.rotation.offer(self.peer.account, partial(self.end, "its process ended"))

    def resume(self) -> None:
        """Reads again: the session has finished the lookup that its next record needed."""
        self._server.rotation.offer(self.peer.account, self._read)

    def _listen(self, *, on: bool) -> None:
        if on == self._listens:
            return
        self._listens = on
        if on:
            self._loop.add_reader(self._socket, self._readable)
        else:
            self._loop.remove_reader(self._socket)

    def _read(self) -> None:
        for _ in range(PACKETS_AT_A_TIME):
            if self._ended or self.session.looking_up:
                break
            try:
                self._receive()
            except (BlockingIOError, InterruptedError):
                break
            except ProtocolError as error:
                self._complain("malformed", f"dropped: {error}")
                self.end(error.message)
                return
        if not self._ended:
            self._listen(on=not self.session.looking_up)

    def _receive(self) -> None:
        """Raises BlockingIOError, InterruptedError or ProtocolError."""
        if self.session.deferred is not None:
            self.session.handle_deferred()
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
        """Sends a packet. False: the socket's buffer is full.

        True for a broken socket, too, whose connection then ends.
        """
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

    def _end_in(self, seconds: float) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
        self._timeout = self._loop.call_later(seconds, self.end, "it was refused")

    def _hello_overdue(self) -> None:
        if self.session.client is not None or self.session.looking_up:
            return
        self._complain("silent", "it connected and did not say what it wants")
        self.end("it said nothing")

    def _complain(self, kind: str, words: str) -> None:
        self._server.complain(self.peer, kind, words)


def _close(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)
