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

    IDLE = "idle"                       # the gate is closed, and no thread waits at the gate
    WAITING = "waiting"                 # in the queue
    LIMITED = "limited"                 # waiting for the next window of its compute limit
    LOADING = "loading"                 # chosen; RUN follows when all its memory is resident
    RUNNING = "running"                 # RUN was sent, STOP was not
    DRAINING = "draining"               # STOP was sent, STOPPED has not arrived
    CROWDED = "crowded"                 # waiting, and too large even for the card alone
    EVICTING = "evicting"               # not running, and its memory is being evicted
    SUSPENDED = "suspended"             # until resumed


class TurnEnd(StrEnum):
    """Why a turn ended."""

    IDLE = "idle"                       # the client had no work, and a client waits or soon may
    QUANTUM = "quantum"                 # the quantum was over, and a client waited
    LIMIT = "limit"                     # the compute limit of the client or a tenant was reached
    ROOM = "room"                       # the client grew, and the holders no longer fit together
    CAPACITY = "capacity"               # the capacity shrank, and the holders no longer fit
    PREEMPTED = "preempted"             # an administrator ended it while a client waited
    SUSPENDED = "suspended"             # the client or one of its tenants was suspended
    GANG = "gang"                       # its gang's turn ended, or another gang was given the card
    LEFT = "left"                       # the process ended
    LOST = "lost"                       # the GPU is gone


@dataclass(frozen=True, slots=True)
class ClientAction:
    """An order to a client's hook, or a report about the client."""

    client: int


@dataclass(frozen=True, slots=True)
class Run(ClientAction):
    """RUN: opens the gate, or changes how a client with an open gate runs."""

    pace: bool = False                  # other clients wait: bound the work in flight
    report_idle: bool = False           # send IDLE after `idle_window` without work
    report_copies: bool = False         # send COPIES when the program's use of the bus changes
    idle_window: int = 0                # us; 0: the window of the last RUN stays in force
    report_busy: bool = False           # send BUSY: was work in flight throughout a second?
    step: bool = False                  # submit one launch at a time
    step_pause: int = 0                 # us from the end of a launch to the next launch


class Stop(ClientAction):
    """STOP: close the gate, drain, and send STOPPED."""


@dataclass(frozen=True, slots=True)
class MoveOrder(ClientAction):
    """Tells a client to move memory."""

    number: int
    room: int
    host: int                           # bytes of host memory that the client may hold
    ahead: bool = False                 # speculative: no client waits for the move yet
    loan: int = 0                       # bytes to hold at most on card `lender`; not used by Load
    lender: str = ""                    # UUID of the card that lends memory to the client


@dataclass(frozen=True, slots=True)
class Evict(MoveOrder):
    """EVICT: keep at most `room` bytes on the card, and hold at most `host` bytes on the host."""


@dataclass(frozen=True, slots=True)
class Load(MoveOrder):
    """LOAD: fill `room` bytes of the card with swapped blocks; keep `host` bytes on the host."""


@dataclass(frozen=True, slots=True)
class Writeback(MoveOrder):
    """EVICT with KEEP: copy until `size` bytes could be evicted without a copy; evict none."""

    size: int = 0                       # 0: copy borrowed blocks of which the host has no copy


@dataclass(frozen=True, slots=True)
class Preallocate(ClientAction):
    """PREALLOCATE: allocate host memory while running, up to `host` bytes in all. Has no reply."""

    host: int


@dataclass(frozen=True, slots=True)
class Store(ClientAction):
    """STORE: keep up to `size` bytes on the disk in all. Valid until the next STORE."""

    number: int
    size: int


@dataclass(frozen=True, slots=True)
class Yield(ClientAction):
    """YIELD: end this speculative EVICT or LOAD early; blocks moved so far stay moved."""

    number: int


@dataclass(frozen=True, slots=True)
class Publish(ClientAction):
    """PUBLISH: begin or stop to show in shared memory whether work is in flight; see turns.py."""

    on: bool


@dataclass(frozen=True, slots=True)
class Watch(ClientAction):
    """WATCH: submit nothing while client `watched` has work in flight; `on` False: stop this."""

    watched: int
    on: bool


@dataclass(frozen=True, slots=True)
class Limits(ClientAction):
    """LIMITS: how far a client may grow; bytes. The first action after a client joined."""

    number: int                         # number of the answered COMMIT request; 0: no answer
    commit: int                         # bytes promised to the client
    most: int                           # bytes that could be promised if the client asked
    total: int                          # size of the card as the program sees it
    beyond: int = 0                     # host memory for allocations too large for the card
    reason: str = ""                    # the limit because of which the COMMIT is refused
    granted: bool = False               # the answered COMMIT is granted


class TurnStarted(ClientAction):
    """Report: the client's gate opens."""


@dataclass(frozen=True, slots=True)
class TurnEnded(ClientAction):
    """Report: a client has closed its gate and drained, or has disconnected."""

    reason: TurnEnd
    held_time: int                      # us since RUN was sent


@dataclass(frozen=True, slots=True)
class Stuck(ClientAction):
    """Report: a client has not acknowledged an order for `stuck_after`. One report an order."""

    state: ClientState
    waited: int                         # us since the order


@dataclass(frozen=True, slots=True)
class Crowded(ClientAction):
    """Report: a client that does not fit even alone has waited `stuck_after`. One report a wait."""

    needs: int                          # bytes of all its memory, pinned memory included
    room: int                           # bytes that the client could fill, alone on the card


@dataclass(frozen=True, slots=True)
class Pinned(ClientAction):
    """Report: a client is undrainable, so its memory is pinned from now on."""

    reason: PinReason


Order = Run | Stop | MoveOrder | Preallocate | Store | Yield | Limits | Publish | Watch
Report = TurnStarted | TurnEnded | Stuck | Pinned | Crowded
Action = Order | Report
