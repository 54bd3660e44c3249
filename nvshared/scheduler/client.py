# SPDX-License-Identifier: Apache-2.0
"""The state of one client: its figures, its turn, its orders under way.

Other files change it: turns.py the phase, moves.py orders under way, promises.py the promise.
"""

from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum

from nvshared.scheduler.actions import ClientState, Load, MoveOrder, Run, Store, TurnEnd
from nvshared.scheduler.domains import Domain, Stake
from nvshared.scheduler.events import Evidence, Ganged, Memory, Standing, Stopped
from nvshared.scheduler.neighbours import Loan, Neighbour
from nvshared.scheduler.settings import Priority, Terms
from nvshared.scheduler.tenants import History, Node, Path
from nvshared.units import SECOND

RECENT = 4                              # a new measurement is this part of the average, or more
FAR = 4.0                               # times the average: farther measurements count as that
# Bytes per microsecond. PCI Express 3, 4 and 5 copy 12, 25 and 50 thousand. Started with the
# middle, a first turn is half or twice as long as it should be.
USUAL_SPEED = 25_000
FAST = 20 * USUAL_SPEED                 # a faster average is unlearned as soon as this one


@dataclass(frozen=True, slots=True)
class Average:
    """A running average of `number` measurements, at most RECENT.

    The first measurement replaces the start value, later ones weigh less, and the last few count in
    all. An outlier (the host was paging, a load failed and was tried again) counts as not quite so
    far from the average. A lasting change is learned within a few measurements.
    """

    value: float
    least: float                        # average, for the question how far a measurement is
    number: int = 0

    def after(self, measured: float) -> "Average":
        """With one measurement more."""
        if self.number:
            measured = max(measured, self.value / FAR)
            measured = min(measured, max(self.value, self.least) * FAR)
        number = min(self.number + 1, RECENT)
        return Average(self.value + (measured - self.value) / number, self.least, number)


PACE = Average(1 / USUAL_SPEED, 1 / FAST)       # of hand-overs, us per byte; see quantum.py
PAUSE = Average(0, SECOND)              # us, see ahead.py


class Phase(StrEnum):
    """Where a client stands between two turns."""

    IDLE = "idle"                       # the gate is closed, and no thread stands there
    WAITING = "waiting"                 # in the queue
    LIMITED = "limited"                 # wants a turn, and is at a compute limit
    LOADING = "loading"                 # chosen; RUN follows when it is whole
    RUNNING = "running"                 # RUN was sent, STOP was not
    DRAINING = "draining"               # STOP was sent and not answered


class Way(Enum):
    """Which way memory goes."""

    OUT = "EVICT"
    IN = "LOAD"


class Goal(Enum):
    """The purpose of a speculative move; see ahead.py."""

    HEAD = "head"
    PREFETCH = "prefetch"
    WRITEBACK = "writeback"


@dataclass(slots=True)
class Move:
    """An order to move memory that has not been answered."""

    order: MoveOrder
    since: int                          # when the hook could begin to carry it out
    host: int                           # host memory that counts for the client meanwhile
    goal: Goal | None = None            # None: a client waits for it
    cut: bool = False                   # YIELD was sent
    reported: bool = False              # as stuck

    @property
    def way(self) -> Way:
        """Which way it loads the bus."""
        return Way.IN if isinstance(self.order, Load) else Way.OUT


@dataclass(frozen=True, slots=True)
class Question:
    """A COMMIT: may the client grow to so many bytes, and pin some more?"""

    number: int
    bytes: int
    pins: int
    since: int


@dataclass(frozen=True, slots=True)
class Pin:
    """A grant to pin, until the hook has the answer and counts it itself."""

    number: int
    bytes: int
    until: int                          # when it ends, should the hook never say so


@dataclass(frozen=True, slots=True)
class Overclaims:
    """Bytes that a client claims and that do not count, see trust.py."""

    filled: int = 0
    host: int = 0
    beyond: int = 0


