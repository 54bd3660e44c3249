# SPDX-License-Identifier: Apache-2.0
"""Descriptors that programs send: which of them are taken, and how one gets rid of the others.

A program may send any descriptor. Asking what it is, and closing it, may take as long as the
maker of its file system likes, and fail as he likes; so nothing here asks him, and what is no
memory of a card is closed in a thread of its own. When many such threads wait, nothing is taken
from anybody until they are done.

Even what the kernel drops on arrival may hold us up: closing a TCP socket that lingers does. So
where the kernel can (Linux 6.16), it refuses whatever is sent to those who were not asked for
memory.
"""

import ctypes
import os
import socket
import stat
import struct
from contextlib import suppress
from pathlib import Path
from threading import Thread

from nvshared.errors import ProtocolError

DRIVER = 195                            # the major number of its device files
SIMULATED = "NVSHARE_SIM_DIR"           # simulated cards have files there
WAITING_MOST = 16                       # threads
SO_PASSRIGHTS = 83                      # of the kernel's asm-generic/socket.h
AT_EMPTY_PATH, AT_STATX_DONT_SYNC, STATX_TYPE = 0x1000, 0x4000, 1  # of statx(2)
STATX_SIZE, STATX_MODE, STATX_DEVICES = 256, 28, 128    # bytes of struct statx, and in it

_libc = ctypes.CDLL(None, use_errno=True)
_closing: list[Thread] = []


def admit(connected: socket.socket, *, admitted: bool) -> None:
    """Whether the kernel lets descriptors through to a socket, or to what comes of it."""
    with suppress(OSError):             # an older kernel always does
        connected.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, admitted)


def are_taken() -> bool:
    """False while many that are no memory wait to be closed."""
    _closing[:] = [thread for thread in _closing if thread.is_alive()]
    return len(_closing) < WAITING_MOST


def check(descriptor: int) -> None:
    """Raises ProtocolError if it can be no memory of a card, and sees to its closing."""
    if not _is_memory(descriptor):
        thread = Thread(target=_close, args=(descriptor,), daemon=True)
        _closing.append(thread)
        thread.start()
        raise ProtocolError("a descriptor came that is no memory")


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


def _close(descriptor: int) -> None:
    with suppress(OSError):             # as its maker likes; it is closed all the same
        os.close(descriptor)
