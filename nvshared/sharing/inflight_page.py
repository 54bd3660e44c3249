# SPDX-License-Identifier: Apache-2.0
"""The page of shared memory in which one client publishes whether it has work in flight.

The client can write the page, and clients that watch it can read it. No client can resize the page,
which would make a reader fault, nor reopen it for writing. Only the library interprets its contents
(libhook/src/gate/inflight.c).
"""

import fcntl
import mmap
import os

SEALS = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


class InflightPage:
    """A shared page, created at its first use."""

    def __init__(self) -> None:
        self._descriptor = -1

    def writable(self) -> int:
        """Returns a writable descriptor for the page's client; the caller closes it.

        Raises OSError.
        """
        return os.dup(self._page())

    def readable(self) -> int:
        """Returns a read-only descriptor for a watching client; the caller closes it.

        Raises OSError.
        """
        return os.open(f"/proc/self/fd/{self._page()}", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Closes the page. Harmless when repeated."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _page(self) -> int:
        if self._descriptor < 0:
            page = os.memfd_create("nvshare-inflight", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            self._descriptor = page
            os.fchmod(page, 0o600)
            os.ftruncate(page, mmap.PAGESIZE)
            fcntl.fcntl(page, fcntl.F_ADD_SEALS, SEALS)
        return self._descriptor
