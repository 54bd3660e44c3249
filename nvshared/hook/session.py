# SPDX-License-Identifier: Apache-2.0
"""One connection's state: turns records into events for the scheduler, and orders into records.

A session has no socket: the connection passes packets in. docs/internals/connections.md has a
diagram, and explains which of a client's claims are cut and which end its connection."""

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

from nvshared.errors import GPULost, InvalidArgs, NoSuchGPU, NvshareError, ProtocolError
from nvshared.hook.protocol import (
    NO_UUID,
    OLDEST,
    VERSION,
    Flag,
    OrderRecord,
    Park,
    Refusal,
    ReportRecord,
    Type,
    Wait,
)
from nvshared.machine.nvml import uuid_bytes, uuid_text
from nvshared.machine.peer import Peer, printable
from nvshared.scheduler import actions, events
from nvshared.sharing.client_terms import ClientTerms
from nvshared.sharing.disk import Disk, File
from nvshared.sharing.gpu import GPU, Client, EarlierTimes
from nvshared.sharing.manager import Manager
from nvshared.sharing.moving import PARKED
from nvshared.terms import CLIENT_TERMS
from nvshared.units import MIB

ANSWERS = {
    actions.Evict: events.Evicted, actions.Load: events.Loaded,
    actions.Writeback: events.WrittenBack,
}
# Orders of which only the last counts for a client that is parked.
REPLACED = frozenset({Type.RUN, Type.QUEUED, Type.PREALLOCATE})
PARK_REFUSALS = {
    Park.BUSY: "its threads do not rest",
    Park.CALLED: "it wants to use the GPU",
    Park.SEVERAL: "it uses several GPUs",
    Park.HOLDS: "memory of it cannot leave the GPU",
    Park.UNSEEN: "it may call the driver past libnvshare.so, or its threads cannot be looked at",
}
WAITS = {
    actions.ClientState.SUSPENDED: Wait.RESUME, actions.ClientState.LIMITED: Wait.SHARE,
    actions.ClientState.CROWDED: Wait.ROOM,
}
logger = logging.getLogger(__name__)

ERRORS_MOST = 4095                      # the largest errno
PARK_PATIENCE = 15.0                    # seconds for the hook to answer PARK
HELD_MOST = 256                         # most orders that are held back for a parked client
MOST_BYTES = 1 << 56                    # a report of more is an error; a COMMIT is cut to this


class Wire(Protocol):
    """The part of the connection that a session uses."""

    name: str                           # its name, also for later daemons

    def send(self, order: OrderRecord, descriptor: int | None = None) -> None:
        """Sends or queues an order, and closes the descriptor. Must not raise."""

    def drop(self, reason: str) -> None:
        """Ends the connection soon, for a protocol violation."""

    def resume(self, work: Callable[[], None]) -> None:
        """Does `work`, which waited for cgroup limits, when its account is due; then reads on."""


