# SPDX-License-Identifier: Apache-2.0
"""Settings of one GPU's scheduling, by the administrator or the daemon."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from nvshared.units import GIB, MIB, MILLISECOND, SECOND

BLOCK = 32 * MIB                        # the largest block of hooks on a small card
LARGE_CARD = 8 * GIB                    # from this size of a card on, blocks are twice as large,
HUGE_CARD = 64 * GIB                    # and from this size on four times


class AntiThrash(StrEnum):
    """When programs take turns."""

    AUTO = "auto"                       # when the clients that want the GPU do not fit together
    ON = "on"                           # always
    OFF = "off"                         # never: a client waits until holders are idle


class Priority(IntEnum):
    """Priority of clients that take turns: higher ones come first."""

    BACKGROUND = 1                      # runs only while no other client wants the GPU
    NORMAL = 2
    HIGH = 3                            # goes before all others that wait


DEFAULT_WEIGHT = 100
UNLIMITED = 100                         # percent, of compute time


@dataclass(frozen=True, slots=True)
class Accounting:
    """Rules of all compute limits. Times in microseconds, parts in percent."""

    window: int | None = None           # length of a window; None: automatic, see `length`
    grain: int = 50_000                 # with less time left than this, the gate stays shut
    carryover: int = 100                # part of the overuse that is subtracted from each window
    tail: int = 100                     # part of the drain that is billed

    def length(self, *, turns: bool) -> int:
        """The length of a window that begins now; `turns`: clients take turns."""
        if self.window is not None:
            return self.window
        return 2 * SECOND if turns else 100 * MILLISECOND


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms of a client. The daemon validates users' input; this class does not."""

    memory_limit: int = 0               # bytes allocated and pinned; 0: no limit
    weight: int = DEFAULT_WEIGHT        # share of the time among clients of the same tenant
    suspended: bool = False             # evicted, and not run
    compute_limit: int = UNLIMITED      # percent of the time, even when alone


@dataclass(frozen=True, slots=True)
class TenantTerms:
    """Terms of all clients of a tenant together."""

    memory_limit: int = 0               # bytes on each card; 0: no limit
    weight: int = DEFAULT_WEIGHT        # share of the time among tenants beside it
    compute_limit: int = UNLIMITED
    priority: Priority = Priority.NORMAL
    compute_request: int = 0            # percent of the time, guaranteed
    host_memory_limit: int = 0          # bytes for swapped blocks of all cards; 0: no limit
    neighbour_limit: int = 0            # bytes that its clients on one card borrow; 0: no limit
    suspended: bool = False             # evicted, and not run
    disk_limit: int = 0                 # bytes of the disk, of all cards; 0: no limit
    unshared: int = 0                   # 1: programs without the library are suspended, too
    shown: str = ""                     # the tenant's name for people; "": the same


@dataclass(frozen=True, slots=True)
class Settings:
    """Bytes and microseconds. The daemon validates users' input; this class does not."""

    capacity: int                       # bytes of the card that clients may fill
    total: int                          # size of the card that is reported to programs
    host_budget: int                    # host memory for swapped blocks, where no budget is shared
    tq: int | None = 30 * SECOND        # the quantum; None: auto, see turns.py
    longest_tq: int = 30 * SECOND       # the longest automatic quantum
    anti_thrash: AntiThrash = AntiThrash.AUTO
    draining: bool = False              # the daemon will end: clients that fit run, no turn ends
    step: int = GIB                     # bytes of one EVICT or LOAD, so that the two overlap
    gather: int = 0                     # us after the start in which the scheduler only listens
    bus_sharing: bool = True            # speculative moves wait for a program's copies
    writeback: bool = True              # memory of idle clients is copied before its eviction
    prefetch: bool = False              # idle clients are loaded before they want the card
    disk_budget: int = 0                # the same of the disk
    park_after: int = 600 * SECOND      # us of idleness before swapped blocks go to the disk
    deep_idle: bool = False             # idle clients may be parked, so their turns must end
    drain_patience: int = 2 * SECOND    # from a drain that did not end to the next STOP
    stuck_after: int = 10 * SECOND      # before an order without an answer is reported
    accounting: Accounting = Accounting()       # of compute limits

    @property
    def block(self) -> int:
        """The largest block of hooks; bytes."""
        return BLOCK * (4 if self.total >= HUGE_CARD else 2 if self.total >= LARGE_CARD else 1)
