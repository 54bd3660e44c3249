# SPDX-License-Identifier: Apache-2.0
"""Stands in for the daemon towards one program under the library, and gives it one order at a time.

What a program asks for while it runs is granted: memory, and the room that it grows by. All the
rest a test or a benchmark orders.
"""

import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from nvshared.hook.protocol import (
    Flag,
    OrderRecord,
    ReportRecord,
    Type,
    decode_report,
    encode_order,
    encode_unpark,
)
from nvshared.scheduler.events import Memory

PLENTY = 1 << 44                        # bytes
PATIENCE = 600.0                        # seconds; only what fails waits so long


class Ordered:
    """A socket at `path` for one client at a time. A thread of its own hears the client."""

    def __init__(self, path: Path, total: int, slab: int = 0) -> None:
        """`total`: bytes of the card. `slab`: grain of host memory in bytes; 0: the library's."""
        self.memory = Memory()
        self.stored = ReportRecord(Type.STORED)     # the last
        self.host_most = 0              # the most host memory that the client ever had
        self._total, self._slab = total, slab
        self._running = self._wants = False
        self._answers: list[ReportRecord] = []      # to orders
        self._number = 0
        self._changed = threading.Condition()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen(8)
        self._client: socket.socket | None = None
        self._uuid = b""
        threading.Thread(target=self._listen, daemon=True).start()

    def close(self) -> None:
        """Ends the connection, too."""
        self._listener.close()
        self.disconnect()

    def disconnect(self) -> None:
        """As a daemon that was killed; the client comes back by itself."""
        with self._changed:
            client, self._client = self._client, None
            if client is not None:
                client.shutdown(socket.SHUT_RDWR)

    def until(self, holds: Callable[[], bool]) -> None:
        """Waits until the condition holds for the client's last report."""
        with self._changed:
            assert self._changed.wait_for(holds, PATIENCE), (self.memory, self.stored)

    def connected(self) -> bool:
        """There is a client, which has said HELLO."""
        return self._client is not None

    def run(self) -> None:
        """Loads the swapped blocks and opens the gate."""
        self.load()
        with self._changed:
            self._running, self._wants = True, False
            self._send(OrderRecord(Type.RUN))

    def stop(self) -> None:
        """Closes the gate, and waits for the drain."""
        with self._changed:
            self._running = False
            self._send(OrderRecord(Type.STOP))
        self._await(lambda one: one.type is Type.STOPPED)

    def evict(self, room: int = 0, host: int = PLENTY) -> ReportRecord:
        """Gives MOVED."""
        return self._move(OrderRecord(Type.EVICT, room=room, host=host))

    def load(self, host: int = PLENTY) -> ReportRecord:
        """All that is missing. Gives MOVED."""
        return self._move(OrderRecord(Type.LOAD, room=_need(self.memory), host=host))

    def store(self, size: int = PLENTY, file: int | None = None) -> None:
        """Lets the client's file hold `size` bytes; gives it the descriptor, if it is not None.

        Returns when the client has heard of it.
        """
        with self._changed:
            self._number += 1
            number = self._number
            self._send(OrderRecord(Type.STORE, number=number, writeback=size), file)
        self.until(lambda: self.stored.number == number)

    def park(self) -> int:
        """Keeps the program out of the driver. Gives a Park."""
        with self._changed:
            self._send(OrderRecord(Type.PARK))
        return self._await(lambda one: one.type is Type.PARKED).moved

    def unpark(self) -> None:
        """On the same GPU."""
        with self._changed:
            assert self._client is not None
            self._client.send(encode_unpark(self._uuid))
            self._send(OrderRecord(Type.INTRODUCE, number=1))

    def wanted(self) -> bool:
        """A thread waits at the gate."""
        return self._wants

    def _move(self, order: OrderRecord) -> ReportRecord:
        with self._changed:
            self._number += 1
            number = self._number
            self._send(replace(order, number=number))
        return self._await(lambda one: one.type is Type.MOVED and one.number == number)

    def _await(self, answers: Callable[[ReportRecord], bool]) -> ReportRecord:
        self.until(lambda: any(map(answers, self._answers)))
        with self._changed:
            found = next(filter(answers, self._answers))
            self._answers.clear()
        return found

    def _send(self, order: OrderRecord, file: int | None = None) -> None:
        assert self._client is not None, "there is no client"
        socket.send_fds(self._client, [encode_order(order)], [] if file is None else [file])

    def _listen(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client:
                while packet := _receive(client):
                    with self._changed:
                        self._hear(client, decode_report(packet))
                        self._changed.notify_all()
                with self._changed:
                    self._client = None
                    self._changed.notify_all()

    def _hear(self, client: socket.socket, said: ReportRecord) -> None:
        if said.type in (Type.NAME, Type.GANG):
            return
        if said.type is Type.STORED:
            self.stored = said
            return
        self.memory = said.memory
        self.host_most = max(self.host_most, said.memory.host)
        if said.type is Type.HELLO:
            self._client, self._uuid = client, said.uuid
        if said.type in (Type.HELLO, Type.COMMIT) and not said.flags & Flag.IS_PARKED:
            self._send(OrderRecord(
                Type.LIMITS, number=said.number, commit=PLENTY, most=PLENTY, total=self._total,
                host_slab=self._slab))
        elif said.type in (Type.STOPPED, Type.MOVED, Type.PARKED):
            self._answers.append(said)
        self._wants |= bool(said.flags & Flag.WANTS)
        if self._running and said.type is Type.MEMORY and _need(said.memory) > said.memory.room:
            self._send(OrderRecord(Type.LOAD, room=_need(said.memory), host=PLENTY))


def _need(memory: Memory) -> int:
    return memory.allocated + memory.pinned + memory.pending


def _receive(client: socket.socket) -> bytes:
    try:
        return client.recv(4096)
    except OSError:
        return b""
