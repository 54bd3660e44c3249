# SPDX-License-Identifier: Apache-2.0
"""Dispatches method calls: from the received call to its reply.

The dispatcher finds the object and method, compares the types of the arguments, authorises the
caller, unmarshals the arguments, runs the method, and sends the reply: the result, or the D-Bus
error of an NvshareError. For a fault of our own the reply is one sentence; the traceback goes to
the log alone.

Each call is a task, so a call that waits for polkit delays no other. Tasks start in the order in
which the calls arrived. Each caller may have CALLS_EACH pending calls; more are refused. A call is
pending until its reply is written to the bus, and one large reply is sent at a time: so a slow bus,
or many callers at once, cost the daemon no memory.
"""

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

from dbus_next.constants import ErrorType, MessageFlag
from dbus_next.errors import DBusError
from dbus_next.message import Message
from dbus_next.message_bus import BaseMessageBus
from dbus_next.service import ServiceInterface

from nvshared.bus.authority import Caller, Checks, caller
from nvshared.bus.connection import BusConnection
from nvshared.bus.interface import ANYONE, Interface
from nvshared.bus.objects import Objects
from nvshared.dbus import BusError, Received, WireError, marshalled
from nvshared.errors import InvalidArgs, NotRunning, NvshareError
from nvshared.lanes import Run
from nvshared.names import MANAGER_PATH

logger = logging.getLogger(__name__)

PATIENCE = 1.0                          # seconds for pending calls to end on close()
CALLS_EACH = 64                         # pending calls of one caller at most
LARGE = 1 << 16                         # bytes; of larger replies one is sent at a time
LONGEST_PATH = 255                      # characters of a path that an error message quotes


class _Reply:
    """Stands in for dbus-next's sender and keeps the reply or the error of a call."""

    def __init__(self) -> None:
        self._message: Message | None = None
        self._error: Exception | None = None

    def __call__(self, message: Message) -> None:
        self._message = message

    def returns(self, message: Message, signature: str, body: list[Any] | bytes) -> None:
        """Sets the reply: a list of values, or a marshalled body."""
        self._message = Message.new_method_return(message, signature)
        self._message.body = cast(list[Any], body)

    def send_error(self, error: Exception) -> None:
        """Sets the error that the call is answered with."""
        self._error = error

    def result(self) -> Message:
        """The reply with a marshalled body. Raises the error if one was sent."""
        if self._error is not None:
            raise self._error
        assert self._message is not None
        body: Any = self._message.body
        if not isinstance(body, bytes):
            self._message.body = cast(list[Any], marshalled(self._message.signature, *body))
        return self._message


Handler = Callable[[Message, _Reply], Awaitable[None]]


