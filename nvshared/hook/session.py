# SPDX-License-Identifier: Apache-2.0
"""One connection's conversation: records in, events to the scheduler; orders in, records out.

    hook                         session                      scheduler
    HELLO(uuid, memory)  ──────► finds the GPU  ────────────► Joined
          WELCOME(limits) ◄───── the first Limits ◄────────── Limits
    WANT, IDLE, STOPPED … ─────► the same as events ────────► Wanted, WentIdle, Stopped …
          RUN, STOP, EVICT … ◄── orders ◄──────────────────── Run, Stop, Evict …

A connection that an earlier daemon has left begins with our INTRODUCE; until
the HELLO with its number, all that comes answers somebody who is gone.

No socket here: the server hands in packets and takes packets away. What a hook
may say depends on what it was told; whoever answers what nobody asked, or
claims to have more on the card than that has, ends its own connection and nothing else.

What it has besides, is about to pin and was promised is believed up to the size of the
card. One that says 2^56 would have everybody refused, on other cards too, for as long as
it lives. It is not ended for that, as an honest one may come to say so: what its
program asks for is not its business, and a lost card grants anything, for the driver to
refuse; and while several threads are each about to pin most of a card, as each may while
none of the others has begun, all of that is `to_pin`. What is cut off there changes
nothing, since beside the whole card nobody else has any of it either. That a program
holds less than it says, of a card or of the host, cannot be told from its words.
"""

from typing import Protocol

from nvshared.errors import GPULost, NoSuchGPU, ProtocolError
from nvshared.hook import protocol
from nvshared.hook.protocol import FROM_HOOK, VERSION, Flag, Record, Refusal, Type
from nvshared.machine.peer import Peer
from nvshared.scheduler.actions import Evict, Limits, Load, Order, Run, Save, Stop, Yield
from nvshared.scheduler.events import (
    BeyondAsked,
    CommitAsked,
    Copying,
    Event,
    Evicted,
    Loaded,
    Memory,
    MemoryChanged,
    Reopened,
    RoomNeeded,
    Saved,
    Stopped,
    Wanted,
    WentIdle,
)
from nvshared.sharing.gpu import Client
from nvshared.sharing.manager import Manager
from nvshared.units import MIB

MOST_BYTES = 1 << 56                    # that anybody can move; and more need not be asked for


class Wire(Protocol):
    """The connection, as far as a session needs it."""

    def send(self, packet: bytes) -> None:
        """Sends or queues. Must not raise; a broken connection ends later, by itself."""
        ...

    def finish(self) -> None:
        """Nothing more will be sent: close as soon as the other side has read everything."""
        ...


