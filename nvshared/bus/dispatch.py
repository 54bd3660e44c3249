# SPDX-License-Identifier: Apache-2.0
"""The objects on the bus: answers method calls and announces changes, with polkit's permission.

This is dbus-next's message bus with faults corrected: it sends InterfacesAdded from the wrong path,
matches children by a part of their path, and reads all properties of all objects at once.
A polkit check's subject is the caller's name on the bus: another process can take over a pid. The
bus limits how many replies the daemon may await, so each user may have few checks."""

import asyncio
import inspect
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, cast

from dbus_next import introspection
from dbus_next.constants import ErrorType, MessageFlag
from dbus_next.errors import DBusError
from dbus_next.message import Message
from dbus_next.message_bus import BaseMessageBus
from dbus_next.service import ServiceInterface
from dbus_next.signature import Variant

from nvshared.bus.connection import BusConnection
from nvshared.bus.interface import ANYONE, Interface
from nvshared.dbus import BUS, SYSTEM_BUS, BusError, Received, WireError, array, marshalled
from nvshared.errors import InvalidArgs, NotPermitted, NotRunning, NvshareError, PasswordNeeded
from nvshared.machine import subordinate
from nvshared.names import MANAGER_PATH

logger = logging.getLogger(__name__)

PATIENCE = 1.0                          # seconds that close() waits for pending calls
CALLS_EACH = 64                         # maximum number of pending calls of one caller,
CALLS_EACH_USER = 256                   # of all callers of a user
CALLERS_KNOWN = 4096                    # most callers of which the user is remembered
LONGEST_PATH = 255                      # characters of a path that an error message quotes
COALESCE = 0.1                          # seconds: minimum interval between PropertiesChanged rounds
SLICE = 0.000_25                        # seconds of a round before other tasks of the loop may run
SHARE = 5                               # GetManagedObjects takes up to 1/SHARE of the loop's time

POLKIT = (
    "org.freedesktop.PolicyKit1", "/org/freedesktop/PolicyKit1/Authority",
    "org.freedesktop.PolicyKit1.Authority"
)
_ALLOW_USER_INTERACTION = 1
POLKIT_PATIENCE = 25.0                  # seconds for polkit's reply if no password is asked for
PRESENCE_INTERVAL = 2.0                 # seconds between checks that a caller is on the bus, while
                                        # one of its calls is pending,
DEPARTURE_INTERVAL = 5.0                # while its Drain or a fault that it reported holds
CHECKS = 64                             # most checks pending at polkit, of all callers
CHECKS_EACH_USER = 8
CHECKS_RESERVED = 16                    # of CHECKS, reserved for users without a pending check
_ABSENT = {ErrorType.SERVICE_UNKNOWN.value, ErrorType.NAME_HAS_NO_OWNER.value}

OBJECT_MANAGER = "org.freedesktop.DBus.ObjectManager"
PROPERTIES = "org.freedesktop.DBus.Properties"


class PolkitChecks:
    """The checks over one bus connection that polkit has not answered yet."""

    def __init__(self, connection: BusConnection) -> None:
        self._connection = connection
        self._of_user: Counter[int | str] = Counter()
        self._names = count(1)          # for cancellation ids, by which polkit cancels a check

    async def ask(self, caller: "Caller", uid: int, action: str) -> tuple[bool, bool]:
        """Returns whether polkit permits the action, and whether by password. Raises BusError."""
        user = subordinate.lender(uid)  # uids that /etc/subuid gives one user count as one
        most = CHECKS - CHECKS_RESERVED if self._of_user[user] else CHECKS
        if self._of_user[user] >= CHECKS_EACH_USER or self._of_user.total() >= most:
            raise BusError(
                ErrorType.LIMITS_EXCEEDED, "too many calls wait for polkit already; answer or "
                "cancel those that ask for a password, and try again")
        name = f"nvshared{next(self._names)}"
        subject = ["system-bus-name", {"name": Variant("s", caller.name)}]
        flags = _ALLOW_USER_INTERACTION if caller.interactive else 0
        # No timeout: the bus counts the call as pending until polkit replies, as the counters do.
        answer = asyncio.get_running_loop().create_task(self._connection.ask(
            POLKIT, "CheckAuthorization", "(sa{sv})sa{ss}us", [subject, action, {}, flags, name],
            patience=None))

        def done(_task: object) -> None:
            self._of_user -= Counter([user])    # Counter's -= removes counts of zero

        self._of_user[user] += 1
        answer.add_done_callback(done)
        try:
            async with asyncio.timeout(None if caller.interactive else POLKIT_PATIENCE):
                # Cancelled if the caller leaves the bus: _drop_departed().
                ((granted, challenge, _),) = await asyncio.shield(answer)
        except TimeoutError as error:
            reason = f"it did not answer within {POLKIT_PATIENCE:.0f} s"
            raise BusError(ErrorType.NO_REPLY.value, reason) from error
        finally:
            if not answer.done():
                # Retrieves the exception of the abandoned reply, which asyncio would log otherwise.
                answer.add_done_callback(lambda task: task.cancelled() or task.exception())
                self._connection.post(Message(
                    *POLKIT, "CancelCheckAuthorization", signature="s", body=[name],
                    flags=MessageFlag.NO_REPLY_EXPECTED))
        return granted, challenge


