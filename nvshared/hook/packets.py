# SPDX-License-Identifier: Apache-2.0
"""Reads packets from clients' sockets; packets must not carry descriptors.

When a packet with descriptors is read, or its socket is closed, the kernel closes the descriptors,
and the sender controls how long that blocks: closing a TCP connection with SO_LINGER waits for its
other end. Linux 6.16 and later refuse descriptors for the daemon. On older kernels, and on
connections accepted by an earlier daemon, each packet is first read with MSG_PEEK, which closes
nothing, and a queue that holds descriptors is emptied on a separate thread. The service manager may
hold a copy of the socket. It is asked to close the copy only after the queue is empty, because its
close() would block as well.

SO_PASSCRED distinguishes an empty packet from the end of the connection: only a packet has
credentials. The control buffer has no space for descriptors besides the credentials, so the kernel
reports descriptors by MSG_CTRUNC.
"""

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from threading import Thread

from nvshared.errors import ProtocolError

SO_PASSRIGHTS = 83                      # Linux 6.16, asm-generic/socket.h
FIRST_MOST = 4                          # packets before the daemon's first reply; last is HELLO
CREDENTIALS_SPACE = socket.CMSG_LEN(struct.calcsize("3i"))


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


def close(
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
        close(connected, loop, lambda: None)
        return
    with suppress(OSError):             # With unread packets, close() would discard the refusal.
        for _ in range(FIRST_MOST):
            connected.recv(1)
    connected.close()


def leave(connected: socket.socket) -> None:
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
