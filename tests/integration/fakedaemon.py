# SPDX-License-Identifier: Apache-2.0
"""A daemon without a policy: it serves one program, and a test chooses each order."""

import fcntl
import os
import select
import signal
import socket
import sys
import termios
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from nvshared.hook.packets import decode_report, encode_order
from nvshared.hook.protocol import VERSION, Flag, OrderRecord, ReportRecord, Type
from nvshared.scheduler.events import Memory
from nvshared.units import MIB
from tests.integration.conftest import Site
from tests.integration.fakehook import PATIENCE
from tests.integration.programs import Program

NO_FLAGS = Flag(0)
PLENTY = 1 << 40                        # bytes of host memory
FOR_EVER = 3600 * 10**6                 # microseconds without work until a program is idle
LONGER_THAN_A_WRONG_DRAIN = 0.5         # seconds


class FakeDaemon:
    """A played daemon that keeps reports in `said` and grants all commit requests."""

    version = VERSION                   # of the protocol that it speaks

    def __init__(
        self, site: Site, room: int = 512 * MIB, *, host: int = PLENTY, total: int = 0,
        host_slab: int = 32 * MIB,
    ) -> None:
        """All in bytes. `room`: what the client may fill; `total`: the card's memory (0: `room`);
        `host`: allowed host memory; `host_slab`: a slab of host memory."""
        self.said: list[ReportRecord] = []
        self.memory = Memory()          # the figures of the client's last report
        self.host_most = 0              # the most host memory (bytes) of the client so far
        self.stored = ReportRecord(Type.STORED)     # the client's last STORED report
        self.site, self.room, self.host, self.number = site, room, host, 0
        self.limits = OrderRecord(
            Type.LIMITS, commit=room, most=room, total=total or room, host_slab=host_slab)
        site.socket.parent.mkdir(exist_ok=True)
        self.listen()

    def listen(self) -> None:
        self.site.socket.unlink(missing_ok=True)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(self.site.socket))
        self.listener.listen()
        self.listener.settimeout(PATIENCE)
        self.site.sockets.append(self.listener)

    def connect(self) -> None:
        self.connection = self.accept_one()
        self.listener.close()
        self.connection.settimeout(PATIENCE)
        self.site.sockets.append(self.connection)
        self.until(Type.HELLO)

    def accept_one(self) -> socket.socket:
        return self.listener.accept()[0]

    def accept(self, flags: Flag = NO_FLAGS, idle_window: int = 0) -> None:
        self.connect()
        self.send(self.limits)
        self.move(Type.LOAD, self.room)
        self.send(OrderRecord(Type.RUN, flags=flags, idle_window=idle_window))

    def send(self, *orders: OrderRecord) -> None:
        for order in orders:
            self.connection.send(encode_order(order, self.version))

    def has_no_unread_order(self) -> bool:
        """Whether the library has read all orders, by the socket's number of unread bytes."""
        unread = fcntl.ioctl(self.connection, termios.TIOCOUTQ, bytes(4))
        return int.from_bytes(unread, sys.byteorder) == 0

    def send_at_once(self, program: Program, *orders: OrderRecord) -> None:
        """Sends all orders while the program is stopped by SIGSTOP."""
        program.popen.send_signal(signal.SIGSTOP)
        os.waitpid(program.popen.pid, os.WUNTRACED)
        self.send(*orders)
        program.popen.send_signal(signal.SIGCONT)

    def receive(self) -> ReportRecord:
        packet = self.connection.recv(4096)
        assert packet, f"the connection ended after {self.said[-1:]}"
        record = decode_report(packet)
        assert record.version == self.version
        self.said.append(record)
        if record.type is Type.STORED:
            self.stored = record
        elif record.type not in (Type.NAME, Type.GANG, Type.BORROWED):
            self.memory = record.memory
            self.host_most = max(self.host_most, self.memory.host)
        if record.type is Type.COMMIT:
            self.send(self.answer(record))
        return record

    def answer(self, request: ReportRecord) -> OrderRecord:
        """The limits, as the answer to a COMMIT: granted if it does not exceed them."""
        granted = request.wanted <= self.limits.commit if request.wanted else (
            request.memory.beyond <= self.limits.beyond)
        return replace(
            self.limits, flags=Flag.GRANTED if granted else 0, number=request.number)

    def until(self, *kinds: Type, number: int | None = None) -> ReportRecord:
        """Returns the next report of these types and this number; answers requests meanwhile."""
        while True:
            record = self.receive()
            if record.type in kinds and number in (None, record.number):
                return record

    def until_true(self, condition: Callable[[], bool]) -> None:
        """Receives records until a condition on the client's last figures holds."""
        while not condition():
            self.receive()

    def until_memory(self, holds: Callable[[Memory], bool]) -> None:
        while not holds(self.until(Type.MEMORY).memory):
            continue

    def until_allocated(self, size: int) -> None:
        self.until_memory(lambda memory: memory.allocated >= size)

    def until_copying(self, flags: Flag) -> None:
        """Waits for COPIES; on a busy machine the program may have reported a pause before."""
        while self.until(Type.COPIES).flags != flags:
            continue

    def run(self, contended: bool = False, idle_window: int = FOR_EVER) -> None:
        flags = Flag.PACE | Flag.REPORT_IDLE if contended else Flag(0)
        self.send(OrderRecord(Type.RUN, flags=flags, idle_window=idle_window))
        self.move(Type.LOAD, self.room)     # loads nothing; answered once RUN has taken effect

    def stop(self) -> None:
        self.send(OrderRecord(Type.STOP))
        self.until(Type.STOPPED)

    def move(self, kind: Type, room: int = 0, **fields: Any) -> ReportRecord:
        self.number += 1
        fields = {"host": self.host, "number": self.number} | fields
        self.send(OrderRecord(kind, room=room, **fields))
        return self.until(Type.MOVED, number=fields["number"])

    def store(self, size: int = PLENTY, file: int | None = None) -> None:
        self.number += 1
        packet = encode_order(
            OrderRecord(Type.STORE, number=self.number, file=size), self.version)
        socket.send_fds(self.connection, [packet], [] if file is None else [file])
        self.until(Type.STORED, number=self.number)

    def assert_no_stop(self) -> None:
        """Fails if the client sends STOPPED within LONGER_THAN_A_WRONG_DRAIN."""
        while select.select([self.connection], [], [], LONGER_THAN_A_WRONG_DRAIN)[0]:
            assert decode_report(self.connection.recv(4096)).type is not Type.STOPPED

    def let_return(self, program: Program) -> None:
        """Loads all memory of a paused program and lets it continue until it exits with success."""
        self.send(OrderRecord(Type.LOAD, number=1 << 20, room=self.room, host=self.host),
                  OrderRecord(Type.RUN))
        self.let_finish(program)

    def let_finish(self, program: Program) -> None:
        """Lets a paused program go on until it exits with success."""
        program.go_on()
        self.rest()
        program.ends_well()

    def rest(self) -> list[ReportRecord]:
        # Reset: the program has ended before it had read all orders.
        with suppress(ConnectionResetError):
            while packet := self.connection.recv(4096):
                self.said.append(decode_report(packet))
        return self.said


def begin(
    site: Site, body: str, *, allocated: int = 0, within: Sequence[str] = (), **options: int
) -> tuple[FakeDaemon, Program]:
    """A program with at least `allocated` bytes that has the card alone, at its first pause."""
    daemon = FakeDaemon(site, **options)
    program = Program(site, body, within)
    daemon.accept()
    if allocated:
        daemon.until_allocated(allocated)
    assert program.hears() == "away"
    return daemon, program
