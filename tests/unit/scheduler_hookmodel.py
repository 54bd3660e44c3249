# SPDX-License-Identifier: Apache-2.0
"""A model of libnvshare.so and of the program that has loaded it, for schedulers under test.

It follows protocol.h: one order after the other, the youngest blocks evicted and the oldest loaded
first, COMMIT before growth. Calls take no time; drains and moves as long as kernels and bus.
"""

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Protocol

from nvshared.scheduler.actions import (
    Evict,
    Limits,
    Load,
    MoveOrder,
    Order,
    Preallocate,
    Run,
    Stop,
    Store,
    Writeback,
    Yield,
)
from nvshared.scheduler.events import (
    Busy,
    CommitAsked,
    Copies,
    Joined,
    Memory,
    MemoryChanged,
    PinReason,
    Record,
    Reopened,
    Stopped,
    Stored,
    WentIdle,
)
from nvshared.units import MILLISECOND, SECOND
from tests.unit import scheduler_moves as moves
from tests.unit.scheduler_arena import Arena, Block, Location

REPORT = 5 * MILLISECOND                # us: least time between two reports of memory figures
IDLE_WINDOW = 50 * MILLISECOND          # us: ends a turn, until a RUN order sets another value
# The hook shortens a window of less than BILLING by the pauses of its program (flight/activity.c).
BILLING = SECOND
PAUSE_FIRST, PAUSE_LONG, WINDOW_LEAST = 50 * MILLISECOND, SECOND // 2, 10 * MILLISECOND
DRAIN_PATIENCE = 2 * SECOND
BUSY = SECOND // 10                     # us without a gap until BUSY is reported
GAP = 10 * MILLISECOND                  # us without work after which a gap is reported


class Surroundings(Protocol):
    now: int
    block: int                          # size in bytes of the largest block
    slab: int                           # bytes of host memory allocated at a time
    bus: int                            # bytes per microsecond, each way

    def at(self, when: int, callback: Callable[[], None]) -> None:
        """Calls `callback` at the time `when`, unless the hook has ended."""
        ...

    def say(self, hook: "Hook", record: Record | Joined) -> None:
        """Sends a record to the daemon."""
        ...

    def device_free(self) -> int:
        """Free bytes of the card, by the driver."""
        ...


@dataclass(frozen=True, slots=True)
class CommitWait:
    size: int
    pins: int                           # bytes of `size` that will be pinned
    pause: int                          # us from the grant until the thread allocates
    take: Callable[[], None]


