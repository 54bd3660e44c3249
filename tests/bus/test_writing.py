# SPDX-License-Identifier: Apache-2.0
"""A bus that is slow to read, or hangs up."""

import asyncio
import socket
from collections.abc import Iterator

import pytest
from dbus_next.message import Message

from nvshared.bus.writing import Writer

MANY = 2000


def said(number: int) -> Message:
    """One message of many."""
    message = Message.new_signal("/com/nvshare", "com.nvshare.Manager", "News", "s", [str(number)])
    message.serial = number + 1
    return message


def wire(message: Message) -> bytes:
    """As it goes over the socket."""
    return bytes(message._marshall())       # type: ignore[no-untyped-call]


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Ours, with a buffer much smaller than what is to go out, and the bus's."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    ours.setblocking(False)
    theirs.setblocking(False)
    with ours, theirs:
        yield ours, theirs


async def test_it_waits_for_a_bus_that_is_slow(
    pair: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = pair
    loop = asyncio.get_running_loop()
    broken: list[OSError] = []
    writer = Writer(ours, loop, allowed=lambda: True, broken=broken.append)
    futures = [loop.create_future() for _ in range(MANY)]
    messages = [said(number) for number in range(MANY)]
    for message, future in zip(messages, futures, strict=True):
        writer.schedule_write(message, future)
    whole = b"".join(wire(message) for message in messages)
    read = b""
    while len(read) < len(whole):
        assert not broken
        assert read or not futures[-1].done()
        read += await loop.sock_recv(theirs, 1000)
    assert read == whole
    await asyncio.gather(*futures)
    writer.schedule_write(messages[0])      # it has not gone to sleep for good
    assert await loop.sock_recv(theirs, 1000) == wire(messages[0])
    loop.remove_writer(ours)


async def test_it_says_nothing_before_it_may(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    loop = asyncio.get_running_loop()
    allowed: list[bool] = []
    writer = Writer(ours, loop, allowed=lambda: bool(allowed), broken=lambda _error: None)
    early = loop.create_future()
    writer.schedule_write(said(0), early)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not early.done()
    allowed.append(True)
    writer.schedule_write()
    await early
    assert await loop.sock_recv(theirs, 1000) == wire(said(0))


async def test_whoever_waits_hears_that_the_bus_is_gone(
    pair: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = pair
    loop = asyncio.get_running_loop()
    broken: list[OSError] = []

    def gone(error: OSError) -> None:
        broken.append(error)
        loop.remove_writer(ours)

    writer = Writer(ours, loop, allowed=lambda: True, broken=gone)
    theirs.close()
    futures = [loop.create_future() for _ in range(2)]
    for number, future in enumerate(futures):
        writer.schedule_write(said(number), future)
    for future in futures:
        with pytest.raises(BrokenPipeError):
            await future
    assert len(broken) == 1
