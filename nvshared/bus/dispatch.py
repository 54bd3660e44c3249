# SPDX-License-Identifier: Apache-2.0
"""From a method call to its answer.

A call is looked up in the tree, its arguments' types are compared, its caller
is authorised, the method runs, and the answer goes out: the result, or the
D-Bus error of an NvshareError, or, for a fault of our own, one sentence; the
traceback goes to the log and to nobody else.

Each call is a task, so that one that waits for polkit holds up nobody. They
start in the order in which the calls came in. A caller that does not wait for
its answers is refused after so many. A call is under way until its answer is with
the bus, and of large answers one at a time is made ready to go there: a bus that
is slow to read, or a crowd that asks at once, costs us no memory.
"""

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from dbus_next.constants import ErrorType

from nvshared.bus.authority import Caller, Checks
from nvshared.bus.connection import BusConnection, BusError
from nvshared.bus.members import Body, Interface, Method, Owned, signature
from nvshared.bus.standard import Introspectable, PeerInterface, UnknownInterface
from nvshared.bus.tree import Tree
from nvshared.dbus.message import NO_REPLY_EXPECTED, Message
from nvshared.dbus.types import WireError
from nvshared.dbus.writing import encode
from nvshared.errors import InvalidArgs, NotPermitted, NotRunning, NvshareError

logger = logging.getLogger(__name__)

PATIENCE = 1.0                          # seconds that calls under way get when we close
CALLS_EACH = 64                         # of one caller, under way at a time
LARGE = 1 << 16                         # bytes of an answer
LONGEST_PATH = 255                      # characters of one that we say again


class UnknownObject(NvshareError, bus_name=ErrorType.UNKNOWN_OBJECT.value):
    """There is no object at that path."""


class UnknownMethod(NvshareError, bus_name=ErrorType.UNKNOWN_METHOD.value):
    """The object has no method of that name."""


class LimitsExceeded(NvshareError, bus_name=ErrorType.LIMITS_EXCEEDED.value):
    """The caller has too many calls under way."""


class Dispatcher:
    """Answers the calls that come in over one connection."""

    def __init__(self, connection: BusConnection, tree: Tree, *, polkit: bool) -> None:
        self._connection = connection
        self._tree = tree
        self._checks = Checks(connection) if polkit else None
        self._calls: set[asyncio.Task[None]] = set()
        self._of_caller: Counter[str] = Counter()
        self._large = asyncio.Lock()    # held while a large answer goes out
        connection.answer_calls(self._take)

    async def close(self) -> None:
        """Answers everybody who has asked: those who are not done soon hear that we stop."""
        if self._calls:
            await asyncio.wait(self._calls, timeout=PATIENCE)
        calls = tuple(self._calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    def _take(self, message: Message) -> None:
        caller = message.sender
        if self._of_caller[caller] >= CALLS_EACH:
            refusal = LimitsExceeded(
                f"{CALLS_EACH} calls of yours are under way already", "wait for an answer first"
            )
            self._post(message, message.refusal(refusal.bus_name, str(refusal)))
            return
        self._of_caller[caller] += 1
        call = asyncio.get_running_loop().create_task(self._answer(message))
        self._calls.add(call)
        call.add_done_callback(partial(self._done, caller))

    def _done(self, caller: str, call: "asyncio.Task[None]") -> None:
        self._calls.discard(call)
        self._of_caller[caller] -= 1
        if not self._of_caller[caller]:
            del self._of_caller[caller]

    async def _answer(self, message: Message) -> None:
        large = False
        try:
            reply = await self._outcome(message)
            if len(reply.body) > LARGE:
                large = await self._large.acquire()
        except asyncio.CancelledError:
            stopping = NotRunning("nvshared is stopping")
            self._post(message, message.refusal(stopping.bus_name, str(stopping)))
            return
        try:
            if _awaited(message):
                await self._connection.deliver(reply)
        finally:
            if large:
                self._large.release()

    async def _outcome(self, message: Message) -> Message:
        try:
            interface, method = self._find(message)
            result = await self._run(interface, method, message)
            return _answer(message, method, result)
        except NvshareError as error:
            name = error.name if isinstance(error, BusError) else error.bus_name
            return message.refusal(name, str(error))
        except Exception:
            return _fault(message)

    def _post(self, message: Message, reply: Message) -> None:
        if _awaited(message):
            self._connection.post(reply)

    async def _run(self, interface: Interface, method: Method, message: Message) -> Any:
        wanted = signature(method.takes)
        if message.signature != wanted:
            raise InvalidArgs(
                f"{method.name} takes arguments of type {wanted!r}, not {message.signature!r}"
            )
        try:
            values = message.values()
        except WireError as error:
            raise InvalidArgs(f"the arguments of {method.name} cannot be read: {error}") from error
        caller = Caller(self._connection, message, self._checks)
        await _authorise(caller, interface, method, values)
        result = method.function(interface, caller, *values)
        return await result if inspect.isawaitable(result) else result

    def _find(self, message: Message) -> tuple[Interface, Method]:
        path = message.path
        interfaces = self._tree.interfaces(path) or self._inner(path)
        if message.interface:
            if message.interface not in interfaces:
                raise UnknownInterface(f"{path} has no interface {message.interface!r}")
            interfaces = {message.interface: interfaces[message.interface]}
        for interface in interfaces.values():
            if message.member in interface.methods:
                return interface, interface.methods[message.member]
        raise UnknownMethod(f"{message.interface or path} has no method {message.member!r}")

    def _inner(self, path: str) -> dict[str, Interface]:
        """A path with nothing but objects below it can be introspected, so that tools find them."""
        if not self._tree.children(path):
            said = path if len(path) <= LONGEST_PATH else f"{path[:LONGEST_PATH]}…"
            raise UnknownObject(f"there is no object at {said}")
        found: list[Interface] = [PeerInterface(), Introspectable(self._tree)]
        for interface in found:
            interface.path = path
        return {interface.name: interface for interface in found}


def _awaited(message: Message) -> bool:
    return not message.flags & NO_REPLY_EXPECTED


def _fault(message: Message) -> Message:
    """For what we did not foresee, while that is handled."""
    logger.exception("%s.%s failed", message.interface, message.member)
    sentence = f"{message.member} failed inside nvshared; its log says more"
    return message.refusal(NvshareError.bus_name, sentence)


def _answer(message: Message, method: Method, result: Any) -> Message:
    types = signature(method.gives)
    if isinstance(result, Body):
        return message.reply(types, result)
    values = [result] if len(method.gives) == 1 else result or ()
    return message.reply(types, encode(types, values))


async def _authorise(
    caller: Caller, interface: Interface, method: Method, values: Sequence[Any]
) -> None:
    """Returns if the caller may call this. Raises NotPermitted if not."""
    match method.action:
        case Owned(action, obstacle):
            if await caller.administers():
                return
            found = obstacle(interface, await caller.uid(), *values)
            caller.as_owner = found is None
            if found is not None:
                try:
                    await caller.authorise(action)
                except NotPermitted as error:
                    error.hint = error.hint or found
                    raise
        case str(action):
            await caller.authorise(action)