class Bus(Objects):
    """The exported objects; answers the method calls that arrive over the connection."""

    def __init__(self, refresh: Callable[[], Awaitable[None]], run: Run, *, polkit: bool) -> None:
        super().__init__(refresh)
        self._run = run
        self._polkit = polkit
        self._checks: Checks | None = None
        self._calls: set[asyncio.Task[None]] = set()
        self._of_caller: Counter[str] = Counter()
        self._large = asyncio.Lock()    # held while a large reply is sent

    def attach(self, connection: BusConnection | None) -> None:
        super().attach(connection)
        if connection is not None and self._polkit:
            self._checks = Checks(connection, self._run)

    async def close(self) -> None:
        """Answers all pending calls: after PATIENCE with the error that nvshared is stopping."""
        if self._calls:
            await asyncio.wait(self._calls, timeout=PATIENCE)
        calls = tuple(self._calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    def take(self, connection: BusConnection, received: Received) -> None:
        """Starts a task that answers a call from this connection, or refuses the call."""
        sender = received.message.sender
        if self._of_caller[sender] >= CALLS_EACH:
            _refuse(connection, received.message, BusError(
                ErrorType.LIMITS_EXCEEDED, f"{CALLS_EACH} calls of yours are under way already; "
                "wait for an answer first"))
            return
        self._of_caller[sender] += 1
        call = asyncio.get_running_loop().create_task(self._answer(connection, received))
        self._calls.add(call)
        call.add_done_callback(partial(self._done, sender))

    def _done(self, sender: str, call: "asyncio.Task[None]") -> None:
        self._calls.discard(call)
        self._of_caller -= Counter([sender])    # Counter's -= removes counts of zero

    async def _answer(self, connection: BusConnection, received: Received) -> None:
        large = False
        message = received.message
        caller.set(Caller(connection, message, self._checks))
        try:
            reply = await self._outcome(received)
            if len(reply.body) > LARGE:     # marshalled bytes; an error's list of texts is short
                large = await self._large.acquire()
        except asyncio.CancelledError:
            _refuse(connection, message, NotRunning("nvshared is stopping"))
            return
        try:
            if not message.flags & MessageFlag.NO_REPLY_EXPECTED:
                await connection.deliver(reply)
        finally:
            if large:
                self._large.release()

    async def _outcome(self, received: Received) -> Message:
        message, reply = received.message, _Reply()
        try:
            handler = BaseMessageBus._find_message_handler(self, message)
            if handler is None:
                raise self._missing(message)
            message.body = cast(list[Any], received)    # unmarshalled once the caller is authorised
            if inspect.isawaitable(running := handler(message, reply)):
                await running
            return reply.result()
        except NvshareError as error:
            return _refusal(message, error)
        except DBusError as error:
            return Message.new_error(message, error.type, error.text)
        except Exception:
            logger.exception("%s.%s failed", message.interface, message.member)
            sentence = f"{message.member} failed inside nvshared; its log says more"
            return Message.new_error(message, NvshareError.bus_name, sentence)

    def _missing(self, message: Message) -> NvshareError:
        """The error for a call of a method that does not exist."""
        path, interface = str(message.path), message.interface
        found = {one.name: one for one in self._path_exports.get(path, ())}
        if not found and not self._children(path):
            said = path if len(path) <= LONGEST_PATH else f"{path[:LONGEST_PATH]}…"
            return BusError(ErrorType.UNKNOWN_OBJECT, f"there is no object at {said}")
        if interface not in found:
            return BusError(ErrorType.UNKNOWN_INTERFACE, f"{path} has no interface {interface!r}")
        for method in ServiceInterface._get_methods(found[interface]):
            if method.name == message.member:
                return InvalidArgs(
                    f"{method.name} takes arguments of type {method.in_signature!r}, "
                    f"not {message.signature!r}")
        return BusError(
            ErrorType.UNKNOWN_METHOD, f"{interface} has no method {message.member!r}")

    def _make_method_handler(self, interface: Interface, method: Any) -> Handler:
        async def handle(message: Message, reply: _Reply) -> None:
            if method.action is not ANYONE and not method.itself:
                await caller.get().authorise(method.action)
            result = method.fn(interface, *_arguments(message))
            if inspect.isawaitable(result):
                result = await result
            if not isinstance(result, bytes):   # bytes: the body is marshalled already
                result, _ = ServiceInterface._fn_result_to_body(result, method.out_signature_tree)
            reply.returns(message, method.out_signature, result)

        return handle

    async def _default_properties_handler(self, message: Message, reply: _Reply) -> None:
        if message.path not in self._path_exports:
            raise self._missing(message)
        interfaces = self._path_exports[message.path]
        if {"Get": "ss", "GetAll": "s", "Set": "ssv"}.get(message.member) != message.signature:
            raise BusError(
                ErrorType.UNKNOWN_METHOD, f"no {message.member} takes {message.signature!r}")
        if message.member == "Set":
            actions = {
                one.options["action"] for interface in interfaces
                for one in interface.properties.values() if one.access.writable()
            }
            if not actions:
                raise BusError(ErrorType.PROPERTY_READ_ONLY, f"{message.path} has none to write")
            for action in actions:
                await caller.get().authorise(action)
        message.body = _arguments(message)
        name = message.body[0]
        chosen = [one for one in interfaces if name in (one.name, "")]
        for interface in chosen:
            await interface.refresh()
        if chosen and message.member == "GetAll":
            values = {name: value for one in chosen for name, value in one.values().items()}
            reply.returns(message, "a{sv}", [values])
            return
        BaseMessageBus._default_properties_handler(self, message, reply)

    async def _default_get_managed_objects_handler(self, message: Message, reply: _Reply) -> None:
        if message.path != MANAGER_PATH:
            raise BusError(ErrorType.UNKNOWN_INTERFACE, f"the object manager is {MANAGER_PATH}")
        reply.returns(message, "a{oa{sa{sv}}}", await self.everything())

    def _default_get_machine_id_handler(self, message: Message, reply: _Reply) -> None:
        """Replaces dbus-next's handler, which fails on the second call."""
        try:
            reply.returns(message, "s", [Path("/etc/machine-id").read_text().strip()])
        except OSError as error:
            raise NvshareError(
                f"this machine has no id: {error}", "run systemd-machine-id-setup") from error


def _arguments(message: Message) -> list[Any]:
    try:
        return cast(Received, message.body).values()
    except WireError as error:
        raise InvalidArgs(f"the arguments of {message.member} cannot be read: {error}") from error


def _refusal(message: Message, error: NvshareError) -> Message:
    name = error.name if isinstance(error, BusError) else error.bus_name
    return Message.new_error(message, name, str(error))


def _refuse(connection: BusConnection, message: Message, error: NvshareError) -> None:
    if not message.flags & MessageFlag.NO_REPLY_EXPECTED:
        connection.post(_refusal(message, error))