class StoringHook:
    """A session's part of the disk tier: the client's file, made in a thread. The first STORE
    carries its descriptor. Of the STOREs ordered before the file exists, only the last is sent."""

    def __init__(self, disk: Disk, wire: Wire) -> None:
        self.bytes = 0                  # in the client's file, by its last STORED
        self.error = 0                  # errno of its last failed write, by its last STORED
        self.acknowledged = 0           # number of the last STORE that the hook has acknowledged
        self._disk, self._wire = disk, wire
        self._file: File | None = None
        self._sent = False              # the hook has got the file's descriptor
        self._last: actions.Store | None = None     # the last one sent
        self._most = 0                  # the most bytes that any order allowed so far
        self._number = 0                # number of the last STORE sent
        self._waits: actions.Store | None = None    # to be sent when the file exists
        self._ended = False
        self._reported = False          # a STORED has come

    @property
    def has_file(self) -> bool:
        """Whether the hook may have a file, also one of an earlier daemon."""
        return self._reported or self._sent

    def order(
        self, peer: Peer, order: actions.Store, answer: Callable[[actions.Store, bool], None]
    ) -> None:
        """Sends the order once the client has a file, or calls `answer` with the order and whether
        it has failed. (A field for `answer` would make a reference cycle with the session.)"""
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
            self._disk.open(self._wire.name, peer, self._wire.drop,
                            lambda file: self._opened(file, answer))

    def _opened(self, file: File | None, answer: Callable[[actions.Store, bool], None]) -> None:
        order, self._waits, self._file = self._waits, None, file
        assert order is not None
        if self._ended and file is not None:
            self._disk.release(file)
        elif file is None or order.size == 0:
            answer(order, file is None)
        else:
            self._pass(order)

    def _pass(self, order: actions.Store) -> None:
        descriptor, self._last = None, order
        if self._file is not None:
            self._file.most = self._most
            if not self._sent:
                descriptor, self._file.given = self._file.given, -1
                self._sent = True
        self._wire.send(
            OrderRecord(Type.STORE, number=order.number, file=order.size), descriptor)

    def lost(self, answer: Callable[[actions.Store, bool], None]) -> None:
        """The STORE with the descriptor was not sent: sends the last order again, with another."""
        file = self._file
        if file is not None and self._waits is None:
            self._sent, self._waits = False, self._last
            self._disk.open_again(file, lambda: self._opened(file, answer))

    def handle_stored(self, record: ReportRecord, *, known: bool) -> bool:
        """Handles STORED; `known`: after HELLO. True: order or error differs from the last STORED.
        Raises ProtocolError for more bytes than were allowed."""
        if known and record.moved > self._most:
            raise ProtocolError(
                f"it claims {record.moved} bytes on the disk, and may have {self._most} there")
        self._reported = True
        number = record.number if record.number <= self._number else 0
        error = min(record.error, ERRORS_MOST)
        changed = (number, error) != (self.acknowledged, self.error)
        self.bytes, self.error, self.acknowledged = record.moved, error, number
        return changed and known

    def handle_hello(self, peer: Peer, most: int) -> None:
        """Handles HELLO: the bytes reported before it count as allowed, up to `most`."""
        self.bytes = self._most = min(self.bytes, most)
        if self.bytes and self._file is None:
            self._file = self._disk.claim(self._wire.name, peer, self._wire.drop)
            self._sent = self._file is not None

    def ended(self) -> None:
        """Releases the file, as the connection has ended."""
        self._ended = True
        if self._file is not None:
            self._disk.release(self._file)


