# SPDX-License-Identifier: Apache-2.0
"""Notices that a file of the configuration has changed, by its metadata.

Polling sees every kind of change: editors replace files, Kubernetes replaces the folder that a link
leads to, and on some file systems inotify(7) reports nothing."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event

from nvshared.clock import repeat
from nvshared.errors import ConfigError
from nvshared.lanes import Run, call
from nvshared.settings.config import drop_ins

INTERVAL = 1.0                          # seconds between two reads of the files' metadata

Metadata = dict[Path, tuple[int, ...]]


class SettingsWatch:
    """Reports, while run() runs, that metadata of the files has changed since the last note()."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._ended = Event()           # run() has ended
        self.note()

    def note(self) -> None:
        """Records the files' metadata; to be called before the files are read."""
        self._noted = self._read_metadata()

    async def run(self, changed: Callable[[], None], run: Run) -> None:
        """Calls `changed` for each change that has lasted INTERVAL, so that a writer can finish.

        `run`: Lanes.run. A thread polls, as a file system may hang; the event loop sleeps on."""
        async def look() -> None:
            if await call(run, self, self._wait_for_change):
                changed()

        try:
            await repeat(INTERVAL, look)
        finally:
            self._ended.set()

    def _wait_for_change(self) -> bool:
        """Blocks until metadata differs from the last note()'s, and has lasted. False: run() ended.
        """
        before = None
        while (now := self._read_metadata()) != before or now == self._noted:
            before = now
            if self._ended.wait(INTERVAL):
                return False
        return True

    def _read_metadata(self) -> Metadata:
        found: Metadata = {}
        with suppress(ConfigError):     # load() reports the error
            for path in (self._file, *drop_ins(self._file)):
                with suppress(OSError):
                    stat = path.stat()
                    found[path] = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns,
                                   stat.st_ctime_ns)
        return found
