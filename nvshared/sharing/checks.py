# SPDX-License-Identifier: Apache-2.0
"""Looks for faults that no event reports: each EVERY seconds, and before figures are read."""

import asyncio
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from nvshared.clock import Clock, repeat
from nvshared.errors import NvshareError
from nvshared.lanes import Run, call
from nvshared.machine import host
from nvshared.machine.peer import Peer, printable
from nvshared.sharing.gpu import GPU
from nvshared.sharing.manager import Manager
from nvshared.units import SECOND

EVERY = 10.0                            # seconds between two looks
SAMPLE_EVERY = 60 * SECOND              # us between two samples of each card
FRESH = SECOND                          # us for which the results of a look count as present
PATIENCE = SECOND                       # us that a look waits for NVML or a file system
HELPER_AGAIN = 60 * SECOND              # us between two tries of an nvshare-checkpoint that failed
DETAIL_LONGEST = 1000                   # characters of a detail that quotes a file
NEEDED = 1 << 14                        # bytes that the state folder must have room for


class Checks:
    def __init__(
        self, manager: Manager, clock: Clock, run: Run, nvml: Run,
        is_exclusive: Callable[[str], bool], state: Path | None,
        history: Callable[[], tuple[str, str]],
    ) -> None:
        """`nvml`: Lanes.run for NVML. `is_exclusive`: NVML.is_exclusive, which blocks. `state`: the
        state folder. `history`: why the history is not written, and why that until now was put
        aside; "": it is, it was not."""
        self._manager, self._clock, self._run, self._nvml = manager, clock, run, nvml
        self._is_exclusive, self._state, self._history = is_exclusive, state, history
        self._looked_at = -FRESH
        self._looking = asyncio.Lock()
        # Identifies the file at which programs find the daemon; (): it could not be seen.
        self._socket: tuple[int, ...] | None = ()
        with suppress(OSError):
            self._socket = _file(manager.socket)
        self._helper_tried_at = self._sampled_at = clock()
        manager.use_checks(self.look)

    async def watch(self) -> None:
        """Looks now and after each pause of EVERY seconds; never returns."""
        await self._look_and_sample()
        await repeat(EVERY, self._look_and_sample)

    async def _look_and_sample(self) -> None:
        await self.look()
        if self._clock() - self._sampled_at >= SAMPLE_EVERY:
            self._sampled_at = self._clock()
            # A card without clients is sampled only now: its loss must be noticed, too.
            for gpu in self._manager.gpus:
                gpu.request_sample(lambda: None)
        if self._manager.faults.detail("helper-failing") and (
                self._clock() - self._helper_tried_at >= HELPER_AGAIN):
            self._helper_tried_at = self._clock()
            with suppress(NvshareError):    # the fault goes on
                await self._manager.ask_helper("state", os.getpid())    # changes nothing

    async def look(self) -> None:
        async with self._looking:
            if self._clock() - self._looked_at >= FRESH:
                await self._look()
                self._looked_at = self._clock()

    async def _look(self) -> None:
        manager, faults = self._manager, self._manager.faults
        unwritten, *others = self._history()
        faults.set("history-unwritten", unwritten)
        if self._state is not None:
            unwritable = await call(
                self._run, "state folder", partial(write_error, self._state), PATIENCE)
            if unwritable is None:
                unwritable = f"{self._state} does not answer"
            if unwritable == "" and any(file.failure for file in manager.files):
                await call(self._run, "state folder", self._keep_again, PATIENCE)
            failures = [file.failure for file in manager.files if file.failure]
            unused = "; ".join(filter(None, (*(file.unused for file in manager.files), *others)))
            faults.set("state-unread", printable(unused)[:DETAIL_LONGEST])
            faults.set("state-unwritable", unwritable or "".join(failures[:1]))
        removed = await call(self._run, "socket", self._socket_fault, PATIENCE)
        if removed is not None:
            faults.set("socket-removed", removed)
        if refused := manager.refused:
            ended = await call(self._run, "refused", partial(_ended, refused), PATIENCE)
            manager.forget_refused(ended or ())
        for gpu in tuple(manager.gpus):
            if not gpu.lost:
                await self._look_at(gpu)
        for one in (faults, *(gpu.faults for gpu in manager.gpus)):
            one.log_again()             # some faults are set once

    def _socket_fault(self) -> str | None:
        """Why programs do not find the daemon's socket; "": they do; None: it cannot be seen."""
        path = self._manager.socket
        if not path.startswith("/"):    # an abstract socket of systemd's
            return ""
        try:
            found = _file(path)
        except OSError:
            return None
        if found is None:
            return f"{path} was removed"
        return "" if self._socket in ((), found) else f"{path} is another socket now"

    def _keep_again(self) -> None:
        for file in self._manager.files:
            file.keep_again()

    async def _look_at(self, gpu: GPU) -> None:
        uuid = gpu.facts.uuid
        exclusive = await call(self._nvml, uuid, partial(self._mode, uuid), PATIENCE)
        if exclusive is not None:       # None: NVML does not answer, which the sampler notices
            gpu.faults.set("gpu-exclusive", exclusive)

    def _mode(self, uuid: str) -> str | None:
        try:
            return "its mode is exclusive or prohibited" if self._is_exclusive(uuid) else ""
        except NvshareError:
            return None


def _file(path: str) -> tuple[int, ...] | None:
    """Identifies the file at a path; None: there is none. Raises OSError if it cannot be seen."""
    try:
        found = Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def write_error(folder: Path) -> str:
    """Why no file of NEEDED bytes can be written in a folder, which is made; "": it can.

    The file is never forced to the disk, so looking often costs the disk nothing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            if file.write(os.urandom(NEEDED)) < NEEDED:
                file.write(b"\0")       # raises what stopped the first write
    except OSError as error:
        return f"{folder} cannot be written to: {error.strerror}"
    return ""


def _ended(peers: tuple[Peer, ...]) -> list[Peer]:
    return [one for one in peers if host.has_ended(one.pid, one.started)]
