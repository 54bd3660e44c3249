# SPDX-License-Identifier: Apache-2.0
"""How things stand, for the bus, the metrics and people. Bytes and microseconds."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from nvshared.scheduler.actions import ClientState
from nvshared.scheduler.events import Memory
from nvshared.scheduler.settings import Terms


class Wait(NamedTuple):
    """How one client waits."""

    position: int                       # in the queue; 1: the next one; 0: it stands in none
    left: int | None                    # about how much longer; None: nobody can tell


class CardState(StrEnum):
    """What goes on on a GPU."""

    GATHERING = "gathering"             # just started: listening who holds what
    IDLE = "idle"                       # nobody's gate is open
    SHARED = "shared"                   # everyone who wants runs
    TURNS = "turns"                     # someone waits for another's turn to end
    BUSY = "busy"                       # all are, and take short turns although they fit
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class ClientView:
    """One client. Times and counters are totals since it joined."""

    client: int
    state: ClientState
    memory: Memory                      # as its last record said
    room: int                           # counted against the capacity, orders under way included
    commit: int                         # what allocated + pinned may grow to without asking
    fits: bool                          # False: it could not run even alone, as things are
    held_time: int                      # time with the gate open, until Snapshot.now
    waited: int                         # time wanting it open, until Snapshot.now,
    waiting: int | None                 # and the part of this wait; None: it does not wait
    idle: int | None                    # since its gate was shut and nobody stood there; or None
    turns: int
    bytes_in: int                       # brought to the card
    bytes_out: int                      # moved to the host
    reopened: int                       # drains that did not end
    failures: int                       # orders that met an error of driver or memory
    terms: Terms = Terms()


@dataclass(frozen=True, slots=True)
class Counters:
    """Of all clients since the scheduler started, those that left included."""

    turns: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    reopened: int = 0
    failures: int = 0
    stuck: int = 0
    gave_way: int = 0                   # chosen clients for which no room was to be had
    handover: int = 0                   # us from the end of drains until who waited for them ran


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One GPU and its clients."""

    now: int                            # the moment of the last event
    state: CardState
    capacity: int                       # as set, less what the driver turned out not to have
    free: int                           # room nobody has; negative after the capacity shrank
    host_free: int                      # of the budget; negative after the budget shrank
    holders: tuple[int, ...]            # clients whose gate is open, oldest turn first
    queue: Collection[int]              # clients that want it open, the next one first, and
    clients: Mapping[int, ClientView]   # all of them; both to be looked at before the next event
    counters: Counters
    waits: Mapping[int, Wait]           # of those who wait; before the next event, too
    host_budget: int = 0                # host memory that its clients may take in all
    quantum: int = 0                    # in force; where it is auto and nobody waits, the last
