# SPDX-License-Identifier: Apache-2.0
"""The daemon's connection to a message bus: the part of dbus-next that is replaced.

dbus-next's own transport for asyncio cannot serve senders that nobody has vetted, nor a bus that
is slower than we are: it takes a socket whose buffer is full for a broken one, reads a message of
any length, at once and completely, keeps what it read until the cyclic collector runs, and waits
for ever for a bus that hangs up during authentication. Here

* one message is read at a time, and between two everything else has its turn;
* a body longer than any we are ever sent is not kept: the call is answered, its values are not
  read. A message whose header is longer than any is passed over, so no answer goes out;
* what is to go out in one turn of the loop goes out together: each message of its own would cost
  both sides a wake-up. What the bus does not take yet waits;
* signals are passed over: we listen to none;
* passing file descriptors is never negotiated.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

from dbus_next.constants import ErrorType, MessageType
from dbus_next.message import Message

from nvshared import dbus
from nvshared.dbus import BUS, Received, WireError
from nvshared.errors import BusUnavailable, NvshareError

logger = logging.getLogger(__name__)

CONNECT_PATIENCE = 10.0                 # seconds for being let in
LONGEST = 8192                          # bytes of a body; the longest we know are error messages
LONGEST_HEADER = 1 << 16                # bytes; each name in it has at most 255, but for the path
AT_A_TIME = 1 << 16                     # bytes of what is passed over
_SERIALS = (1 << 32) - 1
_READ = {one.value for one in MessageType if one is not MessageType.SIGNAL}
_LOST = (OSError, EOFError, WireError)  # what the end of a connection looks like


class BusError(NvshareError):
    """An error that another peer on the bus answered with; `name` is its D-Bus name."""

    def __init__(self, type_: ErrorType | str, message: str) -> None:
        super().__init__(message)
        self.name = str(type_.value) if isinstance(type_, ErrorType) else type_


class BusConnection:
    """One connection to one message bus."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.users: dict[str, int] = {}         # whom other connections on this bus belong to
        self._reader = reader
        self._writer = writer
        # Then drain() returns once everything has gone.
        writer.transport.set_write_buffer_limits(high=0)
        self._serial = 0
        self._outgoing = bytearray()    # of this turn of the loop
        self._answers: dict[int, asyncio.Future[Received]] = {}     # by the serial of the call
        self._handler: Callable[[Received], None] | None = None
        self._reading = asyncio.get_running_loop().create_task(self._read())
        self._reading.add_done_callback(self._ended)

    @classmethod
    async def open(cls, address: str) -> "BusConnection":
        """Connects. Raises BusUnavailable if nobody listens there or we are not let in."""
        reader, writer = await asyncio.open_unix_connection(sock=dbus.connect(address))
        connection = None
        try:
            # Not wait_for(): in Python 3.11 it forgets that it was cancelled, if at that
            # moment what it waits for is done.
            async with asyncio.timeout(CONNECT_PATIENCE):
                writer.write(dbus.introduction())
                line = await reader.readuntil(b"\r\n")
                if not line.startswith(dbus.LET_IN):
                    raise OSError(line.decode(errors="replace").strip())
                writer.write(dbus.BEGIN)
                connection = cls(reader, writer)
                await connection.ask(BUS, "Hello", patience=None)
        except BaseException as error:
            if connection is not None:
                await connection.close()
            await _hang_up(writer)
            if not isinstance(error, (*_LOST, asyncio.LimitOverrunError, BusError)):
                raise
            reason = "it hung up" if isinstance(error, EOFError) else str(error)
            raise BusUnavailable(
                f"cannot connect to the message bus at {address!r}: "
                f"{reason or 'it did not answer'}",
                "is dbus running? --bus chooses another, --bus none does without",
            ) from error
        return connection

    def answer_calls(self, handler: Callable[[Received], None]) -> None:
        """Hands every method call to `handler`, which must not raise."""
        self._handler = handler

    async def ask(
        self, peer: tuple[str, str, str], member: str, signature: str = "",
        values: Sequence[Any] = (), *, patience: float | None = dbus.PATIENCE,
    ) -> list[Any]:
        """Calls a method of another peer and returns what it answers.

        `peer` is (name, path, interface); `patience` is in seconds, None
        waits as long as it takes. Raises BusError.
        """
        self.post(Message(*peer, member, signature=signature, body=list(values)))
        serial = self._serial
        answer = self._answers[serial] = asyncio.get_running_loop().create_future()
        try:
            if self._reading.done():
                raise ConnectionError("it has gone")
            async with asyncio.timeout(patience):
                reply = await answer
            answered: list[Any] = reply.values()
        except TimeoutError as error:
            raise BusError(
                ErrorType.NO_REPLY, f"{peer[0]} did not answer {member} within {patience:.0f} s"
            ) from error
        except _LOST as error:
            raise BusError(ErrorType.DISCONNECTED, "the message bus went away") from error
        finally:
            del self._answers[serial]
        if reply.message.message_type is MessageType.ERROR:
            said = str(answered[0]) if answered else f"{member} failed without a reason"
            raise BusError(reply.message.error_name, said)
        return answered

    def post(self, message: Message) -> None:
        """Queues a message. Once the bus is gone there is nobody to tell, so it is dropped."""
        self._serial = self._serial % _SERIALS + 1
        if self._reading.done():
            return
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._write)
        self._outgoing += dbus.pack(message, self._serial)

    async def deliver(self, message: Message) -> None:
        """The same, and returns once it is with the bus, or that is gone."""
        self.post(message)
        await self._flush()

    async def lost(self) -> None:
        """Returns, or raises what the transport met, once the bus is gone."""
        await asyncio.shield(self._reading)

    async def close(self) -> None:
        """Sends what is queued, then disconnects."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONNECT_PATIENCE):
                await self._flush()
        self._reading.cancel()
        await asyncio.wait([self._reading])
        await _hang_up(self._writer)

    def _write(self) -> None:
        data, self._outgoing = self._outgoing, bytearray()
        if data and not self._reading.done():
            self._writer.write(data)

    async def _flush(self) -> None:
        await asyncio.sleep(0)          # then what was queued has been written
        with contextlib.suppress(OSError):
            await self._writer.drain()

    async def _read(self) -> None:
        """Until the bus hangs up. Raises what the transport met, or WireError."""
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
            body = None                 # a longer one
            if body_size <= LONGEST:
                body = await self._reader.readexactly(body_size)
            else:
                await self._pass_over(body_size)
            try:
                self._take(Received(header, body))
            except WireError as error:
                logger.debug("passed over a message of %d bytes: %s", header_size, error)
            # What was read ahead is not waited for, so without this nobody else had a turn.
            await asyncio.sleep(0)

    async def _pass_over(self, length: int) -> None:
        while length:
            part = min(length, AT_A_TIME)
            await self._reader.readexactly(part)
            length -= part

    def _take(self, received: Received) -> None:
        if received.message.message_type is MessageType.METHOD_CALL:
            if self._handler is not None:
                self._handler(received)
            return
        answer = self._answers.get(received.message.reply_serial)
        if answer is not None and not answer.done():
            answer.set_result(received)

    def _ended(self, reading: "asyncio.Task[None]") -> None:
        """Whoever waits for an answer hears that there will be none."""
        error = None if reading.cancelled() else reading.exception()
        self._writer.transport.abort()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(ConnectionError(str(error or "it closed the connection")))


async def _hang_up(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
