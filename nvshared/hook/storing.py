# SPDX-License-Identifier: Apache-2.0
"""A session's side of the disk: the client's file, and what it says of it.

The descriptor goes to the hook with the first STORE of a connection, unless the hook has a file
already, which an earlier daemon gave it. The file is made in a thread; the last STORE given
meanwhile is sent then.
"""

import os
from collections.abc import Callable

from nvshared.errors import ProtocolError
from nvshared.hook import protocol
from nvshared.hook.protocol import OrderRecord, ReportRecord, Type
from nvshared.machine.peer import Peer
from nvshared.scheduler.actions import Store
from nvshared.sharing.disk import Disk, File

ERRORS_MOST = 4095                      # the largest errno


class StoringHook:
    """The hook of one client, as far as it stores blocks."""

    def __init__(
        self, disk: Disk, send: Callable[[bytes, int | None], None], drop: Callable[[str], None],
    ) -> None:
        """`send`: Wire.send. `drop` ends the connection for a reason."""
        self.bytes = 0                  # in its file, as it said last
        self.error = 0                  # errno of its last failure, likewise
        self._disk, self._send, self._drop = disk, send, drop
        self._file: File | None = None
        self._sent = False              # the hook has it
        self._most = 0                  # bytes that it may have stored so far
        self._number = 0                # of the last STORE
        self._heard = 0                 # and of the last that it has heard
        self._waits: Store | None = None    # for the file
        self._ended = False

    def order(self, who: Peer, order: Store, answer: Callable[[Store, bool], None]) -> None:
        """Sends the order, once there is a file. Or calls `answer`: True if none can be made, False
        if the order wants none."""
        self._number, self._most = order.number, max(self._most, order.size)
        if self._sent or self.bytes:
            self._pass(order)
        elif self._waits is not None:
            self._waits = order
        elif order.size == 0:
            answer(order, False)
        elif self._file is not None:
            self._pass(order)
        else:
            self._waits = order
            self._disk.open(who, self._drop, lambda file: self._opened(file, answer))

    def _opened(self, file: File | None, answer: Callable[[Store, bool], None]) -> None:
        order, self._waits, self._file = self._waits, None, file
        assert order is not None
        if self._ended and file is not None:
            self._disk.leave(file)
        elif file is None or order.size == 0:
            answer(order, file is None)
        else:
            self._pass(order)

    def _pass(self, order: Store) -> None:
        descriptor = None
        if self._file is not None:
            self._file.most = self._most
            if not self._sent:
                self._sent, descriptor = True, os.dup(self._file.descriptor)
        self._send(protocol.encode_order(OrderRecord(
            Type.STORE, number=order.number, writeback=order.size)), descriptor)

    def hear(self, record: ReportRecord, *, known: bool) -> bool:
        """STORED. True: there is an answer to an order in it, or a failure is new.

        `known`: it has said HELLO. Raises ProtocolError for more bytes than it may store.
        """
        if known and record.moved > self._most:
            raise ProtocolError(
                f"it claims {record.moved} bytes on the disk, and may have {self._most} there")
        number = record.number if record.number <= self._number else 0
        error = min(record.took, ERRORS_MOST)
        news = (number, error) != (self._heard, self.error)
        self.bytes, self.error, self._heard = record.moved, error, number
        return news and known

    def greet(self, most: int) -> None:
        """It says HELLO, and so has what it had."""
        self.bytes = self._most = min(self.bytes, most)

    @property
    def heard(self) -> int:
        """The number of the last STORE that it has heard."""
        return self._heard

    def ended(self) -> None:
        """The connection has."""
        self._ended = True
        if self._file is not None:
            self._disk.leave(self._file)
