# SPDX-License-Identifier: Apache-2.0
"""Everything that can go wrong and has a name.

Each class says under which name it travels over D-Bus and with which status a
command that meets it ends; so the bus and the command line need no tables of
their own. The message is one sentence that names the value; the hint, where
there is one, says what to do.
"""

from enum import IntEnum
from typing import Any, ClassVar


class ExitCode(IntEnum):
    """How nvshared and nvsharectl end. 2 to 7 are those systemd and LSB give words to.

    126 and 127 are what shells give for a program that they were to run, 130 for one that
    Ctrl-C ended.
    """

    OK = 0
    FAILURE = 1
    INVALID_ARGS = 2
    NOT_PERMITTED = 4
    NO_DRIVER = 5
    BAD_CONFIG = 6
    NOT_RUNNING = 7
    NOT_EXECUTABLE = 126
    NOT_FOUND = 127
    INTERRUPTED = 130
    NO_SUCH_THING = 150
    GPU_LOST = 151
    ALREADY_RUNNING = 152


DBUS = "org.freedesktop.DBus.Error."
OURS = "com.nvshare.Error."


class NvshareError(Exception):
    """The root. `message` is one sentence without its full stop; `hint` may be empty.

    `answered` is False where something was asked for and nobody can tell whether it was done.
    `details` are for --json alone.
    """

    by_bus_name: ClassVar[dict[str, type["NvshareError"]]] = {}     # subclasses with their own
    bus_name: ClassVar[str] = DBUS + "Failed"
    exit_code: ClassVar[ExitCode] = ExitCode.FAILURE
    answered = True

    def __init_subclass__(cls, bus_name: str = "", exit_code: ExitCode | None = None) -> None:
        if bus_name:
            cls.bus_name = bus_name
            cls.by_bus_name[bus_name] = cls
        if exit_code is not None:
            cls.exit_code = exit_code

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details: dict[str, Any] = {}

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class InvalidArgs(NvshareError, bus_name=DBUS + "InvalidArgs", exit_code=ExitCode.INVALID_ARGS):
    """What the caller asked for makes no sense."""


class ConfigError(InvalidArgs, exit_code=ExitCode.BAD_CONFIG):
    """A setting in a file, a variable or an option is wrong; the message says where."""


class NotPermitted(NvshareError, bus_name=DBUS + "AccessDenied", exit_code=ExitCode.NOT_PERMITTED):
    """The kernel or polkit says no."""


class PasswordNeeded(NotPermitted, bus_name=DBUS + "InteractiveAuthorizationRequired"):
    """polkit would say yes to somebody who could be asked for a password."""


class NoSuchGPU(NvshareError, bus_name=OURS + "NoSuchGPU", exit_code=ExitCode.NO_SUCH_THING):
    """No GPU goes by that index, UUID or PCI address."""


class NoSuchClient(NvshareError, bus_name=OURS + "NoSuchClient", exit_code=ExitCode.NO_SUCH_THING):
    """No client goes by that id."""


class GPULost(NvshareError, bus_name=OURS + "GPULost", exit_code=ExitCode.GPU_LOST):
    """The GPU fell off the bus or its driver is gone."""


class NoDriver(NvshareError, bus_name=OURS + "NoDriver", exit_code=ExitCode.NO_DRIVER):
    """There is no NVIDIA driver, or no library to ask it."""


class NoGPU(NoDriver):
    """There is a driver, but it knows no GPU."""


class DriverUnready(NoDriver, exit_code=ExitCode.FAILURE):
    """There is a driver that does not let us in, or does not answer; a moment later it may."""


class NoHistory(NvshareError, bus_name=OURS + "NoHistory"):
    """What tenants used is not kept, or cannot be read."""


class NotKept(NvshareError, bus_name=OURS + "NotKept"):
    """A change holds, but could not be written down, so the next daemon will not know of it."""


class AlreadyRunning(
    NvshareError, bus_name=OURS + "AlreadyRunning", exit_code=ExitCode.ALREADY_RUNNING
):
    """Another nvshared has the socket or the bus name."""


class NotRunning(NvshareError, bus_name=DBUS + "ServiceUnknown", exit_code=ExitCode.NOT_RUNNING):
    """Nobody answers for com.nvshare."""


class BusUnavailable(NvshareError, bus_name=DBUS + "NoServer"):
    """There is no message bus at that address, or it would not have us."""


class Interrupted(NvshareError, exit_code=ExitCode.INTERRUPTED):
    """Somebody pressed Ctrl-C; what was asked for last may be done nevertheless."""

    answered = False


class ProtocolError(NvshareError, bus_name=OURS + "Protocol"):
    """A client sent a record that protocol.h does not know."""
