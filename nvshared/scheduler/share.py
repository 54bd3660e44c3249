# SPDX-License-Identifier: Apache-2.0
"""A tenant's share of the card's time: how long it held the card, and where its programs queue.

Counted is the time in which at least one of its programs has its gate open, however many have.
A share is one of the card's time: programs that run together hold it no longer than one.
"""

from dataclasses import dataclass, field

from nvshared.scheduler.quota import Quota
from nvshared.scheduler.settings import DEFAULT_WEIGHT


@dataclass(eq=False, slots=True)
class Line:
    """Some of those who wait: places and ids, least first. See order.py."""

    places: list[tuple[int, int]] = field(default_factory=list)
    head: "tuple[float, int, Line] | None" = None   # as it is among those of all lines


@dataclass(eq=False, slots=True)
class Share:
    """One tenant's; microseconds."""

    name: str
    stale: "set[Share]"                 # whose virtual time has changed; see groups.py
    under: set[int] = field(default_factory=set)        # its clients, by id,
    members: set[int] = field(default_factory=set)      # and those of no tenant within it
    weight: int = DEFAULT_WEIGHT
    own: Line = field(default_factory=Line)
    line: Line = field(default_factory=Line)            # in which its clients wait
    virtual: float = 0                  # time held, divided by its weight,
    ahead: float = 0                    # and what its present turns will probably add
    weighted: bool = False              # its clients differ in weight
    present: int = 0                    # virtual time among these, when none of them wants the card
    running: int = 0                    # how many of its clients do
    draining: int = 0
    quota: Quota | None = None          # where terms limit its time; see compute.py
    since: int = 0                      # until when it is billed
    held: int = 0
    drained: int = 0                    # the part of it in which all were draining

    @property
    def open(self) -> bool:
        """A gate of its clients is."""
        return bool(self.running or self.draining)

    def bill(self, now: int) -> None:
        """Adds what it has held until now, by the weight that it has until now."""
        passed, self.since = now - self.since, now
        if passed and self.open:
            self.held += passed
            self.drained += 0 if self.running else passed
            self.reach(self.virtual + passed * DEFAULT_WEIGHT / self.weight)

    @property
    def after(self) -> float:
        """Its virtual time when the turns of those who hold the card are over."""
        return self.virtual + self.ahead

    def foresee(self, ahead: float) -> None:
        """What its present turns will probably add."""
        if ahead != self.ahead:
            self.ahead = ahead
            self.stale.add(self)

    def reach(self, virtual: float) -> None:
        """Its virtual time is this from now on."""
        self.virtual = virtual
        self.stale.add(self)

    def turn(self, now: int, running: int, draining: int) -> None:
        """So many more of its clients run and drain, or fewer."""
        self.bill(now)
        self.running += running
        self.draining += draining