class ParkedHook:
    """Stands in for the hook of a parked client: all its memory, also if pinned, is off the card.

    Orders are held back, or answered in the hook's place: see docs/internals/connections.md.
    Their number is bounded, whatever the client does, and no descriptor is kept for them."""

    def __init__(self, wire: Wire) -> None:
        self.checkpointed = False       # the process is checkpointed
        self.lost = False               # the process cannot be restored
        self.driver_wanted = False      # a thread of the program wants the driver
        self.memory = events.Memory()   # the hook's last figures
        self._wire = wire
        self._held: list[OrderRecord] | None = None
        # The last PUBLISH (key 0), and the last WATCH of each client; a descriptor is made when one
        # is sent. With each, whether it was in force when the client was parked.
        self._pages: dict[int, tuple[actions.Publish | actions.Watch, bool]] = {}
        self._number = 0                # number of the last PARK sent
        self._answer: asyncio.Future[Park] | None = None

    @property
    def holds(self) -> bool:
        """Whether orders to the hook are held back."""
        return self._held is not None

    @property
    def has_turn(self) -> bool:
        """Link: whether a LOAD or RUN is held back."""
        return any(order.type in (Type.LOAD, Type.RUN) for order in self._held or ())

    async def park(self, context: int, *, ahead: bool) -> None:
        """Makes the hook keep the program out of the driver; `ahead`: unless it wants the GPU.

        `context`: Client.context, which the hook's HELLO to a later daemon repeats. Raises
        NvshareError with the hook's reason to refuse. Orders are held back until unpark() even so.
        """
        self._held, self.driver_wanted = [], False
        self._answer = asyncio.get_running_loop().create_future()
        self._number += 1
        flags = Flag.AHEAD if ahead else 0
        self._wire.send(OrderRecord(Type.PARK, flags, self._number, host=context))
        try:
            async with asyncio.timeout(PARK_PATIENCE):
                answer = await self._answer
        except TimeoutError:
            raise NvshareError("its library does not answer") from None
        finally:
            self._answer = None
        if answer is not Park.DONE:
            raise NvshareError(PARK_REFUSALS[answer])

    def take_over(self) -> None:
        """Marks the client as parked by an earlier daemon."""
        self._held, self.checkpointed = [], True

    def leave(self) -> None:
        self._wire.send(OrderRecord(Type.LEAVE))

    def unpark(
        self, gpu: bytes, *, lost: bool = False
    ) -> tuple[list[actions.Publish | actions.Watch], list[OrderRecord]]:
        """Sends UNPARK, as the process runs on the card with the UUID `gpu`, or is `lost`. Returns
        the orders held back, which the caller sends."""
        self.checkpointed, self.driver_wanted, self.lost = False, False, lost
        flags = Flag.DRIVER_ERROR if lost else 0
        self._wire.send(OrderRecord(Type.UNPARK, flags, gpu=gpu))
        held, self._held = self._held or [], None
        pages, self._pages = [order for order, _ in self._pages.values()], {}
        return pages, held

    def want_driver(self) -> bool:
        """Records that a thread wants the driver. True: the checkpointed process must wake."""
        wakes = self.checkpointed and not self.driver_wanted
        self.driver_wanted = True
        return wakes

    def end(self) -> None:
        """Fails a pending park() and drops the held orders, as the connection has ended."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(NvshareError("it has ended"))
        self._held = None

    def hold(self, order: OrderRecord) -> None:
        """Keeps an order until unpark(). Orders of which the last counts replace earlier ones."""
        assert self._held is not None
        if order.type in REPLACED or _is_unasked_limits(order):
            self._held = [one for one in self._held if one.type is not order.type
                          or _is_unasked_limits(one) != _is_unasked_limits(order)]
        self._held.append(order)
        if len(self._held) > HELD_MOST:
            self._wire.drop("it asks over and over although it is parked")

    def hold_page(self, order: actions.Publish | actions.Watch) -> None:
        key = order.watched if isinstance(order, actions.Watch) else 0
        _, before = self._pages.pop(key, (None, not order.on))
        if order.on or before:
            self._pages[key] = order, before

    def cancel_run(self) -> None:
        """Drops a held RUN, as a STOP has followed it."""
        self._held = [one for one in self._held or [] if one.type is not Type.RUN]

    def mark_checkpointed(self) -> list[OrderRecord]:
        """Records that the process is checkpointed. Returns held EVICTs, to be answered now."""
        self.checkpointed, held = True, self._held or []
        self._held = [one for one in held if one.type is not Type.EVICT]
        return [one for one in held if one.type is Type.EVICT]

    def handle_parked(self, record: ReportRecord) -> None:
        """Handles PARKED, the reply to PARK. Raises ProtocolError if it is no member of Park."""
        if record.park not in PARK_REFUSALS and record.park != Park.DONE:
            raise ProtocolError(f"the unknown answer {record.park} to PARK came")
        # A late reply to an earlier PARK is ignored: UNPARK has released the threads meanwhile.
        if record.number == self._number and self._answer is not None and not self._answer.done():
            self.driver_wanted = record.has(Flag.WANTS)
            self._answer.set_result(Park(record.park))

    def adjusted(self, memory: events.Memory) -> events.Memory:
        """Stores the hook's figures. Returns them adjusted for a process that is checkpointed."""
        self.memory = memory
        if self.lost:                   # nothing of it is on the card, pinned or not
            return replace(memory, resident=0, pinned=0, pending=0)
        if not self.checkpointed:
            return memory
        pending = memory.pinned + memory.pending if self.driver_wanted else 0
        return replace(memory, resident=0, pinned=0, pending=pending, room=0)


