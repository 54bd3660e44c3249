# SPDX-License-Identifier: Apache-2.0
"""Locks of folders, for programs that change a file in one at the same time.

Every process that may read a folder may lock it, for ever: of any user, and in containers with the
folder mounted. So the wait for a lock is bounded by the time that honest programs need."""

import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

logger = logging.getLogger(__name__)

PATIENCE = 5.0                          # seconds; our programs hold a lock for milliseconds
AGAIN = 0.02                            # seconds between two attempts


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Opens a folder, and locks it if no other process holds on to the lock. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        end = time.monotonic() + PATIENCE
        while not _has_locked(descriptor):
            if time.monotonic() >= end:
                logger.warning("another process has locked %s for %.0f s: going on without the "
                               "lock (fuser %s names who has it open)", folder, PATIENCE, folder)
                break
            time.sleep(AGAIN)
        yield descriptor
    finally:
        os.close(descriptor)


def _has_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
