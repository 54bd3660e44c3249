# SPDX-License-Identifier: Apache-2.0
"""A tenant in the simulation, its programs, and what became of what they wanted.

A program is the hook that the scheduler's tests use, and computes piece by piece: a cell, a
request, a job. What it has in flight shares the card with others' (engine.py).
"""

from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from bench.simulate.engine import Engine
from bench.simulate.fair import Fair
from nvshared.scheduler.events import Settings, TenantTerms
from tests.unit.scheduler_hookmodel import Hook, Surroundings


class Place(Surroundings, Protocol):
    settings: Settings
    engine: Engine
    fair: Fair

    def enter(self, tenant: "Tenant") -> "Program":
        """Start a program of the tenant."""

    def end(self, program: "Program") -> None:
        """End the program, in any state."""


@dataclass(eq=False, slots=True)
class Piece:
    """Something that a program is to compute; microseconds."""

    asked: int                          # when
    size: int
    left: int
    then: Callable[[], None] | None = None


@dataclass(eq=False, slots=True)
class Tenant:
    """A simulated tenant; bytes and microseconds."""

    name: str
    kind: str
    user: str
    place: Place
    random: Random
    terms: TenantTerms = TenantTerms()
    asked: int = 0
    got: int = 0
    entitled: float = 0
    # us of waits at closed gates
    waits: "array[int]" = field(default_factory=lambda: array("q"))
    late: "array[float]" = field(default_factory=lambda: array("d"))    # over the time alone
    turns: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    refused: int = 0                    # programs that did not get the memory they wanted
    wanted: int = 0                     # number of unfinished pieces
    episode: int = 0                    # number of the current period of work

    @property
    def within(self) -> tuple[str, ...]:
        """Whose terms its programs are under; the first one's share of the time they use."""
        return (self.name, self.user)

    def asks(self, size: int) -> None:
        if not self.wanted:
            self.place.fair.enter(self, self.place.now)
        self.wanted += 1
        self.episode += size
        self.asked += size

    def done(self, piece: Piece) -> None:
        """End a request that is done, or no longer wanted."""
        self.wanted -= 1
        if not piece.left:
            self.late.append((self.place.now - piece.asked) / piece.size)
        if not self.wanted:
            self.settle()
            self.place.fair.leave(self)
            self.episode = 0

    def settle(self) -> None:
        """Add the tenant's fair share of its requests until now to `entitled`."""
        self.entitled += min(self.episode, self.place.fair.share(self, self.place.now))


@dataclass(eq=False)
class Program(Hook):
    tenant: Tenant = field(kw_only=True)
    pieces: deque[Piece] = field(default_factory=deque)
    since: int | None = None            # when it began to wait at its closed gate

    def submit(self, size: int) -> Piece:
        piece = Piece(self.world.now, size, size)
        self.pieces.append(piece)
        self.tenant.asks(size)
        self.compute(size)
        return piece

    def fly(self) -> None:
        """One kernel for the whole piece: single launches do not change the result."""
        if self.since is not None:
            self.tenant.waits.append(self.world.now - self.since)
            self.since = None
        self.tenant.place.engine.start(self, self.pieces[0].left)

    def landed(self, done: int | None = None) -> None:
        """A piece is done, or as much of it as was in flight when others' turn came."""
        piece = self.pieces[0]
        assert done is not None
        piece.left -= done
        self.tenant.got += done
        if not piece.left:
            self.pieces.popleft()
            self.tenant.done(piece)
        super().landed(done)
        if not piece.left and piece.then is not None:
            piece.then()

    def _stop(self) -> None:
        super()._stop()
        if self.stopping and self.flying:
            self.tenant.place.engine.cut(self)

    def _proceed(self) -> None:
        if self.work > 0 and not self.flying and self.since is None:
            self.since = self.world.now
        super()._proceed()
