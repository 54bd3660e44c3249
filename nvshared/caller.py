# SPDX-License-Identifier: Apache-2.0
"""Checks the caller of a helper that systemd starts for a connection: it must be the daemon.

The helpers run as root, by python3 -I, and import no other module of nvshared than this and
saved.py."""

import errno
import os
import select
import socket
import stat
import struct
from contextlib import suppress
from pathlib import Path

CREDENTIALS = struct.Struct("iII")      # struct ucred of socket(7)
SO_PEERPIDFD = 77                       # not in module socket


def refusal(descriptor: int = 0) -> str:
    """Why the process at the other end of a socket may give no orders; "": it may, or the
    descriptor is a pipe of the process that started this one."""
    try:
        connection = socket.socket(fileno=os.dup(descriptor))
    except OSError as error:
        return "" if error.errno == errno.ENOTSOCK else f"an unknown caller: {error.strerror}"
    with connection:
        if connection.family != socket.AF_UNIX:
            return "a process that is not of this machine"
        pid, uid = credentials(connection)
        if (pid, uid) == (os.getppid(), os.geteuid()):
            return ""                   # it has started this program, with the rights that it has
        is_near = pid > 0 and is_same(pid, "ns/pid") and is_same(pid, "ns/user")
        has_our_root = is_near and is_same(pid, "root/")
        why = ""
        if uid not in (os.geteuid(), _owner(connection.getsockname())):
            why = "this is not the user of nvshared"
        elif pid > 0 and not _is_still(connection, pid):        # after /proc was read
            why = "it has ended"
        elif not is_near:
            why = "it is in other namespaces, as in a container"
        elif not has_our_root:
            why = "its root directory is another one, as in a container"
    return why and f"process {pid} of uid {uid}: {why}"


def _owner(path: str | bytes) -> int | None:
    """The user to whom systemd gave the file of the socket: the daemon's."""
    with suppress(OSError, ValueError):
        file = os.lstat(path)
        if stat.S_ISSOCK(file.st_mode):
            return file.st_uid
    return None


def _is_still(connection: socket.socket, pid: int) -> bool:
    """Whether the process that connected still has this number, so that /proc/PID was about it."""
    try:
        pidfd = connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError as error:
        # Kernels before 6.5: a process that got the number since then is younger than this program.
        began = started(pid)
        return error.errno == errno.ENOPROTOOPT and began is not None and began <= (
            started(os.getpid()) or 0)
    try:
        return not has_ended(pidfd)
    finally:
        os.close(pidfd)


def credentials(connection: socket.socket) -> tuple[int, int]:
    """The pid and uid of the process at the other end."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    pid, uid, _ = CREDENTIALS.unpack(raw)
    return pid, uid


def has_ended(pidfd: int) -> bool:
    """Whether the process has ended. While False, its pid is not reused."""
    poll = select.poll()                # select.select() is limited to 1,024 descriptors
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def started(pid: int) -> int | None:
    """The start time in ticks since boot; None: no such process, or it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def is_same(pid: int, name: str) -> bool:
    """Whether /proc/PID/NAME is the same object for the process and for this program."""
    try:
        one, other = (Path(f"/proc/{who}/{name}").stat() for who in ("self", pid))
    except OSError:
        return False
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
