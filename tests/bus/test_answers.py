# SPDX-License-Identifier: Apache-2.0
"""What answers may cost: large ones go out one at a time, and count until they are gone."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from nvshared.bus.connection import BusConnection
from nvshared.bus.dispatch import CALLS_EACH, LARGE, Dispatcher
from nvshared.bus.members import ANYONE, Body, Interface, method
from nvshared.bus.tree import Tree
from nvshared.dbus.message import METHOD_CALL, Message
from nvshared.errors import NotRunning
from nvshared.names import MANAGER_PATH
from tests.bus.service import Peeper


class Library(Interface, name="com.example.Library"):
    """Has something large for everybody."""

    @method("Read", gives="text:ay", action=ANYONE)
    def read(self, _caller: Any) -> Body:
        """It."""
        return Body(bytes(LARGE + 1))


class SlowBus:
    """Takes an answer when it is told to."""

    def __init__(self) -> None:
        self.connection = cast(BusConnection, SimpleNamespace(
            answer_calls=self._connect, post=self._post, deliver=self._deliver,
        ))
        self.refused: list[Message] = []
        self.waiting: list[asyncio.Event] = []
        self.most = 0

    def _connect(self, take: Any) -> None:
        self.take = take

    def _post(self, message: Message) -> None:
        self.refused.append(message)

    async def _deliver(self, _message: Message) -> None:
        taken = asyncio.Event()
        self.waiting.append(taken)
        self.most = max(self.most, len(self.waiting))
        await taken.wait()
        self.waiting.remove(taken)


def a_call(sender: str) -> Message:
    return Message(
        METHOD_CALL, serial=5, path=MANAGER_PATH, interface=Library.name, member="Read",
        sender=sender,
    )


async def all_that_can() -> None:
    """Happen before anything else is done."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_large_answers_go_out_one_at_a_time_and_count_until_they_have() -> None:
    tree, bus = Tree(MANAGER_PATH), SlowBus()
    tree.add(MANAGER_PATH, Library())
    dispatcher = Dispatcher(bus.connection, tree, polkit=False)
    for _ in range(CALLS_EACH):
        bus.take(a_call(":1.1"))
    bus.take(a_call(":1.2"))
    await all_that_can()
    assert len(bus.waiting) == 1
    bus.take(a_call(":1.1"))            # nothing of all that has been sent
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
    await dispatcher.close()


async def test_whoever_waits_for_a_large_answer_hears_that_we_stop() -> None:
    tree, bus = Tree(MANAGER_PATH), SlowBus()
    tree.add(MANAGER_PATH, Library())
    dispatcher = Dispatcher(bus.connection, tree, polkit=False)
    for _ in range(3):
        bus.take(a_call(":1.1"))
    await dispatcher.close()
    assert len(bus.refused) == 2        # the first is on its way
    assert {message.error for message in bus.refused} == {NotRunning.bus_name}


async def test_a_long_path_is_not_said_again_in_full(other: Peeper) -> None:
    reply = await other.call("Ping", path="/" + "a" * 10_000)
    assert reply.error_name == "org.freedesktop.DBus.Error.UnknownObject"
    assert reply.body[0].startswith("there is no object at /aaa")
    assert len(reply.body[0]) < 300
