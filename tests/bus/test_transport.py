# SPDX-License-Identifier: Apache-2.0
"""The D-Bus transport: untrusted messages, a slow bus, and a bus that closes."""

import asyncio
import gc
import os
import socket
import weakref
from collections.abc import AsyncIterator, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from dbus_next.constants import ErrorType, MessageFlag, MessageType
from dbus_next.message import Message
from dbus_next.signature import SignatureTree, Variant

from nvshared.bus import dispatch
from nvshared.bus.connection import (
    LONG_TOGETHER,
    LONGEST,
    LONGEST_CALL,
    LONGEST_HEADER,
    LONGEST_VARIANTS,
    BusConnection,
)
from nvshared.bus.dispatch import CALLS_EACH, CALLS_EACH_USER
from nvshared.bus.dispatch import Bus as Dispatcher
from nvshared.bus.interface import ANYONE, Interface, method
from nvshared.dbus import SIGNATURES, BusError, Received, WireError, pack, size
from nvshared.errors import NotRunning
from nvshared.names import MANAGER_INTERFACE, MANAGER_PATH

MANY = 2000


class Bus:
    connection: BusConnection

    def __init__(self, theirs: socket.socket) -> None:
        self.socket = theirs
        self.calls: list[Received] = []
        self._came = asyncio.Event()

    def note(self, _: BusConnection, message: Received) -> None:
        self.calls.append(message)
        self._came.set()

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.socket, data)

    async def receive(self, length: int) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self.socket, length)

    async def called(self, times: int = 1) -> list[Received]:
        async with asyncio.timeout(600):
            while len(self.calls) < times:
                self._came.clear()
                await self._came.wait()
        return self.calls


