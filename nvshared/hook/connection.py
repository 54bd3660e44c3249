# SPDX-License-Identifier: Apache-2.0
"""One client's connection: its socket, a queue of unsent packets, and a pidfd.

The pidfd reports the death of the client's process, because a forked child may keep the socket open
for ever.

systemd's file descriptor store holds a copy of each client's socket, so that the connection
survives a restart of the daemon. So a connection that must end is shut down: closing the daemon's
copy alone would not end it.

Packets must not carry descriptors. When a packet with descriptors is read, or its socket is closed,
the kernel closes the descriptors, and the sender controls how long that blocks: closing a TCP
connection with SO_LINGER waits for its other end. Linux 6.16 and later refuse descriptors for the
daemon. On older kernels, and on connections accepted by an earlier daemon, each packet is first
read with MSG_PEEK, which closes nothing, and a queue that holds descriptors is emptied on a
separate thread. The service manager may hold a copy of the socket. It is asked to close the copy
only after the queue is empty, because its close() would block as well.

SO_PASSCRED distinguishes an empty packet from the end of the connection: only a packet has
credentials. The control buffer has no space for descriptors besides the credentials, so the kernel
reports descriptors by MSG_CTRUNC.

asyncio has no streams for SOCK_SEQPACKET, so this module uses add_reader and add_writer.
"""

import asyncio
import errno
import logging
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import Protocol

from nvshared.errors import ProtocolError
from nvshared.hook import protocol
from nvshared.hook.protocol import Refusal
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
SO_PASSRIGHTS = 83                      # Linux 6.16, asm-generic/socket.h
FIRST_MOST = 4                          # packets before the daemon's first reply; last is HELLO
CREDENTIALS_SPACE = socket.CMSG_LEN(struct.calcsize("3i"))
MOMENT = 0.001                          # seconds of clients' work before other events are handled


class Rotation:
    """Divides the event loop's time among users: pieces of work by account (machine/peer.py).

    Packets of all clients are handled in one event loop, and so is every hand-over. Without the
    rotation, a user with a thousand busy connections would delay a user with one by a factor of a
    thousand. So work caused by clients is done round-robin, one piece per user, for at most MOMENT.
    Then the event loop runs everything else that is due, and continues.

    While there is less than MOMENT of work, as nearly always, each piece is done at once and none
    is queued.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # Queued work by account; the first account is served next.
        self._waiting: dict[Hashable, deque[Callable[[], None]]] = {}
        self._used = 0.0                # seconds of MOMENT that immediate work has used
        self._ended = 0.0               # when `_used` was last updated; it falls with elapsed time
        self._serving: asyncio.Handle | None = None

    def offer(self, account: Hashable, work: Callable[[], None]) -> bool:
        """Does work at once (True), or queues it behind the account's other work (False)."""
        now = self._loop.time()
        self._used = max(0.0, self._used - (now - self._ended))
        self._ended = now
        if self._serving is not None or self._used >= MOMENT:
            self._waiting.setdefault(account, deque()).append(work)
            if self._serving is None:
                self._serving = self._loop.call_soon(self._serve)
            return False
        try:
            work()
        finally:
            self._ended = self._loop.time()
            self._used += self._ended - now
        return True

    def close(self) -> None:
        """Drops waiting work."""
        if self._serving is not None:
            self._serving.cancel()
            self._serving = None
        self._waiting.clear()

    def _serve(self) -> None:
        end = self._loop.time() + MOMENT
        try:
            while self._waiting and self._loop.time() < end:
                account = next(iter(self._waiting))
                mine = self._waiting.pop(account)
                work = mine.popleft()
                if mine:
                    self._waiting[account] = mine   # behind the others
                work()
        finally:
            self._serving = self._loop.call_soon(self._serve) if self._waiting else None


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
            close_copy(self._socket)
            self._server.forget(self)
            return

        def emptied() -> None:
            if self._kept:
                self._server.keeper.forget(self.name)
            self._server.forget(self)

        shut_down(self._socket, self._loop, emptied)

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
            packet = receive(self._socket, protocol.SIZE + 1)
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


def refuse_descriptors(listening: socket.socket) -> None:
    """Makes the kernel refuse descriptors on connections accepted from now on, if it can."""
    with suppress(OSError):
        listening.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)


def prepare(connected: socket.socket) -> None:
    """Makes a socket non-blocking, and enables the detection of descriptors."""
    connected.setblocking(False)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)


def receive(connected: socket.socket, size: int) -> bytes | None:
    """Reads a packet, up to `size` bytes of it; None at the end of the connection.

    Raises OSError, and ProtocolError if the packet carries descriptors.
    """
    packet, control, flags, _ = connected.recvmsg(size, CREDENTIALS_SPACE, socket.MSG_PEEK)
    if not control:
        return None
    if flags & socket.MSG_CTRUNC:
        raise ProtocolError("it sent descriptors")
    connected.recv(1)
    return packet


def shut_down(
    connected: socket.socket, loop: asyncio.AbstractEventLoop, emptied: Callable[[], None]
) -> None:
    """Shuts a socket down, empties its queue, calls `emptied`, and closes the socket."""
    with suppress(OSError):             # the client may have disconnected already
        connected.shutdown(socket.SHUT_RDWR)

    def finish() -> None:
        emptied()
        connected.close()

    def empty() -> None:
        while _is_queued(connected):
            connected.recv(1)
        with suppress(RuntimeError):    # the loop has ended
            loop.call_soon_threadsafe(finish)

    if _drop_harmless(connected):
        finish()
    else:
        Thread(target=empty, name="emptying", daemon=True).start()


def turn_away(
    connected: socket.socket, refusal: bytes, loop: asyncio.AbstractEventLoop
) -> None:
    """Sends a packet on a socket that has just been accepted, and closes it."""
    connected.setblocking(False)
    with suppress(OSError):
        connected.send(refusal)
    try:
        may_carry = connected.getsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS)
    except OSError:                     # an older kernel
        may_carry = 1
    if may_carry:
        prepare(connected)
        shut_down(connected, loop, lambda: None)
        return
    with suppress(OSError):             # With unread packets, close() would discard the refusal.
        for _ in range(FIRST_MOST):
            connected.recv(1)
    connected.close()


def close_copy(connected: socket.socket) -> None:
    """Closes the daemon's copy of a socket, unless descriptors are queued in it.

    A socket with descriptors stays open until the process ends: the kernel then does not wait for
    TCP connections.
    """
    if _drop_harmless(connected):
        connected.close()
    else:
        connected.detach()


def _drop_harmless(connected: socket.socket) -> bool:
    """Reads queued packets up to the first one with descriptors. False: there is such a packet."""
    try:
        while receive(connected, 1) is not None:
            continue
    except ProtocolError:
        return False
    except OSError:
        pass
    return True


def _is_queued(connected: socket.socket) -> bool:
    try:
        return bool(connected.recvmsg(1, CREDENTIALS_SPACE, socket.MSG_PEEK)[1])
    except OSError:
        return False
