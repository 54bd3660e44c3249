# SPDX-License-Identifier: Apache-2.0
"""A session's part of the disk tier: the client's file, and its reports about the file.

The first STORE of a connection carries the file's descriptor, unless the hook already has a file
from an earlier daemon. The file is made in a thread. Of the STOREs ordered meanwhile, only the last
is sent, once the file exists.
"""

import logging
import os
from collections.abc import Callable

from nvshared.errors import ProtocolError
from nvshared.hook import protocol
from nvshared.hook.protocol import OrderRecord, ReportRecord, Type
from nvshared.machine.peer import Peer
from nvshared.scheduler.actions import Store
from nvshared.sharing.disk import Disk, File

ERRORS_MOST = 4095                      # the largest errno

logger = logging.getLogger(__name__)


class StoringHook:
    """The storing state of one client's hook."""

    def __init__(
        self, disk: Disk, send: Callable[[bytes, int | None], None], drop: Callable[[str], None],
    ) -> None:
        """`send`: Wire.send. `drop` ends the connection for a reason."""
        self.bytes = 0                  # in the client's file, by its last STORED
        self.error = 0                  # errno of its last failed write, by its last STORED
        self._disk, self._send, self._drop = disk, send, drop
        self._file: File | None = None
        self._sent = False              # the hook has got the file's descriptor
        self._most = 0                  # the most bytes that any order allowed so far
        self._number = 0                # of the last STORE
        self.acknowledged = 0           # number of the last STORE that the hook has acknowledged
        self._waits: Store | None = None    # the order that waits until the file exists
        self._ended = False

    def order(self, peer: Peer, order: Store, answer: Callable[[Store, bool], None]) -> None:
        """Sends the order once there is a file, or calls `answer` with the order and a flag.

        The flag is True if no file can be made, False if the order needs none.
        """
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
            self._disk.open(peer, self._drop, lambda file: self._opened(file, answer))

    def _opened(self, file: File | None, answer: Callable[[Store, bool], None]) -> None:
        order, self._waits, self._file = self._waits, None, file
        assert order is not None
        if self._ended and file is not None:
            file.connected = False
        elif file is None or order.size == 0:
            answer(order, file is None)
        else:
            self._pass(order)

    def _pass(self, order: Store) -> None:
        descriptor = None
        if self._file is not None:
            self._file.most = self._most
            if not self._sent:
                try:
                    descriptor = os.dup(self._file.descriptor)
                except OSError as error:        # the scheduler repeats an order without effect
                    logger.warning("no file can be passed to a client: %s", error.strerror)
                    return
                self._sent = True
        self._send(protocol.encode_order(OrderRecord(
            Type.STORE, number=order.number, writeback=order.size)), descriptor)

    def handle_stored(self, record: ReportRecord, *, known: bool) -> bool:
        """Handles STORED. True: it acknowledges another order, or reports another error.

        `known`: the client has sent HELLO. Raises ProtocolError for more bytes than were allowed.
        """
        if known and record.moved > self._most:
            raise ProtocolError(
                f"it claims {record.moved} bytes on the disk, and may have {self._most} there")
        number = record.number if record.number <= self._number else 0
        error = min(record.took, ERRORS_MOST)
        news = (number, error) != (self.acknowledged, self.error)
        self.bytes, self.error, self.acknowledged = record.moved, error, number
        return news and known

    def handle_hello(self, most: int) -> None:
        """Handles HELLO: the bytes reported before it count as allowed, up to `most`."""
        self.bytes = self._most = min(self.bytes, most)

    def ended(self) -> None:
        """Releases the file, as the connection has ended."""
        self._ended = True
        if self._file is not None:
            self._file.connected = False
