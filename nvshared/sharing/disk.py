# SPDX-License-Identifier: Apache-2.0
"""The disk tier: its budget, tests of its directory, and the clients' files.

A client's report of a failed write only causes a test: no client can disable the disk for others.
A client can write to its file at any time, and pass it to other processes, which have it after the
client's end. So the size of each file is checked each second until no other process has it open.
systemd keeps a copy of the daemon's descriptor, so that the next daemon goes on checking.
"""

import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from nvshared.clock import Clock, Timer
from nvshared.faults import Faults
from nvshared.lanes import Run
from nvshared.machine import disk, host
from nvshared.machine.peer import Peer
from nvshared.scheduler.domains import SharedBudget
from nvshared.sharing.budget import Budget
from nvshared.signal import Signal
from nvshared.units import MIB, SECOND

KEPT_AS = "disk-"                       # prefix of the names of stored files; see Disk.keep()
AGAIN = 60 * SECOND                     # between two tests of a directory that cannot be used
APART = SECOND                          # between checks of the files; from a failed write to a test
SOON = SECOND // 20                     # between checks while a file grows after its client's end
PATIENCE = 10 * SECOND                  # limit for testing or creating a file; then the disk fails
SLACK = 64 * MIB                        # bytes tolerated above `File.most`, plus 1/8 of `most`:
SLACK_PART = 8                          # metadata and rounding of file systems count as well
LEFT_MOST = 16                          # files of disconnected clients that an account may have

logger = logging.getLogger(__name__)


class Keeper(Protocol):
    """report.systemd.Notifier."""

    def keep(self, name: str, descriptor: int) -> bool:
        """Has systemd store a descriptor for the next daemon; False: it has no room for the name.
        """

    def forget(self, name: str) -> None:
        """Has systemd close the descriptor that it stores; always follows keep()."""


@dataclass(eq=False, slots=True)
class File:
    descriptor: int                     # the daemon's own
    given: int                          # to be passed to the client; -1: passed
    name: str                           # of systemd's copy
    peer: Peer
    drop: Callable[[str], None] | None  # ends the client's connection; takes the reason
    most: int = 0                       # the largest number of bytes that any order has allowed
    # Bytes that orders of an earlier daemon have allowed, as far as is known: the file's size
    # when this daemon first checked it. None: it has not been checked yet.
    earlier: int | None = 0
    connected: bool = True              # False: the client left, but its process may live on
    reported: bool = False              # a write after the process's end was reported

    @property
    def largest(self) -> int:
        """The size in bytes above which the file is emptied, and its client disconnected."""
        most = max(self.most, self.earlier or 0)
        return most + most // SLACK_PART + SLACK


class Size(NamedTuple):
    """The result of a check."""

    bytes: int                          # of the file, before it was emptied
    is_emptied: bool
    is_left: bool                       # its client's process has ended


