# SPDX-License-Identifier: Apache-2.0
"""A client that follows the protocol as libnvshare.so does, without a GPU or memory.

A test tells a `Hook` when to carry out the next order. As a program it is a process that a test can
kill:

    python -m tests.integration.fakehook SOCKET UUID BYTES [--fork]

allocates BYTES, always wants a turn, and prints each change of its state. With --fork a child
inherits the socket and lives until its stdin is closed.
"""

import argparse
import os
import select
import socket
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from nvshared.hook import packets
from nvshared.hook.packets import IN_OLDEST
from nvshared.hook.protocol import OLDEST, VERSION, Flag, OrderRecord, ReportRecord, Type
from nvshared.scheduler.events import Memory
from tests.records import decode_order, encode_report

Socket = socket.socket                  # in Hook, `socket` is a field
PATIENCE = 600                          # seconds; only a failing test waits this long
SEND_PATIENCE = struct.pack("ll", PATIENCE, 0)      # struct timeval


@dataclass(eq=False)
class Hook:
    """A client. Each of its reports contains its memory figures, as the protocol requires."""

    path: str
    uuid: bytes
    memory: Memory = Memory()
    limits: OrderRecord = OrderRecord(Type.LIMITS)
    granted: bool = False               # True from RUN until STOP
    paced: bool = False                 # the last RUN had the flag PACE
    reports_idle: bool = False          # the last RUN had the flag REPORT_IDLE
    reports_copies: bool = False        # the daemon has requested COPIES reports
    version: int = VERSION              # of the protocol that it speaks
    socket: Socket = field(init=False)
    questions: int = 0
    lack_told: bool = False

    def __post_init__(self) -> None:
        self.connect()

    def connect(self) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # connect() waits where the daemon's queue is full; without this it returns EAGAIN.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, SEND_PATIENCE)
        self.socket.connect(self.path)
        self.socket.settimeout(PATIENCE)

    def close(self) -> None:
        self.socket.close()

    @property
    def whole(self) -> bool:
        """True if all memory is on the card, within the client's room."""
        memory = self.memory
        need = memory.allocated + memory.pinned + memory.pending
        return memory.resident + memory.pinned + memory.pending == need <= memory.room

    @property
    def running(self) -> bool:
        return self.granted and self.whole

    def say(self, kind: Type, *, flags: int = 0, number: int = 0, **words: int) -> bool:
        """Sends a report with the fields `words`. False: the connection has ended."""
        report = ReportRecord(kind, flags, number, self.memory, self.uuid, version=self.version,
                              **dict[str, Any](words))
        try:
            self.send(encode_report(report))
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def send(self, packet: bytes) -> None:
        self.socket.send(packet)

    def want(self) -> None:
        """Reports that a thread of the program waits at the gate."""
        self.say(Type.MEMORY, flags=Flag.WANTS)

    def hear(self) -> OrderRecord | None:
        try:
            packet = self.socket.recv(packets.LONGEST + 1)
        except ConnectionResetError:
            return None
        if not packet:
            return None
        order = decode_order(packet)
        spoken = OLDEST if order.type in IN_OLDEST else self.version
        assert packet[2] == spoken, f"a {order.type.name} of version {packet[2]}"
        return order

    def hello(self) -> OrderRecord | None:
        """Sends HELLO with its memory figures, and receives the answer."""
        flags = Flag.RUNNING if self.granted else Flag(0)
        self.say(Type.HELLO, flags=flags, commit=self.limits.commit)
        answer = self.hear()
        if answer is not None and answer.type is Type.LIMITS:
            self.limits = answer
        return answer

    def allocate(self, size: int) -> bool:
        """As cuMemAlloc: sends COMMIT if needed; the memory is on the card once there is room."""
        target = self.memory.allocated + self.memory.pinned + size
        if target > self.limits.commit and not self.ask(target):
            return False
        self.memory = replace(self.memory, allocated=self.memory.allocated + size)
        if self.granted:
            self.fill()
        self.say(Type.MEMORY)
        return True

    def ask(self, wanted: int) -> bool:
        """Sends a COMMIT, and carries out orders until it is answered. True: granted."""
        self.questions += 1
        self.say(Type.COMMIT, number=self.questions, wanted=wanted)
        while True:
            record = self.obey_next()
            if record.type is Type.LIMITS and record.number == self.questions:
                return self.grants(record, wanted)

    def grants(self, answer: OrderRecord, wanted: int) -> bool:
        """Whether a LIMITS grants a COMMIT of `wanted` bytes."""
        if self.version == OLDEST:
            return wanted <= answer.commit
        return bool(answer.flags & Flag.GRANTED)

    def settle(self) -> None:
        """Carries out orders until the daemon has received all answers."""
        self.ask(self.limits.commit)

    def fill(self) -> None:
        """Maps memory up to the room of a client with the turn; reports a lack of room at once."""
        memory = self.memory
        resident = max(memory.resident, min(memory.allocated, memory.room - memory.pinned))
        self.memory = replace(memory, resident=resident)
        if self.granted and not self.whole and not self.lack_told:
            self.lack_told = True
            self.say(Type.MEMORY)

    def obey(self, record: OrderRecord) -> None:
        match record.type:
            case Type.RUN:
                self.granted = True
                self.paced = bool(record.flags & Flag.PACE)
                self.reports_idle = bool(record.flags & Flag.REPORT_IDLE)
                self.reports_copies = bool(record.flags & Flag.REPORT_COPIES)
                self.fill()
            case Type.STOP:
                self.granted = False
                self.lack_told = False
                self.say(Type.STOPPED, flags=Flag.WANTS)
            case Type.EVICT if record.flags & Flag.KEEP:
                self.write_back(record)
            case Type.EVICT:
                self.evict(record)
            case Type.LOAD:
                self.load(record)
            case Type.YIELD | Type.REASON | Type.PREALLOCATE:
                return
            case Type.LIMITS:
                self.limits = record
            case Type.INTRODUCE:
                flags = Flag.RUNNING if self.granted else Flag.WANTS
                self.lack_told = False
                self.say(Type.HELLO, flags=flags, number=record.number, commit=self.limits.commit)
            case _:
                raise AssertionError(f"the daemon sent a {record.type.name}")

    def evict(self, order: OrderRecord) -> None:
        memory = self.memory
        if self.running:
            room = max(order.room, memory.resident + memory.pinned)
            self.memory = replace(memory, room=room)
            self.say(Type.MOVED, number=order.number)
            return
        surplus = max(0, memory.resident + memory.pinned - order.room)
        # Memory that was evicted and loaded again has left host memory that this eviction can use.
        swapped, allowed = memory.allocated - memory.resident, max(memory.host, order.host)
        moved = min(surplus, memory.resident, max(0, allowed - swapped))
        resident = memory.resident - moved
        self.memory = replace(
            memory, resident=resident, host=max(memory.host, min(allowed, swapped + moved)),
            room=max(order.room, resident + memory.pinned))
        flags = Flag.NO_MEMORY if moved < surplus else Flag(0)
        self.say(Type.MOVED, flags=flags, number=order.number, moved=moved)

    def write_back(self, order: OrderRecord) -> None:
        memory = self.memory
        swapped, allowed = memory.allocated - memory.resident, max(memory.host, order.host)
        written_back = min(order.writeback, memory.resident, max(0, allowed - swapped))
        self.memory = replace(memory, host=max(memory.host, swapped + written_back))
        short = written_back < min(order.writeback, memory.resident)
        flags = Flag.NO_MEMORY if short else Flag(0)
        self.say(Type.MOVED, flags=flags, number=order.number, moved=written_back)

    def load(self, order: OrderRecord) -> None:
        memory = self.memory
        resident = max(memory.resident, min(memory.allocated, order.room - memory.pinned))
        # Swapped blocks need their host memory; resident blocks can do without host memory.
        kept = max(min(memory.host, order.host), min(memory.host, memory.allocated - resident))
        self.memory = replace(memory, resident=resident, host=kept, room=order.room)
        self.lack_told = False
        self.say(Type.MOVED, number=order.number, moved=resident - memory.resident)

    def obey_next(self) -> OrderRecord:
        """Carries out the next order. Fails at the end of the connection."""
        record = self.hear()
        assert record is not None, "the connection has ended"
        self.obey(record)
        return record

    def obey_until(self, done: "Type") -> None:
        while self.obey_next().type is not done:
            continue


