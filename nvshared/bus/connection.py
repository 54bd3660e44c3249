# SPDX-License-Identifier: Apache-2.0
"""The daemon's connection to a message bus: calls come in, answers and signals go out.

It reads from senders that nobody has vetted, and writes to a bus that may be slower than we are.

* One message is read at a time, and between two everything else has its turn.
* A body longer than any we are ever sent is not kept: the call is answered, its values are not
  read. A message whose header is longer than any is passed over, so no answer goes out.
* What is to go out in one turn of the loop goes out together: each message of its own would cost
  both sides a wake-up. What the bus does not take yet waits.
* Signals are passed over: we listen to none.
* Passing file descriptors is never negotiated.

The transport is ours, and dbus-next has the rest: introspection, the names of errors, flags and
replies. Its own connection for asyncio takes a socket whose buffer is full for one that is
broken, reads whatever comes completely and at once, keeps what it read until the cyclic collector
comes, and needs 40 µs for each value that it sends. None of that can be changed through what it
makes public.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

from dbus_next.constants import ErrorType, NameFlag, RequestNameReply

from nvshared.dbus import message as wire
from nvshared.dbus.address import BEGIN, BUS, LET_IN, PATIENCE, connect, introduction
from nvshared.dbus.types import WireError
from nvshared.errors import AlreadyRunning, BusUnavailable, NotPermitted, NvshareError

logger = logging.getLogger(__name__)

CONNECT_PATIENCE = 10.0                 # seconds for being let in
LONGEST = 8192                          # bytes of a body; the longest we know are error messages
LONGEST_HEADER = 1 << 16                # bytes; each name in it has at most 255, but for the path
AT_A_TIME = 1 << 16                     # bytes of what is passed over
_SERIALS = (1 << 32) - 1
_HINT = "is dbus running? --bus chooses another, --bus none does without"
NO_REPLY = ErrorType.NO_REPLY.value
DISCONNECTED = ErrorType.DISCONNECTED.value
_OWNED = {RequestNameReply.PRIMARY_OWNER.value, RequestNameReply.ALREADY_OWNER.value}
_LOST = (OSError, EOFError, WireError)  # what the end of a connection looks like


class BusError(NvshareError):
    """An error that another peer on the bus answered with; `name` is its D-Bus name."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


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
        self._replies: dict[int, asyncio.Future[wire.Message]] = {}      # by the serial of the call
        self._handler: Callable[[wire.Message], None] | None = None
        self._reading = asyncio.get_running_loop().create_task(self._read())
        self._reading.add_done_callback(self._ended)

    @classmethod
    async def open(cls, address: str) -> "BusConnection":
        """Connects. Raises BusUnavailable if nobody listens there or we are not let in."""
        try:
            reader, writer = await asyncio.open_unix_connection(sock=connect(address))
        except BusUnavailable as error:
            error.hint = _HINT
            raise
        connection = None
        try:
            # Not wait_for(): in Python 3.11 it forgets that it was cancelled, if at that
            # moment what it waits for is done.
            async with asyncio.timeout(CONNECT_PATIENCE):
                writer.write(introduction())
                line = await reader.readuntil(b"\r\n")
                if not line.startswith(LET_IN):
                    raise OSError(line.decode(errors="replace").strip())
                writer.write(BEGIN)
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
                f"{reason or 'it did not answer'}", _HINT,
            ) from error
        return connection

    def answer_calls(self, handler: Callable[[wire.Message], None]) -> None:
        """Hands every method call to `handler`, which must not raise."""
        self._handler = handler

    async def own(self, name: str) -> None:
        """Becomes the owner of a name.

        Raises AlreadyRunning if somebody has it, NotPermitted if the bus does
        not allow us to, BusUnavailable if it goes before it has answered, or never does.
        """
        try:
            (reply,) = await self.ask(BUS, "RequestName", "su", [name, NameFlag.DO_NOT_QUEUE])
        except BusError as error:
            if error.name in (NO_REPLY, DISCONNECTED):
                reason = str(error.__cause__) or "it did not answer"
                raise BusUnavailable(
                    f"the message bus went before we owned {name}: {reason}", _HINT
                ) from error
            raise NotPermitted(
                f"the message bus does not let us own {name}: {error}",
                "run nvshared as root, and install its policy, dbus/com.nvshare.conf",
            ) from error
        if reply not in _OWNED:
            raise AlreadyRunning(
                f"another nvshared owns {name} on this message bus",
                "stop it first: systemctl stop nvshared",
            )

    async def ask(
        self, peer: tuple[str, str, str], member: str, signature: str = "",
        values: Sequence[Any] = (), *, patience: float | None = PATIENCE,
    ) -> list[Any]:
        """Calls a method of another peer and returns what it answers.

        `peer` is (name, path, interface); `patience` is in seconds, None
        waits as long as it takes. Raises BusError.
        """
        self.post(wire.call(*peer, member, signature, values))
        serial = self._serial
        answer = self._replies[serial] = asyncio.get_running_loop().create_future()
        try:
            if self._reading.done():
                raise ConnectionError("it has gone")
            async with asyncio.timeout(patience):
                reply = await answer
            answered: list[Any] = reply.values()
        except TimeoutError as error:
            raise BusError(
                NO_REPLY, f"{peer[0]} did not answer {member} within {patience:.0f} s"
            ) from error
        except _LOST as error:
            raise BusError(DISCONNECTED, "the message bus went away") from error
        finally:
            del self._replies[serial]
        if reply.kind == wire.ERROR:
            raise BusError(reply.error, reply.reason() or f"{member} failed without a reason")
        return answered

    def tell(
        self, peer: tuple[str, str, str], member: str, signature: str, values: Sequence[Any]
    ) -> None:
        """Calls a method of another peer, which is not to answer."""
        message = wire.call(*peer, member, signature, values)
        self.post(message._replace(flags=message.flags | wire.NO_REPLY_EXPECTED))

    def post(self, message: wire.Message) -> None:
        """Queues a message. Once the bus is gone there is nobody to tell, so it is dropped."""
        self._serial = self._serial % _SERIALS + 1
        if self._reading.done():
            return
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._write)
        self._outgoing += wire.pack(message, self._serial)

    async def deliver(self, message: wire.Message) -> None:
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
                start = await self._reader.readexactly(wire.START)
            except asyncio.IncompleteReadError:
                return
            header_size, body_size = wire.size(start)
            if header_size > LONGEST_HEADER:
                await self._pass_over(header_size - wire.START + body_size)
                continue
            rest = await self._reader.readexactly(header_size - wire.START)
            message = wire.unpack(start + rest, b"")
            if body_size <= LONGEST:
                message = message._replace(body=await self._reader.readexactly(body_size))
            else:
                await self._pass_over(body_size)
                said = f"{message.signature}, and {body_size} bytes long"
                message = message._replace(signature=said)
            self._take(message)
            # What was read ahead is not waited for, so without this nobody else had a turn.
            await asyncio.sleep(0)

    async def _pass_over(self, length: int) -> None:
        while length:
            part = min(length, AT_A_TIME)
            await self._reader.readexactly(part)
            length -= part

    def _take(self, message: wire.Message) -> None:
        if message.kind == wire.METHOD_CALL:
            if self._handler is not None:
                self._handler(message)
        elif message.kind in (wire.METHOD_RETURN, wire.ERROR):
            answer = self._replies.get(message.reply_to)
            if answer is not None and not answer.done():
                answer.set_result(message)

    def _ended(self, reading: "asyncio.Task[None]") -> None:
        """Whoever waits for an answer hears that there will be none."""
        error = None if reading.cancelled() else reading.exception()
        self._writer.transport.abort()
        for answer in self._replies.values():
            if not answer.done():
                answer.set_exception(ConnectionError(str(error or "it closed the connection")))


async def _hang_up(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
