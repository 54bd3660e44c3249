# SPDX-License-Identifier: Apache-2.0
"""What the scheduler is told. Each event of a client is one report of its hook.

protocol.h says what the reports mean. Sizes are bytes, times microseconds. `client` is a number
that the daemon gives each connection and never reuses.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

from nvshared.scheduler.settings import Settings, TenantTerms, Terms


class Stays(IntEnum):
    """Why nothing of a client leaves the card any more; enum nvshare_stays."""

    NOT = 0                             # it does leave
    UNDRAINED = 1
    UNSEEN = 2
    GIVEN = 3
    KEPT = 4                            # never a hook's words

    @property
    def words(self) -> str:
        """For a sentence about the client."""
        return {
            Stays.UNDRAINED: "its work does not end, or cannot be waited for",
            Stays.UNSEEN: "it may submit work that its library does not see",
            Stays.GIVEN: "it gave memory to a device or library that may use it at any time",
            Stays.KEPT: "it frees nothing when it is told to",
        }.get(self, "")

    def __str__(self) -> str:
        return self.name.lower() if self else ""


class Standing(IntEnum):
    """Where a member of a gang stands; see gang.py."""

    FREE = 0                            # in no gang
    APART = 1                           # it is not chosen, and its turn ends
    CLAIMS = 2                          # it stands in the queue, and says when its turn could begin
    GRANTED = 3                         # it goes before all others, and its gate stays shut
    OPEN = 4                            # its gate opens, and is open
    ENDS = 5                            # its turn ends, when all have drained
    STEPS = 6                           # it goes on, one launch at a time, as another's work waits


@dataclass(frozen=True, slots=True)
class Memory:
    """A client's figures, as every record from its hook carries them."""

    allocated: int = 0                  # swappable, on the card or not
    resident: int = 0                   # swappable and on the card
    pinned: int = 0                     # on the card and not swappable
    pending: int = 0                    # pinned memory that a waiting thread will take
    room: int = 0                       # as last ordered and carried out
    host: int = 0                       # host memory held for swapped blocks
    beyond: int = 0                     # and for good, for what does not fit the card
    answered: int = 0                   # the last question of which it has heard the answer
    to_pin: int = 0                     # what it was granted up to there, and is still to pin
    stays: Stays = Stays.NOT
    borrowed: int = 0                   # what of `host` lies on another card; see loans.py

    @property
    def need(self) -> int:
        """The room it must have, all of it filled, before its gate may open."""
        return self.allocated + self.pinned + self.pending

    @property
    def filled(self) -> int:
        """What it occupies of the card."""
        return self.resident + self.pinned


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a client's process has by others' words than its own; bytes. None: nobody can tell."""

    card: int | None = None             # of the card, as its driver says
    host: int | None = None             # of host memory, as the kernel says
    hidden: bool = False                # its driver names it, and does not say what it has


@dataclass(frozen=True, slots=True)
class Joined:
    """HELLO. `running`: its gate is open, as the daemon was restarted under it."""

    client: int
    memory: Memory = Memory()
    running: bool = False
    wants: bool = False                 # a thread stands at the gate
    commit: int = 0                     # what an earlier daemon allowed it
    domains: tuple[str, ...] = ()       # names of those that bound its host memory; see domains.py
    account: str = ""                   # see trust.py; "": it is believed without limit
    evidence: Evidence = Evidence()
    tenants: tuple[str, ...] = ()       # whose terms it is under, last whose share it uses
    lender: str = ""                    # UUID of the card on which what it has borrowed lies


@dataclass(frozen=True, slots=True)
class Left:
    """The connection ended, for whatever reason."""

    client: int


@dataclass(frozen=True, slots=True)
class Said:
    """A record of a client's hook, with its figures."""

    client: int
    memory: Memory


class WentIdle(Said):
    """IDLE: a holder has submitted nothing for a while. The gate is still open."""


@dataclass(frozen=True, slots=True)
class Stopped(Said):
    """STOPPED: the gate is closed and nothing is in flight."""

    wants: bool                         # a thread stands at the gate
    microseconds: int = 0               # from the hook's receiving STOP to drained
    used: int | None = None             # from the gate's opening to that, less idling; if known


