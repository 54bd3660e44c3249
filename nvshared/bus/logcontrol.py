# SPDX-License-Identifier: Apache-2.0
"""org.freedesktop.LogControl1: `systemctl service-log-level nvshared debug` works by this."""

import logging
import os
from typing import ClassVar

from nvshared.bus.members import Changes, Interface, Property
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
_WORDS = {level: word for word, level in _LEVELS.items()}       # the last of several


def _log_level(_: object) -> str:
    level = logging.getLogger().getEffectiveLevel()
    return _WORDS[min(_WORDS, key=lambda known: abs(known - level))]


def _set_log_level(_: object, word: str) -> None:
    """Changes it until the daemon ends."""
    if word not in _LEVELS:
        known = ", ".join(_LEVELS)
        raise InvalidArgs(f"there is no log level {word!r}", f"give one of {known}")
    logging.getLogger().setLevel(_LEVELS[word])


class LogControl(Interface, name=LOG_CONTROL_INTERFACE):
    """What is logged, and where it goes."""

    listed: ClassVar[tuple[Property["LogControl"], ...]] = (
        Property("LogLevel", "s", Changes.SILENT, _log_level, _set_log_level, ACTION_SET_LOG_LEVEL),
        Property(
            "LogTarget", "s", Changes.SILENT,
            lambda _: "journal" if "JOURNAL_STREAM" in os.environ else "console",
        ),
        Property("SyslogIdentifier", "s", Changes.NEVER, lambda _: "nvshared"),
    )