@dataclass(slots=True)
class Turn:
    """From being chosen to having drained."""

    serial: int                         # later turns have higher ones
    chosen: int                         # when
    beside: frozenset[int] = frozenset()  # serials of turns that bound it, as it overtook
    started: int | None = None          # when RUN was sent
    renewed: int = 0                    # when it went on, as the client would have been the next
    idle: bool = False                  # IDLE came since the client was told of contention
    told: Run | None = None             # how to run, last; its quantum is that of the whole turn
    copying: frozenset[Way] = frozenset()  # ways in which the program's own copies load the bus
    busy: int | None = None             # since when work was in flight at all times, by BUSY
    lacked: int | None = None           # bytes, when chosen; None: no room had to be made
    swapped: int = 0                    # bytes, when chosen
    ending: TurnEnd | None = None       # why STOP was sent
    stop_sent: int = 0
    preempted: bool = False             # may end before its quantum is over
    stop_after: int = 0                 # a drain did not end: no STOP before this moment
    reported: bool = False              # as stuck
    parked: Stopped | None = None       # the client has drained, its gang has not; see gang.py
    resumed: bool = False               # it went on after it was parked

    @property
    def counted(self) -> int:
        """The moment from which the quantum counts, once the turn has begun."""
        return max(self.started or 0, self.renewed)


QUEUING = (Standing.FREE, Standing.CLAIMS)
NO_GANG = Ganged((), 0, Standing.FREE)

WRITEBACK_AFTER = SECOND // 2
WRITEBACK_AFTER_MOST = 64 * SECOND


@dataclass(frozen=True, slots=True)
class WritebackState:
    """How much memory of an idle client was written back; see ahead.py."""

    bytes: int = 0                      # that leave without a copy
    exhausted: bool = False             # no more can be written back before its next turn
    after: int = WRITEBACK_AFTER        # us of idleness before a writeback

    def wasted(self) -> "WritebackState":
        """After a turn has begun, in which the program makes the copies stale."""
        after = min(2 * self.after, WRITEBACK_AFTER_MOST) if self.bytes else self.after
        return WritebackState(after=after)

    def used(self) -> "WritebackState":
        """Some of its memory was evicted. How much of the copies is left is not known."""
        return replace(self, bytes=0, after=WRITEBACK_AFTER) if self.bytes else self


@dataclass(frozen=True, slots=True)
class Pauses:
    """How long a client pauses between two uses of the card; us. See ahead.py."""

    usual: Average = PAUSE
    spread: Average = PAUSE             # how far they are from that

    def after(self, pause: int) -> "Pauses":
        """With one more."""
        known, far = self.usual.number, abs(pause - self.usual.value)
        return Pauses(self.usual.after(pause), self.spread.after(far) if known else self.spread)

    def left(self, since: int) -> float:
        """How much longer a pause that has lasted `since` will probably last."""
        usual = self.usual.value
        spread = self.spread.value if self.spread.number else usual
        return max(abs(usual - since), spread)


# Fields that count in card.py.
COUNTED = frozenset({
    "memory", "room", "terms", "phase", "place", "turn", "moves", "commit", "withdrawn",
    "question", "granted", "pins", "cost", "writeback", "domains", "tenancies", "evidence",
    "overclaims", "silenced", "path", "membership", "preallocated", "lender", "stores",
    "disk_limits",
})


@dataclass(slots=True)
class Counting:
    """Marks its client for recounting when a figure changes that counts in card.py."""

    id: int                             # of the client
    touched: set[int]                   # ids of clients that changed

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)
        if name in COUNTED:
            self.touched.add(self.id)


@dataclass(slots=True)
class Promise(Counting):
    """How far a client may grow, its question, and the last answers; see promises.py."""

    commit: int = 0                     # promised
    withdrawn: int = 0                  # promised before, until the hook has surely heard
    confirmed_by: int = 0               # number of the order whose answer shows that; 0: none
    question: Question | None = None    # COMMIT unanswered
    granted: int = 0                    # by the last answer, until the client uses it
    granted_until: int = 0
    pins: tuple[Pin, ...] = ()          # grants to pin that the hook may not have heard of
    last_most: int = 0
    last_total: int = 0

    @property
    def most(self) -> int:
        """The commit that counts while the hook may not have heard of a smaller one."""
        return max(self.commit, self.withdrawn, self.granted)


@dataclass(slots=True)
class Failures:
    """Orders that a client did not carry out, and when it is ordered again; us. See moves.py."""

    load_after: int = 0                 # a LOAD failed: no other before this moment,
    load_pause: int = 0                 # which was so long after it
    evict_after: int = 0                # the same of an EVICT
    evictions_ignored: int = 0          # in a row
    pinned_until: int = 0               # so many that its memory counts as pinned until then
    trim_after: int = 0                 # it gave back no host memory: not asked before this moment
    spare_host_unusable: bool = False   # it could not evict into host memory that seemed free
    drains: int = 0                     # in a row that did not end
    store_since: int = 0                # when a block was stored last, or an order given
    store_after: int = 0                # a STORE failed: no other before this moment,
    store_pause: int = 0                # which was so long after it
    copies_after: int = 0               # it gave up copies on the disk: not asked before this


