# SPDX-License-Identifier: Apache-2.0
"""The disk for swapped memory: its budget, whether it is in order, and its clients' files.

The schedulers decide what is stored (scheduler/storage.py). This hands out files, and sets the
budget to 0 while the directory cannot be used: it is looked at when the setting changes, when a
client could not write, and each minute from then on. What a client says of the disk is not
believed for others, so that no client ends the disk for them.

A client may write to its file at any moment, and more than its orders allow. So all files are
looked at each second. A client that has written much more loses its connection and what is in the
file. The file is looked at until the process has ended, whether it is connected or not.
"""

import logging
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from nvshared.clock import Clock, Timer
from nvshared.lanes import Run
from nvshared.machine import disk, host
from nvshared.machine.peer import Peer
from nvshared.scheduler import events
from nvshared.scheduler.domains import DiskBudget
from nvshared.sharing.budget import Budget
from nvshared.signal import Signal
from nvshared.units import GIB, SECOND

AGAIN = 60 * SECOND                     # before a directory that could not be used is tried again
APART = SECOND                          # between two looks at the files, or at the directory
PATIENCE = 10 * SECOND                  # with a disk that does not answer
SLACK = 2 * GIB                         # of a file beyond what it may hold: it grows in steps, and
SLACK_PART = 8                          # this part of it, as freed blocks leave holes
LEFT_MOST = 16                          # files of an account whose connections have ended

logger = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class File:
    """One client's."""

    descriptor: int
    peer: Peer
    drop: Callable[[str], None]         # ends its connection, for this reason
    most: int = 0                       # bytes that it may have held so far
    connected: bool = True

    @property
    def largest(self) -> int:
        """Bytes beyond which it is emptied."""
        return self.most + self.most // SLACK_PART + SLACK


class Disk:
    """Of all cards. Without a setting it does nothing."""

    def __init__(self, clock: Clock, timer: Timer, run: Run) -> None:
        """`run`: Lanes.run; the disk may hang."""
        self.fault = ""                 # why it is not used, though it is set
        self.client_failed: Signal[Peer, str] = Signal("client_failed")
        self.budget = Budget(
            DiskBudget(0), clock, timer, events.DiskChanged,
            lambda gpu: gpu.scheduler.disk_promisable)
        self._clock, self._timer, self._run = clock, timer, run
        self._setting: tuple[Path, int] | None = None
        self._files: set[File] = set()
        self._looks = False             # at the directory, now or soon
        self._watches = False

    @property
    def shared(self) -> DiskBudget:
        """That the schedulers share."""
        assert isinstance(self.budget.shared, DiskBudget)
        return self.budget.shared

    @property
    def setting(self) -> tuple[Path, int] | None:
        """The directory, and how many bytes it may hold."""
        return self._setting

    def use(self, setting: tuple[Path, int] | None) -> None:
        """The setting `disk` is this from now on. Files that there are stay."""
        if setting == self._setting:
            return
        self._setting, self.fault = setting, ""
        # What programs say that they have there, at the daemon's start, counts at once.
        self.budget.resize(0 if setting is None else setting[1])
        self._look()

    def failed(self, who: Peer, error: int) -> None:
        """A client could not write."""
        self.client_failed.emit(who, f"its memory could not go to the disk: {os.strerror(error)}")
        if not self._looks:
            self._looks = True
            self._timer(self._clock() + APART, self._look)

    def open(self, who: Peer, drop: Callable[[str], None], answer: Callable[[File | None], None]
             ) -> None:
        """Makes a file for a client. None: it cannot be made."""
        left = Counter(file.peer.account for file in self._files if not file.connected)
        if self._setting is None or left[who.account] >= LEFT_MOST:
            answer(None)
            return

        def opened(descriptor: int | None) -> None:
            if descriptor is None:
                answer(None)
                return
            file = File(descriptor, who, drop)
            self._files.add(file)
            if not self._watches:
                self._watches = True
                self._timer(self._clock() + APART, self._watch)
            answer(file)

        self._run(self, partial(_opened, self._setting[0]), opened, PATIENCE)

    def leave(self, file: File) -> None:
        """Its client's connection has ended; the process may go on and use the file."""
        file.connected = False

    def close(self) -> None:
        """The daemon ends, which closes its descriptors. Clients keep their files."""
        self._files.clear()

    def _watch(self) -> None:
        # In one lane, and again only once it has answered: a disk that hangs takes one thread.
        self._run((self, "files"), partial(_measured, [*self._files]), self._measured, None)

    def _measured(self, sizes: list[tuple[File, int | None]] | None) -> None:
        for file, size in sizes or ():
            if size is None:
                self._files.discard(file)
            elif size > file.largest and file.connected:
                file.drop(f"it wrote {size} bytes to the disk, and may have {file.most} there")
        self._watches = bool(self._files)
        if self._watches:
            self._timer(self._clock() + APART, self._watch)

    def _look(self) -> None:
        if self._setting is None:
            self._looks = False
            return
        self._looks = True
        self._run(self, partial(disk.fault, *self._setting),
                  partial(self._found, self._setting), PATIENCE)

    def _found(self, looked_at: tuple[Path, int], fault: str | None) -> None:
        self._looks = False
        if looked_at != self._setting:
            return
        before = self.fault
        self.fault = f"{looked_at[0]} does not answer" if fault is None else fault
        if self.fault:
            self._looks = True
            self._timer(self._clock() + AGAIN, self._look)
        if self.fault and self.fault != before:
            logger.warning("no memory goes to the disk: %s", self.fault)
        elif before and not self.fault:
            logger.info("memory may go to %s again", looked_at[0])
        self.budget.resize(0 if self.fault else looked_at[1])


def _opened(directory: Path) -> int | None:
    try:
        return disk.open_file(directory)
    except OSError as error:
        logger.warning("%s: no file can be made: %s", directory, error.strerror)
        return None


def _measured(files: list[File]) -> list[tuple[File, int | None]]:
    """Bytes of each, of which those are emptied that are too large; None: its process has ended,
    and it is closed. Blocks: the kernel may have to free many blocks of the disk."""
    return [(file, _measure(file)) for file in files]


def _measure(file: File) -> int | None:
    if not file.connected and host.has_ended(file.peer.pid, file.peer.started):
        os.close(file.descriptor)
        return None
    if (size := disk.written(file.descriptor)) > file.largest:
        os.ftruncate(file.descriptor, 0)
    return size