class Caller:
    """The sender of a message, identified by the bus."""

    def __init__(
        self, connection: BusConnection, message: Message, checks: PolkitChecks | None
    ) -> None:
        """`checks`: the pending polkit checks; None: polkit is not asked on this bus."""
        self._connection = connection
        self._checks = checks
        self.name: str = message.sender
        self.known_uid: int | None = None       # None: the bus has not been asked
        self.interactive = bool(message.flags & MessageFlag.ALLOW_INTERACTIVE_AUTHORIZATION)

    async def uid(self) -> int:
        """User id of the caller. Raises BusError if it has left the bus."""
        if self.known_uid is None:
            self.known_uid = int(await self._ask_bus("GetConnectionUnixUser"))
        return self.known_uid

    async def administers(self) -> bool:
        """Whether the caller is root or the daemon's user: polkit is not asked about them."""
        return await self.uid() in (0, os.geteuid())

    async def pid(self) -> int:
        """Process id of the caller. Raises BusError if it has left the bus."""
        return int(await self._ask_bus("GetConnectionUnixProcessID"))

    async def departure(self) -> None:
        """Waits until the caller has left the bus, as far as the bus tells."""
        while not await has_left(self._connection, self.name):     # noqa: ASYNC110
            await asyncio.sleep(DEPARTURE_INTERVAL)

    async def _ask_bus(self, member: str) -> Any:
        (found,) = await self._connection.ask(BUS, member, "s", [self.name])
        return found

    async def authorise(self, action: str, hint: str = "") -> None:
        """Raises NotPermitted unless the caller may perform a polkit action; BusError if busy."""
        if await self.administers():
            return
        uid = await self.uid()
        refused = f"{action} is not permitted to uid {uid}"
        if self._checks is None:
            raise NotPermitted(
                f"authentication required: {action} is for root alone here, not for uid {uid}",
                hint)
        try:
            granted, challenge = await self._checks.ask(self, uid, action)
        except BusError as error:
            if error.name == ErrorType.LIMITS_EXCEEDED.value:
                raise
            reason = f"polkit did not decide: {error.message}"
            if error.name in _ABSENT:
                reason = "polkit, which could permit it, does not run"
            raise NotPermitted(f"{refused}: {reason}", hint) from error
        if challenge and not granted and not self.interactive:
            raise PasswordNeeded(f"authentication required: {action} needs a password", hint)
        if not granted:
            raise NotPermitted(refused, hint)


caller: ContextVar[Caller] = ContextVar("caller")       # the caller of the running method


class _Reply:
    """Stands in for dbus-next's sender and keeps the reply of a call."""

    message: Message

    def __call__(self, message: Message) -> None:
        self.message = message

    def send_error(self, error: Exception) -> None:
        raise error


