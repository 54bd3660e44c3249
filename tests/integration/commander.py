# SPDX-License-Identifier: Apache-2.0
"""A daemon without policy, which sends random orders that the protocol allows.

It sends in a tenth of a second as many orders as the daemon does in a minute,
in any sequence: it stops, evicts, loads and runs random clients, in whole or in
part, changes the room of running clients, refuses memory, lends another GPU's
memory, lets blocks go to files, and restarts. It checks each hook's reports.
"""

import contextlib
import os
import random
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from nvshared.hook.packets import decode_report, encode_order
from nvshared.hook.protocol import NO_UUID, Flag, OrderRecord, ReportRecord, Type
from nvshared.scheduler.events import Memory
from nvshared.units import MIB
from tests.integration.fakehook import PATIENCE


@dataclass(slots=True)
class Hook:
    connection: socket.socket
    memory: Memory = Memory()
    room: int = 0                       # bytes of the capacity reserved for the client
    running: bool = False
    stopping: bool = False
    moves: list[OrderRecord] = field(default_factory=list)          # orders not answered yet
    reports_copies: bool = False        # the client may send COPIES reports
    cut: set[int] = field(default_factory=set)      # numbers of orders sent before a YIELD
    wants: bool = False
    welcomed: bool = False
    introduction: int = 0               # number of the HELLO before which reports are ignored
    answered: int = 0                   # number of the last COMMIT request with a received reply
    borrowed: int = 0                   # bytes of memory.host on the lending card
    dirty: int = 0                      # bytes of `borrowed` without a copy on the host
    had_borrowed: bool = False          # whether memory was borrowed after the last order
    had_dirty: int = 0                  # `dirty` after the last order
    stored: int = 0                     # bytes in the client's disk file
    has_file: bool = False              # the client has a disk file
    to_pin: int | None = None           # bytes that the client may still pin; None: unknown
    # grants to pin that the hook has not confirmed
    grants: dict[int, int] = field(default_factory=dict)

    @property
    def need(self) -> int:
        return self.memory.allocated + self.memory.pinned + self.memory.pending

    @property
    def whole(self) -> bool:
        return self.memory.resident == self.memory.allocated and self.need <= self.room

    @property
    def lacks_memory(self) -> bool:
        """True if the program has the turn and lacks memory on the card."""
        return self.running and not self.whole