class Reopened(Said):
    """REOPENED: the work in flight did not end, so the gate is open again."""


@dataclass(frozen=True, slots=True)
class Moved(Said):
    """MOVED: the answer to an order that moves memory."""

    number: int
    bytes: int
    microseconds: int = 0
    no_memory: bool = False             # on the host, or on the card, wherever it should go
    driver_error: bool = False
    yielded: bool = False               # cut short


class Evicted(Moved):
    """To an EVICT: `bytes` have left."""


class Loaded(Moved):
    """To a LOAD: `bytes` have come in."""


class WrittenBack(Moved):
    """To an EVICT that keeps: `bytes` could leave without a copy now."""


@dataclass(frozen=True, slots=True)
class MemoryChanged(Said):
    """MEMORY: the figures changed."""

    wants: bool = False                 # a thread stands at the gate


@dataclass(frozen=True, slots=True)
class CommitAsked(Said):
    """COMMIT: may allocated + pinned grow to `bytes`, and pinned by `pins`?

    If `bytes` is 0: may `memory.beyond` be what it is?
    """

    number: int
    bytes: int
    pins: int = 0


@dataclass(frozen=True, slots=True)
class Copies(Said):
    """COPIES: whether a running program's copies load the bus, in either direction."""

    inward: bool
    outward: bool


@dataclass(frozen=True, slots=True)
class Busy(Said):
    """BUSY: a running program has work in flight at all times; or it has not, there are `gaps`."""

    gaps: bool


@dataclass(frozen=True, slots=True)
class CapacityChanged:
    """So many bytes of the card can be handed out from now on."""

    bytes: int


@dataclass(frozen=True, slots=True)
class BudgetChanged:
    """The host budget of all cards is so many bytes from now on."""

    bytes: int


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    """The settings are these from now on, capacity included."""

    settings: Settings


@dataclass(frozen=True, slots=True)
class TermsChanged:
    """These terms are set for a client from now on."""

    client: int
    terms: Terms


@dataclass(frozen=True, slots=True)
class Ganged:
    """From now on these clients stand so, in a gang with this number."""

    clients: tuple[int, ...]
    gang: int
    standing: Standing
    pause: int = 0                      # STEPS: between two launches
    stop_after: int = 0                 # another could not drain: do not stop it before this moment
    paced: bool = False                 # OPEN: somebody waits for one of its gang's cards


@dataclass(frozen=True, slots=True)
class TenantChanged:
    """These terms are set for all programs of a tenant from now on; TenantTerms(): none."""

    tenant: str
    terms: TenantTerms


@dataclass(frozen=True, slots=True)
class Preempted:
    """Turns for whose end others wait may end now."""


@dataclass(frozen=True, slots=True)
class Awaited:
    """Whether clients of an earlier daemon have yet to say what they hold, on any card."""

    anybody: bool


@dataclass(frozen=True, slots=True)
class Seen:
    """What clients' processes have, by client.

    `filled`: what each said all the while that it fills of the card.
    """

    evidence: Mapping[int, Evidence]
    filled: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Tick:
    """The scheduler's deadline has passed."""


@dataclass(frozen=True, slots=True)
class GPULost:
    """The GPU is gone: nobody is kept waiting any more, and nothing else is ordered."""


def settings_after(
    event: CapacityChanged | BudgetChanged | SettingsChanged, before: Settings
) -> Settings:
    """What an event makes of the settings."""
    match event:
        case CapacityChanged():
            return replace(before, capacity=event.bytes)
        case BudgetChanged():
            return replace(before, host_budget=event.bytes)
        case SettingsChanged():
            return event.settings


Record = WentIdle | Stopped | Reopened | Moved | MemoryChanged | CommitAsked | Copies | Busy
ClientEvent = Joined | Left | Record | TermsChanged
CardEvent = (
    CapacityChanged | BudgetChanged | SettingsChanged | TenantChanged | Preempted | Awaited | Seen
    | Ganged | Tick | GPULost
)
Event = ClientEvent | CardEvent
