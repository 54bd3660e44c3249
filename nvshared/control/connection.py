# SPDX-License-Identifier: Apache-2.0
"""A blocking connection to a message bus, for calls of nvshared's methods."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from nvshared import dbus  # isort: skip (first: it keeps dbus-next's package empty)
from dbus_next.constants import MessageFlag, MessageType
from dbus_next.message import Message

from nvshared.dbus import BUS, Received, WireError
from nvshared.errors import (
    DBUS,
    BusUnavailable,
    InvalidArgs,
    NotPermitted,
    NotRunning,
    NvshareError,
    PasswordNeeded,
)
from nvshared.names import BUS_NAME


class ControlConnection:
    """Calls nvshared over one bus. Not thread-safe."""

    def __init__(self, bus: str, patience: float | None = None) -> None:
        """`patience`: seconds for a reply. Raises BusUnavailable, InvalidArgs."""
        self._bus = bus
        self._patience = patience or dbus.PATIENCE
        self._socket = dbus.connect(dbus.locate(bus))
        self._socket.settimeout(self._patience)
        self._buffer = bytearray()
        self._serial = 0
        # The bus that runs now, and there the unique name of the sender of the last reply.
        self._bus_id, self.peer = "", ""
        try:
            self._authenticate()
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def ask(
        self, *calls: tuple[str, str, str, str, tuple[Any, ...]], interactive: bool = False
    ) -> list[list[Any]]:
        """Sends all calls, and returns the replies. `interactive`: polkit may ask a password."""
        flags = MessageFlag.NO_AUTOSTART
        if interactive:
            flags |= MessageFlag.ALLOW_INTERACTIVE_AUTHORIZATION
        self._socket.settimeout(None if interactive else self._patience)
        packet = b""
        serials = range(self._serial + 1, self._serial + 1 + len(calls))
        for path, interface, member, signature, values in calls:
            message = Message(
                BUS_NAME, path, interface, member, flags=flags, signature=signature,
                body=list(values))
            try:
                packet += self._pack(message)
            except ValueError as error:
                raise InvalidArgs(f"nvshared cannot be told that: {error}") from error
        answers: dict[int, list[Any]] = {}
        try:
            self._socket.sendall(packet)
            while not answers.keys() >= set(serials):
                received = self._receive()
                message = received.message
                if message.message_type is MessageType.METHOD_RETURN:
                    answers[message.reply_serial] = received.values()
                    self.peer = f"{self._bus_id} {message.sender}"
                elif message.message_type is MessageType.ERROR:
                    reason = "".join(map(str, received.values()[:1]))
                    raise self._error(message.error_name, reason)
        except TimeoutError as error:
            raise _unanswered(NvshareError(
                f"nvshared did not answer within {self._patience:.0f} seconds",
                "see its log: journalctl -u nvshared")) from error
        except (OSError, WireError) as error:
            raise _unanswered(
                BusUnavailable(f"the message bus ended the connection: {error}")) from error
        return [answers[serial] for serial in serials]

    def _authenticate(self) -> None:
        refused = f"the message bus {self._bus!r} does not let "
        try:
            self._socket.sendall(dbus.introduction())
            line = b""
            while not line.endswith(b"\r\n"):
                if not (byte := self._socket.recv(1)):
                    raise OSError("it ended the connection")
                line += byte
            if not line.startswith(dbus.LET_IN):
                raise BusUnavailable(f"{refused}uid {os.geteuid()} in")
            self._bus_id = line.removeprefix(dbus.LET_IN).strip().decode(errors="replace")
            self._socket.sendall(dbus.BEGIN + self._pack(Message(*BUS, "Hello")))
        except OSError as error:
            raise BusUnavailable(f"{refused}us in: {error}") from error

    def _pack(self, message: Message) -> bytes:
        self._serial += 1
        return dbus.pack(message, self._serial)

    def _receive(self) -> Received:
        self._fill(dbus.START)
        header, body = dbus.size(bytes(self._buffer[:dbus.START]))
        self._fill(header + body)
        data = bytes(self._buffer[:header + body])
        del self._buffer[:header + body]
        return Received(data[:header], data[header:])

    def _fill(self, length: int) -> None:
        while len(self._buffer) < length:
            data = self._socket.recv(1 << 16)
            if not data:
                raise OSError("it hung up")
            self._buffer += data

    def _error(self, name: str, text: str) -> NvshareError:
        short = name.removeprefix(DBUS)
        if short in ("ServiceUnknown", "NameHasNoOwner"):
            return not_running(self._bus)
        if short in ("NoReply", "Disconnected"):
            return _unanswered(NotRunning(
                "nvshared ended before it answered", "see why: journalctl -u nvshared"))
        if short == "InteractiveAuthorizationRequired":
            return PasswordNeeded(text, "run it with sudo")
        if short == "AccessDenied":
            return NotPermitted(text, "run it with sudo" if os.geteuid() else "")
        if short in ("UnknownMethod", "UnknownObject", "UnknownInterface", "UnknownProperty"):
            return NvshareError(
                f"the nvshared that runs is of another version: {text}",
                "restart it with: nvshared --check && systemctl restart nvshared")
        return NvshareError.by_bus_name.get(name, NvshareError)(text or f"nvshared answered {name}")


@contextmanager
def password_agent() -> Iterator[None]:
    """Within this context polkit may ask for passwords on this terminal, as with systemctl, if
    pkttyagent is installed. SIGTERM and SIGHUP end the agent, too: main thread only."""
    import shutil
    import signal
    import subprocess
    import termios

    program = shutil.which("pkttyagent")
    if program is None:
        yield
        return
    reading, writing = os.pipe()
    command = [program, "--notify-fd", str(writing), "--fallback"]
    before = termios.tcgetattr(sys.stdin)

    def end(number: int, _frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    handlers = {one: signal.getsignal(one)
                for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for one, handler in handlers.items():
        if handler is signal.SIG_DFL:
            signal.signal(one, end)
    with open(reading, "rb") as registered:     # noqa: PTH123
        process = subprocess.Popen(command, pass_fds=[writing])
        try:
            os.close(writing)
            registered.read()           # EOF: the agent is registered, or has failed
            yield
        finally:
            for one in handlers:        # a second signal must not keep the echo off
                signal.signal(one, signal.SIG_IGN)
            process.terminate()
            process.wait()
            termios.tcsetattr(sys.stdin, termios.TCSANOW, before)   # some agents leave echo off
            for one, handler in handlers.items():
                signal.signal(one, handler)


def not_running(bus: str) -> NotRunning:
    """The error if nvshared does not own its name on that bus; with systemd's reason, if any."""
    from nvshared.control import unit

    text = "nvshared is not running"
    if bus != "system":
        return NotRunning(text, f"start it with: nvshared --bus {bus}")
    with suppress(NvshareError):        # without systemd's reply there is no reason to add
        if unit.runs_here():
            state = unit.state("nvshared.service")
            hint = f"start it with: {unit.start_again()}"
            if (why := unit.failure(state)) and state.get("LoadState") != "masked":
                hint = f"once it is mended, {hint}"
            return NotRunning(f"{text}: {why}" if why else text, hint)
    return NotRunning(text, f"start it with: {unit.START}")


def _unanswered(error: NvshareError) -> NvshareError:
    """Marks an error after which it is unknown whether the call took effect."""
    error.answered = False
    return error
