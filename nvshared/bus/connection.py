# SPDX-License-Identifier: Apache-2.0
"""The daemon's connection to a message bus: the part of dbus-next that is replaced.

dbus-next's own transport cannot serve senders that nobody has vetted, nor a slow bus: it takes a
socket whose buffer is full for a broken one, reads a message of any length at once, keeps what it
read until the cyclic collector runs, and waits for ever where a bus hangs up during authentication.

* one message is read at a time, and between two everything else has its turn;
* of a message longer than any we are ever sent nothing is kept but its header, for the refusal,
  and not even that where it is too long, or of a signal;
* what is to go out in one turn of the loop goes out together, marshalled when that turn is over,
  which may be in the middle of a hand-over. What the bus does not take yet waits;
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
from nvshared.dbus import BUS, BusError, Received, WireError
from nvshared.errors import BusUnavailable

logger = logging.getLogger(__name__)

CONNECT_PATIENCE = 10.0                 # seconds for being let in
LONGEST = 8192                          # bytes of a body; the longest we know are error messages
LONGEST_HEADER = 1 << 16                # bytes; each name in it has at most 255, but for the path
AT_A_TIME = 1 << 16                     # bytes of what is passed over
_READ = {one.value for one in MessageType if one is not MessageType.SIGNAL}
_LOST = (OSError, EOFError, WireError)  # what the end of a connection looks like

Take = Callable[["BusConnection", Received], None]


class BusConnection:
    """One connection to one message bus."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, take: Take
    ) -> None:
        """`take` gets every method call, and must not raise."""
        self.users: dict[str, int] = {}         # whom other connections on this bus belong to
        self._reader = reader
        self._writer = writer
        writer.transport.set_write_buffer_limits(high=0)    # then drain() returns when all is gone
        self._serial = 0
        self._outgoing: list[tuple[Any, int]] = []      # of this turn of the loop
        self._answers: dict[int, asyncio.Future[Received]] = {}     # by the serial of the call
        self._take = take
        # Done, or failed with what the transport met, once the bus is gone.
        self.reading = asyncio.get_running_loop().create_task(self._read())
        self.reading.add_done_callback(self._ended)

    @classmethod
    async def open(cls, address: str, take: Take) -> "BusConnection":
        """Connects. Raises BusUnavailable if nobody listens there or we are not let in."""
        reader, writer = await asyncio.open_unix_connection(sock=dbus.connect(address))
        connection = None
        try:
            # Not wait_for(): in Python 3.11 it may forget that it was cancelled.
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
                "is dbus running? --bus chooses another",
            ) from error
        return connection

    async def ask(
        self, peer: tuple[str, str, str], member: str, signature: str = "",
        values: Sequence[Any] = (), *, patience: float | None = dbus.PATIENCE,
    ) -> list[Any]:
        """Calls a method of a peer (name, path, interface). Returns the results, raises BusError.

        `patience`: seconds; None: as long as it takes.
        """
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
            said = f"{peer[0]} did not answer {member} within {patience:.0f} s"
            raise BusError(ErrorType.NO_REPLY, said) from error
        except _LOST as error:
            raise BusError(ErrorType.DISCONNECTED, "the message bus went away") from error
        finally:
            del self._answers[serial]
        if reply.message.message_type is MessageType.ERROR:
            said = str(answered[0]) if answered else f"{member} failed without a reason"
            raise BusError(reply.message.error_name, said)
        return answered

    def post(self, message: Message | Callable[[], Message]) -> None:
        """Queues a message, or what makes it later. Once the bus is gone it is dropped."""
        self._serial = self._serial % 0xFFFF_FFFF + 1
        if self.reading.done():
            return
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._write)
        self._outgoing.append((message, self._serial))

    async def deliver(self, message: Message) -> None:
        """The same, and returns once it is with the bus, or that is gone."""
        self.post(message)
        await self._flush()

    async def close(self) -> None:
        """Sends what is queued, then disconnects."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONNECT_PATIENCE):
                await self._flush()
        self.reading.cancel()
        await asyncio.wait([self.reading])
        await _hang_up(self._writer)

    def _write(self) -> None:
        messages, self._outgoing = self._outgoing, []
        if not self.reading.done():
            self._writer.write(b"".join(
                dbus.pack(one() if callable(one) else one, serial) for one, serial in messages))

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
            self._received(header, body)
            # What was read ahead is not waited for, so without this nobody else had a turn.
            await asyncio.sleep(0)

    def _received(self, header: bytes, body: bytes | None) -> None:
        try:
            received = Received(header, body)
        except WireError as error:
            logger.debug("passed over a message of %d bytes: %s", len(header), error)
            return
        message = received.message
        if message.message_type is MessageType.METHOD_CALL:
            self._take(self, received)
        elif (answer := self._answers.get(message.reply_serial)) and not answer.done():
            answer.set_result(received)

    async def _pass_over(self, length: int) -> None:
        for at in range(0, length, AT_A_TIME):
            await self._reader.readexactly(min(length - at, AT_A_TIME))

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
