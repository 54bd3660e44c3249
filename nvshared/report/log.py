# SPDX-License-Identifier: Apache-2.0
"""Log lines for the journal, or for a person who runs the daemon in a terminal.

Under systemd a line begins with its priority in angle brackets (sd-daemon(3)). Lines that clients
cause are limited, so that a program in a loop cannot fill the disk."""

import logging
import os
import select
import sys
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from nvshared.clock import Clock, Timer
from nvshared.errors import ExitCode, NvshareError
from nvshared.report import systemd
from nvshared.units import SECOND

BURST = 20                              # most lines of one kind in one INTERVAL
INTERVAL = 30 * SECOND

PRIORITIES = {
    logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}


class JournalFormatter(logging.Formatter):
    """"<4>gpu0: …"; each line of a traceback with the same priority."""

    def format(self, record: logging.LogRecord) -> str:
        prefix = f"<{PRIORITIES.get(record.levelno, 6)}>"
        return "\n".join(prefix + line for line in super().format(record).splitlines())


class LineHandler(logging.Handler):
    """Writes to stderr without a buffer: flushing one at exit would fail again on a full disk."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a line once. A failure is not reported, as the report would go to stderr, too."""
        write_line(self.format(record))


def write_line(line: str) -> None:
    """Writes as much of a line to stderr as is possible without blocking."""
    if sys.stderr is None:              # stderr was closed when the process started
        return
    text = f"{line}\n".encode(errors="backslashreplace")
    with suppress(OSError):
        poll = select.poll()
        poll.register(sys.stderr, select.POLLOUT)
        while text and poll.poll(0):
            text = text[os.write(sys.stderr.fileno(), text[:select.PIPE_BUF]):]


def start(environment: Mapping[str, str], *, debug: bool) -> None:
    handler = LineHandler()
    if _is_journal(environment.get("JOURNAL_STREAM", "")):
        handler.setFormatter(JournalFormatter("%(message)s"))
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logging.getLogger().handlers[:] = [handler]
    set_debug(debug)


def set_debug(debug: bool) -> None:
    logging.getLogger().setLevel(logging.DEBUG if debug else logging.INFO)


@dataclass(slots=True)
class _Lines:
    logged: int = 0
    left_out: int = 0
    last: Callable[[], str] | None = None


class Limited:
    """Logs at most BURST lines of one kind in an interval, then the number of lines left out.

    A kind is an event and a user, so that one user's lines do not suppress another's."""

    def __init__(self, logger: logging.Logger, clock: Clock, timer: Timer) -> None:
        self._logger, self._clock, self._timer = logger, clock, timer
        self._kinds: dict[Hashable, _Lines] = {}

    def say(self, level: int, kind: Hashable, words: Callable[[], str]) -> None:
        """Logs the result of `words`, which is not called if the line is left out."""
        lines = self._kinds.get(kind)
        if lines is None:
            lines = self._kinds[kind] = _Lines()
            self._timer(self._clock() + INTERVAL, lambda: self._sum_up(level, kind))
        if lines.logged < BURST:
            lines.logged += 1
            self._logger.log(level, "%s", words())
        else:
            lines.left_out += 1
            lines.last = words

    def _sum_up(self, level: int, kind: Hashable) -> None:
        lines = self._kinds.pop(kind)
        if lines.last is not None:
            self._logger.log(level, "%d more such lines were left out within %d s, the last: %s",
                             lines.left_out, INTERVAL // SECOND, lines.last())


def _is_journal(stream: str) -> bool:
    """Whether stderr is the journal's socket. `stream`: JOURNAL_STREAM, its device and inode."""
    if sys.stderr is None:              # stderr was closed when the process started
        return False
    try:
        status = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return stream == f"{status.st_dev}:{status.st_ino}"


def run(name: str, act: Callable[[], None]) -> int:
    """Runs the main program of a daemon. Returns its exit status; logs its NvshareError."""
    for number in range(3):             # else a socket gets the number, and libraries write into it
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    try:
        act()
    except NvshareError as error:
        for line in str(error).splitlines():
            write_line(f"{name}: {line}")
        systemd.send_failure(os.environ, str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return ExitCode.OK              # SIGINT came before the event loop handled signals
    return ExitCode.OK
