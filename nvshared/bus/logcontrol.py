# SPDX-License-Identifier: Apache-2.0
"""org.freedesktop.LogControl1: `systemctl service-log-level nvshared debug` works by this."""

import logging
import os

from dbus_next.constants import PropertyAccess

from nvshared.bus.interface import Emits, Interface, dbus_property, read_only
from nvshared.errors import InvalidArgs
from nvshared.names import ACTION_SET_LOG_LEVEL, LOG_CONTROL_INTERFACE

# syslog's level names; Python's logging has fewer levels.
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
_WORDS = {level: word for word, level in _LEVELS.items()}       # a level's last name


class LogControl(Interface):
    """The log level, which holds until the daemon ends, and the log's target."""

    def __init__(self) -> None:
        super().__init__(LOG_CONTROL_INTERFACE)

    @dbus_property(Emits.NOTHING, access=PropertyAccess.READWRITE, action=ACTION_SET_LOG_LEVEL)
    def LogLevel(self) -> "s":
        level = logging.getLogger().getEffectiveLevel()
        return _WORDS[min(_WORDS, key=lambda known: abs(known - level))]

    @LogLevel.setter
    def LogLevel(self, word: "s") -> None:
        if word not in _LEVELS:
            known = ", ".join(_LEVELS)
            raise InvalidArgs(f"there is no log level {word!r}", f"give one of {known}")
        logging.getLogger().setLevel(_LEVELS[word])

    LogTarget = read_only(
        "LogTarget", "s", lambda _: "journal" if "JOURNAL_STREAM" in os.environ else "console",
        Emits.NOTHING)
    SyslogIdentifier = read_only("SyslogIdentifier", "s", lambda _: "nvshared", Emits.CONST)