class Bus(BaseMessageBus):
    """The exported objects; answers the method calls that arrive over the connection."""

    def __init__(self, refresh: Callable[[], Awaitable[None]], *, polkit: bool) -> None:
        super().__init__(SYSTEM_BUS)    # the address is never used
        self._refresh = refresh
        self._polkit = polkit
        self._connection: BusConnection | None = None
        self._checks: PolkitChecks | None = None
        self._calls: dict[str, set[asyncio.Task[None]]] = {}    # pending calls by caller
        self._of_user: Counter[int | str] = Counter()           # number of pending calls
        self._uids: dict[str, int] = {}     # by caller; a name on the bus is never used again
        self._presence: asyncio.Task[None] | None = None
        self._sending = asyncio.Lock()  # held while a reply is sent: large replies one by one
        self._announced: dict[Interface, dict[str, Any]] = {}
        self._dirty: dict[Interface, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._last = float("-inf")
        self._next: asyncio.Task[bytes] | None = None       # the _collect() that has not begun yet
        self._collecting = asyncio.Lock()
        self._not_before = 0.0

    def _setup_socket(self) -> None:
        """Does nothing: connection.py owns the socket."""

    def attach(self, connection: BusConnection | None) -> None:
        """Sets the connection that signals are sent over; None: signals are dropped."""
        self._connection = connection
        if connection is not None and self._polkit:
            self._checks = PolkitChecks(connection)

    async def close(self) -> None:
        """Answers all pending calls: after PATIENCE with the error that nvshared is stopping."""
        if self._presence is not None:
            self._presence.cancel()
        if self._calls:
            await asyncio.wait(set().union(*self._calls.values()), timeout=PATIENCE)
        calls = [call for each in self._calls.values() for call in each]
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    def take(self, connection: BusConnection, received: Received) -> None:
        """Starts a task that answers a call, unless its sender has too many pending calls."""
        loop, sender = asyncio.get_running_loop(), received.message.sender
        calls = self._calls.setdefault(sender, set())
        if len(calls) >= CALLS_EACH:
            _refuse(connection, received.message, _too_many(CALLS_EACH))
            return
        call = loop.create_task(self._answer(connection, received))
        calls.add(call)
        call.add_done_callback(partial(self._done, sender))
        if self._presence is None or self._presence.done():
            self._presence = loop.create_task(self._drop_departed(connection))

    def _done(self, sender: str, call: "asyncio.Task[None]") -> None:
        self._calls[sender].discard(call)
        if not self._calls[sender]:
            del self._calls[sender]

    async def _drop_departed(self, connection: BusConnection) -> None:
        """Cancels calls of callers that have left the bus, until no call is pending."""
        while self._calls:
            before = {sender: tuple(calls) for sender, calls in self._calls.items()}
            await asyncio.sleep(PRESENCE_INTERVAL)
            for sender, calls in before.items():
                pending = [call for call in calls if not call.done()]
                if pending and await has_left(self._connection or connection, sender):
                    for call in pending:
                        call.cancel()

    async def _answer(self, connection: BusConnection, received: Received) -> None:
        message = received.message
        sender = Caller(connection, message, self._checks)
        caller.set(sender)
        user: int | str | None = None   # None: not counted
        try:
            try:
                user = await self._count(sender)
                reply = await self._outcome(received)
                await self._sending.acquire()
            except BusError as error:   # of _count()
                _refuse(connection, message, error)
                return
            except asyncio.CancelledError:
                _refuse(connection, message, NotRunning("nvshared is stopping"))
                return
            try:
                if not message.flags & MessageFlag.NO_REPLY_EXPECTED:
                    await connection.deliver(reply)
            finally:
                self._sending.release()
        finally:
            if user is not None:
                self._of_user -= Counter([user])    # Counter's -= removes counts of zero

    async def _count(self, sender: Caller) -> int | str | None:
        """Counts a pending call for its user, unless that is the administrator. Raises BusError if
        there are too many. If the bus does not say, as it may be flooded, the caller counts alone.
        """
        sender.known_uid = self._uids.get(sender.name)
        user: int | str = sender.name
        with suppress(BusError):
            uid = await sender.uid()
            if len(self._uids) >= CALLERS_KNOWN:
                self._uids.clear()
            self._uids[sender.name] = uid
            if await sender.administers():
                return None
            user = subordinate.lender(uid)  # uids that /etc/subuid gives one user count as one
        if self._of_user[user] >= CALLS_EACH_USER:
            raise _too_many(CALLS_EACH_USER)
        self._of_user[user] += 1
        return user

    async def _outcome(self, received: Received) -> Message:
        message, reply = received.message, _Reply()
        try:
            handler = BaseMessageBus._find_message_handler(self, message)
            if handler is None:
                raise self._missing(message)
            message.body = cast(list[Any], received)    # unmarshalled once the caller is authorised
            if inspect.isawaitable(running := handler(message, reply)):
                await running
            body: Any = reply.message.body
            if not isinstance(body, bytes):
                reply.message.body = cast(list[Any], marshalled(reply.message.signature, *body))
            return reply.message
        except NvshareError as error:
            return _refusal(message, error)
        except DBusError as error:
            return Message.new_error(message, error.type, error.text)
        except Exception:
            logger.exception("%s.%s failed", message.interface, message.member)
            sentence = f"{message.member} failed inside nvshared; its log says more"
            return Message.new_error(message, NvshareError.bus_name, sentence)

    def _missing(self, message: Message) -> NvshareError:
        path, interface = str(message.path), message.interface
        found = {one.name: one for one in self._path_exports.get(path, ())}
        if not found and not self._children(path):
            quoted = path if len(path) <= LONGEST_PATH else f"{path[:LONGEST_PATH]}…"
            return BusError(ErrorType.UNKNOWN_OBJECT, f"there is no object at {quoted}")
        if interface not in found:
            return BusError(ErrorType.UNKNOWN_INTERFACE, f"{path} has no interface {interface!r}")
        for method in ServiceInterface._get_methods(found[interface]):
            if method.name == message.member:
                return InvalidArgs(
                    f"{method.name} takes arguments of type {method.in_signature!r}, "
                    f"not {message.signature!r}")
        return BusError(ErrorType.UNKNOWN_METHOD, f"{interface} has no method {message.member!r}")

    def _make_method_handler(
        self, interface: Interface, method: Any
    ) -> Callable[[Message, _Reply], Awaitable[None]]:
        async def handle(message: Message, send: _Reply) -> None:
            if method.action is not ANYONE and not method.itself:
                await caller.get().authorise(method.action)
            result = method.fn(interface, *_arguments(message))
            if inspect.isawaitable(result):
                result = await result
            if not isinstance(result, bytes):   # bytes: the body is marshalled already
                result, _ = ServiceInterface._fn_result_to_body(result, method.out_signature_tree)
            send(_returns(message, method.out_signature, result))

        return handle

    async def _default_properties_handler(self, message: Message, send: _Reply) -> None:
        if message.path not in self._path_exports:
            raise self._missing(message)
        interfaces = self._path_exports[message.path]
        if {"Get": "ss", "GetAll": "s", "Set": "ssv"}.get(message.member) != message.signature:
            raise BusError(
                ErrorType.UNKNOWN_METHOD, f"no {message.member} takes {message.signature!r}")
        if message.member == "Set":
            actions = {
                one.options["action"] for interface in interfaces
                for one in interface.properties.values() if one.access.writable()}
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
            send(_returns(message, "a{sv}", [values]))
            return
        BaseMessageBus._default_properties_handler(self, message, send)

    async def _default_get_managed_objects_handler(self, message: Message, send: _Reply) -> None:
        if message.path != MANAGER_PATH:
            raise BusError(ErrorType.UNKNOWN_INTERFACE, f"the object manager is {MANAGER_PATH}")
        send(_returns(message, "a{oa{sa{sv}}}", await self.everything()))

    def _default_get_machine_id_handler(self, message: Message, send: _Reply) -> None:
        """Replaces dbus-next's handler, which fails on the second call."""
        try:
            send(_returns(message, "s", [Path("/etc/machine-id").read_text().strip()]))
        except OSError as error:
            raise NvshareError(
                f"this machine has no id: {error}", "run systemd-machine-id-setup") from error

    def export(self, path: str, interface: Interface) -> None:  # type: ignore[override]
        interface.path = path
        self._announced[interface] = interface.announced()
        super().export(path, interface)

    def unexport(self, path: str, interface: Any = None) -> None:
        for one in self._path_exports[path]:
            self._announced.pop(one)
            self._dirty.pop(one, None)
        super().unexport(path, interface)

    def announced(self, interface: Interface, name: str) -> Any:
        return self._announced[interface][name]

    def changed(self, interface: Interface) -> None:
        """Schedules a comparison of the interface's properties, which announces changes."""
        if interface not in self._announced:
            return
        self._dirty[interface] = None
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(max(loop.time(), self._last + COALESCE), self.announce)

    def announce(self, seconds: float = SLICE) -> None:
        """Announces pending changes for up to `seconds`, and schedules the rest."""
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._last = loop.time()
        end = loop.time() + seconds
        while self._dirty and loop.time() < end:
            interface = next(iter(self._dirty))
            del self._dirty[interface]
            self._announce(interface)
        if self._dirty:
            self._timer = loop.call_later(0, self.announce)

    async def everything(self) -> bytes:
        """Every managed object, its interfaces and their properties: a{oa{sa{sv}}}."""
        if self._next is None:
            # A task of its own: the first call may be cancelled while other calls wait for it.
            self._next = asyncio.get_running_loop().create_task(self._collect())
        return await asyncio.shield(self._next)

    async def _collect(self) -> bytes:
        loop = asyncio.get_running_loop()
        async with self._collecting:
            await asyncio.sleep(self._not_before - loop.time())
            self._next = None           # later calls wait for the next _collect()
            await self._refresh()
            found, spent = [], 0.0
            for path in filter(_managed, tuple(self._path_exports)):
                await asyncio.sleep(0)  # a hand-over waits for one object at most
                if path in self._path_exports:      # else it was unexported meanwhile
                    began = loop.time()
                    found.append(self._described(path))
                    spent += loop.time() - began
            self._not_before = loop.time() + (SHARE - 1) * spent
            return array(found)

    def _described(self, path: str) -> bytes:
        """An object with its interfaces and their properties, as a marshalled {oa{sa{sv}}}."""
        interfaces = {one.name: one.values() for one in self._path_exports[path]}
        return marshalled("(oa{sa{sv}})", [path, interfaces])

    def _has_interface(self, interface: ServiceInterface) -> bool:
        """False: an interface belongs to one object, so no other path still exports it."""
        return False

    def _emit_interface_added(self, path: str, interface: Interface) -> None:
        if _managed(path) and self._connection is not None:
            # Read the values now, not when the message is made.
            body = [path, {interface.name: interface.values()}]
            self._signal(MANAGER_PATH, OBJECT_MANAGER, "InterfacesAdded", "oa{sa{sv}}", body)

    def _emit_interface_removed(self, path: str, removed_interfaces: list[str]) -> None:
        if _managed(path):
            body = [path, removed_interfaces]
            self._signal(MANAGER_PATH, OBJECT_MANAGER, "InterfacesRemoved", "oas", body)

    def _interface_signal_notify(
        self, interface: Interface, interface_name: str, member: str, signature: str,
        body: list[Any], unix_fds: object = None,
    ) -> None:
        self._signal(interface.path, interface_name, member, signature, body)

    def _introspect_export_path(self, path: str) -> introspection.Node:
        node = introspection.Node.default()
        # dbus-next shows ObjectManager at every path; only MANAGER_PATH has it.
        node.interfaces = [
            one for one in node.interfaces if one.name != OBJECT_MANAGER or path == MANAGER_PATH]
        node.interfaces += [one.introspect() for one in self._path_exports.get(path, ())]
        node.nodes = [introspection.Node(name) for name in self._children(path)]
        return node

    def _children(self, path: str) -> list[str]:
        start = path.rstrip("/") + "/"
        return sorted({
            other[len(start):].split("/", 1)[0]
            for other in self._path_exports if other.startswith(start) and other != start})

    def _announce(self, interface: Interface) -> None:
        before, now = self._announced[interface], interface.announced()
        changed = [name for name, value in now.items() if value != before[name]]
        self._announced[interface] = now
        if changed:
            body = [interface.name, interface.values(changed), []]
            self._signal(interface.path, PROPERTIES, "PropertiesChanged", "sa{sv}as", body)

    def _signal(
        self, path: str, interface: str, member: str, signature: str, body: list[Any]
    ) -> None:
        """Queues a signal, which is encoded later: this call may delay a hand-over."""
        if self._connection is not None:
            self._connection.post(Message.new_signal(path, interface, member, signature, body))


async def has_left(connection: BusConnection, name: str) -> bool:
    """Whether a caller has left the bus, or the bus has. False if the bus does not say, as it may
    be flooded."""
    try:
        return not (await connection.ask(BUS, "NameHasOwner", "s", [name]))[0]
    except BusError as error:
        return error.name == ErrorType.DISCONNECTED.value


def _too_many(most: int) -> BusError:
    return BusError(
        ErrorType.LIMITS_EXCEEDED, f"{most} calls of yours are under way already; "
        "wait for an answer first")


def _managed(path: str) -> bool:
    return path.startswith(MANAGER_PATH + "/")


def _arguments(message: Message) -> list[Any]:
    try:
        return cast(Received, message.body).values()
    except WireError as error:
        raise InvalidArgs(f"the arguments of {message.member} cannot be read: {error}") from error


def _returns(message: Message, signature: str, body: list[Any] | bytes) -> Message:
    reply = Message.new_method_return(message, signature)
    reply.body = cast(list[Any], body)
    return reply


def _refusal(message: Message, error: NvshareError) -> Message:
    name = error.name if isinstance(error, BusError) else error.bus_name
    return Message.new_error(message, name, str(error))


def _refuse(connection: BusConnection, message: Message, error: NvshareError) -> None:
    if not message.flags & MessageFlag.NO_REPLY_EXPECTED:
        connection.post(_refusal(message, error))
