# SPDX-License-Identifier: Apache-2.0
"""The scheduler's input: settings, terms and events. A client's event is a record of its hook
(protocol.h). Bytes, microseconds. `client`: a number that no other connection ever gets.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from nvshared.terms import DEFAULT_WEIGHT, UNLIMITED
from nvshared.units import GIB, MIB, MILLISECOND, SECOND

BLOCK = 32 * MIB                        # the largest block of hooks on a small card
LARGE_CARD = 8 * GIB                    # from this size of a card on, blocks are twice as large
HUGE_CARD = 64 * GIB                    # from this size of a card on, blocks are 4 times as large
LARGEST_BLOCK = 256 * MIB               # exportable memory of up to this size is one block
AUTO_TQ_MOST = 30 * SECOND              # the longest automatic quantum


class AntiThrash(StrEnum):
    """When programs take turns."""

    AUTO = "auto"                       # turns end if clients that want the GPU do not fit together
    ON = "on"                           # turns end always
    OFF = "off"                         # turns never end: a client waits until holders are idle


class Priority(IntEnum):
    """Priority of clients that take turns: clients of higher priority come first."""

    BACKGROUND = 1                      # runs only while no other client wants the GPU
    NORMAL = 2
    HIGH = 3                            # goes before all waiting clients of lower priority


@dataclass(frozen=True, slots=True)
class Accounting:
    """Rules of all compute limits. Times in microseconds, parts in percent."""

    window: int | None = None           # length of a window; None: automatic, see `length`
    grain: int = 50_000                 # us; with less left of a window, the gate stays shut
    carryover: int = 100                # percent of the overuse subtracted from each later window
    tail: int = 100                     # percent of the drain that is billed

    def length(self, *, turns: bool) -> int:
        """The length of a window that begins now; `turns`: clients take turns."""
        if self.window is not None:
            return self.window
        return 2 * SECOND if turns else 100 * MILLISECOND


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms of a client, or of a tenant's clients together: rows of nvshared/terms.py.

    The daemon validates users' input; this class does not."""

    memory_limit: int = 0               # bytes allocated and pinned on each card; 0: no limit
    weight: int = DEFAULT_WEIGHT        # share of the time among those of the same parent
    suspended: bool = False             # True: clients are evicted, and get no turn
    compute_limit: int = UNLIMITED      # percent of the time, even when alone
    priority: Priority = Priority.HIGH  # the highest; its tenants' priority may be lower
    deadline: int = 0                   # us from the wait to the turn, for one policy; 0: none


@dataclass(frozen=True, slots=True)
class TenantTerms(Terms):
    """Terms of all clients of a tenant together."""

    priority: Priority = Priority.NORMAL
    compute_request: int = 0            # percent of the time, guaranteed
    host_memory_limit: int = 0          # bytes for swapped blocks of all cards; 0: no limit
    neighbour_limit: int = 0            # bytes that its clients on a card may borrow; 0: no limit
    disk_limit: int = 0                 # bytes of the disk for blocks of all cards; 0: no limit
    save_at_shutdown: bool = False      # not used by the scheduler; see cli/saving.py
    shown: str = ""                     # the tenant's name for people; "": its internal name


@dataclass(frozen=True, slots=True)
class Settings:
    """Bytes and microseconds. The daemon validates users' input; this class does not."""

    capacity: int                       # bytes of the card that clients may fill
    total: int                          # size of the card that is reported to programs
    host_budget: int                    # host memory for swapped blocks, if cards share no budget
    tq: int | None = 30 * SECOND        # the quantum; None: auto, see turns.py
    anti_thrash: AntiThrash = AntiThrash.AUTO
    policy: str = "fair"                # a name of policy.POLICIES
    draining: bool = False              # the daemon will end: clients that fit run, no turn ends
    step: int = GIB                     # most bytes of one EVICT or LOAD, so that moves overlap
    gather: int = 0                     # us after the start in which clients only report
    bus_sharing: bool = True            # speculative moves wait for a program's copies
    writeback: bool = True              # memory of idle clients is copied before its eviction
    prefetch: bool = False              # idle clients are loaded before they want the card
    disk_budget: int = 0                # bytes of the disk, if cards share no budget of the disk
    park_after: int = 600 * SECOND      # us of idleness before swapped blocks go to the disk
    deep_idle: bool = False             # idle clients may be parked, so their turns must end
    stuck_after: int = 10 * SECOND      # us after which an unanswered order is reported
    accounting: Accounting = Accounting()       # rules of compute limits

    @property
    def budgets(self) -> dict[str, int]:
        """Bytes by tier, if cards share no budgets."""
        return {"host": self.host_budget, "disk": self.disk_budget}

    @property
    def block(self) -> int:
        """The largest block of hooks; bytes."""
        return BLOCK * (4 if self.total >= HUGE_CARD else 2 if self.total >= LARGE_CARD else 1)


