# SPDX-License-Identifier: Apache-2.0
"""The bus sends replies in sequence; an unsent reply counts toward the caller's limit."""

import asyncio
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import cast

from dbus_next.message import Message

from nvshared.bus.connection import BusConnection
from nvshared.bus.dispatch import CALLS_EACH, Bus
from nvshared.bus.interface import ANYONE, Interface, method
from nvshared.dbus import Received, pack, size
from nvshared.errors import NotRunning
from nvshared.names import MANAGER_PATH

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
            post=self._post, deliver=self._deliver))
        self.refused: list[Message] = []
        self.waiting: list[asyncio.Event] = []
        self.most = 0

    def _post(self, message: Message) -> None:
        self.refused.append(message)

    async def _deliver(self, _message: Message) -> None:
        taken = asyncio.Event()
        self.waiting.append(taken)
        self.most = max(self.most, len(self.waiting))
        await taken.wait()
        self.waiting.remove(taken)


def a_call(sender: str) -> Received:
    data = pack(Message(path=MANAGER_PATH, interface=NAME, member="Read", sender=sender), 5)
    header, _ = size(data)
    return Received(data[:header], b"")


def a_library(slow: SlowBus) -> Bus:
    async def refresh() -> None:
        """No-op: the library has no GPU to sample."""

    bus = Bus(refresh, polkit=False)
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
        bus.take(a_call(":1.1"))
    bus.take(a_call(":1.2"))
    await all_that_can()
    assert len(bus.waiting) == 1
    bus.take(a_call(":1.1"))  # over the limit: CALLS_EACH replies to this caller are unsent
    assert len(bus.refused) == 1
    gone = 0
    while bus.waiting:
        bus.waiting[0].set()
        gone += 1
        await all_that_can()
    assert (gone, bus.most) == (CALLS_EACH + 1, 1)
    bus.take(a_call(":1.1"))
    await all_that_can()
    assert len(bus.refused) == 1
    bus.waiting[0].set()
    await library.close()


async def test_dbus_calls_with_queued_replies_are_refused_when_the_daemon_stops() -> None:
    bus = SlowBus()
    library = a_library(bus)
    for _ in range(3):
        bus.take(a_call(":1.1"))
    await library.close()
    assert len(bus.refused) == 2        # the first call is not refused: its reply is being sent
    assert {message.error_name for message in bus.refused} == {NotRunning.bus_name}
