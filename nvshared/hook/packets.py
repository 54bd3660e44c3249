# SPDX-License-Identifier: Apache-2.0
"""Packets of a client's socket, of which none may carry descriptors.

The kernel closes the descriptors that a client has sent when their packet is read or the socket
is closed, and the sender decides how long that takes: closing a TCP connection with SO_LINGER
waits for its other end. Since Linux 6.16 the kernel refuses them for us. Before, and on connections
older than our listening, each packet is looked at before it is read (MSG_PEEK closes nothing), and
a queue with descriptors is emptied on a thread of its own. The service manager, which may hold a
copy of the socket, is told to close it only after that: its own close would wait as well.

SO_PASSCRED tells an empty packet from the end of the connection: only a packet has credentials.
Descriptors beside them find no place in the buffer, which the kernel reports by MSG_CTRUNC.
"""

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from threading import Thread

from nvshared.errors import ProtocolError

SO_PASSRIGHTS = 83                      # Linux 6.16, asm-generic/socket.h
FIRST_MOST = 4                          # packets before the first answer: names, files, HELLO
CREDENTIALS_SPACE = socket.CMSG_LEN(struct.calcsize("3i"))


def refuse_descriptors(listening: socket.socket) -> None:
    """Has the kernel refuse them on all connections made from now on, if it can."""
    with suppress(OSError):
        listening.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)


def prepare(connected: socket.socket) -> None:
    """Makes a socket non-blocking, and its packets tell descriptors."""
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
    """Shuts a socket down and closes it. Calls `emptied` before, once nothing is queued."""
    with suppress(OSError):             # the client may have gone before
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
    with suppress(OSError):             # Unread packets would keep the client from reading that.
        for _ in range(FIRST_MOST):
            connected.recv(1)
    connected.close()


def leave(connected: socket.socket) -> None:
    """Closes our copy of a socket; one with descriptors is left to the end of the process.

    At that, the kernel does not wait for a TCP connection.
    """
    if _drop_harmless(connected):
        connected.close()
    else:
        connected.detach()


def _drop_harmless(connected: socket.socket) -> bool:
    """Reads what is queued, up to the first packet with descriptors. False: there is one."""
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
