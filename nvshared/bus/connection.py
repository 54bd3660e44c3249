# SPDX-License-Identifier: Apache-2.0
"""The daemon's connection to a message bus: the part of dbus-next that is replaced.

dbus-next's transport treats a full socket buffer as a broken connection, reads messages of any
length at once, and may wait for ever while it authenticates. Messages of one iteration of the event
loop are written after it, since marshalling would delay a hand-over."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

from dbus_next.constants import ErrorType, MessageFlag, MessageType
from dbus_next.message import Message

from nvshared import dbus
from nvshared.dbus import BUS, BusError, Received, WireError
from nvshared.errors import BusUnavailable

logger = logging.getLogger(__name__)

CONNECT_PATIENCE = 10.0                 # seconds for connecting and authenticating
LONGEST = 8192                          # most bytes of a stored body; error replies are the longest
LONGEST_VARIANTS = 2048                 # of one with variants: 8 KiB of them take 7 ms to decode
LONG_CALLS = frozenset({"SetPods"})     # but for these methods: all pods of a node are more
LONGEST_CALL = 1 << 19                  # most bytes of the body of such a call,
LONG_TOGETHER = 1 << 22                 # of all that are not answered yet, as any user may call
LONGEST_HEADER = 4096                   # most bytes of a header; only its path can exceed 255 bytes
AT_A_TIME = 1 << 16                     # bytes read at once of a skipped message
_READ = {one.value for one in MessageType if one is not MessageType.SIGNAL}
_LOST = (OSError, EOFError, WireError)  # raised when the connection has ended

Take = Callable[["BusConnection", Received], None]


class BusConnection:
    """One connection to one message bus."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, take: Take
    ) -> None:
        """`take` is called with every method call that arrives, and must not raise."""
        self._reader = reader
        self._writer = writer
        writer.transport.set_write_buffer_limits(high=0)    # drain() waits until all is written
        self._serial = 0
        self._outgoing: list[tuple[Message, int]] = []  # queued in this iteration of the loop
        self._answers: dict[int, asyncio.Future[Received]] = {}     # by serial of the call
        self._long: WeakSet[Received] = WeakSet()       # calls with bodies of more than LONGEST
        self._take = take
        # Ends when the connection is lost, with the transport's exception if there is one.
        self.reading = asyncio.get_running_loop().create_task(self._read())
        self.reading.add_done_callback(self._ended)

    @classmethod
    async def open(cls, address: str, take: Take) -> "BusConnection":
        """Connects and authenticates. Raises BusUnavailable if either fails."""
        reader, writer = await asyncio.open_unix_connection(sock=dbus.connect(address))
        connection = None
        try:
            # Not wait_for(), which may lose a cancellation in Python 3.11.
            async with asyncio.timeout(CONNECT_PATIENCE):
                writer.write(dbus.introduction())
                line = await reader.readuntil(b"\r\n")
                if not line.startswith(dbus.LET_IN):
                    raise OSError(line.decode(errors="replace").strip())
                writer.write(dbus.BEGIN)
                connection = cls(reader, writer, take)
                await connection.ask(BUS, "Hello", patience=None)
        except BaseException as error:
            if connection is not None:
                await connection.close()
            await _hang_up(writer)
            if not isinstance(error, (*_LOST, asyncio.LimitOverrunError, BusError)):
                raise
            reason = "it hung up" if isinstance(error, EOFError) else str(error) or "no answer"
            raise BusUnavailable(
                f"cannot connect to the message bus at {address!r}: {reason}",
                "is dbus running? --bus chooses another") from error
        return connection

    async def ask(
        self, peer: tuple[str, str, str], member: str, signature: str = "",
        values: Sequence[Any] = (), *, patience: float | None = dbus.PATIENCE,
    ) -> list[Any]:
        """Calls a method of a peer (name, path, interface) for `patience` s. Raises BusError."""
        self.post(Message(*peer, member, signature=signature, body=list(values)))
        serial = self._serial
        answer = self._answers[serial] = asyncio.get_running_loop().create_future()
        try:
            if self.reading.done():
                raise ConnectionError("it has gone")
            async with asyncio.timeout(patience):
                reply = await answer
            answered: list[Any] = reply.values()
        except TimeoutError as error:
            text = f"{peer[0]} did not answer {member} within {patience:.0f} s"
            raise BusError(ErrorType.NO_REPLY, text) from error
        except _LOST as error:
            raise BusError(ErrorType.DISCONNECTED, "the message bus went away") from error
        finally:
            del self._answers[serial]
        if reply.message.message_type is MessageType.ERROR:
            text = str(answered[0]) if answered else f"{member} failed without a reason"
            raise BusError(reply.message.error_name, text)
        return answered

    def post(self, message: Message) -> None:
        """Queues a message. No-op if the connection is lost."""
        self._serial = self._serial % 0xFFFF_FFFF + 1
        if self.reading.done():
            return
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._write)
        self._outgoing.append((message, self._serial))

    async def deliver(self, message: Message) -> None:
        """Queues a message, and waits until it is written or the connection is lost."""
        self.post(message)
        await self._flush()

    async def close(self) -> None:
        """Writes queued messages for up to CONNECT_PATIENCE, then disconnects."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONNECT_PATIENCE):
                await self._flush()
        self.reading.cancel()
        await asyncio.wait([self.reading])
        await _hang_up(self._writer)

    def _write(self) -> None:
        messages, self._outgoing = self._outgoing, []
        if not self.reading.done():
            self._writer.write(b"".join(dbus.pack(*message) for message in messages))

    async def _flush(self) -> None:
        await asyncio.sleep(0)          # lets _write() run, which post() has scheduled
        with contextlib.suppress(OSError):
            await self._writer.drain()

    async def _read(self) -> None:
        """Reads until the bus disconnects. Raises the transport's exceptions, WireError."""
        while True:
            try:
                start = await self._reader.readexactly(dbus.START)
            except asyncio.IncompleteReadError:
                return
            header_size, body_size = dbus.size(start)
            if header_size > LONGEST_HEADER or start[1] not in _READ:
                await self._pass_over(header_size - dbus.START + body_size)
                continue
            header = start + await self._reader.readexactly(header_size - dbus.START)
            await self._read_body(header, body_size)
            # readexactly() does not suspend on buffered data: let other tasks run.
            await asyncio.sleep(0)

    async def _read_body(self, header: bytes, size: int) -> None:
        try:
            received = Received(header)
        except WireError as error:
            logger.debug("passed over a message of %d bytes: %s", len(header) + size, error)
            await self._pass_over(size)
            return
        if self._may_keep(received, size):
            received.body = await self._reader.readexactly(size)
        else:
            await self._pass_over(size)
        self._received(received)

    def _may_keep(self, received: Received, size: int) -> bool:
        """Whether a body of this size is kept, and not passed over."""
        if size <= (LONGEST_VARIANTS if "v" in received.message.signature else LONGEST):
            return True
        kept = sum(len(one.body or b"") for one in self._long)
        # While polkit asks for a password, a call waits as long as its user wants.
        asks = received.message.flags & MessageFlag.ALLOW_INTERACTIVE_AUTHORIZATION
        if (received.message.member not in LONG_CALLS or asks or size > LONGEST_CALL
                or kept + size > LONG_TOGETHER):
            return False
        self._long.add(received)
        return True

    def _received(self, received: Received) -> None:
        message = received.message
        if message.message_type is MessageType.METHOD_CALL:
            self._take(self, received)
        elif (answer := self._answers.get(message.reply_serial)) and not answer.done():
            answer.set_result(received)

    async def _pass_over(self, length: int) -> None:
        for at in range(0, length, AT_A_TIME):
            await self._reader.readexactly(min(length - at, AT_A_TIME))

    def _ended(self, reading: "asyncio.Task[None]") -> None:
        """Fails all calls that wait for a reply."""
        error = None if reading.cancelled() else reading.exception()
        self._writer.transport.abort()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(ConnectionError(str(error or "it closed the connection")))


async def _hang_up(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