class Session:
    """One client, from its HELLO to the end of its connection."""

    def __init__(self, manager: Manager, peer: Peer, wire: Wire) -> None:
        self.peer = peer
        self.client: Client | None = None
        self.finished = False           # refused or ended; a refused connection is to be ended
        self.looking_up = False         # a record waits for cgroup limits: do not call received()
        self._manager, self._wire = manager, wire
        self._borrowed = self._dirty = 0    # bytes, by the last BORROWED record
        self._lender = b""              # UUID of the lending card, by the last BORROWED
        self._introduction = 0          # number of the INTRODUCE whose HELLO is awaited; 0: none
        self._parked = ParkedHook(wire)
        self.park, self.leave = self._parked.park, self._parked.leave       # Link
        self._storing = StoringHook(manager.disk, wire)
        self._moved: Client | None = None   # after a move: the client on its old card, until HELLO
        self._terms = ClientTerms()     # as the program's environment gives them
        self._requested = (0, 0)        # number and `wanted` of the last COMMIT in version 2

    def take_over(self) -> None:
        """Sends INTRODUCE with a random number to a client that knows an earlier daemon or card."""
        self._introduction = (int.from_bytes(os.urandom(8)) >> 1) + 1
        self._manager.await_hello(self, awaited=True)
        self._wire.send(OrderRecord(Type.INTRODUCE, number=self._introduction))

    def received(self, record: ReportRecord) -> None:
        """Handles a record. Raises ProtocolError, on which the caller ends the connection."""
        if self.finished:
            return
        match record.type:
            case Type.NAME | Type.GANG if self.client is not None:
                raise ProtocolError(f"a {record.type.name} came after HELLO")
            case Type.NAME:
                self.peer = replace(self.peer, title=printable(record.text).strip())
            case Type.GANG:
                self._set_gang(record.text)
                self._set_terms(record)
            case Type.BORROWED:
                self._borrowed, self._dirty, self._lender = record.moved, record.dirty, record.uuid
            case Type.STORED:
                self._handle_stored(record)
            case _:
                self._received(record)

    def _received(self, record: ReportRecord) -> None:
        record = replace(record, memory=replace(
            record.memory, borrowed=self._borrowed, dirty=self._dirty, disk=self._storing.bytes))
        if self._introduction:
            if record.type is not Type.HELLO or record.number != self._introduction:
                return
            self._introduction = 0

        def lookup_done() -> None:
            self.looking_up = False
            if not self.finished:
                self._wire.resume(partial(self._handle, record))

        if record.type is Type.COMMIT and record.version == OLDEST and record.wanted:
            self._requested = record.number, record.wanted

        # HELLO and COMMIT are answered only once the limits of the client's cgroups are known.
        if record.type in (Type.COMMIT, Type.HELLO):
            more = record.memory.host + record.memory.beyond if self.client is None else 0
            self.looking_up = self._manager.read_limits(self.peer, more, lookup_done)
        if not self.looking_up:
            self._handle(record)

    def _handle(self, record: ReportRecord) -> None:
        if self.client is None:
            self._hello(record)
            self._manager.await_hello(self, awaited=False)
            return
        if record.type is Type.PARKED:
            self._parked.handle_parked(record)
            return
        wants = record.type is Type.WAKE or record.has(Flag.WANTS)
        # Only of a client that the driver has checkpointed: a claim must not evict others.
        if wants and self._parked.holds and self._parked.want_driver() and (
                self.client.parking.state == PARKED):
            self.client.gpu.expect_context(self.client)
        self.client.gpu.tell(self._event(self.client, record, wants))
        if record.type is Type.WAITING:
            self._send(_wait(self.client))

    def _handle_stored(self, record: ReportRecord) -> None:
        known, before = self.client is not None and not self._introduction, self._storing.error
        if not self._storing.handle_stored(record, known=known):
            return
        client, error = self.client, self._storing.error
        assert client is not None
        if error and error != before:
            self._manager.disk.failed(self.peer, error)
        memory = replace(client.memory, disk=self._storing.bytes)
        client.gpu.tell(events.Stored(client.id, memory, self._storing.acknowledged, bool(error)))

    def descriptor_lost(self, kind: Type) -> None:
        """An order of this type was not sent, since too many descriptors are in flight."""
        if kind is Type.STORE and not self.finished:
            self._storing.lost(self._answer_store)

    def _answer_store(self, order: actions.Store, failed: bool) -> None:
        if (client := self.client) is not None:
            client.gpu.tell(events.Stored(client.id, client.memory, order.number, failed))

    def _set_gang(self, text: str) -> None:
        """Sets the gang from a GANG text: NAME or NAME:PROCESSES."""
        whole = printable(text).strip()
        name, _, size = whole.rpartition(":") if ":" in whole else (whole, "", "")
        if name:
            known = size.isascii() and size.isdigit()
            self.peer = replace(self.peer, gang=name, gang_size=int(size[:4]) if known else 0)

    def _set_terms(self, given: ReportRecord) -> None:
        """Sets the terms that the program starts with. Raises ProtocolError."""
        try:
            for term in CLIENT_TERMS:
                if value := getattr(given, term.field, 0):
                    self._terms = self._terms.having(term, value, by_owner=True)
        except InvalidArgs as error:
            raise ProtocolError(f"it gives itself impossible terms: {error.message}") from None

    def ended(self) -> None:
        """Removes the client, as its connection has ended. No-op when repeated."""
        self.finished = True
        self._manager.await_hello(self, awaited=False)
        self._parked.end()
        self._storing.ended()
        self._moved = None              # breaks a cycle: the old client refers to the session
        client, self.client = self.client, None
        if client is not None:
            client.gpu.leave(client)

    def confirm_checkpoint(self) -> None:
        assert self.client is not None
        orders, client = self._parked.mark_checkpointed(), self.client
        memory = self._parked.adjusted(self._parked.memory)
        client.gpu.tell(events.Parked(client.id, memory))
        if self._parked.driver_wanted:
            client.gpu.expect_context(client)
            client.gpu.tell(events.MemoryChanged(client.id, memory, wants=True))
        for order in orders:
            self._answer(order)

    def resume_on(self, gpu: GPU) -> None:
        client = self.client
        assert client is not None
        # Nothing is held for a client whose card was found again after a loss.
        if self._parked.holds:
            pages, held = self._parked.unpark(gpu.facts.uuid_bytes)
            if gpu is client.gpu:
                self._send_held(pages, held)
        if gpu is not client.gpu:
            client.remember(EarlierTimes(client.held, client.waited), client.terms)
            self._moved, self.client = client, None
            client.gpu.leave(client)
            self.take_over()

    def give_up(self) -> None:
        assert self.client is not None
        self._send_held(*self._parked.unpark(self.client.gpu.facts.uuid_bytes, lost=True))

    def _send_held(
        self, pages: list[actions.Publish | actions.Watch], held: list[OrderRecord]
    ) -> None:
        for page in pages:              # before a RUN: it shows the work to wait for
            self.order(page)
        for order in held:
            self._wire.send(order)

    @property
    def has_turn(self) -> bool:
        return self._parked.has_turn

    @property
    def has_file(self) -> bool:
        return self._storing.has_file

    def _answer(self, order: OrderRecord) -> None:
        """Acknowledges an EVICT in place of a parked client's hook; no memory is on the card."""
        assert self.client is not None
        memory = self._parked.adjusted(self._parked.memory)
        kind = events.WrittenBack if order.flags & Flag.KEEP else events.Evicted
        self.client.gpu.tell(kind(self.client.id, memory, order.number, 0, 0))

    def _answer_stop(self) -> None:
        """Acknowledges a STOP in place of a parked client's hook; its gate is closed."""
        assert self.client is not None
        self._parked.cancel_run()
        memory = self._parked.adjusted(self._parked.memory)
        self.client.gpu.tell(
            events.Stopped(self.client.id, memory, wants=self._parked.driver_wanted))

    def order(self, order: actions.Order) -> None:
        """Link: sends an order of the scheduler to the hook. The first order is Limits."""
        match order:
            case actions.Limits() if order.reason:
                self._send(OrderRecord(Type.REASON, text=order.reason))
            case actions.Evict() | actions.Writeback() if self._parked.checkpointed:
                self._answer(_record(order))
                return
            case actions.Stop() if self._parked.checkpointed:
                self._answer_stop()
                return
            case actions.Publish() | actions.Watch() if self._parked.holds:
                self._parked.hold_page(order)
                return
            case actions.Store() if self._parked.holds:
                self._answer_store(order, True)
                return
            case actions.Store():
                self._storing.order(self.peer, order, self._answer_store)
                return
        needs_page = isinstance(order, actions.Publish | actions.Watch) and order.on
        page = self._page(order) if needs_page else None
        if needs_page and page is None:
            return
        self._send(self._refusing(_record(order)), page)
        if self._parked.checkpointed and isinstance(order, actions.Load | actions.Run):
            assert self.client is not None
            self._manager.moving.wake(self.client)

    def _refusing(self, order: OrderRecord) -> OrderRecord:
        """Lowers the commit of a refusal: in version 2 the hook would take it for a grant."""
        number, wanted = self._requested
        if (order.type is not Type.LIMITS or not order.number or order.number != number
                or order.flags & Flag.GRANTED):
            return order
        return replace(order, commit=min(order.commit, wanted - 1))

    def _send(self, order: OrderRecord, page: int | None = None) -> None:
        if self._parked.holds:
            self._parked.hold(order)
        else:
            self._wire.send(order, page)

    def _page(self, order: actions.Order) -> int | None:
        """A new descriptor of an inflight page. None: its client has left, or the system failed."""
        assert self.client is not None
        try:
            if not isinstance(order, actions.Watch):
                return self.client.inflight_page.writable()
            watched = self.client.gpu.clients.get(order.watched)
            return None if watched is None else watched.inflight_page.readable()
        except OSError as error:
            logger.warning(
                "%s: background clients do not yield to it: %s", self.client, error.strerror)
            return None

    def _hello(self, record: ReportRecord) -> None:
        if record.type is not Type.HELLO:
            raise ProtocolError(f"a {record.type.name} came before HELLO")
        if record.version not in (OLDEST, VERSION):
            self._manager.note_refused(self.peer)
            self._refuse(Refusal.VERSION)
            return
        try:
            gpu = self._manager.gpu(uuid_text(record.uuid))
            total, wants = gpu.facts.memory_total, record.has(Flag.WANTS)
            self._storing.handle_hello(self.peer, total)
            memory = _bounded(record.memory, total)
            self.client = Client(self._manager.next_id(), gpu, self.peer, self, self._terms)
            if record.has(Flag.IS_PARKED):
                self._parked.take_over()
                self._parked.driver_wanted = wants
            gpu.join(
                self.client, self._parked.adjusted(memory), running=record.has(Flag.RUNNING),
                wants=wants, commit=min(record.commit, total), lender=self._lender,
                before=self._moved)
            self._moved = None
            if self._parked.checkpointed:
                self._manager.moving.take_over(self.client, record.context)
        except (NoSuchGPU, GPULost):
            self.client = None
            self._refuse(Refusal.NO_SUCH_GPU)

    def _refuse(self, refusal: Refusal) -> None:
        self._wire.send(OrderRecord(Type.REFUSED, refusal=refusal))
        self.finished = True

    def _event(self, client: Client, record: ReportRecord, wants: bool) -> events.Event:
        id = client.id
        memory = self._parked.adjusted(_bounded(record.memory, client.gpu.facts.memory_total))
        stopping = client.gpu.lost or client.gpu.scheduler.stopping(client.id)
        if record.type in (Type.STOPPED, Type.REOPENED) and not stopping:
            raise ProtocolError(f"a {record.type.name} came, and no STOP was open")
        match record.type:
            case Type.IDLE:
                return events.WentIdle(id, memory, wants)
            case Type.STOPPED:
                return events.Stopped(id, memory, wants, record.took, record.used or None)
            case Type.REOPENED:
                return events.Reopened(id, memory)
            case Type.MOVED:
                order = client.gpu.scheduler.unanswered(id, record.number)
                if order is not None:
                    return ANSWERS[type(order)](
                        id, memory, record.number, _plausible(record.moved), record.took,
                        *map(record.has, (Flag.NO_MEMORY, Flag.DRIVER_ERROR, Flag.YIELDED)))
                if client.gpu.lost:     # the scheduler has dropped open orders of a lost card
                    return events.MemoryChanged(id, memory)
                raise ProtocolError(
                    f"a MOVED with the number {record.number} came, which answers no open order")
            case Type.MEMORY | Type.WAITING | Type.WAKE:
                return events.MemoryChanged(id, memory, wants)
            case Type.COMMIT:
                wanted, pins = (min(size, MOST_BYTES) for size in (record.wanted, record.pins))
                return events.CommitAsked(id, memory, record.number, wanted, pins)
            case Type.COPIES:
                return events.Copies(id, memory, record.has(Flag.INWARD), record.has(Flag.OUTWARD))
            case Type.BUSY:
                return events.Busy(id, memory, record.has(Flag.GAPS))
        raise ProtocolError(f"a second {record.type.name} came")


