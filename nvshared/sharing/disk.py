# SPDX-License-Identifier: Apache-2.0
"""The disk tier: its budget, tests of its directory, and the clients' files.

A client's report of a failed write only causes a test: no client can disable the disk for others.
A client can write to its file at any time, so sizes are checked each second until its process ends.
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
from nvshared.scheduler.domains import SharedBudget
from nvshared.sharing.budget import Budget
from nvshared.signal import Signal
from nvshared.units import MIB, SECOND

AGAIN = 60 * SECOND                     # between two tests of a directory that cannot be used
APART = SECOND                          # between checks of the files; from a failed write to a test
PATIENCE = 10 * SECOND                  # limit for testing or creating a file; then the disk fails
SLACK = 64 * MIB                        # bytes tolerated above `File.most`, plus 1/8 of `most`:
SLACK_PART = 8                          # metadata and rounding of file systems count as well
LEFT_MOST = 16                          # files of disconnected clients that an account may have

logger = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class File:
    descriptor: int
    peer: Peer
    drop: Callable[[str], None]         # ends the client's connection; takes the reason
    most: int = 0                       # the largest number of bytes that any order has allowed
    connected: bool = True              # False: the client left, but its process may live on

    @property
    def largest(self) -> int:
        """The size in bytes above which the file is emptied, and its client disconnected."""
        return self.most + self.most // SLACK_PART + SLACK


class Disk:
    def __init__(self, clock: Clock, timer: Timer, run: Run) -> None:
        self.fault = ""                 # why the configured directory is unusable; "": no fault
        self.client_failed: Signal[Peer, str] = Signal("client_failed")
        self.shared = SharedBudget(0)     # used by the schedulers of all cards
        self.budget = Budget(self.shared, timer, lambda gpu: gpu.scheduler.disk.promisable)
        # The setting `disk`: the directory and its budget in bytes; None: the disk is not used.
        self.setting: tuple[Path, int] | None = None
        self._clock, self._timer, self._run = clock, timer, run
        self._files: set[File] = set()
        self._testing = False           # a test of the directory runs or is scheduled
        self._watches = False           # a check of the files runs or is scheduled

    def use(self, setting: tuple[Path, int] | None) -> None:
        """Applies the setting `disk`; existing files stay."""
        if setting == self.setting:
            return
        self.setting, self.fault = setting, ""
        # Set the budget before _test() ends: reconnecting clients may have bytes on the disk.
        self.budget.resize(0 if setting is None else setting[1])
        self._test()

    def failed(self, peer: Peer, error: int) -> None:
        self.client_failed.emit(peer, f"its memory could not go to the disk: {os.strerror(error)}")
        if not self._testing:
            self._testing = True
            self._timer(self._clock() + APART, self._test)

    def open(self, peer: Peer, drop: Callable[[str], None], answer: Callable[[File | None], None]
             ) -> None:
        """Makes a file for a client and passes it to `answer`; None if it cannot be made."""
        left = Counter(file.peer.account for file in self._files if not file.connected)
        if self.setting is None or left[peer.account] >= LEFT_MOST:
            answer(None)
            return

        def opened(descriptor: int | None) -> None:
            if descriptor is None:
                answer(None)
                return
            file = File(descriptor, peer, drop)
            self._files.add(file)
            if not self._watches:
                self._watches = True
                self._timer(self._clock() + APART, self._watch)
            answer(file)

        self._run(self, partial(_opened, self.setting[0]), opened, PATIENCE)

    def close(self) -> None:
        self._files.clear()

    def _watch(self) -> None:
        # A check starts only after the last check ended, so a disk that hangs blocks one thread.
        files = [*self._files]
        self._run((self, "files"), lambda: [(file, _measure(file)) for file in files],
                  self._measured, None)

    def _measured(self, sizes: list[tuple[File, int | None]] | None) -> None:
        for file, size in sizes or ():
            if size is None:
                self._files.discard(file)
            elif size > file.largest and file.connected:
                file.drop(f"it wrote {size} bytes to the disk, and may have {file.most} there")
        self._watches = bool(self._files)
        if self._watches:
            self._timer(self._clock() + APART, self._watch)

    def _test(self) -> None:
        if self.setting is None:
            self._testing = False
            return
        self._testing = True
        self._run(self, partial(disk.fault, *self.setting),
                  partial(self._tested, self.setting), PATIENCE)

    def _tested(self, tested: tuple[Path, int], fault: str | None) -> None:
        self._testing = False
        if tested != self.setting:
            return
        before = self.fault
        self.fault = f"{tested[0]} does not answer" if fault is None else fault
        if self.fault:
            self._testing = True
            self._timer(self._clock() + AGAIN, self._test)
        if self.fault and self.fault != before:
            logger.warning("no memory goes to the disk: %s", self.fault)
        elif before and not self.fault:
            logger.info("memory may go to %s again", tested[0])
        self.budget.resize(0 if self.fault else tested[1])


def _opened(directory: Path) -> int | None:
    try:
        return disk.open_file(directory)
    except OSError as error:
        logger.warning("%s: no file can be made: %s", directory, error.strerror)
        return None


def _measure(file: File) -> int | None:
    """Returns a file's size in bytes, and empties too large a file; None: its process ended."""
    if not file.connected and host.has_ended(file.peer.pid, file.peer.started):
        os.close(file.descriptor)
        return None
    if (size := disk.written(file.descriptor)) > file.largest:
        os.ftruncate(file.descriptor, 0)
    return size
