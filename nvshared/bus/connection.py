# SPDX-License-Identifier: Apache-2.0
"""The connection to a message bus: dbus-next with its faults repaired.

dbus-next 0.2.3 is used for what it does well, which is carrying messages. Its
half for services is left alone, because there

* the traceback of an exception reaches the caller, and every error that was
  expected is logged as if it were a crash;
* a method does not learn who called it;
* InterfacesAdded and InterfacesRemoved come from the object itself, not from
  the object manager, so nobody who follows the specification sees them;
* introspection knows neither EmitsChangedSignal nor names of results;
* PropertiesChanged silently leaves out a property whose name is misspelt.

All of that is done in dispatch.py, tree.py, standard.py and introspection.py;
a message handler takes every method call before dbus-next looks at it. What is
wrong below that is put right by the subclass here:

* `request_name` returns a number where it should raise: see `own`;
* `disconnect` loses what is queued, and never closes the socket: see `close`;
* a connection that the bus ends during authentication spins for ever;
* a bus that is slow to read is taken for one that is gone: see writing.py;
* as long as messages come, nothing else is done: see `_message_reader`; what
  they may be, and how long, says reading.py;
* passing file descriptors leaks them, so it is never negotiated.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

from dbus_next.aio.message_bus import MessageBus
from dbus_next.constants import MessageFlag, MessageType, NameFlag, RequestNameReply
from dbus_next.errors import AuthError, DBusError, InvalidAddressError
from dbus_next.message import Message

from nvshared.bus.reading import Reader
from nvshared.bus.writing import Writer
from nvshared.errors import AlreadyRunning, BusUnavailable, NotPermitted, NvshareError

logger = logging.getLogger(__name__)

PATIENCE = 25.0                         # seconds for an answer, as libdbus has it
CONNECT_PATIENCE = 10.0                 # seconds for being let in
ASK_FOR_PASSWORD = int(MessageFlag.ALLOW_INTERACTIVE_AUTHORIZATION)

BUS = ("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus")


class BusError(NvshareError):
    """An error that another peer on the bus answered with; `name` is its D-Bus name."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class BusConnection(MessageBus):
    """One connection to one message bus."""

    users: dict[str, int]               # whom other connections on this bus belong to

    @classmethod
    async def open(cls, address: str) -> "BusConnection":
        """Connects. Raises BusUnavailable if nobody listens there or we are not let in."""
        connection: BusConnection | None = None
        try:
            connection = cls(bus_address=address, negotiate_unix_fd=False)
            connection.users = {}
            connection._writer = connection._create_writer()    # type: ignore[assignment]
            # Not wait_for(): in Python 3.11 it forgets that it was cancelled, if at that
            # moment what it waits for is done.
            async with asyncio.timeout(CONNECT_PATIENCE):
                await connection.connect()
        except (OSError, EOFError, AuthError, InvalidAddressError, TimeoutError) as error:
            if connection is not None:
                connection._finalize(error)
            reason = str(error) or "it did not answer"
            raise BusUnavailable(
                f"cannot connect to the message bus at {address!r}: {reason}",
                "is dbus running? --bus chooses another, --bus none does without",
            ) from error
        except BaseException:
            if connection is not None:
                connection._finalize(None)
            raise
        return connection

    def answer_calls(self, handler: Callable[[Message], None]) -> None:
        """Hands every method call to `handler`, which must not raise."""

        def take(message: Message) -> bool:
            if message.message_type is not MessageType.METHOD_CALL:
                return False
            handler(message)
            return True

        self.add_message_handler(take)

    async def own(self, name: str) -> None:
        """Becomes the owner of a name.

        Raises AlreadyRunning if somebody has it, NotPermitted if the bus does
        not allow us to, BusUnavailable if it goes before it has answered, or never does.
        """
        try:
            async with asyncio.timeout(PATIENCE):
                reply = await self.request_name(name, NameFlag.DO_NOT_QUEUE)
        except DBusError as error:
            raise NotPermitted(
                f"the message bus does not let us own {name}: {error.text}",
                "run nvshared as root, and install its policy, dbus/com.nvshare.conf",
            ) from error
        except Exception as error:      # whatever the transport met, or dbus-next made of it
            reason = str(error) or "it did not answer"
            raise BusUnavailable(
                f"the message bus went before we owned {name}: {reason}",
                "is dbus running? --bus chooses another, --bus none does without",
            ) from error
        if reply not in (RequestNameReply.PRIMARY_OWNER, RequestNameReply.ALREADY_OWNER):
            raise AlreadyRunning(
                f"another nvshared owns {name} on this message bus",
                "stop it first: systemctl stop nvshared",
            )

    async def ask(
        self,
        destination: tuple[str, str, str],
        member: str,
        signature: str = "",
        body: Sequence[Any] = (),
        *,
        patience: float | None = PATIENCE,
    ) -> list[Any]:
        """Calls a method of another peer and returns what it answers.

        `destination` is (name, path, interface); `patience` is in seconds, None
        waits as long as it takes. Raises BusError.
        """
        name, path, interface = destination
        message = Message(
            destination=name, path=path, interface=interface, member=member,
            signature=signature, body=list(body),
        )
        try:
            async with asyncio.timeout(patience):
                reply = await self.call(message)
        except TimeoutError as error:
            raise BusError(
                "org.freedesktop.DBus.Error.NoReply",
                f"{name} did not answer {member} within {patience:.0f} s",
            ) from error
        except (OSError, EOFError) as error:
            reply = None
            logger.debug("the bus went away during %s.%s: %s", interface, member, error)
        if reply is None:
            raise BusError(
                "org.freedesktop.DBus.Error.Disconnected", "the message bus went away"
            )
        if reply.message_type is MessageType.ERROR:
            assert reply.error_name is not None
            reason = str(reply.body[0]) if reply.body else f"{member} failed without a reason"
            raise BusError(reply.error_name, reason)
        return list(reply.body)

    def post(self, message: Message) -> None:
        """Queues a message. Once the bus is gone there is nobody to tell, so it is dropped."""
        if self.connected:
            self.send(message).add_done_callback(_noticed)

    async def deliver(self, message: Message) -> None:
        """The same, and returns once it is with the bus, or that is gone."""
        if self.connected:
            sent = self.send(message)
            sent.add_done_callback(_noticed)
            await asyncio.wait(
                (sent, self._disconnect_future), return_when=asyncio.FIRST_COMPLETED
            )

    async def lost(self) -> None:
        """Returns, or raises what the transport met, once the bus is gone."""
        await asyncio.shield(self._disconnect_future)

    async def close(self) -> None:
        """Sends what is queued, then disconnects."""
        if self.connected:
            flushed = self.send(Message(
                # Any call; the system bus lets nobody Ping it and would write that down.
                destination=BUS[0], path=BUS[1], interface=BUS[2],
                member="GetId", flags=MessageFlag.NO_REPLY_EXPECTED,
            ))
            with contextlib.suppress(OSError, EOFError, TimeoutError):
                await asyncio.wait_for(flushed, CONNECT_PATIENCE)
        self._user_disconnect = True
        self._finalize(None)

    def _setup_socket(self) -> None:
        try:
            super()._setup_socket()     # type: ignore[no-untyped-call]
        except (OSError, InvalidAddressError):
            # Several addresses may have been tried; only what the last one left is known.
            if hasattr(self, "_sock"):
                self._stream.close()
                self._sock.close()
            raise

    def _create_writer(self) -> Writer:
        return Writer(
            self._sock, self._loop, allowed=lambda: bool(self.unique_name), broken=self._finalize
        )

    def _create_unmarshaller(self) -> Reader:
        return Reader(self._stream)     # type: ignore[no-untyped-call]

    def _message_reader(self) -> None:
        """Reads one message, and the next one after everything else has had its turn.

        What was read ahead is not seen by the loop, so it is not enough to wait for the socket.
        """
        if self._disconnected:
            return
        try:
            reader = self._unmarshaller
            reader.unmarshall()
            if not reader.complete:
                return
            self._unmarshaller = self._create_unmarshaller()
            if reader.message is not None:
                self._on_message(reader.message)        # type: ignore[no-untyped-call]
        except Exception as error:      # from the socket, or a message that is none
            self._finalize(error)
            return
        self._loop.call_soon(self._message_reader)

    async def _auth_readline(self) -> str:
        line = bytearray()
        while not line.endswith(b"\r\n"):
            byte = await self._loop.sock_recv(self._sock, 1)
            if not byte:
                raise AuthError("it ended the connection during authentication")
            line += byte
        return line[:-2].decode()

    def _finalize(self, err: Exception | None = None) -> None:
        if self._sock.fileno() < 0:
            return
        super()._finalize(err)          # type: ignore[no-untyped-call]
        self._disconnect_future.exception()     # whoever wants to know awaits it as well
        with contextlib.suppress(OSError):
            self._stream.close()
        self._sock.close()


def _noticed(sent: "asyncio.Future[None]") -> None:
    """A message that could not be sent: the loss of the bus is reported once, elsewhere."""
    if not sent.cancelled():
        sent.exception()
