# SPDX-License-Identifier: Apache-2.0
"""A file with a JSON line per turn, order and acknowledgement, for benchmarks and debugging.

    {"at": 81723645, "gpu": 0, "client": 3, "pid": 4711, "order": "evict", "number": 17, "room": …}

`at` is in microseconds of CLOCK_MONOTONIC. A thread writes the lines. The event loop waits up to
PATIENCE for those of an event, so that a reader finds them at once, but not while earlier lines are
unwritten."""

import json
import logging
import re
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import is_dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, TextIO

from nvshared.errors import NvshareError
from nvshared.scheduler.actions import Action, Report
from nvshared.scheduler.events import Event, Seen, Tick
from nvshared.sharing.gpu import GPU

logger = logging.getLogger(__name__)

PATIENCE = 0.05                         # most seconds that the event loop waits for written lines
BEHIND_MOST = 100_000                   # most unwritten lines (300 bytes each); others are dropped
CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")


class Trace:
    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file: TextIO | None = path.open("a", encoding="utf-8", buffering=1)
        except OSError as error:
            raise NvshareError(f"the trace {path} cannot be written: {error.strerror}",
                               "choose another --trace") from error
        self._writer = ThreadPoolExecutor(1, "trace")
        self._last: Future[None] = self._writer.submit(lambda: None)
        self._behind = 0                # lines submitted since the thread last had none to write

    def add(self, gpu: GPU) -> None:
        gpu.decided.connect(partial(self._write, gpu))

    def close(self) -> None:
        """Closes the file once earlier lines are written. The process does not exit before."""
        self._writer.submit(self._end)

    def _write(self, gpu: GPU, at: int, event: Event, caused: Sequence[Action]) -> None:
        if self._file is None:
            return
        lines = [] if isinstance(event, Tick | Seen) else [_line(gpu, at, "event", event)]
        lines += [_line(gpu, at, "report" if isinstance(action, Report) else "order", action)
                  for action in caused]
        if not lines:
            return
        if self._last.done():
            self._behind = 0
        elif self._behind < BEHIND_MOST:
            self._behind += len(lines)
            if self._behind >= BEHIND_MOST:
                logger.warning(
                    "the trace lacks lines here, as %s takes them too slowly", self.path)
        if self._behind < BEHIND_MOST:
            self._last = self._writer.submit(self._put, "".join(lines))
        if not self._behind:
            with suppress(TimeoutError):
                self._last.result(PATIENCE)

    def _put(self, line: str) -> None:
        try:
            if self._file is not None:
                self._file.write(line)
        except OSError as error:
            logger.warning("the trace ends here, %s takes no more: %s", self.path, error.strerror)
            self._end()

    def _end(self) -> None:
        file, self._file = self._file, None
        try:
            if file is not None:
                file.close()
        except OSError as error:        # buffered lines could not be written
            logger.debug("closing the trace: %s", error)


def _line(gpu: GPU, at: int, kind: str, item: Event | Action) -> str:
    line: dict[str, Any] = {"at": at, "gpu": gpu.facts.index, kind: _dashed(type(item).__name__),
                            **_fields(item)}
    client = gpu.clients.get(line.get("client", 0))
    if client is not None:
        line["pid"] = client.peer.pid
    return json.dumps(line, default=_encoded) + "\n"


@cache
def _dashed(name: str) -> str:
    return CAPITAL.sub("-", name).lower()


def _fields(item: Any) -> dict[str, Any]:
    """The fields of a dataclass; dataclasses.asdict() would copy each value."""
    return {name: getattr(item, name) for name in item.__dataclass_fields__}


def _encoded(value: object) -> object:
    return _fields(value) if is_dataclass(value) else str(value)
