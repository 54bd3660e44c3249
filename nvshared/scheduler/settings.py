# SPDX-License-Identifier: Apache-2.0
"""What an administrator or the daemon can change about one GPU's scheduling."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from nvshared.units import GIB, MIB, MILLISECOND, SECOND

BLOCK = 32 * MIB                        # what hooks move at a time, as a whole, at most;
LARGE_CARD = 8 * GIB                    # twice that on a card as large as this,
HUGE_CARD = 64 * GIB                    # and four times on one like this


class AntiThrash(StrEnum):
    """When programs take turns."""

    AUTO = "auto"                       # when those that want the GPU do not fit together
    ON = "on"                           # always
    OFF = "off"                         # never: who does not fit waits until a holder is idle


class Priority(IntEnum):
    """Who goes first where programs take turns."""

    BACKGROUND = 1                      # only while nobody else wants the GPU
    NORMAL = 2
    HIGH = 3                            # before all others who wait


DEFAULT_WEIGHT = 100
UNLIMITED = 100                         # percent, of compute time


@dataclass(frozen=True, slots=True)
class Accounting:
    """What is the same for all compute limits. Times in microseconds, parts in percent."""

    window: int | None = None           # None: as `length` says
    grain: int = 50_000                 # with less than that to use, a gate stays shut
    carryover: int = 100                # of what is owed, taken off the next window
    tail: int = 100                     # of the time from STOP to drained, billed

    def length(self, *, turns: bool) -> int:
        """Of a window that begins now; `turns`: clients take turns."""
        if self.window is not None:
            return self.window
        return 2 * SECOND if turns else 100 * MILLISECOND


@dataclass(frozen=True, slots=True)
class Terms:
    """What is set for a client. The daemon checks what people type; not this."""

    memory_limit: int = 0               # bytes it may have allocated and pinned; 0: the card's
    weight: int = DEFAULT_WEIGHT        # share of the time, in relation to its tenant's others
    suspended: bool = False             # it leaves the card, and does not run
    compute_limit: int = UNLIMITED      # percent of the time that it never exceeds, even alone


@dataclass(frozen=True, slots=True)
class TenantTerms:
    """The same for all clients of a tenant together."""

    memory_limit: int = 0               # bytes on each card; 0: any
    weight: int = DEFAULT_WEIGHT        # in relation to other tenants
    compute_limit: int = UNLIMITED
    priority: Priority = Priority.NORMAL
    compute_request: int = 0            # percent of the time that they get whenever they want it
    host_memory_limit: int = 0          # bytes of host memory for what may leave cards; 0: any
    suspended: bool = False             # they leave the card, and do not run
    shown: str = ""                     # what people call the tenant; "": as we do


@dataclass(frozen=True, slots=True)
class Settings:
    """Bytes and microseconds. The daemon checks what people type; this does not."""

    capacity: int                       # what can be handed out of the card, in all
    total: int                          # how large clients are told the card is
    host_budget: int                    # host memory for swapped blocks, over all cards
    tq: int | None = 30 * SECOND        # how long a holder keeps the GPU while others wait;
                                        # None: auto, see quantum.py,
    longest_tq: int = 30 * SECOND       # and this at most
    anti_thrash: AntiThrash = AntiThrash.AUTO
    draining: bool = False              # we are to end: let in who fits, and end no turns
    step: int = GIB                     # what one EVICT or LOAD moves, so that the two overlap
    gather: int = 0                     # after the scheduler's start, only listen for so long
    bus_sharing: bool = True            # moves ahead of time wait for a program's copies
    writeback: bool = True              # what may have to leave is copied before that
    prefetch: bool = False              # and who is asked for most often comes in before that
    drain_patience: int = 2 * SECOND    # before asking a client again that could not drain
    stuck_after: int = 10 * SECOND      # before an order without an answer is reported
    accounting: Accounting = Accounting()       # of compute limits

    @property
    def block(self) -> int:
        """What hooks move at a time, as a whole, at most; bytes."""
        return BLOCK * (4 if self.total >= HUGE_CARD else 2 if self.total >= LARGE_CARD else 1)
