# SPDX-License-Identifier: Apache-2.0
"""Descriptors that programs send: which of them are taken, and how one gets rid of the others.

A program may send any descriptor. Asking what it is, and closing it, may take as long as the
maker of its file system likes, and fail as he likes; so nothing here asks him, and what is no
memory of a card is not closed. Who has sent such a thing is asked for no more, nor is anybody
once many have.

The kernel closes what a process has open before it lets anybody know that it has ended, and no
signal stops that. So at its end the daemon has a child, which shares its descriptors and sleeps
until it is gone. Then they are the child's to close, for whom nobody waits. A daemon that is killed
has none, and whoever waits for its end waits as long as systemd does.

Even what the kernel drops on arrival may hold us up: closing a TCP socket that lingers does. So
where the kernel can (Linux 6.16), it refuses whatever is sent to those who were not asked for
memory.
"""

import ctypes
import logging
import os
import signal
import socket
import stat
import struct
from contextlib import suppress
from pathlib import Path

from nvshared.errors import ProtocolError

logger = logging.getLogger(__name__)

DRIVER = 195                            # the major number of its device files
SIMULATED = "NVSHARE_SIM_DIR"           # simulated cards have files there
KEPT_MOST = 16
SO_PASSRIGHTS = 83                      # of the kernel's asm-generic/socket.h
AT_EMPTY_PATH, AT_STATX_DONT_SYNC, STATX_TYPE = 0x1000, 0x4000, 1  # of statx(2)
STATX_SIZE, STATX_MODE, STATX_DEVICES = 256, 28, 128    # bytes of struct statx, and in it
CLONE_FILES = 0x400                     # of clone(2): they are the same, not a copy
STACK = 1 << 16
OUTLIVES = 5                            # seconds

_libc = ctypes.CDLL(None, use_errno=True)
_kept: dict[str, int] = {}              # by the tenant whose client sent it


def admit(connected: socket.socket, *, admitted: bool) -> None:
    """Whether the kernel lets descriptors through to a socket, or to what comes of it."""
    with suppress(OSError):             # an older kernel always does
        connected.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, admitted)


def are_taken(tenant: str) -> bool:
    """From a client of this tenant's, which was asked for memory."""
    return tenant not in _kept and len(_kept) < KEPT_MOST


def check(descriptor: int, tenant: str) -> None:
    """Raises ProtocolError if it can be no memory of a card, and keeps it then."""
    if not _is_memory(descriptor):
        _kept[tenant] = descriptor
        raise ProtocolError("a descriptor came that is no memory")


def leave() -> None:
    """Leaves what is kept to a child, if there is any. For the very end."""
    if _kept:
        # It runs nothing of Python's, as our other threads may have held any lock.
        stack = ctypes.create_string_buffer(STACK)
        top = ctypes.c_void_p(ctypes.addressof(stack) + STACK)
        flags = CLONE_FILES | signal.SIGCHLD
        if _libc.clone(_libc.sleep, top, flags, ctypes.c_void_p(OUTLIVES)) < 0:
            logger.warning("what programs sent that is no memory may hold up the end: %s",
                           os.strerror(ctypes.get_errno()))


def _is_memory(descriptor: int) -> bool:
    """Whether it may be memory of a card, so that closing it waits for nobody."""
    found = ctypes.create_string_buffer(STATX_SIZE)
    if _libc.statx(descriptor, b"", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, found):
        return False                    # its maker lets nobody else ask
    mode, = struct.unpack_from("=H", found, STATX_MODE)
    major, _, *device = struct.unpack_from("=4I", found, STATX_DEVICES)
    if stat.S_ISCHR(mode):
        return int(major) == DRIVER
    folder = os.environ.get(SIMULATED)
    return folder is not None and stat.S_ISREG(mode) and (
        os.makedev(*device) == Path(folder).stat().st_dev)