@dataclass(eq=False)
class Hook:
    id: int
    world: Surroundings
    blocks: list[Block] = field(default_factory=list)
    arena: Arena = field(default_factory=Arena)
    allocated: int = 0                  # bytes of all blocks
    resident: int = 0
    moving: int = 0                     # number of blocks under eviction or load
    pinned: int = 0
    pin_waits: list[int] = field(default_factory=list)  # bytes that each waiting thread will pin
    room: int = 0
    before: int = 0                     # the room when the EVICT in progress began
    limits: Limits | None = None
    granted: bool = False               # whether RUN arrived after the last STOP
    stopping: bool = False
    stop_heard: int = 0
    paced: bool = False
    reports_idle: bool = False
    reports_copies: bool = False               # whether to report copies of the program
    reports_busy: bool = False
    busy_state: tuple[int, bool] | None = None  # number of the turn; whether the program has work
    busy_reported: tuple[int, bool] | None = None  # `busy_state` as last reported
    copying: tuple[bool, bool] = (False, False)     # copies to card and to host in progress
    want_sent: bool = False
    room_asked: bool = False
    idle_reported: bool = False
    worked: int = 0                     # when its last work ended
    rests: bool = False                 # it has worked, and wanted to do no more since
    longest: tuple[int, int] = (PAUSE_FIRST, 0)     # pause in this and the last stretch of work
    idle_window: int = IDLE_WINDOW
    reported: bool = True
    report_due: bool = False
    last_request: int = 0
    requested_bytes: int = 0            # total bytes that the last COMMIT asked for
    answered: int = 0
    commit_waits: list[CommitWait] = field(default_factory=list)
    granted_pins: list[CommitWait] = field(default_factory=list)  # pins granted and not yet done
    orders: deque[Order] = field(default_factory=deque)
    busy: bool = False
    doing: MoveOrder | None = None
    cut: set[int] = field(default_factory=set)      # numbers of moves that a YIELD cancelled
    borrowed: int = 0                   # bytes of swapped memory on another card
    dirty: int = 0                      # bytes of `borrowed` without a copy in host memory
    lender: str = ""                    # UUID of the card that lent, or was to lend, last
    sees: Collection[str] | None = None # UUIDs of cards that the program sees; None: all
    disk: int = 0                       # bytes in the disk file
    disk_limit: int = 0                 # maximum of `disk`, set by STORE
    store: int = 0                      # number of the STORE order that set `disk_limit`
    storing: bool = False               # a block is being written to the disk
    resume: Callable[[], None] | None = None        # continues a LOAD that waits for a write
    store_fails: bool = False           # whether the next write to the disk fails
    prealloc_limit: int = 0             # bytes of host memory up to which slabs are preallocated
    preallocating: bool = False         # a slab is being allocated
    dead: bool = False
    refused: int = 0                    # number of allocations that the daemon refused

    work: int = 0                       # us of kernels the program still wants to run
    kernel: int = 20 * MILLISECOND      # us of one kernel
    flying: bool = False                # a kernel is in flight
    undrainable: int = 0                # number of next drains that will exceed DRAIN_PATIENCE
    fail_out: str = ""                  # error of the next EVICT: "host" or "driver"
    fail_in: str = ""                   # error of the next LOAD: "driver"
    computed: int = 0                   # us of kernels run
    opened: int = 0                     # time (us) at which the gate opened
    runs: int = 0                       # number of turns
    pin_reason: PinReason = PinReason.NONE

    @property
    def host(self) -> int:
        return self.arena.held

    @property
    def pending(self) -> int:
        return sum(self.pin_waits)

    @property
    def filled(self) -> int:
        return self.resident + self.pinned

    @property
    def need(self) -> int:
        return self.allocated + self.pinned + self.pending

    @property
    def memory(self) -> Memory:
        fast = self.resident if self.pin_reason else 0
        return Memory(self.allocated - fast, self.resident - fast, self.pinned + fast, self.pending,
                      self.room, self.host, answered=self.answered,
                      to_pin=sum(one.pins for one in self.granted_pins), pin_reason=self.pin_reason,
                      borrowed=min(self.borrowed, self.host),
                      dirty=min(self.dirty, self.borrowed, self.host), disk=self.disk)

    @property
    def absent(self) -> bool:
        return self.resident < self.allocated or self.moving > 0

    @property
    def starved(self) -> bool:
        return self.absent or self.filled + self.pending > self.room

    @property
    def open(self) -> bool:
        return self.granted and not self.starved

    @property
    def standing(self) -> bool:
        """Whether a thread waits at the gate, or would if the gate were closed."""
        return self.work > 0 or bool(self.pin_waits)

    def compute(self, microseconds: int) -> None:
        """Submit kernels of this duration in all."""
        self.work += microseconds
        self._proceed()

    def copy(self, inward: bool, outward: bool) -> None:
        """Begin or end copies in each direction; reported while the daemon asked for reports."""
        self.copying = inward, outward
        if self.granted and self.reports_copies:
            self.say(Copies(self.id, self.memory, inward, outward))

    def allocate(self, size: int) -> None:
        self._commit(CommitWait(size, 0, 0, lambda: self._grow(size)))

    def pin(self, size: int, pause: int = 0) -> None:
        """Pin memory; the thread waits for the grant, and then pins after `pause` us."""
        self._commit(CommitWait(size, size, pause, lambda: self._wish(size)))

    def stay(self, reason: PinReason) -> None:
        self.pin_reason = self.pin_reason or reason
        self.changed()

    def unpin(self, size: int) -> None:
        self.pinned -= min(size, self.pinned)
        self.changed()

    def free(self, index: int) -> None:
        if not self.blocks:
            return
        block = self.blocks[index % len(self.blocks)]
        if block.moving:
            block.doomed = True
        else:
            self.forget(block)
        self.changed()

    def _commit(self, asking: CommitWait) -> None:
        """Send COMMIT, with at most one request open at a time."""
        self.commit_waits.append(asking)
        if len(self.commit_waits) == 1:
            self._ask()

    def _ask(self) -> None:
        while self.commit_waits:
            first = self.commit_waits[0]
            self.requested_bytes = self.need + first.size
            allowed = self.limits is not None and self.requested_bytes <= self.limits.commit
            if allowed and not first.pins:
                self.commit_waits.pop(0)
                first.take()
                continue
            if self.limits is not None:
                self.last_request += 1
                self.say(CommitAsked(
                    self.id, self.memory, self.last_request, self.requested_bytes, first.pins))
            return

    def _limits(self, limits: Limits) -> None:
        welcome = self.limits is None
        self.limits = limits
        if welcome:
            self._ask()
        elif self.commit_waits and limits.number == self.last_request:
            self.answered = self.last_request
            first = self.commit_waits.pop(0)
            if first.pins and limits.granted:
                self.granted_pins.append(first)
                if first.pause:
                    self.world.at(self.world.now + first.pause, lambda: self._take(first))
                else:
                    self._take(first)
            elif limits.granted and self.need + first.size <= limits.commit:
                first.take()
            else:
                self.refused += 1
            self._ask()

    def _take(self, asking: CommitWait) -> None:
        """Pins granted memory, unless other threads have used the commit meanwhile."""
        if self.dead:
            return
        self.granted_pins.remove(asking)
        if self.limits is not None and self.need + asking.size <= self.limits.commit:
            asking.take()
        else:
            self._commit(asking)

    def _grow(self, size: int) -> None:
        while size > 0:
            block = Block(min(size, self.world.block))
            size -= block.size
            self.blocks.append(block)
            self.allocated += block.size
            if self.mappable(block) and self.world.device_free() >= block.size:
                self.put(block, Location.RESIDENT)
        self.changed()

    def _wish(self, size: int) -> None:
        self.pin_waits.append(size)
        self.changed()
        self._proceed()

    def mappable(self, block: Block) -> bool:
        return self.room - self.filled - self.pending >= block.size

    def _proceed(self) -> None:
        """Let the program's threads submit kernels and pin memory, or wait at the gate."""
        if self.dead:
            return
        if self.work > 0 and self.rests:
            self._learn_pause(self.world.now - self.worked)
        if self.open and not self.stopping:
            for size in self.pin_waits:
                self.pinned += size
            if self.pin_waits:
                self.pin_waits.clear()
                self.changed()
            if self.work > 0 and not self.flying:
                self.flying = True
                self._work_again()
                self.fly()
        elif self.standing and not (self.granted or self.stopping or self.want_sent):
            self.want_sent = True
            self.say(MemoryChanged(self.id, self.memory, wants=True))
        if self.open and self.reports_idle and self.work == 0 and not self.idle_reported:
            computed, window = self.computed, self._window()
            self.world.at(max(self.world.now, self.worked + window),
                          lambda: self._report_idle(computed, window))
        state = self.runs, self.work > 0
        if self.open and self.reports_busy and state != self.busy_state:
            self.busy_state = state
            wait = BUSY if self.work else GAP
            self.world.at(self.world.now + wait, lambda: self._report_busy(state))

    def _learn_pause(self, pause: int) -> None:
        self.rests = False
        present, last = self.longest
        self.longest = (0, present) if pause >= PAUSE_LONG else (max(present, pause), last)

    def _window(self) -> int:
        learnt = max(2 * max(self.longest), WINDOW_LEAST)
        short = self.paced and self.idle_window < BILLING
        return min(learnt, self.idle_window) if short else self.idle_window

    def _report_idle(self, computed: int, window: int) -> None:
        """Reports IDLE, unless the program has computed since or the window has changed."""
        quiet = self.computed == computed and self.work == 0 and not self.flying
        quiet = quiet and window == self._window()
        listens = self.open and self.reports_idle and not self.stopping
        if listens and quiet and not self.idle_reported:
            self.idle_reported = True
            self.say(WentIdle(self.id, self.memory))

    def _work_again(self) -> None:
        """Reports that a program, reported as idle before, has submitted work again."""
        if self.idle_reported and self.open and self.reports_idle and not self.stopping:
            self.say(WentIdle(self.id, self.memory, resumed=True))
        self.idle_reported = False

    def _window_changed(self) -> None:
        if not self.idle_reported or self.stopping:
            return
        self.idle_reported = self.world.now - self.worked >= self._window()
        self.say(WentIdle(self.id, self.memory, resumed=not self.idle_reported))

    def _report_busy(self, state: tuple[int, bool]) -> None:
        """Reports BUSY or a gap, unless the state has changed since."""
        if self.open and self.reports_busy and not self.stopping and state == self.busy_state:
            if state != self.busy_reported:
                self.say(Busy(self.id, self.memory, gaps=not state[1]))
            self.busy_reported = state

    def fly(self) -> None:
        self.world.at(self.world.now + min(self.kernel, self.work), self.landed)

    def landed(self, done: int | None = None) -> None:
        self.flying = False
        done = min(self.kernel if done is None else done, self.work)
        self.work -= done
        self.computed += done
        self.worked, self.rests = self.world.now, True
        if self.stopping:
            self._drained()
        else:
            self._proceed()

    def say(self, record: Record) -> None:
        self.reported = True
        self.world.say(self, record)

    def hello(self) -> None:
        self.want_sent = not self.granted and self.standing
        self.room_asked = False
        self.reports_idle = self.reports_copies = self.reports_busy = False
        self.prealloc_limit = self.disk_limit = 0
        commit = self.limits.commit if self.limits is not None else 0
        again = self.limits is not None
        # HELLO carries a UUID in place of these two fields; the next record reports them.
        memory = replace(self.memory, answered=0, to_pin=0)
        self.world.say(self, Joined(
            self.id, memory, self.granted, self.want_sent, commit, lender=self.lender))
        self.answered = self.last_request
        if again and self.commit_waits:  # the earlier daemon will not reply
            self.commit_waits.pop(0)
            self.refused += 1
            self._ask()
        self.changed()
        self._carry_on()

    def changed(self) -> None:
        if self.dead:
            return
        if not self.starved:
            self.room_asked = False
        if self.starved and self.granted and not self.room_asked and not self.stopping:
            self.room_asked = True
            self.say(MemoryChanged(self.id, self.memory))
        else:
            self.reported = False
            if not self.report_due:
                self.report_due = True
                self.world.at(self.world.now + REPORT, self._report)

    def _report(self) -> None:
        self.report_due = False
        # A busy service thread sends the report after its present task.
        if not (self.busy or self.reported):
            self.arena.trim(self.allocated)
            wants = self.standing and not self.granted
            self.say(MemoryChanged(self.id, self.memory, wants))

    def obey(self, order: Order) -> None:
        """Receive an order. YIELD does not wait for earlier orders."""
        if isinstance(order, Yield):
            self.cut.add(order.number)
            return
        self.orders.append(order)
        self._carry_on()

    def _carry_on(self) -> None:
        while self.orders and not self.busy and not self.dead:
            order = self.orders.popleft()
            if isinstance(order, MoveOrder):
                self.prealloc_limit, self.busy, self.doing = 0, True, order
            if isinstance(order, Limits):
                self._limits(order)
            elif isinstance(order, Run):
                self._run(order)
            elif isinstance(order, Stop):
                self._stop()
            elif isinstance(order, Store):
                self.disk_limit, self.store = order.size, order.number
                moves.give_up_copies(self)
                self.say(Stored(self.id, self.memory, order.number))
                moves.store(self)
            elif isinstance(order, Preallocate):
                self.prealloc_limit = order.host
                moves.make(self)
            elif isinstance(order, Evict):
                self.before, self.room = self.room, order.room
                moves.evict(self, order)
            elif isinstance(order, Load):
                self.room = order.room
                moves.load(self, order)
            elif isinstance(order, Writeback):
                assert not self.granted, "what may change is copied"
                moves.write_back(self, order)

    def done(self) -> None:
        self.busy, self.doing = False, None
        moves.store(self)
        self.changed()
        self._proceed()
        self._carry_on()

    def _run(self, order: Run) -> None:
        listened = self.reports_idle
        watched = order.report_copies and not self.reports_copies
        self.paced, self.reports_copies = order.pace, order.report_copies
        self.reports_idle = order.report_idle
        fresh = self.reports_idle and not listened
        if not order.report_busy or not (self.reports_busy and self.granted):
            self.busy_state = self.busy_reported = None
        self.reports_busy = order.report_busy
        window, self.idle_window = self.idle_window, order.idle_window or self.idle_window
        self.idle_reported = self.idle_reported and not fresh
        if self.reports_idle and self.granted and self.idle_window != window:
            self._window_changed()
        if not self.granted:
            self.granted = True
            self.opened = self.world.now
            self.want_sent = False
            self.idle_reported = False
            self.runs += 1
            for block in self.blocks:
                block.saved = False
                block.stale = block.filed and self.runs % 3 > 0
            watched = order.report_copies
        if watched and any(self.copying):
            self.say(Copies(self.id, self.memory, *self.copying))
        self.changed()
        self._proceed()

    def _stop(self) -> None:
        self.busy = True
        self.stopping = True
        self.stop_heard = self.world.now
        self.granted = False
        self.room_asked = False
        if self.pin_reason:
            self._shut()
        elif self.undrainable > 0:
            self.undrainable -= 1
            self.world.at(self.world.now + DRAIN_PATIENCE, self._reopen)
        elif not self.flying:
            self._drained()

    def _drained(self) -> None:
        if self.stopping and not self.flying:
            self._shut()

    def _shut(self) -> None:
        """Close the gate: the drain has ended."""
        self.stopping = False
        self.want_sent = self.standing
        drained = self.world.now - self.stop_heard
        used = None if self.pin_reason else self.world.now - self.opened
        self.say(Stopped(self.id, self.memory, self.want_sent, drained, used))
        self.done()

    def _reopen(self) -> None:
        if not self.stopping:
            return                      # the kernel in flight ended after all
        self.stopping = False
        self.granted = True
        self.say(Reopened(self.id, self.memory))
        self.done()

    def put(self, block: Block, location: Location, moving: bool = False) -> None:
        for sign in (-1, 1):            # subtract the old state, add the new state
            if sign == 1:
                block.location, block.moving = location, moving
            self.resident += sign * block.size * (block.location is Location.RESIDENT)
            self.moving += sign * block.moving

    def forget(self, block: Block) -> None:
        self.arena.give(block)
        moves.file(self, block, there=False)
        self.put(block, Location.EMPTY)
        self.allocated -= block.size
        self.blocks.remove(block)