@dataclass(slots=True)
class ScheduledClient(Counting):
    """Bytes and microseconds throughout."""

    memory: Memory
    room: int                           # as the hook last confirmed it
    said: Memory = Memory()             # by its last record; `memory` has what counts of it
    domains: tuple[Domain, ...] = ()    # limits of its host memory
    tenancies: tuple[Domain, ...] = ()  # memory limits of its tenants, which bound its commit
    disk_limits: tuple[Domain, ...] = ()    # of its tenants
    account: str = ""                   # that its claims count for, see trust.py; "": trusted
    tenants: tuple[str, ...] = ()       # the outermost first
    evidence: Evidence = Evidence()
    overclaims: Overclaims = Overclaims()
    unshown_before: int = 0             # claimed bytes that the last sample did not show
    silenced: bool = False              # unresponsive: its evidence counts, not its claims
    own: Terms = Terms()                # set for the client
    terms: Terms = Terms()              # in force: the client is suspended with its tenants, too
    membership: Ganged = NO_GANG        # the last event of its gang, see gang.py
    ready: bool = False                 # of a gang: its turn could begin
    invited: bool = False               # of a gang: it waits because another member does
    phase: Phase = Phase.IDLE
    since: int = 0                      # of this phase,
    wanted: int = 0                     # and of its waiting, where it waits
    path: Path = field(init=False)      # in the tree of tenants, the root first,
    limits: tuple[Node, ...] = ()       # its own node and the accounts of its tenants
    place: int = 0                      # in the queue: lower goes first
    not_before: int = 0                 # gave way: do not choose before this moment
    turn: Turn | None = None            # LOADING, RUNNING and DRAINING have one
    moves: tuple[Move, ...] = ()        # in the order sent
    progress: int = 0                   # when it last brought anything in
    cut: bool = False                   # a LOAD ended early, and left room empty
    pace: Average = PACE                # of its hand-overs, see quantum.py
    cost: int | None = None             # us, of the last one; None: no room had to be made

    failures: Failures = field(default_factory=Failures)
    crowded: bool = False               # reported, in this wait, as fitting not even alone

    busy_after: int = 0                 # no busy turns before this moment; see busy.py
    busy_pause: int = 0                 # how long they were put off last

    writeback: WritebackState = WritebackState()
    preallocated: int = 0               # host memory it may have, by the last PREALLOCATE
    lender: Neighbour | None = None     # of which it borrows, or may; see loans.py
    return_after: int = 0               # a return failed; do not order another before this,
    copy_after: int = 0                 # and the same of a writeback of borrowed memory
    unproved: int = 0                   # bytes on the disk by its word alone, see trust.py
    stores: tuple[Store, ...] = ()      # unanswered; the one before them, which holds until then
    pauses: Pauses = Pauses()
    halvings: int = 0                   # of its idle window, see quantum.py
    rests: int | None = None            # the window before them, if idleness ended its last turn

    promise: Promise = field(init=False)
    history: History = field(init=False)

    def __post_init__(self) -> None:
        self.promise = Promise(self.id, self.touched)

    @property
    def standing(self) -> Standing:
        """In its gang."""
        return self.membership.standing

    @property
    def need(self) -> int:
        """Bytes that must be resident before the gate opens."""
        return self.memory.need

    @property
    def lacks_room(self) -> int:
        """Bytes of room that the client needs, and that no order gives it."""
        return max(0, self.memory.need - self.ordered)

    @property
    def takes(self) -> int:
        """Bytes of the card that the client fills when whole, beside what it pins."""
        return self.memory.need - self.memory.pinned

    @property
    def owes(self) -> bool:
        """An order to the client is unanswered."""
        return bool(self.moves) or self.phase is Phase.DRAINING

    @property
    def unresponsive(self) -> bool:
        """The client has not answered for so long that it was reported; no other waits for it."""
        if self.phase is Phase.DRAINING:
            return self.turn is not None and self.turn.reported
        return bool(self.moves) and self.moves[0].reported

    @property
    def charged(self) -> int:
        """Bytes counted against the capacity: while an order is on its way, the larger room."""
        most = max(self.room, self.memory.filled - self.overclaims.filled)
        for move in self.moves:
            most = max(most, move.order.room)
        seen = self.evidence.card
        return min(most, seen) if self.silenced and seen is not None else most

    @property
    def out_of_reach(self) -> int:
        """Bytes that a unresponsive client holds; if it runs, those beyond what it needs."""
        if not self.unresponsive:
            return 0
        held = self.charged - min(self.charged, self.pinned)
        return max(0, held - self.takes) if self.phase is Phase.RUNNING else held

    @property
    def ordered(self) -> int:
        """The client's room once all orders to it are carried out."""
        return self.moves[-1].order.room if self.moves else self.charged

    @property
    def whole(self) -> bool:
        """All memory is resident and stays so under all orders on their way: the gate may open."""
        if self.memory.resident < self.memory.allocated or self.room < self.need:
            return False
        return not self.moves or min(move.order.room for move in self.moves) >= self.need

    @property
    def is_permanent(self) -> bool:
        """Undrainable and whole: the client runs beside whichever client has the turn."""
        return bool(self.memory.pin_reason) and self.whole

    @property
    def host_charged(self) -> int:
        """Host memory that the client has, or that an order allows it to take."""
        most = max(self.memory.host, self.preallocated)
        for move in self.moves:
            if move.way is Way.OUT:
                most = max(most, move.order.host)
        return most

    @property
    def host_counted(self) -> int:
        """The same, less what the client overclaims."""
        most = max(self.memory.host - self.overclaims.host, self.preallocated)
        for move in self.moves:
            most = max(most, move.host)
        return most

    @property
    def disk_charged(self) -> int:
        """Bytes that the client has on the disk, or that an order allows it to write there."""
        return max([self.memory.disk, *(order.size for order in self.stores)])

    @property
    def stored(self) -> int:
        """Swapped bytes on the disk. Copies of resident blocks may count as well."""
        return min(self.memory.disk, max(0, self.memory.allocated - self.memory.resident))

    @property
    def storable(self) -> int:
        """Bytes in host memory that could go to the disk; 0 while the client runs.

        Fewer are there if resident blocks keep host memory."""
        memory = self.memory
        size = min(memory.allocated - memory.resident, memory.host - memory.borrowed)
        return 0 if self.open else max(0, size)

    @property
    def loan(self) -> Loan:
        """What it has borrowed, or may have."""
        held = self.memory.borrowed
        if self.lender is None:
            return Loan()
        orders = [move.order.loan for move in self.moves if move.way is Way.OUT]
        return Loan(held, max([held, *orders]), [held, *orders][-1])

    def note_loan(self) -> None:
        """Tells its lender. What it could return, and does not say, counts no more."""
        if self.lender is not None:
            self.lender.note(self.id, Loan() if self.unresponsive else self.loan)

    @property
    def staying(self) -> int:
        """Swappable bytes that are resident once all orders are carried out."""
        return min(self.memory.resident, max(0, self.ordered - self.memory.pinned))

    @property
    def host_spare(self) -> int:
        """Host memory of its own into which more could leave, as no swapped block occupies it.

        There may be more, as blocks that never held anything need none. There may be none, as
        it may be kept for other blocks than those that leave next.
        """
        if self.failures.spare_host_unusable:
            return 0
        return max(0, self.host_charged - (self.memory.allocated - self.staying))

    @property
    def used(self) -> int:
        """Bytes of the commit in use, or about to be by the thread that asked for them."""
        used = max(self.need, self.promise.granted)
        return min(used, self.promise.most) if self.account else used

    @property
    def pinned(self) -> int:
        """Bytes that the client has pinned, less what it overclaims."""
        return min(self.memory.pinned, self.memory.filled - self.overclaims.filled)

    @property
    def to_pin(self) -> int:
        """Bytes that the client was granted to pin, and that its figures do not contain yet."""
        return self.memory.to_pin + sum(pin.bytes for pin in self.promise.pins)

    @property
    def pinned_shown(self) -> int:
        """The part of `pinned_expected` that NVML shows; it bounds how far other clients grow."""
        if not self.account:
            return self.pinned_expected
        return self.pinned if self.evidence.hidden else min(self.pinned, self.evidence.card or 0)

    @property
    def pinned_unshown(self) -> int:
        """The rest of it: pinned by the client's word alone, or yet to be pinned."""
        return self.pinned_expected - self.pinned_shown

    @property
    def pinned_expected(self) -> int:
        """Bytes pinned now and by grants; of an undrainable client, its whole commit."""
        pinned = self.pinned + self.memory.pending + self.to_pin
        return max(pinned, self.committed) if self.memory.pin_reason else pinned

    @property
    def committed(self) -> int:
        """The commit that counts against what card and host can promise."""
        return self.promise.most if self.account else max(self.promise.most, self.used)

    @property
    def beyond(self) -> int:
        """Host memory for what does not fit the card, less what the client overclaims."""
        return self.memory.beyond - self.overclaims.beyond

    @property
    def shown(self) -> int:
        """Bytes that the client has by the driver's and the kernel's figures."""
        memory, host = self.memory, self.evidence.host
        away = memory.borrowed + min(memory.host - memory.borrowed, host or 0)
        away += max(0, self.stored - self.unproved)
        return min(memory.filled, self.evidence.card or 0) + away

    @property
    def unshown(self) -> int:
        """Bytes promised beyond what driver and kernel show."""
        return max(0, self.committed - self.shown) + self.beyond

    @property
    def stake(self) -> Stake:
        """The client's part in the sums of the domains that bound its host memory."""
        beyond = self.beyond
        return Stake(
            max(0, self.committed - self.pinned_expected) + beyond, self.committed - self.used,
            self.memory.allocated - self.stored + beyond, self.host_counted + beyond,
        )

    @property
    def tenant_stake(self) -> Stake:
        """The client's part in the sums of its tenants' memory limits."""
        return Stake(self.committed, self.committed - self.used)

    @property
    def holds(self) -> bool:
        """Chosen, running or draining."""
        return self.turn is not None

    @property
    def its_turn(self) -> Turn:
        """That of a client that holds the card."""
        assert self.turn is not None
        return self.turn

    @property
    def begins_or_runs(self) -> bool:
        """Chosen or running."""
        return self.phase is Phase.LOADING or self.phase is Phase.RUNNING

    @property
    def queued(self) -> bool:
        """The client waits for a turn and may have one."""
        return (self.phase is Phase.WAITING and not self.terms.suspended
                and self.membership.standing in QUEUING)

    @property
    def is_idle(self) -> bool:
        """The client wants no turn."""
        return self.phase is Phase.IDLE and not self.terms.suspended

    def moving(self, way: Way) -> bool:
        """An unanswered order loads the bus this way."""
        return bool(self.moves) and any(move.way is way for move in self.moves)

    def enter(self, phase: Phase, now: int) -> None:
        """Changes phase, and bills the time spent in the one before."""
        runs = (phase is Phase.RUNNING) - (self.phase is Phase.RUNNING)
        drains = (phase is Phase.DRAINING) - (self.phase is Phase.DRAINING)
        for node in self.nodes if runs or drains else ():
            node.turn(now, runs, drains)
        if runs + drains:
            self.history.hold(now, runs + drains)
        self.history.waited = self.time_waited(now)
        if not self.waits:
            self.wanted = now
        self.phase = phase
        self.crowded = False
        self.since = now

    def credit(self, unused: int) -> None:
        """Takes microseconds of the turn that just ended off the bill: messages' way, or idling."""
        for node in self.nodes:
            node.credit(unused)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes to which the client's turns are billed."""
        return (*self.path[:-1], *self.limits)

    @property
    def priority(self) -> Priority:
        """By its tenants' terms."""
        return self.path[0].priority

    @property
    def rationed(self) -> bool:
        """A compute limit holds for the client or one of its tenants."""
        return bool([node for node in self.limits if node.quota is not None])

    @property
    def open(self) -> bool:
        """RUN was sent, and STOP was not answered."""
        return self.phase in (Phase.RUNNING, Phase.DRAINING)

    def time_held(self, now: int) -> int:
        """Microseconds with the gate open, in all."""
        return self.path[-1].held_at(now)

    def time_waited(self, now: int) -> int:
        """Microseconds of waiting for a turn, in all."""
        return self.history.waited + (now - self.since if self.waits else 0)

    @property
    def waits(self) -> bool:
        """The client wants its gate open, and the gate is closed."""
        return self.phase in (Phase.WAITING, Phase.LIMITED, Phase.LOADING)

    @property
    def state(self) -> ClientState:
        """For people."""
        if not self.holds and self.moving(Way.OUT) and self.ordered < self.room:
            return ClientState.EVICTING
        if not self.holds and self.terms.suspended:
            return ClientState.SUSPENDED
        return ClientState(self.phase)