@pytest.fixture
async def bus() -> AsyncIterator[Bus]:
    """A bus connection with a send buffer much smaller than the messages."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    theirs.setblocking(False)
    made = Bus(theirs)
    made.connection = BusConnection(*await asyncio.open_unix_connection(sock=ours), made.note)
    with theirs:
        yield made
        theirs.close()
        await made.connection.close()


def a_call(signature: str = "", *values: Any, path: str = MANAGER_PATH, member: str = "SetTQ",
           flags: MessageFlag = MessageFlag.NONE) -> bytes:
    return pack(Message("com.nvshare", path, MANAGER_INTERFACE, member, signature=signature,
                        body=list(values), flags=flags), 5)


async def test_bus_transport_skips_the_body_of_a_message_over_the_maximum_length(bus: Bus) -> None:
    await bus.send(a_call("ay", bytes(LONGEST - 4)))
    await bus.send(a_call("ay", bytes(LONGEST)))
    await bus.send(a_call("u", 7))
    fits, long, after = await bus.called(3)
    assert fits.values() == [bytes(LONGEST - 4)]
    assert (long.message.member, long.body) == ("SetTQ", None)
    with pytest.raises(WireError, match="too long"):
        long.values()
    assert after.values() == [7]


async def test_bus_transport_skips_a_body_of_variants_that_would_take_long_to_decode(
        bus: Bus) -> None:
    for length in (LONGEST_VARIANTS, LONGEST_VARIANTS + 1):
        await bus.send(a_call("v", Variant("ay", bytes(length - 8))))
    fits, long = await bus.called(2)
    assert fits.values() == [Variant("ay", bytes(LONGEST_VARIANTS - 8))]
    assert long.body is None


async def test_bus_transport_keeps_a_bounded_number_of_long_lists_of_pods(bus: Bus) -> None:
    body = bytes(LONGEST_CALL - 4)
    most = LONG_TOGETHER // LONGEST_CALL
    for _ in range(most + 1):
        await bus.send(a_call("ay", body, member="SetPods"))
    await bus.called(most + 1)
    assert [one.body is not None for one in bus.calls] == [True] * most + [False]
    bus.calls.clear()                   # they are answered
    await bus.send(a_call("ay", body, member="SetPods"))
    await bus.send(a_call("ay", body + b"x", member="SetPods"))
    await bus.send(a_call(
        "ay", body, member="SetPods", flags=MessageFlag.ALLOW_INTERACTIVE_AUTHORIZATION))
    fits, long, asking = await bus.called(3)
    assert fits.values() == [body]
    assert long.body is asking.body is None


async def test_bus_transport_skips_replies_signals_and_messages_of_unknown_type(bus: Bus) -> None:
    await bus.send(a_call("s", "x" * LONGEST, path="/" + "a" * LONGEST_HEADER))
    await bus.send(a_call(path="/a" * 4096))    # takes so long to decode that others wait
    for kind in (MessageType.SIGNAL.value, 5, 200):
        await bus.send(a_call().replace(b"l\1", b"l" + bytes([kind]), 1))
    await bus.send(pack(Message(message_type=MessageType.METHOD_RETURN, reply_serial=77), 1))
    await bus.send(pack(Message(
        message_type=MessageType.ERROR, reply_serial=77, error_name="com.nvshare.Odd"), 1))
    await bus.send(a_call("u", 7))
    (read,) = await bus.called()
    assert read.values() == [7]


async def test_bus_transport_joins_a_message_in_pieces_and_yields_between_messages(
        bus: Bus) -> None:
    whole = a_call("su", "x" * 100, 7)
    for at in range(len(whole)):
        assert not bus.calls
        await bus.send(whole[at:at + 1])
        await asyncio.sleep(0)
    (read,) = await bus.called()
    assert read.values() == ["x" * 100, 7]
    await bus.send(a_call("u", 7) * 100)
    await bus.called(2)
    assert len(bus.calls) < 101         # the event loop runs between messages
    await bus.called(101)


async def test_bus_transport_caches_a_bounded_number_of_message_signatures(bus: Bus) -> None:
    for number in range(SIGNATURES + 50):
        made_up = f"({number:012b})".translate({ord("0"): "u", ord("1"): "i"})
        await bus.send(a_call("v", Variant(made_up, [0] * 12)))
    for read in await bus.called(SIGNATURES + 50):
        assert read.values()[0].value == [0] * 12
    await bus.send(a_call())
    await bus.called(SIGNATURES + 51)
    assert len(SignatureTree._cache) <= SIGNATURES


async def test_dbus_message_is_freed_without_garbage_collection_once_handled(bus: Bus) -> None:
    gc.disable()
    try:
        await bus.send(a_call("s", "x" * 100))
        (read,) = await bus.called()
        assert read.values() == ["x" * 100]
        text = weakref.ref(read)
        bus.calls.clear()
        del read
        assert text() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("damaged", [
    a_call().replace(b"SetTQ", b"Set\xffQ"), a_call().replace(b"\3\1s", b"\3\1o"),
    a_call().replace(b"\3\1s", b"\x4d\1s"), a_call("u", 7).replace(b"\1u\0", b"\1(\0"),
])
async def test_dbus_message_with_a_damaged_header_is_skipped(bus: Bus, damaged: bytes) -> None:
    await bus.send(damaged)
    await bus.send(a_call("u", 7))
    (read,) = await bus.called()
    assert read.values() == [7]


@pytest.mark.parametrize("body", [b"\1v\0" * 2000 + b"\1y\0\7", b"\1u\0", b"\0\0", b"\2(\0"])
async def test_dbus_message_with_a_damaged_body_raises_wire_error_when_the_values_are_read(
        bus: Bus, body: bytes) -> None:
    call = bytearray(a_call("v", Variant("u", 7)))
    call[4:8] = len(body).to_bytes(4, "little")
    await bus.send(bytes(call[:-8]) + body + a_call("u", 7))
    damaged, after = await bus.called(2)
    with pytest.raises(WireError):
        damaged.values()
    assert after.values() == [7]


@pytest.mark.parametrize("nonsense", [
    b"GET / HTTP/1.1\r\n", b"l\x02\0\x01" + (1 << 31).to_bytes(4, "little") + bytes(8),
])
async def test_dbus_message_with_an_invalid_start_ends_the_connection(
        bus: Bus, nonsense: bytes) -> None:
    await bus.send(nonsense)
    with pytest.raises(WireError):
        await bus.connection.reading


def a_signal(number: int) -> Message:
    return Message.new_signal(MANAGER_PATH, MANAGER_INTERFACE, "News", "s", [str(number)])


async def test_bus_transport_sends_all_messages_to_a_slow_bus_in_order(bus: Bus) -> None:
    for number in range(MANY - 1):
        bus.connection.post(a_signal(number))
    last = asyncio.ensure_future(bus.connection.deliver(a_signal(MANY - 1)))
    whole = b"".join(pack(a_signal(number), number + 1) for number in range(MANY))
    read = b""
    while len(read) < len(whole):
        assert read or not last.done()
        read += await bus.receive(1000)
    assert read == whole
    await last
    await bus.connection.deliver(a_signal(0))       # a later message is still sent
    assert await bus.receive(1000) == pack(a_signal(0), MANY + 1)


async def test_pending_sends_of_dbus_messages_return_when_the_bus_closes_the_connection(
        bus: Bus) -> None:
    waiting = [
        asyncio.ensure_future(bus.connection.deliver(a_signal(number))) for number in range(MANY)]
    await bus.receive(1)
    bus.socket.close()
    await asyncio.gather(*waiting)
    with pytest.raises(OSError, match="reset"):
        await bus.connection.reading
    bus.connection.post(a_signal(0))        # post() on a closed connection raises no error
    await bus.connection.deliver(a_signal(0))


NAME = "com.example.Library"


class Library(Interface, name=NAME):
    """Answers each call with 64 KiB."""

    @method("Read", "text", action=ANYONE)
    def read(self) -> "ay":     # type: ignore[name-defined] # noqa: F821
        return bytes(1 << 16)


class SlowBus:
    """A bus connection that sends each reply only when the test allows it."""

    take: Callable[[Received], None]

    def __init__(self) -> None:
        self.connection = cast(BusConnection, SimpleNamespace(
            post=self._post, deliver=self._deliver, ask=self._ask))
        self.left: set[str] = set()     # callers that have left the bus,
        self.silent: set[str] = set()   # and of which the bus gives no answer
        self.uid = os.geteuid()
        self.refused: list[Message] = []
        self.waiting: list[asyncio.Event] = []
        self.most = 0

    async def _ask(
        self, _peer: object, member: str, _signature: str, names: list[str]
    ) -> list[Any]:
        if member == "GetConnectionUnixUser":
            return [self.uid]
        if names[0] in self.silent:
            raise BusError(ErrorType.NO_REPLY, "it did not answer")
        return [names[0] not in self.left]

    def _post(self, message: Message) -> None:
        self.refused.append(message)

    async def _deliver(self, _message: Message) -> None:
        taken = asyncio.Event()
        self.waiting.append(taken)
        self.most = max(self.most, len(self.waiting))
        await taken.wait()
        self.waiting.remove(taken)


def library_call(sender: str) -> Received:
    data = pack(Message(path=MANAGER_PATH, interface=NAME, member="Read", sender=sender), 5)
    header, _ = size(data)
    return Received(data[:header], b"")


def a_library(slow: SlowBus) -> Dispatcher:
    async def refresh() -> None:
        """No-op: the library has no GPU to sample."""

    bus = Dispatcher(refresh, polkit=False)
    bus.export(MANAGER_PATH, Library())
    slow.take = partial(bus.take, slow.connection)
    return bus


async def all_that_can() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_bus_sends_replies_in_sequence_and_limits_unsent_replies_of_each_caller() -> None:
    bus = SlowBus()
    library = a_library(bus)
    for _ in range(CALLS_EACH):
        bus.take(library_call(":1.1"))
    bus.take(library_call(":1.2"))
    await all_that_can()
    assert len(bus.waiting) == 1
    bus.take(library_call(":1.1"))  # over the limit: CALLS_EACH replies to this caller are unsent
    assert len(bus.refused) == 1
    gone = 0
    while bus.waiting:
        bus.waiting[0].set()
        gone += 1
        await all_that_can()
    assert (gone, bus.most) == (CALLS_EACH + 1, 1)
    bus.take(library_call(":1.1"))
    await all_that_can()
    assert len(bus.refused) == 1
    bus.waiting[0].set()
    await library.close()


async def test_dbus_calls_with_queued_replies_are_refused_when_the_daemon_stops() -> None:
    bus = SlowBus()
    library = a_library(bus)
    for _ in range(3):
        bus.take(library_call(":1.1"))
    await library.close()
    assert len(bus.refused) == 2        # the first call is not refused: its reply is being sent
    assert {message.error_name for message in bus.refused} == {NotRunning.bus_name}


async def test_calls_of_a_user_over_any_number_of_connections_are_limited() -> None:
    bus = SlowBus()
    bus.uid = os.geteuid() + 1000
    library = a_library(bus)
    for number in range(2 * CALLS_EACH_USER // CALLS_EACH):
        for _ in range(CALLS_EACH):
            bus.take(library_call(f":1.{number}"))
    await all_that_can()
    assert len(bus.refused) == CALLS_EACH_USER
    bus.waiting[0].set()                # the place of a call that was answered is free again
    await all_that_can()
    bus.take(library_call(":1.99"))
    await all_that_can()
    assert len(bus.refused) == CALLS_EACH_USER
    await close(bus, library)


async def close(bus: SlowBus, library: Dispatcher) -> None:
    closing = asyncio.create_task(library.close())
    while not closing.done():
        for waiting in bus.waiting:
            waiting.set()
        await asyncio.sleep(0)


@pytest.mark.parametrize(("error", "present"), [
    (ErrorType.NO_REPLY, True), (ErrorType.LIMITS_EXCEEDED, True),
    (ErrorType.DISCONNECTED, False)])
async def test_caller_counts_as_present_unless_the_bus_says_otherwise_or_has_ended(
        error: ErrorType, present: bool) -> None:
    async def ask(*_: object) -> list[Any]:
        raise BusError(error, "no answer")

    bus = cast(BusConnection, SimpleNamespace(ask=ask))
    assert await dispatch.has_left(bus, ":1.1") is not present


async def test_pending_calls_of_a_caller_end_when_the_caller_leaves_the_bus(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "PRESENCE_INTERVAL", 0)
    bus = SlowBus()
    library = a_library(bus)
    for sender in (":1.1", ":1.1", ":1.2"):
        bus.take(library_call(sender))
    await all_that_can()
    bus.left.update((":1.1", ":1.2"))
    bus.silent.add(":1.2")              # the bus does not say that it has left
    while ":1.1" in library._calls:     # noqa: ASYNC110
        await asyncio.sleep(0)
    assert len(library._calls[":1.2"]) == 1
    await close(bus, library)