class Session:
    """One client, from its HELLO to the end of its connection."""

    def __init__(
        self, manager: Manager, peer: Peer, wire: Wire, refusal: Refusal | None = None
    ) -> None:
        """`refusal`: decided already when it connected; it is told once it has said HELLO."""
        self.peer = peer
        self.client: Client | None = None
        self.finished = False           # refused: nothing it says counts any more
        self._manager = manager
        self._wire = wire
        self._refusal = refusal
        self._welcomed = False
        self._early: list[Order] = []
        self._moves: dict[int, Type] = {}       # number of an order to the type of its answer
        self._stops = 0
        self._beyond = 0                # bytes beyond the card, which a COMMIT does not tell
        self._introduction = 0          # number of an INTRODUCE without its HELLO

    def take_over(self, number: int) -> None:
        """The connection is an earlier daemon's: asks for a HELLO with this number, not 0."""
        self._introduction = number
        self._manager.awaits(self)
        self._wire.send(protocol.encode(Record(Type.INTRODUCE, number=number)))

    def received(self, packet: bytes) -> None:
        """Raises ProtocolError; whoever catches it ends the connection."""
        record = protocol.decode(packet)
        if self.finished:
            return
        if record.type not in FROM_HOOK:
            raise ProtocolError(f"a {record.type.name} came, which only the daemon may send")
        if self._introduction:
            if record.type is not Type.HELLO or record.number != self._introduction:
                return
            self._introduction = 0
        if self.client is None:
            self._hello(record)
            self._manager.met(self)
        else:
            self.client.gpu.tell(self._event(self.client, record))

    def ended(self) -> None:
        """The connection is gone. Harmless when repeated."""
        self.finished = True
        self._manager.met(self)
        if self.client is not None:
            self.client.gpu.leave(self.client)

    def order(self, order: Order) -> None:
        """Link: carries an order of the scheduler to the hook."""
        if not self._welcomed and not isinstance(order, Limits):
            self._early.append(order)   # WELCOME goes first, whatever the scheduler decides first
            return
        self._wire.send(protocol.encode(self._record(order)))
        if not self._welcomed:
            self._welcomed = True
            early, self._early = self._early, []
            for waiting in early:
                self.order(waiting)

    def _hello(self, record: Record) -> None:
        if record.type is not Type.HELLO:
            raise ProtocolError(f"a {record.type.name} came before HELLO")
        if self._refusal is not None:
            self._refuse(self._refusal)
            return
        if record.version != VERSION:
            self._refuse(Refusal.VERSION)
            return
        try:
            gpu = self._manager.gpu_by_uuid(record.uuid)
            memory = self._memory(record, gpu.facts.memory_total)
            self.client = Client(self._manager.next_id(), gpu, self.peer, self, memory)
            gpu.join(
                self.client,
                running=bool(record.flags & Flag.RUNNING),
                wants=bool(record.flags & Flag.WANTS),
                commit=min(record.bytes, gpu.facts.memory_total),
            )
        except (NoSuchGPU, GPULost):
            self.client = None
            self._refuse(Refusal.NO_SUCH_GPU)

    def _refuse(self, why: Refusal) -> None:
        self._wire.send(protocol.encode(Record(Type.REFUSED, flags=why)))
        self.finished = True
        self._refusal = why
        self._wire.finish()

    def _event(self, client: Client, record: Record) -> Event:
        id = client.id
        memory = self._memory(record, client.gpu.facts.memory_total)
        wants = bool(record.flags & Flag.WANTS)
        match record.type:
            case Type.WANT:
                return Wanted(id, memory)
            case Type.IDLE:
                return WentIdle(id, memory)
            case Type.STOPPED:
                self._stop_answered(record)
                return Stopped(id, memory, wants, _plausible(record.bytes))
            case Type.REOPENED:
                self._stop_answered(record)
                return Reopened(id, memory)
            case Type.EVICTED:
                return self._answer(Evicted, id, memory, record, Flag.NO_HOST_MEMORY)
            case Type.LOADED:
                return self._answer(Loaded, id, memory, record, Flag.NO_DEVICE_MEMORY)
            case Type.SAVED:
                return self._answer(Saved, id, memory, record, Flag.NO_HOST_MEMORY)
            case Type.MEMORY:
                return MemoryChanged(id, memory, wants)
            case Type.ROOM:
                return RoomNeeded(
                    id, memory, min(record.bytes, client.gpu.facts.memory_total))
            case Type.COMMIT:
                wanted, pins = (min(size, MOST_BYTES) for size in (record.bytes, record.host))
                return CommitAsked(id, memory, record.number, wanted, pins)
            case Type.BEYOND:
                return BeyondAsked(id, memory, record.number)
            case Type.COPYING:
                return Copying(
                    id, memory, bool(record.flags & Flag.INWARD),
                    bool(record.flags & Flag.OUTWARD))
        raise ProtocolError(f"a second {record.type.name} came")

    def _stop_answered(self, record: Record) -> None:
        if not self._stops:
            raise ProtocolError(f"a {record.type.name} came, and no STOP was open")
        self._stops -= 1

    def _answer(
        self, kind: type[Evicted] | type[Loaded] | type[Saved], id: int, memory: Memory,
        record: Record, short: Flag,
    ) -> Event:
        """To an order that moves memory; `short`: the kind of memory that it may have lacked."""
        if self._moves.get(record.number) is not record.type:
            raise ProtocolError(
                f"a {record.type.name} with the number {record.number} came, which nobody asked for"
            )
        del self._moves[record.number]
        return kind(
            id, memory, record.number, _plausible(record.bytes), record.microseconds,
            bool(record.flags & short), bool(record.flags & Flag.DRIVER_ERROR),
            bool(record.flags & Flag.YIELDED),
        )

    def _memory(self, record: Record, total: int) -> Memory:
        said = record.memory
        if said.resident + said.pinned > total:
            raise ProtocolError(
                f"it claims to hold {said.resident + said.pinned} bytes of a card of {total}"
            )
        if record.type is not Type.COMMIT:
            self._beyond = _plausible(record.host)
        allocated = min(said.allocated, total - said.pinned)
        pending = min(said.pending, total - said.pinned - allocated)
        to_pin = min(record.to_pin, total - said.pinned - pending)
        return Memory(
            allocated, said.resident, said.pinned, pending, min(said.room, total),
            _plausible(said.host), self._beyond, record.answered, to_pin,
        )

    def _record(self, order: Order) -> Record:
        match order:
            case Run():
                flags = Flag.CONTENDED if order.contended else Flag(0)
                if order.watched:
                    flags |= Flag.WATCHED
                if order.coveted:
                    flags |= Flag.COVETED
                return Record(
                    Type.RUN, flags=flags, bytes=order.quantum, microseconds=order.idle_window
                )
            case Stop():
                self._stops += 1
                return Record(Type.STOP)
            case Evict():
                self._moves[order.number] = Type.EVICTED
                return _move(Type.EVICT, order)
            case Load():
                self._moves[order.number] = Type.LOADED
                return _move(Type.LOAD, order)
            case Save():
                self._moves[order.number] = Type.SAVED
                return Record(
                    Type.SAVE, flags=Flag.AHEAD, number=order.number, bytes=order.ready,
                    host=order.host)
            case Yield():
                return Record(Type.YIELD, number=order.number)
            case Limits():
                limits = protocol.Limits(
                    order.commit, order.most, order.total, _slab(order.total), order.beyond
                )
                if self._welcomed:
                    return Record(Type.LIMITS, number=order.number, limits=limits)
                return Record(Type.WELCOME, limits=limits)


def _move(kind: Type, order: Evict | Load) -> Record:
    flags = Flag.AHEAD if order.ahead else Flag(0)
    return Record(kind, flags=flags, number=order.number, bytes=order.room, host=order.host)


def _plausible(size: int) -> int:
    if size > MOST_BYTES:
        raise ProtocolError(f"{size} bytes is more than any machine has")
    return size


def _slab(total: int) -> int:
    """Grain in which to take host memory: large for speed, small on a small card."""
    return max(2 * MIB, min(128 * MIB, 1 << max(0, (total // 64).bit_length() - 1)))
