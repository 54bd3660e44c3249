# SPDX-License-Identifier: Apache-2.0
"""The scheduler's output: orders for hooks, and reports for people.

Each order becomes a record (protocol.h). The orders to one client must be sent in the order given.
Sizes are bytes, times microseconds.
"""

from dataclasses import dataclass
from enum import StrEnum

from nvshared.scheduler.events import PinReason


class ClientState(StrEnum):
    """A client's state, for people to read."""

    IDLE = "idle"
    WAITING = "waiting"
    CROWDED = "crowded"                 # waiting, and too large even for the card alone
    LIMITED = "limited"                 # waiting for the next window of its compute limit
    LOADING = "loading"
    RUNNING = "running"
    DRAINING = "draining"
    EVICTING = "evicting"               # not running, and its memory is being evicted
    SUSPENDED = "suspended"             # until resumed


class TurnEnd(StrEnum):
    """Why a turn ended."""

    IDLE = "idle"                       # the client had no work, and others wait or may come
    QUANTUM = "quantum"                 # the quantum was over and others waited
    LIMIT = "limit"                     # the compute limit of the client or a tenant was reached
    ROOM = "room"                       # the client grew beyond the room that could be found
    CAPACITY = "capacity"               # the card has less room than before
    PREEMPTED = "preempted"             # by command, as others waited
    SUSPENDED = "suspended"             # by command
    GANG = "gang"                       # the gang's turn ended, or another gang's began
    LEFT = "left"                       # the process ended
    LOST = "lost"                       # the GPU is gone


@dataclass(frozen=True, slots=True)
class Run:
    """RUN: opens the gate, or changes how a client runs whose gate is open."""

    client: int
    pace: bool = False                  # others wait: bound the work in flight
    report_idle: bool = False           # send IDLE after `idle_window` without work
    report_copies: bool = False         # send COPIES when the program copies
    idle_window: int = 0                # 0: as before
    report_busy: bool = False           # send BUSY: whether work is in flight at all times
    step: bool = False                  # one launch at a time
    step_pause: int = 0                 # us from the end of a launch to the next one


@dataclass(frozen=True, slots=True)
class Stop:
    """STOP: close the gate, drain, and send STOPPED."""

    client: int


@dataclass(frozen=True, slots=True)
class MoveOrder:
    """Tells a client to move memory."""

    client: int
    number: int
    room: int
    host: int                           # bytes of host memory that the client may hold
    ahead: bool = False                 # speculative: no client waits for the move yet
    loan: int = 0                       # bytes that may lie on another card, in all; unused by Load
    lender: str = ""                    # UUID of that card


@dataclass(frozen=True, slots=True)
class Evict(MoveOrder):
    """EVICT: keep at most `room` bytes on the card, and hold at most `host` bytes on the host."""


@dataclass(frozen=True, slots=True)
class Load(MoveOrder):
    """LOAD: load swapped blocks into `room` bytes of the card, then keep at most `host` bytes."""


@dataclass(frozen=True, slots=True)
class Writeback(MoveOrder):
    """EVICT with KEEP: copy until `size` bytes could be evicted without a copy; evict none."""

    size: int = 0


@dataclass(frozen=True, slots=True)
class Preallocate:
    """PREALLOCATE: allocate host memory while running, up to `host` in all. Has no reply."""

    client: int
    host: int


@dataclass(frozen=True, slots=True)
class Store:
    """STORE: keep up to `size` bytes on the disk in all. Valid until the next STORE."""

    client: int
    number: int
    size: int


@dataclass(frozen=True, slots=True)
class Yield:
    """YIELD: end this speculative EVICT or LOAD early, and keep blocks that were moved."""

    client: int
    number: int


@dataclass(frozen=True, slots=True)
class Publish:
    """PUBLISH: publish in shared memory whether work is in flight, or stop; see turns.py."""

    client: int
    on: bool


@dataclass(frozen=True, slots=True)
class Watch:
    """WATCH: submit nothing while client `watched` has work in flight, or no longer watch it."""

    client: int
    watched: int
    on: bool


@dataclass(frozen=True, slots=True)
class Limits:
    """LIMITS: how far a client may grow; bytes. The first action after a client joined."""

    client: int
    number: int                         # of the COMMIT request that this answers, else 0
    commit: int                         # promised
    most: int                           # could be promised on request
    total: int                          # size of the card as the program sees it
    beyond: int = 0                     # host memory allowed for blocks that do not fit the card
    reason: str = ""                    # the limit because of which the COMMIT is refused


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """Report: a client's gate opens."""

    client: int


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """Report: a client has closed its gate and drained, or has disconnected."""

    client: int
    reason: TurnEnd
    held_time: int                      # how long the turn was


@dataclass(frozen=True, slots=True)
class Stuck:
    """Report: a client has not acknowledged an order for long. Sent once for each order."""

    client: int
    state: ClientState
    waited: int


@dataclass(frozen=True, slots=True)
class Crowded:
    """Report: a client has waited for long and would not fit even alone. Sent once in a wait."""

    client: int
    needs: int                          # bytes, pinned ones included
    room: int                           # bytes that the client could fill, alone on the card


@dataclass(frozen=True, slots=True)
class Pinned:
    """Report: a client is undrainable, so its memory is pinned from now on."""

    client: int
    reason: PinReason


Order = Run | Stop | MoveOrder | Preallocate | Store | Yield | Limits | Publish | Watch
Report = TurnStarted | TurnEnded | Stuck | Pinned | Crowded
Action = Order | Report
