# SPDX-License-Identifier: Apache-2.0
"""Shares of the card's time: how long tenants held the card, and where their programs queue.

Counted is the time in which at least one of the programs has its gate open, however many have.
A share is one of the card's time: programs that run together hold it no longer than one. When a
turn is over, its hook says how long the card had work in it; the rest was a message's way, or
idling, and is taken off again.
"""

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field

from nvshared.scheduler.quota import Quota
from nvshared.scheduler.settings import DEFAULT_WEIGHT, Priority


@dataclass(eq=False, slots=True)
class Lines:
    """All lines of one priority on the card, or within a tenant."""

    present: float = 0                  # virtual time among these, when none of them wants the card


@dataclass(eq=False, slots=True)
class Line:
    """Some of the clients that wait. See order.py."""

    among: Lines


Head = tuple[float, int, Line]          # the first in a line: virtual time, place


@dataclass(eq=False, slots=True)
class Held(ABC):
    """For how long some clients have held the card; microseconds."""

    name: str                           # of the tenant
    members: dict[int, int] = field(default_factory=dict)       # weights of clients, by id,
    weights: Counter[int] = field(default_factory=Counter)      # and how many have each
    running: int = 0                    # how many of them do
    draining: int = 0
    since: int = 0                      # until when it is billed
    turns: int = 0                      # of its clients, since none had a gate open

    def enter(self, client: int, weight: int) -> None:
        """A client is its from now on, or has another weight."""
        self.depart(client)
        self.members[client] = weight
        self.weights[weight] += 1

    def depart(self, client: int) -> None:
        """A client is not any more. Harmless when it was not."""
        if client in self.members:
            weight = self.members.pop(client)
            self.weights[weight] -= 1
            if not self.weights[weight]:
                del self.weights[weight]

    @property
    def open(self) -> bool:
        """A gate of its clients is."""
        return bool(self.running or self.draining)

    def bill(self, now: int) -> None:
        """Adds what it has held until now."""
        passed, self.since = now - self.since, now
        if passed and self.open:
            self.add(passed)

    @abstractmethod
    def add(self, passed: int) -> None:
        """It has held so much more."""

    def credit(self, unused: int) -> None:
        """A client's turn is over, and of the time billed for it so much was not used. What ran
        beside another's turn is billed as that."""
        if not self.open and self.turns == 1:
            self.add(-unused)

    def turn(self, now: int, running: int, draining: int) -> None:
        """So many more of its clients run and drain, or fewer."""
        self.bill(now)
        if running + draining > 0:
            self.turns = self.turns + 1 if self.open else 1
        self.running += running
        self.draining += draining


@dataclass(eq=False, slots=True)
class Ration(Held):
    """Of all programs of one tenant, wherever they queue. See compute.py."""

    quota: Quota | None = None          # where terms limit its time
    held: int = 0
    drained: int = 0                    # the part of it in which all were draining

    def add(self, passed: int) -> None:
        """It has held so much more."""
        self.held += passed
        if self.draining and not self.running:
            self.drained += passed


@dataclass(eq=False, slots=True)
class Share(Held):
    """Of programs that queue as one: an outermost tenant's, or of those within it an inner one's.

    A tenant whose programs differ in priority has a share for each.

    The programs of a tenant that are in no inner one have a share within it, too, of no name.
    """

    priority: Priority = Priority.NORMAL
    among: Lines = field(default_factory=Lines)         # where its clients wait, with others,
    own: Line = field(init=False)
    line: Line = field(init=False)                      # and in which
    outer: "Share | None" = None        # in which it is,
    within: "dict[str, Share]" = field(default_factory=dict)    # and those in it
    lines: Lines = field(default_factory=Lines)         # theirs
    weight: int = DEFAULT_WEIGHT
    request: int = 0                    # percent of the time that it gets in any case,
    rate: float = DEFAULT_WEIGHT        # and the weight that gives it that now, see requests.py
    virtual: float = 0                  # time held, divided by its weight,
    ahead: float = 0                    # and what its present turns will probably add
    divided: bool = False               # there are several within it, or several have been
    weighted: bool = False              # its clients differ in weight
    present: float = 0                  # the same for its clients as for lines

    def __post_init__(self) -> None:
        self.own = self.line = Line(self.among)

    @property
    def plain(self) -> bool:
        """Its clients are first come, first served."""
        return not self.divided and not any(one.weighted for one in self.within.values())

    @property
    def after(self) -> float:
        """Its virtual time when the turns of those who hold the card are over."""
        return self.virtual + self.ahead

    def add(self, passed: int) -> None:
        """It has held so much more, with the weight that it has until now."""
        self.reach(max(0, self.virtual + passed * DEFAULT_WEIGHT / self.rate))

    def foresee(self, ahead: float) -> None:
        """What its present turns will probably add."""
        self.ahead = ahead

    def reach(self, virtual: float) -> None:
        """Its virtual time is this from now on."""
        self.virtual = virtual
