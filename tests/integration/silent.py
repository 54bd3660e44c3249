# SPDX-License-Identifier: Apache-2.0
"""A file system with one file, which can be opened, and whose maker answers nothing else.

Whoever asks about the file, or closes it, waits until all that ends. It takes FUSE, and root.
"""

import ctypes
import os
import select
import struct
from contextlib import suppress
from pathlib import Path
from threading import Thread

LOOKUP, OPEN, INIT = 1, 14, 26          # of linux/fuse.h
DETACH = 2                              # of umount2(2)
_libc = ctypes.CDLL(None, use_errno=True)
_ENTRY = struct.pack("<4Q2I", 2, 0, 0, 0, 0, 0) + struct.pack(
    "<6Q10I", 2, 0, 0, 0, 0, 0, 0, 0, 0, 0o100644, 1, 0, 0, 0, 4096, 0)
ANSWERS = {
    INIT: struct.pack("<4I2H2I2H8I", 7, 31, 0, 0, 8, 8, 4096, 1, 0, 0, *[0] * 8)[:64],
    LOOKUP: _ENTRY,
    OPEN: bytes(16),
}


class Silent:
    """Serves it, from a thread of its own, and is mounted until it is opened, once."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError where that cannot be."""
        self._device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._device},rootmode=40755,user_id=0,group_id=0,allow_other"
        if _libc.mount(b"none", bytes(folder), b"fuse", 0, options.encode()):
            os.close(self._device)
            raise OSError(ctypes.get_errno(), "nothing can be mounted")
        self._folder = folder
        self._opened = -1
        self._end, self._ends = os.pipe()
        self._thread = Thread(target=self._serve)
        self._thread.start()

    def open(self) -> int:
        """Its descriptor. Who closes it waits: this process may not, nor may it start another."""
        self._opened = os.open(self._folder / "file", os.O_RDONLY | os.O_CLOEXEC)
        _libc.umount2(bytes(self._folder), DETACH)
        return self._opened

    def close(self) -> None:
        """Whoever waits is told that it is gone."""
        _libc.umount2(bytes(self._folder), DETACH)
        os.close(self._ends)
        self._thread.join()
        os.close(self._end)
        os.close(self._device)
        with suppress(OSError):
            os.close(self._opened)

    def _serve(self) -> None:
        while self._device in select.select([self._device, self._end], [], [])[0]:
            request = os.read(self._device, 1 << 16)
            _, kind, unique = struct.unpack_from("<IIQ", request)
            if (answer := ANSWERS.get(kind)) is not None:
                os.write(self._device, struct.pack("<IiQ", 16 + len(answer), 0, unique) + answer)
