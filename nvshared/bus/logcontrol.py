# SPDX-License-Identifier: Apache-2.0
"""org.freedesktop.LogControl1: `systemctl service-log-level nvshared debug` works by this."""

import logging
import os

from nvshared.bus.members import Changes, Interface, readable, writable
from nvshared.errors import InvalidArgs
from nvshared.names import ACTION_SET_LOG_LEVEL, LOG_CONTROL_INTERFACE

# syslog's words, of which Python's logging has fewer.
_LEVELS = {
    "emerg": logging.CRITICAL,
    "alert": logging.CRITICAL,
    "crit": logging.CRITICAL,
    "err": logging.ERROR,
    "warning": logging.WARNING,
    "notice": logging.INFO,
    "info": logging.INFO,
    "debug": logging.DEBUG,
}
_WORDS = {
    logging.CRITICAL: "crit",
    logging.ERROR: "err",
    logging.WARNING: "warning",
    logging.INFO: "info",
    logging.DEBUG: "debug",
}


class LogControl(Interface, name=LOG_CONTROL_INTERFACE):
    """What is logged, and where it goes."""

    @readable("LogLevel", "s", Changes.SILENT)
    def log_level(self) -> str:
        """The least important level that is logged."""
        level = logging.getLogger().getEffectiveLevel()
        return _WORDS[min(_WORDS, key=lambda known: abs(known - level))]

    @writable(log_level, action=ACTION_SET_LOG_LEVEL)
    def set_log_level(self, word: str) -> None:
        """Changes it until the daemon ends."""
        if word not in _LEVELS:
            known = ", ".join(_LEVELS)
            raise InvalidArgs(f"there is no log level {word!r}", f"give one of {known}")
        logging.getLogger().setLevel(_LEVELS[word])

    @readable("LogTarget", "s", Changes.SILENT)
    def log_target(self) -> str:
        """journal under systemd, else console."""
        return "journal" if "JOURNAL_STREAM" in os.environ else "console"

    @readable("SyslogIdentifier", "s", Changes.NEVER)
    def syslog_identifier(self) -> str:
        """The name that lines in the journal carry."""
        return "nvshared"
