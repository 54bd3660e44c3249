# SPDX-License-Identifier: Apache-2.0
"""A tenant in the simulation, its programs, and the results of their requests.

A program is the simulated hook of the scheduler's tests. It computes piece by piece: a cell, a
request, a job. Its work in flight shares the card with work of other programs (engine.py).
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
    """Work that a program is to compute; microseconds."""

    asked: int                          # time of the request
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
    # us of each wait at a closed gate; for each piece, time from request to result over GPU time
    waits: "array[int]" = field(default_factory=lambda: array("q"))
    late: "array[float]" = field(default_factory=lambda: array("d"))
    turns: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    refused: int = 0                    # number of programs that did not get their memory
    wanted: int = 0                     # number of unfinished pieces
    episode: int = 0                    # us of GPU time requested since it last had no work

    @property
    def within(self) -> tuple[str, ...]:
        """The tenants of its programs, the outermost last."""
        return (self.name, self.user)

    def asks(self, size: int) -> None:
        if not self.wanted:
            self.place.fair.enter(self, self.place.now)
        self.wanted += 1
        self.episode += size
        self.asked += size

    def done(self, piece: Piece) -> None:
        """Ends a request that has finished, or that has been abandoned."""
        self.wanted -= 1
        if not piece.left:
            self.late.append((self.place.now - piece.asked) / piece.size)
        if not self.wanted:
            self.settle()
            self.place.fair.leave(self)
            self.episode = 0

    def settle(self) -> None:
        """Adds the tenant's fair share for its requests until now to `entitled`."""
        self.entitled += min(self.episode, self.place.fair.share(self, self.place.now))


@dataclass(eq=False)
class Program(Hook):
    tenant: Tenant = field(kw_only=True)
    pieces: deque[Piece] = field(default_factory=deque)
    since: int | None = None            # us: time at which the current wait at its gate began

    def submit(self, size: int) -> Piece:
        piece = Piece(self.world.now, size, size)
        self.pieces.append(piece)
        self.tenant.asks(size)
        self.compute(size)
        return piece

    def fly(self) -> None:
        """Submits the whole piece at once: separate launches would not change the result."""
        if self.since is not None:
            self.tenant.waits.append(self.world.now - self.since)
            self.since = None
        self.tenant.place.engine.start(self, self.pieces[0].left)

    def landed(self, done: int | None = None) -> None:
        """Counts the finished part of a piece, which is all of it unless the turn has ended."""
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