class PinReason(IntEnum):
    """Why a client is undrainable; enum nvshare_pin_reason."""

    NONE = 0                             # the client can be evicted
    UNDRAINED = 1
    UNSEEN = 2
    GIVEN = 3
    KEPT = 4                            # set by the scheduler, never reported by a hook

    @property
    def words(self) -> str:
        """The reason as a clause about the client, for people."""
        return ("", "its work does not end, or cannot be waited for",
                "it may submit work that its library does not see",
                "it gave memory to a device or library that may use it at any time",
                "it frees nothing when it is told to")[self]

    def __str__(self) -> str:
        return self.name.lower() if self else ""


class Standing(IntEnum):
    """The standing of a client in its gang; see gang.py."""

    FREE = 0                            # the client is in no gang
    APART = 1                           # the member is not chosen, and its turn ends
    CLAIMS = 2                          # the member is queued, and is ready once it could be chosen
    GRANTED = 3                         # the member is chosen first, and its gate stays shut
    OPEN = 4                            # the gate may open
    ENDS = 5                            # the turn ends when all members have drained
    STEPS = 6                           # one launch at a time, as another member cannot drain


@dataclass(frozen=True, slots=True)
class Memory:
    """A client's figures, as every record from its hook carries them."""

    allocated: int = 0                  # swappable, on the card or not
    resident: int = 0                   # swappable and on the card
    pinned: int = 0                     # on the card and not swappable
    pending: int = 0                    # pinned memory that a waiting thread will take
    room: int = 0                       # bytes of the card it may fill, by the last executed order
    host: int = 0                       # host memory held for swapped blocks
    beyond: int = 0                     # host memory of allocations too large for the card
    answered: int = 0                   # number of the last COMMIT to which the hook has the reply
    to_pin: int = 0                     # bytes granted by COMMITs up to `answered`, not pinned yet
    pin_reason: PinReason = PinReason.NONE
    borrowed: int = 0                   # part of `host` that is on another card; see moves.py
    dirty: int = 0                      # part of `borrowed` without a copy on the host
    disk: int = 0                       # bytes in its file on the disk, not in `host`; see moves.py

    @property
    def need(self) -> int:
        """Bytes that must be resident before the gate may open."""
        return self.allocated + self.pinned + self.pending

    @property
    def filled(self) -> int:
        """Bytes of the card that the client occupies."""
        return self.resident + self.pinned


@dataclass(frozen=True, slots=True)
class Evidence:
    """Memory of a client's process by NVML's and the kernel's figures; bytes. None: unknown."""

    card: int | None = None             # bytes on the card, by NVML
    host: int | None = None             # bytes of host memory, by the kernel
    hidden: bool = False                # NVML lists the process without a figure


@dataclass(frozen=True, slots=True)
class ClientEvent:
    """An event of one client."""

    client: int


@dataclass(frozen=True, slots=True)
class Joined(ClientEvent):
    """HELLO. `running`: the client's gate is open, because it ran while the daemon restarted."""

    memory: Memory = Memory()
    running: bool = False
    wants: bool = False                 # a thread waits at the gate
    commit: int = 0                     # promised by an earlier daemon
    domains: tuple[str, ...] = ()       # names of limits of its host memory; see domains.py
    account: str = ""                   # see promises.py; "": its claims count without limit
    evidence: Evidence = Evidence()
    tenants: tuple[str, ...] = ()       # the outermost first
    # By tenant: terms that the scheduler does not have yet.
    terms: Mapping[str, TenantTerms] = field(default_factory=dict)
    lender: str = ""                    # UUID of the card on which its borrowed memory lies
    own: Terms = Terms()                # its first LIMITS obey them


class Left(ClientEvent):
    """The client's connection has ended, for any reason."""


@dataclass(frozen=True, slots=True)
class Record(ClientEvent):
    """A record of a client's hook, with its figures."""

    memory: Memory


