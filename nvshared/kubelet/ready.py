# SPDX-License-Identifier: Apache-2.0
"""Whether nvshare-kubelet is ready: a locked file, which no dead process leaves behind."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from nvshared.errors import NvshareError

FILE = "ready"                          # in the folder --state; locked by a process that is ready
ENDED = "nvshare-kubelet is not running"        # the file's text while it is locked


class Readiness:
    def __init__(self, state: Path) -> None:
        """Raises OSError."""
        self._file = os.open(state / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._why: str | None = None
        self.set("nvshare-kubelet is starting")

    def set(self, why: str) -> bool:
        """Stores why the process is not ready; "": it is. True: that is a change."""
        if why == self._why:
            return False
        # Readers lock the file for an instant, so that waiting for them is short.
        fcntl.flock(self._file, fcntl.LOCK_UN if why else fcntl.LOCK_EX)
        # The file is never empty, so that this needs no space of a disk that is full.
        with suppress(OSError):         # the lock counts, and the log has the reason
            os.ftruncate(self._file, os.pwrite(self._file, (why or ENDED).encode(), 0))
        self._why = why
        return True

    def close(self) -> None:
        os.close(self._file)


def check(state: Path) -> None:
    """Raises NvshareError, with the reason, if no nvshare-kubelet that uses `state` is ready."""
    try:
        with (state / FILE).open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            why = file.read()
    except FileNotFoundError:
        raise NvshareError(f"no nvshare-kubelet uses {state}") from None
    except OSError as error:
        raise NvshareError(f"cannot read {state / FILE}: {error.strerror}") from error
    raise NvshareError(why or "nvshare-kubelet is not ready; its log has the reason")
