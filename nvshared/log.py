# SPDX-License-Identifier: Apache-2.0
"""Lines for the journal, or for a person who runs the daemon in a terminal.

Under systemd a line begins with its priority in angle brackets (sd-daemon(3))
and has no time of its own. What clients cause is limited per kind, so that a
program in a loop cannot fill the disk.
"""

import logging
import os
import sys
from collections.abc import Mapping

from nvshared.clock import SECOND, Clock

BURST = 10                              # lines of one kind in one interval, then silence
INTERVAL = 30 * SECOND

PRIORITIES = {
    logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2,
}


class JournalFormatter(logging.Formatter):
    """"<4>gpu0: …"; each line of a traceback with the same priority."""

    def format(self, record: logging.LogRecord) -> str:
        prefix = f"<{PRIORITIES.get(record.levelno, 6)}>"
        return "\n".join(prefix + line for line in super().format(record).splitlines())


def start(environment: Mapping[str, str], *, debug: bool) -> None:
    """Sends everything to stderr, as whoever reads that wants it."""
    handler = logging.StreamHandler(sys.stderr)
    if _is_journal(environment.get("JOURNAL_STREAM", "")):
        handler.setFormatter(JournalFormatter("%(message)s"))
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logging.getLogger().handlers[:] = [handler]
    set_debug(debug)


def set_debug(debug: bool) -> None:
    """Whether to say everything that happens."""
    logging.getLogger().setLevel(logging.DEBUG if debug else logging.INFO)


class Limited:
    """At most BURST lines of one kind in an interval; how many were held back is said after."""

    def __init__(self, logger: logging.Logger, clock: Clock) -> None:
        self._logger = logger
        self._clock = clock
        self._kinds: dict[str, list[int]] = {}      # when the interval began, lines in it

    def warning(self, kind: str, message: str) -> None:
        """Says `message` unless there were too many of this `kind`; keep kinds few."""
        now = self._clock()
        began, lines = self._kinds.setdefault(kind, [now, 0])
        if now - began >= INTERVAL:
            if lines > BURST:
                self._logger.warning("%d more of the kind: %s", lines - BURST, kind)
            began, lines = now, 0
        self._kinds[kind] = [began, lines + 1]
        if lines < BURST:
            self._logger.warning("%s", message)


def _is_journal(stream: str) -> bool:
    """JOURNAL_STREAM names device and inode of the journal's socket; stderr may be another."""
    try:
        status = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return stream == f"{status.st_dev}:{status.st_ino}"
