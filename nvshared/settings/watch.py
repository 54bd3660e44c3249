# SPDX-License-Identifier: Apache-2.0
"""Notices that a file of the configuration has changed, with inotify(7).

Folders are watched: editors replace files, and Kubernetes the folder that a link leads to. An event
causes a comparison of the files' metadata, PATIENCE later, so that a writer can finish."""

import asyncio
import ctypes
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from nvshared.errors import ConfigError
from nvshared.settings.config import drop_ins

logger = logging.getLogger(__name__)

PATIENCE = 0.2                          # seconds from an event of inotify to the comparison
# Of inotify(7): ATTRIB, CLOSE_WRITE, MOVED_FROM, MOVED_TO, CREATE, DELETE, ONLYDIR. Not MODIFY:
# a file is not read while it is being written.
EVENTS = 0x4 | 0x8 | 0x40 | 0x80 | 0x100 | 0x200 | 0x0100_0000
FLAGS = os.O_NONBLOCK | os.O_CLOEXEC

Metadata = dict[Path, tuple[int, ...]]


class Watch:
    """Reports after start() that metadata of the files has changed since the last note()."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.note()
        self._inotify = -1
        self._comparison: asyncio.TimerHandle | None = None
        self._warned = False            # the journal has a warning that watching failed

    def note(self) -> None:
        """Records the files' metadata; to be called before the files are read."""
        self._metadata = self._read_metadata()

    def start(self, changed: Callable[[], None]) -> None:
        """Calls `changed`, in the running loop, whenever a file has changed."""
        self._changed = changed
        libc = ctypes.CDLL(None, use_errno=True)
        self._inotify = libc.inotify_init1(FLAGS)
        if self._inotify < 0:
            self._warn_unwatched(ctypes.get_errno())
            return
        self._inotify_add_watch = libc.inotify_add_watch
        asyncio.get_running_loop().add_reader(self._inotify, self._read_events)
        self._compare()

    def close(self) -> None:
        if self._comparison is not None:
            self._comparison.cancel()
        if self._inotify >= 0:
            asyncio.get_running_loop().remove_reader(self._inotify)
            os.close(self._inotify)
            self._inotify = -1

    def _read_events(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._inotify, 1 << 16)
        if self._comparison is None:
            self._comparison = asyncio.get_running_loop().call_later(PATIENCE, self._compare)

    def _compare(self) -> None:
        self._comparison = None
        for folder in set(self._folders()):
            self._add_watch(folder)
        # Compare after the watches are added, because only later changes cause events.
        if self._read_metadata() != self._metadata:
            self._changed()

    def _folders(self) -> Iterator[Path]:
        """The folders of our files and drop-ins, and of the targets of their links."""
        drop_in = self._file.with_name(self._file.name + ".d") / "*"
        for path in (self._file, drop_in, *self._metadata):
            yield path.parent
            yield Path(os.path.realpath(path)).parent

    def _add_watch(self, folder: Path) -> None:
        """Watches a folder, or its nearest existing parent. Repeated calls are harmless."""
        while self._inotify_add_watch(self._inotify, os.fsencode(folder), EVENTS) < 0:
            if folder == folder.parent:
                self._warn_unwatched(ctypes.get_errno())
                return
            folder = folder.parent

    def _warn_unwatched(self, error: int) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("changed settings are read at SIGHUP alone: %s", os.strerror(error))

    def _read_metadata(self) -> Metadata:
        found: Metadata = {}
        with suppress(ConfigError):     # load() reports the error
            for path in (self._file, *drop_ins(self._file)):
                with suppress(OSError):
                    stat = path.stat()
                    found[path] = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns,
                                   stat.st_ctime_ns)
        return found
