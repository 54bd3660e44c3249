# SPDX-License-Identifier: Apache-2.0
"""What the scheduler decides: orders for hooks, and reports for people.

Orders become records of the same name (protocol.h); to one client they must
be sent in the order given. What is wanted of other cards goes to whoever splits
the host's budget between them. Sizes are bytes, times microseconds.
"""

from dataclasses import dataclass
from enum import StrEnum


class ClientState(StrEnum):
    """Where a client is, for people to read (handoff.md)."""

    IDLE = "idle"
    WAITING = "waiting"
    LIMITED = "limited"                 # it wants a turn, and has had its share of the time
    LOADING = "loading"
    RUNNING = "running"
    DRAINING = "draining"
    EVICTING = "evicting"               # not running, and memory of it is on its way out
    SUSPENDED = "suspended"             # it does not run until it is resumed


class TurnEnd(StrEnum):
    """Why a turn ended."""

    IDLE = "idle"                       # it had nothing to do and others waited, or may come
    QUANTUM = "quantum"                 # its time was over and others waited
    LIMIT = "limit"                     # it had its share of the time
    ROOM = "room"                       # it grew beyond what could be found for it
    CAPACITY = "capacity"               # the card has less room than before
    PREEMPTED = "preempted"             # others waited, and somebody did not want to wait longer
    SUSPENDED = "suspended"             # somebody had it suspended
    LEFT = "left"                       # its process ended
    LOST = "lost"                       # the GPU is gone


@dataclass(frozen=True, slots=True)
class Run:
    """RUN: the gate may open, or quantum or contention of an open one have changed."""

    client: int
    quantum: int                        # what is left of the turn; 0: no end is planned
    contended: bool                     # others wait, so report idleness,
    idle_window: int = 0                # when it has lasted so long; 0: as before
    watched: bool = False               # it is to say when its program copies
    coveted: bool = False               # report idleness although nobody waits


@dataclass(frozen=True, slots=True)
class Stop:
    """STOP: close the gate, drain, answer."""

    client: int


@dataclass(frozen=True, slots=True)
class Evict:
    """EVICT: have at most `room`, take at most `host` bytes of host memory in all."""

    client: int
    number: int
    room: int
    host: int
    ahead: bool = False                 # nobody waits for it yet


@dataclass(frozen=True, slots=True)
class Load:
    """LOAD: have `room`, bring in what is missing, then keep at most `host` of host memory."""

    client: int
    number: int
    room: int
    host: int
    ahead: bool = False                 # nobody waits for it yet


@dataclass(frozen=True, slots=True)
class Save:
    """SAVE: have `ready` bytes that can leave without a copy, and keep them on the card."""

    client: int
    number: int
    ready: int
    host: int                           # host memory it may take at most, in all


@dataclass(frozen=True, slots=True)
class Yield:
    """YIELD: end this EVICT, LOAD or SAVE, which is ahead, with what it has done."""

    client: int
    number: int


@dataclass(frozen=True, slots=True)
class Limits:
    """LIMITS, or the limits in WELCOME: the first action after a client joined."""

    client: int
    number: int                         # of the COMMIT it answers, else 0
    commit: int
    most: int
    total: int
    beyond: int = 0


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """Report: a client's gate opens."""

    client: int


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """Report: a client's gate is closed and it has drained, or it is gone."""

    client: int
    reason: TurnEnd
    held: int                           # how long the turn was


@dataclass(frozen=True, slots=True)
class Stuck:
    """Report: an order was not answered for long. Once for each order."""

    client: int
    state: ClientState
    waited: int


@dataclass(frozen=True, slots=True)
class BudgetWanted:
    """More is promised or asked for than card and host hold: BudgetChanged is to say what there is.

    Scheduler.demand tells how much. Only where other cards may have something to give up.
    """


Order = Run | Stop | Evict | Load | Save | Yield | Limits
Report = TurnStarted | TurnEnded | Stuck
Action = Order | Report | BudgetWanted
