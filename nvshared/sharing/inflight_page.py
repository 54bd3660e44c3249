# SPDX-License-Identifier: Apache-2.0
"""Memory in which one client shows others whether it has work in flight."""

import fcntl
import mmap
import os
from functools import cached_property

# Seals of an InflightPage: if a client could shrink the page, its readers would get SIGBUS.
SEALS = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


class InflightPage:
    """The page of shared memory in which one client publishes whether it has work in flight."""

    def writable(self) -> int:
        """Returns a writable descriptor for the client; the caller closes it. Raises OSError."""
        return os.dup(self._page)

    def readable(self) -> int:
        """Returns a read-only descriptor for a watcher; the caller closes it. Raises OSError."""
        return os.open(f"/proc/self/fd/{self._page}", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        if "_page" in vars(self):
            os.close(vars(self).pop("_page"))

    @cached_property
    def _page(self) -> int:
        page = os.memfd_create("nvshare-inflight", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.fchmod(page, 0o600)
            os.ftruncate(page, mmap.PAGESIZE)
            fcntl.fcntl(page, fcntl.F_ADD_SEALS, SEALS)
        except OSError:
            os.close(page)
            raise
        return page
