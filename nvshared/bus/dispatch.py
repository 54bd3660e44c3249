# SPDX-License-Identifier: Apache-2.0
"""The objects on the bus: answers method calls and announces changes, with polkit's permission.

Not dbus-next's message bus: that sends InterfacesAdded from the wrong path, matches children by a
part of their path, and reads all properties of all objects at once.
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
from dbus_next.message import Message
from dbus_next.signature import Variant

from nvshared.bus.collected import Collected
from nvshared.bus.connection import BusConnection
from nvshared.bus.interface import ANYONE, Interface, Method
from nvshared.dbus import BUS, BusError, Received, WireError, marshalled
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
STANDARD = {one.name for one in introspection.Node.default().interfaces}


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
        # After a restart of the bus another process may have the name.
        self.key = connection, self.name
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


class Bus:
    """The exported objects; answers the method calls that arrive over the connection."""

    def __init__(self, refresh: Callable[[], Awaitable[None]], *, polkit: bool) -> None:
        self._refresh = refresh
        self._exports: dict[str, list[Interface]] = {}          # by path
        self._polkit = polkit
        self._connection: BusConnection | None = None
        self._checks: PolkitChecks | None = None
        self._calls: dict[str, set[asyncio.Task[None]]] = {}    # pending calls by caller
        self._of_user: Counter[int | str] = Counter()           # number of pending calls
        self._uids: dict[str, int] = {}     # by caller; a bus gives a name once, until it restarts
        self._presence: asyncio.Task[None] | None = None
        self._sending = asyncio.Lock()  # held while a reply is sent: large replies one by one
        self._dirty: dict[Interface, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._last = float("-inf")
        # Every managed object, its interfaces and their properties: a{oa{sa{sv}}}.
        self._everything = Collected(self._paths, self._described)

    def attach(self, connection: BusConnection | None) -> None:
        """Sets the connection that signals are sent over; None: signals are dropped."""
        self._connection = connection
        self._uids.clear()              # another bus gives these names to others
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
        message = received.message
        try:
            signature, body = await self._carry_out(received)
            reply = Message.new_method_return(message, signature)
            if not isinstance(body, bytes):     # else it is marshalled already
                body = marshalled(signature, *body)
            reply.body = cast(list[Any], body)
            return reply
        except NvshareError as error:
            return _refusal(message, error)
        except Exception:
            logger.exception("%s.%s failed", message.interface, message.member)
            sentence = f"{message.member} failed inside nvshared; its log says more"
            return Message.new_error(message, NvshareError.bus_name, sentence)

    async def _carry_out(self, received: Received) -> tuple[str, list[Any] | bytes]:
        """Carries out a call. Returns the type of its results, and them."""
        message = received.message
        path = str(message.path)
        match message.interface, message.member, message.signature:
            case "org.freedesktop.DBus.Introspectable", "Introspect", "":
                return "s", [self._introspected(path).tostring()]
            case "org.freedesktop.DBus.Peer", "Ping", "":
                return "", []
            case "org.freedesktop.DBus.Peer", "GetMachineId", "":
                return "s", [_machine_id()]
            case name, "GetManagedObjects", _ if name == OBJECT_MANAGER:
                if path != MANAGER_PATH:
                    raise BusError(
                        ErrorType.UNKNOWN_INTERFACE, f"the object manager is {MANAGER_PATH}")
                return "a{oa{sa{sv}}}", await self._everything.get()
            case name, _, _ if name == PROPERTIES:
                return await self._access_properties(received)
        interface, method = self._method(message)
        if method.action is not ANYONE and not method.itself:
            await caller.get().authorise(method.action)
        result = method.act(interface, *_arguments(received))
        if inspect.isawaitable(result):
            result = await result
        if not isinstance(result, bytes):
            result = [result] if method.out_signature else []
        return method.out_signature, result

    def _method(self, message: Message) -> tuple[Interface, Method]:
        """The method that a call is for. Raises BusError, InvalidArgs."""
        path, name, member = str(message.path), message.interface, message.member
        interface = next((one for one in self._exports.get(path, ()) if one.name == name), None)
        if interface is None:
            raise self._missing(path, name)
        method = interface.methods.get(member)
        if method is None:
            raise BusError(ErrorType.UNKNOWN_METHOD, f"{name} has no method {member!r}")
        if method.in_signature != message.signature:
            raise InvalidArgs(f"{member} takes arguments of type {method.in_signature!r}, "
                              f"not {message.signature!r}")
        return interface, method

    def _missing(self, path: str, interface: str) -> BusError:
        if path in self._exports or self._children(path):
            return BusError(ErrorType.UNKNOWN_INTERFACE, f"{path} has no interface {interface!r}")
        quoted = path if len(path) <= LONGEST_PATH else f"{path[:LONGEST_PATH]}…"
        return BusError(ErrorType.UNKNOWN_OBJECT, f"there is no object at {quoted}")

    async def _access_properties(self, received: Received) -> tuple[str, list[Any]]:
        message = received.message
        path, member = str(message.path), message.member
        interfaces = self._exports.get(path)
        if interfaces is None:
            raise self._missing(path, PROPERTIES)
        if {"Get": "ss", "GetAll": "s", "Set": "ssv"}.get(member) != message.signature:
            raise BusError(ErrorType.UNKNOWN_METHOD, f"no {member} takes {message.signature!r}")
        if member == "Set":
            actions = {one.action for interface in interfaces
                       for one in interface.properties.values() if one.write is not None}
            if not actions:
                raise BusError(ErrorType.PROPERTY_READ_ONLY, f"{path} has none to write")
            for action in actions:
                await caller.get().authorise(str(action))
        name, *rest = _arguments(received)
        chosen = [one for one in interfaces if name in (one.name, "")]
        if not chosen and name not in STANDARD:         # the standard interfaces have no properties
            raise self._missing(path, name)
        for one in chosen:
            await one.refresh()
        if member == "GetAll":
            return "a{sv}", [
                {name: value for one in chosen for name, value in one.values().items()}]
        wanted, *given = rest
        interface = next((one for one in chosen if wanted in one.properties), None)
        if interface is None:
            raise BusError(ErrorType.UNKNOWN_PROPERTY, f"{name or path} has no property {wanted!r}")
        found = interface.properties[wanted]
        if member == "Get":
            return "v", [Variant(found.type, found.read(interface))]
        if found.write is None:
            raise BusError(ErrorType.PROPERTY_READ_ONLY, f"{wanted} cannot be written")
        (value,) = given
        if value.signature != found.signature:
            raise BusError(ErrorType.INVALID_SIGNATURE, f"{wanted} is of type {found.signature!r}")
        found.write(interface, value.value)
        return "", []

    def export(self, path: str, interface: Interface) -> None:
        interface.path, interface.bus, interface.shown = path, self, interface.announced()
        self._exports.setdefault(path, []).append(interface)
        if _managed(path) and self._connection is not None:
            # Read the values now, not when the message is made.
            body = [path, {interface.name: interface.values()}]
            self.signal(MANAGER_PATH, OBJECT_MANAGER, "InterfacesAdded", "oa{sa{sv}}", body)

    def unexport(self, path: str) -> None:
        gone = self._exports.pop(path)
        for one in gone:
            one.bus = None
            self._dirty.pop(one, None)
        if _managed(path):
            body = [path, [one.name for one in gone]]
            self.signal(MANAGER_PATH, OBJECT_MANAGER, "InterfacesRemoved", "oas", body)

    def changed(self, interface: Interface) -> None:
        """Schedules a comparison of the interface's properties, which announces changes."""
        if interface.bus is None:
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

    async def _paths(self) -> list[str]:
        await self._refresh()
        return [*filter(_managed, self._exports)]

    def _described(self, path: str) -> bytes | None:
        """An object with its interfaces and their properties, as a marshalled {oa{sa{sv}}}."""
        if path not in self._exports:
            return None                 # it was unexported meanwhile
        interfaces = {one.name: one.values() for one in self._exports[path]}
        return marshalled("(oa{sa{sv}})", [path, interfaces])

    def _introspected(self, path: str) -> introspection.Node:
        node = introspection.Node.default()
        # dbus-next shows ObjectManager at every path; only MANAGER_PATH has it.
        node.interfaces = [
            one for one in node.interfaces if one.name != OBJECT_MANAGER or path == MANAGER_PATH]
        node.interfaces += [one.described for one in self._exports.get(path, ())]
        node.nodes = [introspection.Node(name) for name in self._children(path)]
        return node

    def _children(self, path: str) -> list[str]:
        start = path.rstrip("/") + "/"
        return sorted({
            other[len(start):].split("/", 1)[0]
            for other in self._exports if other.startswith(start) and other != start})

    def _announce(self, interface: Interface) -> None:
        before, interface.shown = interface.shown, interface.announced()
        changed = [name for name, value in interface.shown.items() if value != before[name]]
        if changed:
            body = [interface.name, interface.values(changed), []]
            self.signal(interface.path, PROPERTIES, "PropertiesChanged", "sa{sv}as", body)

    def signal(
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


def _arguments(received: Received) -> list[Any]:
    try:
        return received.values()
    except WireError as error:
        member = received.message.member
        raise InvalidArgs(f"the arguments of {member} cannot be read: {error}") from error


def _machine_id() -> str:
    try:
        return Path("/etc/machine-id").read_text().strip()
    except OSError as error:
        raise NvshareError(
            f"this machine has no id: {error}", "run systemd-machine-id-setup") from error


def _refusal(message: Message, error: NvshareError) -> Message:
    name = error.name if isinstance(error, BusError) else error.bus_name
    return Message.new_error(message, name, str(error))


def _refuse(connection: BusConnection, message: Message, error: NvshareError) -> None:
    if not message.flags & MessageFlag.NO_REPLY_EXPECTED:
        connection.post(_refusal(message, error))