def _record(order: actions.Order) -> OrderRecord:
    assert not isinstance(order, actions.Store)     # StoringHook sends STORE, with the file
    match order:
        case actions.Run():
            flags = {
                Flag.PACE: order.pace, Flag.REPORT_IDLE: order.report_idle, Flag.STEP: order.step,
                Flag.REPORT_COPIES: order.report_copies, Flag.REPORT_BUSY: order.report_busy}
            return OrderRecord(Type.RUN, sum(flag for flag, on in flags.items() if on),
                               step_pause=order.step_pause, idle_window=order.idle_window)
        case actions.Stop():
            return OrderRecord(Type.STOP)
        case actions.Writeback():
            return replace(_move(Type.EVICT, order, Flag.KEEP), writeback=order.size)
        case actions.Preallocate():
            return OrderRecord(Type.PREALLOCATE, host=order.host)
        case actions.Load():
            return _move(Type.LOAD, order)
        case actions.MoveOrder():
            return _move(Type.EVICT, order)
        case actions.Publish():
            return OrderRecord(Type.PUBLISH)
        case actions.Watch():
            return OrderRecord(Type.WATCH, number=order.watched)
        case actions.Yield():
            return OrderRecord(Type.YIELD, number=order.number)
        case actions.Limits():
            # Bytes of each of the hook's host allocations: many for speed, few for a small card.
            slab = max(2 * MIB, min(128 * MIB, 1 << max(0, (order.total // 64).bit_length() - 1)))
            return OrderRecord(
                Type.LIMITS, Flag.GRANTED if order.granted else 0, order.number,
                commit=order.commit, most=order.most, total=order.total, host_slab=slab,
                beyond=order.beyond)


def _wait(client: Client) -> OrderRecord:
    """A QUEUED record: the reason of the client's wait, and its position in the queue."""
    state, position = client.view.state, client.position
    wait = WAITS.get(state, Wait.TURN if position else Wait.MOVES)
    if state is actions.ClientState.WAITING and client.gang:
        wait = Wait.GANG
    return OrderRecord(Type.QUEUED, number=position, waits_for=wait)


def _move(kind: Type, order: actions.MoveOrder, flags: int = 0) -> OrderRecord:
    return OrderRecord(
        kind, flags | (Flag.AHEAD if order.ahead else 0), order.number, order.room, order.host,
        loan=order.loan, lender=uuid_bytes(order.lender) or NO_UUID)


def _bounded(memory: events.Memory, total: int) -> events.Memory:
    """The client's figures, limited to possible values on a card of `total` bytes. Raises
    ProtocolError for impossible figures."""
    if memory.filled > total:
        raise ProtocolError(f"it claims to hold {memory.filled} bytes of a card of {total}")
    if memory.borrowed > memory.host:
        raise ProtocolError(f"it claims to have borrowed {memory.borrowed} of {memory.host} bytes")
    allocated = min(memory.allocated, total - memory.pinned)
    pending = min(memory.pending, total - memory.pinned - allocated)
    return replace(
        memory, allocated=allocated, pending=pending, room=min(memory.room, total),
        host=_plausible(memory.host), beyond=_plausible(memory.beyond),
        to_pin=min(memory.to_pin, total - memory.pinned - pending),
        dirty=min(memory.dirty, memory.borrowed), disk=min(memory.disk, total))


def _is_unasked_limits(order: OrderRecord) -> bool:
    return order.type is Type.LIMITS and not order.number


def _plausible(size: int) -> int:
    if size > MOST_BYTES:
        raise ProtocolError(f"{size} bytes is more than any machine has")
    return size
