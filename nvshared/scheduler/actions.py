# SPDX-License-Identifier: Apache-2.0
"""What the scheduler decides: orders for hooks, and reports for people.

Orders become records (protocol.h). Those to one client must be sent in the order given. Sizes are
bytes, times microseconds.
"""

from dataclasses import dataclass
from enum import StrEnum

from nvshared.scheduler.events import Stays


class ClientState(StrEnum):
    """Where a client is, for people to read."""

    IDLE = "idle"
    WAITING = "waiting"
    CROWDED = "crowded"                 # it waits, and would not fit even alone, as things are
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
    GANG = "gang"                       # its gang's turn ended, or another gang's began
    LEFT = "left"                       # its process ended
    LOST = "lost"                       # the GPU is gone


@dataclass(frozen=True, slots=True)
class Run:
    """RUN: the gate may open, or what to do while it is open has changed."""

    client: int
    quantum: int = 0                    # what is left of the turn; 0: no end is planned
    pace: bool = False                  # others wait: bound the work in flight
    report_idle: bool = False           # say so after `idle_window`
    report_copies: bool = False         # say when the program copies
    idle_window: int = 0                # 0: as before
    report_busy: bool = False           # say whether it has work in flight at all times
    step: bool = False                  # one launch at a time, each `quantum` after the last ended


@dataclass(frozen=True, slots=True)
class Stop:
    """STOP: close the gate, drain, answer."""

    client: int


@dataclass(frozen=True, slots=True)
class MoveOrder:
    """Has a client move memory."""

    client: int
    number: int
    room: int
    host: int                           # of host memory, in all
    ahead: bool = False                 # nobody waits for it yet
    loan: int = 0                       # bytes that may lie on another card, in all; not of a Load,
    lender: str = ""                    # and that card's UUID


@dataclass(frozen=True, slots=True)
class Evict(MoveOrder):
    """EVICT: have at most `room`, take at most `host`."""

@dataclass(frozen=True, slots=True)
class Load(MoveOrder):
    """LOAD: have `room`, bring in what is missing, then keep at most `host`."""

@dataclass(frozen=True, slots=True)
class Writeback(MoveOrder):
    """EVICT that keeps: have `size` bytes that can leave without a copy. The room stays."""

    size: int = 0


@dataclass(frozen=True, slots=True)
class Preallocate:
    """PREALLOCATE: make host memory meanwhile, until so much is held in all. Without an answer."""

    client: int
    host: int


@dataclass(frozen=True, slots=True)
class Yield:
    """YIELD: end this EVICT or LOAD, which is ahead, with what it has done."""

    client: int
    number: int


@dataclass(frozen=True, slots=True)
class Tell:
    """TELL: say in shared memory whether work is under way, or no more; see background.py."""

    client: int
    on: bool


@dataclass(frozen=True, slots=True)
class Heed:
    """HEED: submit nothing while this one says that it has work under way, or do again."""

    client: int
    whom: int
    on: bool


@dataclass(frozen=True, slots=True)
class Limits:
    """LIMITS: the first action after a client joined."""

    client: int
    number: int                         # of the COMMIT it answers, else 0
    commit: int
    most: int
    total: int
    beyond: int = 0
    why: str = ""                       # the limit that keeps it from having what it asked for


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """Report: a client's gate opens."""

    client: int


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """Report: a client's gate is closed and it has drained, or it is gone."""

    client: int
    reason: TurnEnd
    held_time: int                      # how long the turn was


@dataclass(frozen=True, slots=True)
class Stuck:
    """Report: an order was not answered for long. Once for each order."""

    client: int
    state: ClientState
    waited: int


@dataclass(frozen=True, slots=True)
class Crowded:
    """Report: a client has waited for long, and would not fit even alone. Once in a wait."""

    client: int
    needs: int                          # bytes, with what it has pinned
    room: int                           # that it could have of the card, if it were alone


@dataclass(frozen=True, slots=True)
class Stayed:
    """Report: nothing of a client leaves the card any more."""

    client: int
    reason: Stays


Order = Run | Stop | MoveOrder | Preallocate | Yield | Limits | Tell | Heed
Report = TurnStarted | TurnEnded | Stuck | Stayed | Crowded
Action = Order | Report
