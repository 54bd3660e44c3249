# SPDX-License-Identifier: Apache-2.0
"""The exceptions of nvshared, each with a D-Bus error name and a command's exit status."""

from enum import IntEnum
from typing import Any, ClassVar


class ExitCode(IntEnum):
    """The exit statuses. LSB and systemd define 2 to 7; shells define 126, 127 and 130."""

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
    """The base class. `message` is a sentence without its full stop; `hint`, advice, may be "".

    `answered` is False if it is unknown whether a request was carried out. --json shows `details`.
    """

    by_bus_name: ClassVar[dict[str, type["NvshareError"]]] = {}     # subclasses by `bus_name`
    bus_name: ClassVar[str] = DBUS + "Failed"
    exit_code: ClassVar[ExitCode] = ExitCode.FAILURE
    answered = True

    def __init_subclass__(cls, bus_name: str = "", exit_code: ExitCode | None = None) -> None:
        if bus_name:
            cls.bus_name = bus_name
            cls.by_bus_name[bus_name] = cls
        if exit_code is not None:
            cls.exit_code = exit_code

    def __init__(self, message: str, hint: str = "", **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = details

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class InvalidArgs(NvshareError, bus_name=DBUS + "InvalidArgs", exit_code=ExitCode.INVALID_ARGS):
    """An argument of the caller is invalid."""


class ConfigError(InvalidArgs, exit_code=ExitCode.BAD_CONFIG):
    """A setting in a file, a variable or an option is wrong; the message says where."""


class NotPermitted(NvshareError, bus_name=DBUS + "AccessDenied", exit_code=ExitCode.NOT_PERMITTED):
    """The kernel or polkit denied the request."""


class PasswordNeeded(NotPermitted, bus_name=DBUS + "InteractiveAuthorizationRequired"):
    """polkit would permit the request after it has asked the caller for a password."""


class NoSuchGPU(NvshareError, bus_name=OURS + "NoSuchGPU", exit_code=ExitCode.NO_SUCH_THING):
    """There is no GPU with this index, UUID or PCI address."""


class NoSuchClient(NvshareError, bus_name=OURS + "NoSuchClient", exit_code=ExitCode.NO_SUCH_THING):
    """There is no client with this id."""


class GPULost(NvshareError, bus_name=OURS + "GPULost", exit_code=ExitCode.GPU_LOST):
    """The GPU fell off the bus or its driver is gone."""


class NoDriver(NvshareError, bus_name=OURS + "NoDriver", exit_code=ExitCode.NO_DRIVER):
    """There is no NVIDIA driver, or no NVML library."""


class NoGPU(NoDriver):
    """There is a driver, but it reports no usable GPU."""


class DriverMismatch(NoDriver):
    """The kernel module and the libraries differ, as after an upgrade of the driver."""


class DriverUnready(NoDriver, exit_code=ExitCode.FAILURE):
    """The driver denies access or does not respond; a later attempt may succeed."""


class NoHistory(NvshareError, bus_name=OURS + "NoHistory"):
    """The history of tenants' usage is not recorded, or cannot be read."""


class NotKept(NvshareError, bus_name=OURS + "NotKept"):
    """A change is in force, but was not written to the disk: a restart of the daemon reverts it."""


class AlreadyRunning(
    NvshareError, bus_name=OURS + "AlreadyRunning", exit_code=ExitCode.ALREADY_RUNNING
):
    """Another nvshared has the socket or the bus name."""


class NotRunning(NvshareError, bus_name=DBUS + "ServiceUnknown", exit_code=ExitCode.NOT_RUNNING):
    """No process owns the bus name com.nvshare."""


class BusUnavailable(NvshareError, bus_name=DBUS + "NoServer"):
    """There is no message bus at the address, or it refused the connection."""


class Interrupted(NvshareError, exit_code=ExitCode.INTERRUPTED):
    """The user pressed Ctrl-C; the last request may be carried out nevertheless."""

    answered = False


class ProtocolError(NvshareError, bus_name=OURS + "Protocol"):
    """A client sent a record that violates protocol.h."""
