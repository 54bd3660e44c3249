# SPDX-License-Identifier: Apache-2.0
"""The state of one client: its figures, its turn, its orders under way."""

from dataclasses import dataclass, field, replace

from nvshared.scheduler import events
from nvshared.scheduler.actions import ClientState
from nvshared.scheduler.domains import Bounds, Loan
from nvshared.scheduler.events import Memory, PinReason, Standing, Terms
from nvshared.scheduler.orders import Orders
from nvshared.scheduler.promise import Claims, Promise
from nvshared.scheduler.records import PACE, Average, Counting, Direction, Pauses, Records
from nvshared.scheduler.tenants import ClientTotals, Node, Path
from nvshared.scheduler.turn import Turn

# A client's phase is one of the states IDLE to DRAINING; the other states follow from figures.
Phase = ClientState


@dataclass(slots=True)
class ScheduledClient(Counting):
    """The state of one client of a card; bytes and microseconds."""

    memory: Memory                      # the figures that count
    orders: Orders
    claims: Claims
    history: ClientTotals
    bounds: Bounds = Bounds()
    tenants: tuple[str, ...] = ()       # the outermost first
    reported: Memory = Memory()         # the figures of its last record
    own: Terms = Terms()                # the terms set for this client alone
    terms: Terms = Terms()              # the terms in force: suspended also with one of its tenants
    membership: events.Ganged = events.Ganged((), 0, Standing.FREE)     # last event of its gang
    ready: bool = False                 # member of a gang: it could be chosen now
    invited: bool = False               # member of a gang: queued because another member waits
    phase: Phase = Phase.IDLE
    since: int = 0                      # when the phase began
    waits_since: int = 0                # when its current wait began
    path: Path = field(init=False)      # in the tree of tenants, the root first
    limits: tuple[Node, ...] = ()       # nodes of its compute limits: its own and its tenants'
    queue_number: int = 0               # a lower number comes first in the queue
    not_before: int = 0                 # not chosen before this time, as no room was found
    turn: Turn | None = None            # while it holds the card: LOADING, RUNNING or DRAINING
    pace: Average = PACE                # us per byte of its hand-overs, see turns.py
    cost: int | None = None             # us to load for its last turn; None: it was not Card.head

    crowded: bool = False               # Crowded was reported in the current wait
    pauses: Pauses = Pauses()
    promise: Promise = field(init=False)
    records: Records = field(default_factory=Records)   # of modules that use this one

    def __post_init__(self) -> None:
        self.promise = Promise(self.id, self.touched)

    @property
    def standing(self) -> Standing:
        """The client's standing in its gang."""
        return self.membership.standing

    @property
    def missing_bytes(self) -> int:
        """Bytes to be loaded, or made room for, before all the client's memory is on the card."""
        return max(0, self.memory.need - self.memory.filled)

    @property
    def room_deficit(self) -> int:
        """Bytes of room that the client will lack when all orders to it are carried out."""
        return max(0, self.memory.need - self.ordered)

    @property
    def unpinned_need(self) -> int:
        """Bytes of the card that all of the client's memory fills, without pinned memory."""
        return self.memory.need - self.memory.pinned

    @property
    def unresponsive(self) -> bool:
        """Whether the client was reported as stuck. No other client waits for such a client."""
        if self.phase is Phase.DRAINING:
            return self.turn is not None and self.turn.reported
        return bool(self.orders.moves) and self.orders.moves[0].reported

    @property
    def charged(self) -> int:
        """Bytes counted against capacity: its room, or the largest room of unanswered orders."""
        orders = self.orders
        most = max(self.memory.filled - self.claims.over.filled, orders.room)
        if orders.moves:
            most = max(most, *[move.order.room for move in orders.moves])
        seen = self.claims.evidence.card
        return min(most, seen) if self.claims.silenced and seen is not None else most

    @property
    def out_of_reach(self) -> int:
        """Unpinned bytes that an unresponsive client keeps; while it runs, bytes above its need."""
        if not self.unresponsive:
            return 0
        held = self.charged - min(self.charged, self.pinned)
        return max(0, held - self.unpinned_need) if self.phase is Phase.RUNNING else held

    @property
    def ordered(self) -> int:
        """The client's room once all orders to it are carried out."""
        return self.orders.moves[-1].order.room if self.orders.moves else self.charged

    @property
    def whole(self) -> bool:
        """Whether all memory is resident, and all orders leave room for it: the gate may open."""
        enough = min(self.orders.rooms) >= self.memory.need
        return enough and self.memory.resident >= self.memory.allocated

    @property
    def is_permanent(self) -> bool:
        """Cannot drain, and is `whole`: the client runs beside whichever client has the turn."""
        return bool(self.memory.pin_reason) and self.whole

    @property
    def host_charged(self) -> int:
        """Host memory that the client has, or that an order allows it to take."""
        orders = [order.host for order in self.orders.evictions]
        return max(self.memory.host, self.orders.preallocated, *orders)

    @property
    def host_counted(self) -> int:
        """`host_charged`, less the bytes that the client overclaims."""
        orders = [move.host for move in self.orders.moves]
        return max(self.memory.host - self.claims.over.host, self.orders.preallocated, *orders)

    @property
    def disk_charged(self) -> int:
        """Bytes that the client has on the disk, or that an order allows it to write there."""
        return max([self.memory.disk, *(order.size for order in self.orders.stores)])

    @property
    def swapped(self) -> int:
        """Bytes that are not resident. Blocks never written count, but occupy no memory."""
        return max(0, self.memory.allocated - self.memory.resident)

    @property
    def stored(self) -> int:
        """Swapped bytes on the disk. Copies of resident blocks may count as well."""
        return min(self.memory.disk, self.swapped)

    @property
    def storable(self) -> int:
        """The most bytes of host memory that could move to the disk; 0 while the client runs."""
        size = min(self.swapped, self.memory.host - self.memory.borrowed)
        return 0 if self.open else max(0, size)

    @property
    def loan(self) -> Loan:
        """Bytes of another card that the client has borrowed, or may borrow by orders."""
        held = self.memory.borrowed
        if self.orders.lender is None:
            return Loan()
        orders = [order.loan for order in self.orders.evictions]
        return Loan(held, max([held, *orders]), [held, *orders][-1])

    def record_loan(self) -> None:
        """Records the loan at the lender. The loan of an unresponsive client counts as none."""
        if self.orders.lender is not None:
            self.orders.lender.set_loan(self.id, Loan() if self.unresponsive else self.loan)

    @property
    def staying(self) -> int:
        """Swappable bytes that are resident once all orders are carried out."""
        return min(self.memory.resident, max(0, self.ordered - self.memory.pinned))

    @property
    def used(self) -> int:
        """Bytes of the commit in use, or granted to a thread that is about to use them."""
        used = max(self.memory.need, self.promise.wanted)
        return min(used, self.promise.in_force) if self.claims.account else used

    @property
    def pinned(self) -> int:
        """Bytes that the client has pinned, less what it overclaims."""
        return min(self.memory.pinned, self.memory.filled - self.claims.over.filled)

    @property
    def to_pin(self) -> int:
        """Bytes that the client was granted to pin, and that its figures do not contain yet."""
        return self.memory.to_pin + sum(pin.bytes for pin in self.promise.pins)

    @property
    def pinned_shown(self) -> int:
        """The part of `pinned_expected` that NVML shows; it bounds how far other clients grow."""
        if not self.claims.account:
            return self.pinned_expected
        evidence = self.claims.evidence
        return self.pinned if evidence.hidden else min(self.pinned, evidence.card or 0)

    @property
    def pinned_expected(self) -> int:
        """Bytes pinned now and by grants; of an undrainable client, its whole commit."""
        pinned = self.pinned + self.memory.pending + self.to_pin
        return max(pinned, self.committed) if self.memory.pin_reason else pinned

    @property
    def committed(self) -> int:
        """The commit that counts against what card and host can promise."""
        promised = self.promise.in_force
        return promised if self.claims.account else max(promised, self.used)

    @property
    def beyond(self) -> int:
        """Host memory of allocations too large for the card, less overclaimed bytes."""
        return self.memory.beyond - self.claims.over.beyond

    @property
    def shown(self) -> int:
        """Bytes that the client has by the driver's and the kernel's figures."""
        memory, claims = self.memory, self.claims
        evicted = memory.borrowed + min(memory.host - memory.borrowed, claims.evidence.host or 0)
        evicted += max(0, self.stored - claims.unproved)
        return min(memory.filled, claims.evidence.card or 0) + evicted

    @property
    def holds(self) -> bool:
        """Whether the client has a turn: it is chosen, runs or drains."""
        return self.turn is not None

    @property
    def its_turn(self) -> Turn:
        """The turn of a client that holds the card."""
        assert self.turn is not None
        return self.turn

    @property
    def queued(self) -> bool:
        """Whether the client waits, is not suspended, and its standing in its gang allows turns."""
        return (self.phase is Phase.WAITING and not self.terms.suspended
                and self.membership.standing in (Standing.FREE, Standing.CLAIMS))

    @property
    def idle_since(self) -> int | None:
        """Since when the client has had no work; None: it may have work, or waits to submit it."""
        if self.phase is Phase.IDLE:
            return self.since
        return self.turn.rests_since if self.turn is not None and self.open else None

    @property
    def is_idle(self) -> bool:
        """Whether the client wants no turn, and is not suspended."""
        return self.phase is Phase.IDLE and not self.terms.suspended

    def join(self, path: Path, *limits: Node) -> None:
        """Gives the client its place in the tree of tenants. `limits`: none to leave them."""
        self.path, self.limits = path, limits or self.limits

    def change_membership(self, event: events.Ganged) -> None:
        self.membership = event
        self.ready = self.ready and event.standing is Standing.CLAIMS

    def claim(self, ready: bool) -> None:
        """Records whether the member of a gang could be chosen now."""
        self.ready = ready

    def invite(self, invited: bool) -> None:
        """Records whether the member of a gang is queued because another member waits."""
        self.invited = invited

    def set_terms(self, own: Terms, in_force: Terms) -> None:
        self.own, self.terms = own, in_force

    def queue(self, number: int, not_before: int = 0) -> None:
        """Sets the client's place in the queue."""
        self.queue_number, self.not_before = number, max(self.not_before, not_before)

    def note_crowded(self) -> None:
        self.crowded = True

    def begin_turn(self, turn: Turn) -> None:
        self.turn = turn

    def end_turn(self) -> Turn | None:
        """Ends the turn, if any, and returns it."""
        turn, self.turn = self.turn, None
        return turn

    def note_handover(self, pace: float | None, cost: int | None) -> None:
        """Records a hand-over to the client: the us per byte, if measured, and the us to load."""
        if pace is not None:
            self.pace = self.pace.after(pace)
        self.cost = cost

    def note_pause(self, now: int) -> None:
        """The idle phase that ends was a pause between two turns."""
        self.pauses = self.pauses.after(now - self.since)

    def record(self, reported: Memory, now: int) -> None:
        """Records the figures that the hook reports, and which of them count."""
        self.reported = reported
        if now < self.orders.kept.until and not reported.pin_reason:
            reported = replace(
                reported, allocated=max(0, reported.allocated - reported.resident), resident=0,
                pinned=reported.filled, pin_reason=PinReason.KEPT)
        # No other source shows borrowed or stored bytes, so as many count as orders allow.
        reported = replace(
            reported, borrowed=min(reported.borrowed, self.loan.charged),
            disk=min(reported.disk, self.disk_charged))
        self.history.fill(self.memory, now)
        self.claims.follow(self.memory, reported, self.charged, self.host_counted)
        self.memory = reported

    def count_stored(self, most: int) -> None:
        """Lets at most this many bytes on the disk count."""
        self.memory = replace(self.memory, disk=min(self.memory.disk, most))

    def bind(self, bounds: Bounds) -> None:
        self.bounds = bounds

    def use(self, now: int) -> None:
        """Bills a holder that works, by the last reports of its hook, and no other one."""
        self.history.hold(now, uses=self.its_turn.rests_since is None)

    def enter(self, phase: Phase, now: int) -> None:
        """Changes the phase, and bills the time spent in the previous phase."""
        runs = (phase is Phase.RUNNING) - (self.phase is Phase.RUNNING)
        drains = (phase is Phase.DRAINING) - (self.phase is Phase.DRAINING)
        for node in self.nodes if runs or drains else ():
            node.turn(now, runs, drains)
        if runs + drains:
            self.history.hold(now, uses=runs + drains > 0)
        self.history.wait(self.time_waited(now))
        if not self.waits:
            self.waits_since = now
        self.phase, self.since, self.crowded = phase, now, False

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes to which the client's turns are billed."""
        return (*self.path[:-1], *self.limits)

    @property
    def priority(self) -> events.Priority:
        """The client's priority, by its own and its tenants' terms."""
        return self.path[0].priority

    @property
    def rationed(self) -> bool:
        """Whether the client or one of its tenants has a compute limit."""
        return bool([node for node in self.limits if node.quota])

    @property
    def open(self) -> bool:
        """Whether the gate may be open: RUN was sent, and STOPPED has not arrived."""
        return self.phase in (Phase.RUNNING, Phase.DRAINING)

    def time_held(self, now: int) -> int:
        """Total microseconds with the gate open."""
        own = self.path[-1]
        return own.held + (now - own.billed_until if own.open else 0)

    def time_waited(self, now: int) -> int:
        """Total microseconds of waiting for a turn."""
        return self.history.waited + (now - self.since if self.waits else 0)

    @property
    def waits(self) -> bool:
        """Whether the client wants its gate open while the gate is closed."""
        return self.phase in (Phase.WAITING, Phase.LIMITED, Phase.LOADING)

    @property
    def state(self) -> ClientState:
        """The client's state, for people to read."""
        if not self.holds and self.orders.moving(Direction.OUT) and (
                self.ordered < self.orders.room):
            return ClientState.EVICTING
        if not self.holds and self.terms.suspended:
            return ClientState.SUSPENDED
        return self.phase