def pump(hooks: list[Hook], done: Callable[[], bool]) -> None:
    """Lets the hooks carry out orders until done() is true.

    Fails if more memory is resident on a card than the card has.
    """
    by_socket = {hook.socket.fileno(): hook for hook in hooks}
    ears = select.poll()
    for number in by_socket:
        ears.register(number, select.POLLIN)
    while not done():
        ready = ears.poll(PATIENCE * 1000)
        assert ready, "nothing happens any more"
        for number, _ in ready:
            by_socket[number].obey_next()
        for uuid in {hook.uuid for hook in hooks}:
            resident = sum(hook.memory.resident for hook in hooks if hook.uuid == uuid)
            assert resident <= hooks[0].limits.total


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("socket")
    parser.add_argument("uuid")
    parser.add_argument("bytes", type=int)
    parser.add_argument("--fork", action="store_true")
    given = parser.parse_args()

    hook = Hook(given.socket, bytes.fromhex(given.uuid))
    if given.fork and os.fork() == 0:
        sys.stdin.read()
        os._exit(0)
    hook.hello()
    print("welcomed", flush=True)
    hook.allocate(given.bytes)
    hook.want()
    print("waiting", flush=True)
    ran = False
    while True:
        select.select([hook.socket], [], [])
        record = hook.hear()
        if record is None:
            print("disconnected", flush=True)
            return
        hook.obey(record)
        if hook.running != ran:
            ran = hook.running
            print("running" if ran else "stopped", flush=True)


if __name__ == "__main__":
    main()