class Disk:
    def __init__(
        self, clock: Clock, timer: Timer, run: Run, faults: Faults | None = None
    ) -> None:
        """`faults`: of nvshared as a whole."""
        self._faults = faults or Faults(lambda: None)
        self.client_failed: Signal[Peer, str] = Signal("client_failed")
        self.budget = Budget("disk", SharedBudget(0), timer)
        # The setting `disk`: the directory and its budget in bytes; None: the disk is not used.
        self.setting: tuple[Path, int] | None = None
        self._clock, self._timer, self._run = clock, timer, run
        self._files: set[File] = set()
        self._keeper: Keeper | None = None
        self._testing = False           # a test of the directory runs or is scheduled
        self._watches = False           # a check of the files runs or is scheduled

    @property
    def fault(self) -> str:
        """Why the configured directory cannot be used; "": no fault."""
        return self._faults.detail("disk-unusable")

    def keep(self, keeper: Keeper, kept: Mapping[str, int]) -> None:
        """Has the keeper store the files from now on. `kept`: those of an earlier daemon, by name:
        KEPT_AS, the client's connection, a number from its second file on, its pid, uid and start
        time."""
        self._keeper = keeper
        for name, descriptor in kept.items():
            *_, pid, uid, started = name.split("-")
            peer = replace(Peer.unknown(int(pid), int(uid)),
                           started=int(started) if started.isdecimal() else None)
            self._add(File(descriptor, -1, name, peer, None, earlier=None, connected=False))

    def claim(self, connection: str, peer: Peer, drop: Callable[[str], None]) -> File | None:
        """Returns the file that a client of an earlier daemon has; None: it is not known."""
        file = max(self._of(connection), key=_number, default=None)
        if file is not None:
            file.peer, file.drop, file.connected = peer, drop, True
        return file

    def use(self, setting: tuple[Path, int] | None) -> None:
        """Applies the setting `disk`; existing files stay."""
        if setting == self.setting:
            return
        self.setting = setting
        self._faults.set("disk-unusable", "")
        # Set the budget before _test() ends: reconnecting clients may have bytes on the disk.
        self.budget.resize(0 if setting is None else setting[1])
        self._test()

    def failed(self, peer: Peer, error: int) -> None:
        self.client_failed.emit(peer, f"its memory could not go to the disk: {os.strerror(error)}")
        if not self._testing:
            self._testing = True
            self._timer(self._clock() + APART, self._test)

    @property
    def left(self) -> Counter[str]:
        """The number of files of disconnected clients, by account."""
        return Counter(file.peer.account for file in self._files if not file.connected)

    def open(self, connection: str, peer: Peer, drop: Callable[[str], None],
             answer: Callable[[File | None], None]) -> None:
        """Makes a file for a client and passes it to `answer`; None if it cannot be made."""
        if self.setting is None or self.left[peer.account] >= LEFT_MOST:
            answer(None)
            return

        def opened(made: tuple[int, int] | None) -> None:
            if made is None:
                answer(None)
                return
            # systemd closes all descriptors of a name together.
            number = max(map(_number, self._of(connection)), default=-1) + 1
            more = f"-{number}" if number else ""
            name = f"{KEPT_AS}{connection}{more}-{peer.pid}-{peer.uid}-{peer.started}"
            if self._keeper is not None and not self._keeper.keep(name, made[0]):
                # The next daemon could not check the size of the file.
                self._keeper.forget(name)
                for descriptor in made:
                    os.close(descriptor)
                self.client_failed.emit(peer, "its memory does not go to the disk: systemd has no "
                                        "room for the name of another file")
                answer(None)
                return
            self._add(file := File(*made, name, peer, drop))
            answer(file)

        self._run(self, partial(_opened, self.setting[0]), opened, PATIENCE)

    def open_again(self, file: File, answer: Callable[[], None]) -> None:
        """Makes another descriptor for a client, since the one for it was lost; not at once."""
        def opened(given: int | None) -> None:
            if given is not None:
                file.given = given
            elif file.connected:
                self.open_again(file, answer)
                return
            answer()

        def begin() -> None:
            if file.connected:
                # In the order of _watch(), which closes the file.
                self._run((self, "files"), partial(_opened_again, file.descriptor), opened, None)
            else:
                answer()

        self._timer(self._clock() + APART, begin)

    def release(self, file: File) -> None:
        """Marks the file of a client that has left."""
        file.connected, file.drop = False, None
        if file.given >= 0:
            os.close(file.given)        # never the last one, so nothing is freed here
            file.given = -1

    def _of(self, connection: str) -> list[File]:
        """The files of a connection: of a file without bytes, the next daemon does not know whether
        the client has it, and makes another."""
        return [file for file in self._files if file.name.startswith(f"{KEPT_AS}{connection}-")]

    def _add(self, file: File) -> None:
        self._files.add(file)
        if not self._watches:
            self._watches = True
            self._timer(self._clock() + APART, self._watch)

    def _watch(self) -> None:
        # A check starts only after the last check ended, so a disk that hangs blocks one thread.
        files = [(one, one.connected, one.largest) for one in self._files]
        self._run((self, "files"), lambda: [(one[0], _measure(*one)) for one in files],
                  self._measured, None)

    def _measured(self, sizes: list[tuple[File, Size | None]] | None) -> None:
        pause = APART
        for file, size in sizes or ():
            if size is None:
                self._forget(file)
                continue
            if file.earlier is None:
                file.earlier = size.bytes if self.setting is None else min(
                    size.bytes, self.setting[1])
            if size.is_left and size.bytes:
                pause = SOON
                self._report(file, size.bytes)
            elif size.is_emptied and file.drop is not None:
                file.drop(
                    f"it wrote {size.bytes} bytes to the disk, and may have {file.most} there")
        self._watches = bool(self._files)
        if self._watches:
            self._timer(self._clock() + pause, self._watch)

    def _report(self, file: File, size: int) -> None:
        if not file.reported:
            file.reported = True
            self.client_failed.emit(file.peer, f"it has ended, and another process has its file on "
                                    f"the disk and wrote {size} bytes there; they are freed")

    def _forget(self, file: File) -> None:
        self._files.discard(file)
        if self._keeper is not None:
            self._keeper.forget(file.name)
        self._run((self, "files"), partial(os.close, file.descriptor), lambda _: None, None)

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
        self._faults.set(
            "disk-unusable", f"{tested[0]} does not answer" if fault is None else fault)
        if self.fault:
            self._testing = True
            self._timer(self._clock() + AGAIN, self._test)
        self.budget.resize(0 if self.fault else tested[1])


def _number(file: File) -> int:
    """The number of a file in its name; 0: the first file of its connection."""
    number, *others = file.name.removeprefix(KEPT_AS).split("-")[2:]
    return int(number) if len(others) == len(("pid", "uid", "started")) else 0


def _opened(directory: Path) -> tuple[int, int] | None:
    """Returns the daemon's descriptor of a new file, and the client's; None: none can be made."""
    try:
        descriptor = disk.open_file(directory)
    except OSError as error:
        logger.warning("%s: no file can be made: %s", directory, error.strerror)
        return None
    if (given := _opened_again(descriptor)) is None:
        os.close(descriptor)
        return None
    return descriptor, given


def _opened_again(descriptor: int) -> int | None:
    try:
        return disk.open_again(descriptor)
    except OSError as error:
        logger.warning("no file can be passed to a client: %s", error.strerror)
        return None


def _measure(file: File, connected: bool, largest: int) -> Size | None:
    """Measures a file, and empties too large a file; None: no other process has it any more.

    After the end of the process no program needs the content."""
    has_ended = not connected and host.has_ended(file.peer.pid, file.peer.started)
    is_held = not has_ended             # by the process at least
    if not connected:
        with suppress(OSError):         # without leases, the file counts until its process ends
            is_held = disk.is_held(file.descriptor)
    if not is_held:
        # systemd has a copy: closing the last one of a large file would delay it.
        os.ftruncate(file.descriptor, 0)
        return None
    size = disk.written(file.descriptor)
    is_emptied = size > 0 if has_ended else file.earlier is not None and size > largest
    if is_emptied:
        os.ftruncate(file.descriptor, 0)
    return Size(size, is_emptied, has_ended)