class Commander:
    """Listens on `path` and shares out `capacity` bytes for as long as step() is called."""

    def __init__(
        self, path: Path, capacity: int, most: int, seed: int, refuses: float = 0.03,
        lender: bytes = NO_UUID, disk: Path | None = None,
    ) -> None:
        """`lender`: the GPU that lends memory. `disk`: the folder of files for swapped blocks."""
        self.lender = lender
        self.disk = disk
        self.stored = 0                 # the most bytes that were in one disk file
        self.emptied = 0                # how often a disk file became empty
        self.disk_fails = False         # True: writes to disk files may fail or hang
        self.disk_failures = 0          # number of reported disk errors
        self.borrowed = self.returned = 0   # most bytes lent at once, and number of recalls
        self.cleaned = 0                # orders that copied lent memory to the host
        self.refuses = refuses          # share of the requests refused although there is room
        self.random = random.Random(seed)
        self.capacity = capacity
        self.most = most                # most bytes of a program
        self.turns = 0
        self.orders = 0
        self.bytes_moved = 0
        self.bytes_saved = 0            # bytes copied by EVICT orders with KEEP
        self.refused = 0
        self.reopened = 0
        self.beyond = 0                 # number of requests for memory beyond the card
        self.yielded = 0                # number of moves that a YIELD ended
        self.copying = 0                # number of COPIES reports
        self.ending = False             # True: programs exit, so driver errors are expected
        self.hooks: list[Hook] = []
        self._path = path
        self.number = 0
        self._listener = self._listen()

    def _listen(self) -> socket.socket:
        self._path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(str(self._path))
        listener.listen(64)
        return listener

    def restart(self) -> None:
        before = len(self.hooks)
        for hook in self.hooks:
            hook.connection.close()
        self.hooks = []
        self._listener.close()
        self._listener = self._listen()
        # No room may be granted before all running clients have reported their memory in HELLO.
        self._listen_until(lambda: sum(hook.welcomed for hook in self.hooks) >= before, "come back")

    def take_over(self) -> None:
        """Restarts with all connections kept: sends INTRODUCE, to which each client sends HELLO."""
        for number, hook in enumerate(self.hooks):
            asked = self.random.randrange(1, 1 << 63)
            self.hooks[number] = Hook(hook.connection, introduction=asked)
            self.send(self.hooks[number], OrderRecord(Type.INTRODUCE, number=asked))
        self._listen_until(
            lambda: not any(hook.introduction for hook in self.hooks), "introduce itself")

    def _listen_until(self, done: Callable[[], bool], awaited: str) -> None:
        """Handles records without giving orders, until `done`. Running clients always report."""
        deadline = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < deadline, f"a client does not {awaited}: {self.hooks}"
            self.receive(1)

    def close(self) -> None:
        for hook in self.hooks:
            hook.connection.close()
        self._listener.close()
        self._path.unlink(missing_ok=True)

    def step(self) -> None:
        """Handles all received records, then sends a random order."""
        while self.receive(0):
            pass
        self.receive(self.random.choice((0, 0, 0.0005, 0.002)))
        free = self.capacity - sum(hook.room for hook in self.hooks)
        ready = [hook for hook in self.hooks if hook.welcomed and not hook.stopping]
        if self.disk is not None and ready and self.random.random() < 0.2:
            self._store(self.random.choice(ready))
        moving = [hook for hook in ready if hook.moves]
        if moving and self.random.random() < 0.2:
            self._yield(self.random.choice(moving))
        whole = [hook for hook in ready if hook.whole and not hook.running and not hook.moves]
        if whole and self.random.random() < 0.8:
            self._run(self.random.choice(whole))
        elif ready:
            self._order(self.random.choice(ready), free)

    def _order(self, hook: Hook, free: int) -> None:
        if hook.running:
            self._order_running(hook, free)
        elif not hook.moves and self.random.random() < 0.1:
            self._write_back(hook)
        elif not hook.moves and hook.whole:
            self._evict(hook)
        elif not hook.moves and self.random.random() < 0.05:
            self._run(hook)             # the client lacks room: its gate stays shut
        elif not hook.moves:
            self._make_whole(hook, free)

    def _order_running(self, hook: Hook, free: int) -> None:
        if hook.lacks_memory and not hook.moves:
            if hook.room + free >= hook.need:
                slack = min(hook.room + free - hook.need, 8 * MIB)
                # Never below its room: the client runs, and may fill its room before the order.
                room = hook.need + self.random.choice((0, 0, slack))
                self._load(hook, max(room, hook.room), free)
            else:
                self._stop(hook)
            return
        chance = self.random.random()
        if chance < 0.3:
            self._stop(hook)
        elif chance < 0.33 and not hook.moves:
            self._evict(hook)           # a running client only gives up room that it does not fill
        elif chance < 0.4:
            self._run(hook)
        elif chance < 0.5:
            host = 1 << 40 if chance < 0.45 else hook.memory.host + 16 * MIB
            self.send(hook, OrderRecord(Type.PREALLOCATE, host=host))

    def _make_whole(self, hook: Hook, free: int) -> None:
        if hook.need <= hook.room + free:
            room = hook.need if self.random.random() < 0.85 else hook.room + self.random.randrange(
                hook.need - hook.room + 1) if hook.need > hook.room else hook.room
            self._load(hook, max(room, hook.room), free)
            return
        victims = [other for other in self.hooks
                   if other is not hook and other.room and not other.stopping
                   and not other.moves]
        if victims:
            victim = self.random.choice(victims)
            if victim.running:
                self._stop(victim)
            else:
                self._evict(victim)

    def send(self, hook: Hook, order: OrderRecord) -> None:
        self.orders += 1
        # The client may have died: the end of file reports that, too.
        with contextlib.suppress(OSError):
            hook.connection.send(encode_order(order))

    def _run(self, hook: Hook) -> None:
        if not hook.running:
            self.turns += 1
        hook.running, hook.wants = True, False
        flags = Flag.PACE | Flag.REPORT_IDLE if self.random.random() < 0.5 else Flag(0)
        if self.random.random() < 0.7:
            flags |= Flag.REPORT_COPIES
        hook.reports_copies = hook.reports_copies or bool(flags & Flag.REPORT_COPIES)
        self.send(hook, OrderRecord(
            Type.RUN, flags, step_pause=1000, idle_window=self.random.choice((0, 1000, 20000))))

    def _stop(self, hook: Hook) -> None:
        hook.stopping = True
        self.send(hook, OrderRecord(Type.STOP))

    def _yield(self, hook: Hook) -> None:
        hook.cut.update(order.number for order in hook.moves)
        self.send(hook, OrderRecord(Type.YIELD, number=self.number))

    def _ahead(self) -> Flag:
        return Flag.AHEAD if self.random.random() < 0.6 else Flag(0)

    def move(self, hook: Hook, order: OrderRecord) -> None:
        self.number += 1
        hook.moves.append(replace(order, number=self.number))
        self.send(hook, hook.moves[-1])

    def _evict(self, hook: Hook) -> None:
        room = self.random.choice((0, 0, self.random.randrange(hook.room + 1)))
        host = self.random.choice((1 << 40, 1 << 40, hook.memory.host + 16 * MIB))
        self.move(hook, replace(self._loan(hook), flags=self._ahead(), room=room, host=host))

    def _loan(self, hook: Hook) -> OrderRecord:
        """An EVICT with any loan, which may be less than before."""
        if self.lender == NO_UUID:
            return OrderRecord(Type.EVICT)
        loan = self.random.choice((0, hook.borrowed, 1 << 40, self.random.randrange(self.most)))
        return OrderRecord(Type.EVICT, loan=loan, lender=self.lender)

    def _store(self, hook: Hook) -> None:
        """Sends STORE with a random limit, also to clients that run or move blocks."""
        self.number += 1
        size = self.random.choice((0, hook.stored, 1 << 36, 1 << 36, self.random.randrange(
            self.most)))
        self.store(hook, OrderRecord(Type.STORE, number=self.number, file=size))

    def store(self, hook: Hook, order: OrderRecord) -> None:
        if hook.has_file or order.file == 0:
            self.send(hook, order)
            return
        assert self.disk is not None
        hook.has_file = True
        file = os.open(self.disk, os.O_TMPFILE | os.O_RDWR, 0o600)
        with contextlib.suppress(OSError):
            socket.send_fds(hook.connection, [encode_order(order)], [file])
        os.close(file)

    def _write_back(self, hook: Hook) -> None:
        """Sends EVICT with KEEP, also to clients that are not fully resident."""
        size = self.random.choice((hook.room, self.random.randrange(hook.room + 1)))
        host = self.random.choice((1 << 40, 1 << 40, hook.memory.host + 16 * MIB))
        self.move(hook, replace(
            self._loan(hook), flags=self._ahead() | Flag.KEEP, writeback=size, host=host))

    def _load(self, hook: Hook, room: int, free: int) -> None:
        assert room - hook.room <= free, "the commander breaks its own rule"
        host = self.random.choice((*[1 << 40] * 5, 0))
        steps = sorted(self.random.randint(hook.room, room) for _ in range(self.random.choice(
            (0, 0, 1, 2, 5)))) if room > hook.room else []
        hook.room = room
        for step in (*steps, room):     # sends several orders without waiting for replies
            self.move(hook, OrderRecord(Type.LOAD, self._ahead(), room=step, host=host))

    def receive(self, timeout: float) -> bool:
        """Handle all records that arrive within this time. False: none arrived."""
        readable, _, _ = select.select(
            [self._listener, *(hook.connection for hook in self.hooks)], [], [], timeout)
        for ready in readable:
            if ready is self._listener:
                self.hooks.append(Hook(self._listener.accept()[0]))
                continue
            hook = next(hook for hook in self.hooks if hook.connection is ready)
            try:
                packet, descriptors, _, _ = socket.recv_fds(ready, 4096, 1)
            except ConnectionResetError:
                packet, descriptors = b"", []
            if packet:
                assert not descriptors, "a library sends descriptors"
                self._hear(hook, decode_report(packet))
            else:
                ready.close()
                self.hooks.remove(hook)
        return bool(readable)

    def _hear(self, hook: Hook, record: ReportRecord) -> None:
        if record.type is Type.BORROWED:
            self._hear_borrowed(hook, record)
            return
        if record.type is Type.STORED:
            self._hear_stored(hook, record)
            return
        if hook.introduction:
            if record.type is not Type.HELLO or record.number != hook.introduction:
                return
            hook.introduction = 0
        hook.memory = memory = record.memory
        if record.type is not Type.HELLO:
            self._count(hook, record)
        filled = memory.resident + memory.pinned
        if record.type is Type.HELLO:
            hook.running = bool(record.flags & Flag.RUNNING)
            hook.wants = bool(record.flags & Flag.WANTS)
            hook.room, hook.welcomed = memory.room, True
            self.send(hook, self._limits(hook, 0))
        assert filled <= hook.room, f"{filled} bytes on the card with room for {hook.room}"
        assert hook.borrowed <= memory.host, "it has borrowed more than it has off the card"
        match record.type:
            case Type.MEMORY:
                hook.wants = hook.wants or bool(record.flags & Flag.WANTS)
            case Type.STOPPED:
                hook.stopping, hook.running = False, False
                hook.wants = bool(record.flags & Flag.WANTS)
            case Type.REOPENED:
                hook.stopping = False
                self.reopened += 1
            case Type.MOVED:
                assert hook.moves, "MOVED answers nothing"
                order = hook.moves.pop(0)
                assert order.number == record.number
                assert self.ending or not record.flags & Flag.DRIVER_ERROR, "the driver failed"
                if record.flags & Flag.YIELDED:
                    # The return of a loan also ends at a LOAD behind it.
                    loads = any(one.type is Type.LOAD for one in hook.moves)
                    assert record.number in hook.cut or loads, "it yields, and nobody asked it to"
                    self.yielded += 1
                if not hook.moves:
                    hook.room = memory.room
                if order.type is Type.EVICT and not order.flags & Flag.KEEP:
                    incomplete = record.flags & (Flag.NO_MEMORY | Flag.YIELDED)
                    assert hook.borrowed <= order.loan or incomplete
                    self.returned += hook.borrowed == 0 and hook.had_borrowed
                if order.flags & Flag.KEEP:
                    self.bytes_saved += record.moved
                    self.cleaned += hook.borrowed > 0 and hook.dirty < hook.had_dirty
                    complete = record.flags == 0 and record.number not in hook.cut
                    if complete and order.host > 1 << 39 and not hook.running:
                        assert not hook.dirty, "the host has no copy of borrowed memory"
                else:
                    self.bytes_moved += record.moved
                hook.had_borrowed, hook.had_dirty = hook.borrowed > 0, hook.dirty
            case Type.COMMIT if record.wanted == 0:
                self.beyond += 1
                self.send(hook, self._limits(hook, record.number, beyond=memory.beyond))
            case Type.COMMIT:
                limits = self._limits(hook, record.number, record.wanted)
                if record.pins and limits.flags & Flag.GRANTED:
                    hook.grants[record.number] = record.pins
                self.send(hook, limits)
            case Type.COPIES:
                assert hook.reports_copies, "nobody asked whether its program copies"
                self.copying += 1

    def _hear_borrowed(self, hook: Hook, record: ReportRecord) -> None:
        assert record.uuid == self.lender
        hook.borrowed, hook.dirty = record.moved, record.dirty
        assert hook.dirty <= hook.borrowed
        self.borrowed = max(self.borrowed, sum(one.borrowed for one in self.hooks))

    def _hear_stored(self, hook: Hook, record: ReportRecord) -> None:
        if hook.introduction:
            # The report may predate INTRODUCE; if not, the repeated STORE does no harm.
            hook.stored = record.moved
            return
        assert record.error == 0 or self.disk_fails, os.strerror(record.error)
        self.disk_failures += record.error != 0
        self.emptied += hook.stored > 0 and record.moved == 0
        hook.stored = record.moved
        hook.has_file = hook.has_file or record.moved > 0
        self.stored = max(self.stored, hook.stored)

    def _count(self, hook: Hook, record: ReportRecord) -> None:
        """A client may pin no more than it was granted, and each grant counts once."""
        memory = record.memory
        assert memory.answered >= hook.answered, "it has heard less than before"
        assert record.type is not Type.COMMIT or memory.answered < record.number
        heard = [number for number in hook.grants if number <= memory.answered]
        granted = sum(hook.grants.pop(number) for number in heard)
        # Grants of an earlier commander count from the beginning.
        assert hook.to_pin is None or memory.to_pin <= hook.to_pin + granted, (
            f"it may pin {memory.to_pin} after {hook.to_pin}, and was granted {granted}")
        hook.answered, hook.to_pin = memory.answered, memory.to_pin

    def _limits(self, hook: Hook, number: int, asked: int = 0, beyond: int = 0) -> OrderRecord:
        grant = asked <= self.most and self.random.random() >= self.refuses
        self.refused += asked > 0 and not grant
        held = hook.memory.allocated + hook.memory.pinned
        # Only programs with NVSHARE_ENABLE_SINGLE_OVERSUB ask for memory beyond the card.
        most_beyond = 0 if beyond and self.random.random() < 0.3 else self.most
        granted = beyond <= most_beyond if beyond else grant
        return OrderRecord(
            Type.LIMITS, Flag.GRANTED if granted else 0, number,
            # At most an eighth of the total may be kept as spares (freed memory that stays mapped).
            commit=asked if grant else held, most=self.most, total=4 * self.most,
            host_slab=self.random.choice((0, 8 * MIB, 32 * MIB)), beyond=most_beyond)