@dataclass(frozen=True, slots=True)
class WentIdle(Record):
    """IDLE: a holder had no work for the idle window of its RUN. The gate is still open."""

    resumed: bool = False               # it has submitted work again since an earlier IDLE


@dataclass(frozen=True, slots=True)
class Stopped(Record):
    """STOPPED: the gate is closed and nothing is in flight."""

    wants: bool                         # a thread waits at the gate
    microseconds: int = 0               # from STOP's arrival to the end of the drain
    used: int | None = None             # us of the turn with work in flight; None: unknown


class Reopened(Record):
    """REOPENED: the work in flight did not end, so the gate is open again."""


@dataclass(frozen=True, slots=True)
class Moved(Record):
    """MOVED: the answer to an order that moves memory."""

    number: int
    bytes: int
    microseconds: int = 0
    no_memory: bool = False             # the destination, host or card, had no memory left
    driver_error: bool = False
    yielded: bool = False               # ended early by a YIELD


class Evicted(Moved):
    """The answer to an EVICT: `bytes` were evicted."""


class Loaded(Moved):
    """The answer to a LOAD: `bytes` were loaded."""


class WrittenBack(Moved):
    """The answer to a Writeback: `bytes` can now be evicted without a copy."""


@dataclass(frozen=True, slots=True)
class Stored(Record):
    """STORED: the hook has received the STORE of this number, or has `failed` to carry it out."""

    number: int
    failed: bool = False


@dataclass(frozen=True, slots=True)
class MemoryChanged(Record):
    """MEMORY: the figures changed."""

    wants: bool = False                 # a thread waits at the gate


class Parked(Record):
    """The client's process is checkpointed, so no thread wants the card any more."""


@dataclass(frozen=True, slots=True)
class CommitAsked(Record):
    """COMMIT: a request to grow allocated + pinned to `wanted` bytes, and pinned by `pins`.

    If `wanted` is 0: a request that `memory.beyond` may be as large as reported.
    """

    number: int
    wanted: int
    pins: int = 0


@dataclass(frozen=True, slots=True)
class Copies(Record):
    """COPIES: whether a running program's copies load the bus to the card, and from the card."""

    inward: bool
    outward: bool


@dataclass(frozen=True, slots=True)
class Busy(Record):
    """BUSY: a running program had work in flight for a whole second, or had `gaps` without work."""

    gaps: bool


@dataclass(frozen=True, slots=True)
class CapacityChanged:
    """`bytes` of the card can be handed out from now on."""

    bytes: int


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    """`settings` replace all earlier settings, and the capacity."""

    settings: Settings


@dataclass(frozen=True, slots=True)
class TermsChanged(ClientEvent):
    """These terms are set for a client from now on."""

    terms: Terms


@dataclass(frozen=True, slots=True)
class Ganged:
    """These clients of a gang have this standing from now on."""

    clients: tuple[int, ...]
    gang: int
    standing: Standing
    pause: int = 0                      # STEPS: us between two launches
    stop_after: int = 0                 # another member could not drain: no STOP before this time
    paced: bool = False                 # OPEN: a client waits for one of the gang's cards


@dataclass(frozen=True, slots=True)
class TenantChanged:
    """These terms apply to all clients of a tenant from now on; TenantTerms(): no terms."""

    tenant: str
    terms: TenantTerms


@dataclass(frozen=True, slots=True)
class Preempted:
    """If a client waits for a turn to end, all turns may end before their quanta are over."""


@dataclass(frozen=True, slots=True)
class Awaited:
    """Whether clients of an earlier daemon have yet to say HELLO, on any card."""

    expected: bool


@dataclass(frozen=True, slots=True)
class Seen:
    """A sample of NVML's and the kernel's figures, by client."""

    evidence: Mapping[int, Evidence]
    filled: Mapping[int, int]           # bytes claimed: the lesser of before and after the sample


@dataclass(frozen=True, slots=True)
class Tick:
    """The scheduler's deadline has passed, or a budget of all cards (domains.py) has changed."""


@dataclass(frozen=True, slots=True)
class CardLost:
    """The GPU is gone: all gates open, and only loads are ordered."""


Event = (
    ClientEvent | CapacityChanged | SettingsChanged | TenantChanged | Preempted | Awaited | Seen
    | Ganged | Tick | CardLost
)
