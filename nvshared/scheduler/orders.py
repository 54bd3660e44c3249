# SPDX-License-Identifier: Apache-2.0
"""Orders to one client to move memory; moves.py and ahead.py decide which are sent."""

from dataclasses import dataclass, field
from enum import Enum

from nvshared.scheduler.actions import Load, MoveOrder, Store
from nvshared.scheduler.domains import Neighbour
from nvshared.scheduler.records import Backoff, Counting, Direction
from nvshared.units import SECOND

PINNED_FOR = 60 * SECOND                # us for which a client that ignores EVICTs counts as pinned


class Goal(Enum):
    """The purpose of a speculative move; see ahead.py."""

    HEAD = "head"
    PREFETCH = "prefetch"
    WRITEBACK = "writeback"


@dataclass(slots=True)
class Move:
    """An order to move memory that the client has not acknowledged."""

    order: MoveOrder
    since: int                          # when the hook could begin to carry the order out
    host: int                           # host memory charged to the client during the move; bytes
    goal: Goal | None = None            # None: not speculative; a client waits for the move
    cut: bool = False                   # YIELD was sent
    reported: bool = False              # the client was reported as stuck in this order

    @property
    def direction(self) -> Direction:
        """The direction in which the move loads the bus."""
        return Direction.IN if isinstance(self.order, Load) else Direction.OUT

    def begin(self, now: int) -> None:
        self.since = now

    def report_stuck(self) -> None:
        self.reported = True

    def cut_short(self) -> None:
        self.cut = True


@dataclass(slots=True)
class Orders(Counting):
    """The orders about its memory that a client was sent; bytes."""

    room: int                           # bytes of the card that it may fill, as its hook confirmed
    lender: Neighbour | None = None     # the card that lends it memory, or may lend; moves.py
    passed: tuple[str, ...] = ()        # UUIDs of lenders of which it borrowed nothing, last last
    moves: tuple[Move, ...] = ()        # in the order sent
    cut: bool = False                   # YIELD ended its last LOAD before the room was filled
    preallocated: int = 0               # host memory that the last PREALLOCATE allows
    stores: tuple[Store, ...] = ()      # the last acknowledged STORE, then unacknowledged STOREs
    load_again: Backoff = field(default_factory=lambda: Backoff(SECOND // 4, 2 * SECOND))
    # Until this ends, the client's memory counts as pinned: it has ignored EVICTs. See moves.py.
    kept: Backoff = field(default_factory=lambda: Backoff(PINNED_FOR, PINNED_FOR))

    def send(self, move: Move) -> None:
        """Records an order. It ends PREALLOCATE: its `host` counts instead."""
        self.moves, self.preallocated = (*self.moves, move), 0
        self.cut = self.cut and move.direction is Direction.OUT

    def answer(self, number: int, now: int) -> Move | None:
        """Removes the orders up to `number`. Returns the order of this number, if it was sent."""
        done = None
        while self.moves and self.moves[0].order.number <= number:
            done, self.moves = self.moves[0], self.moves[1:]
        if done is None or done.order.number != number:
            return None
        if self.moves:
            self.moves[0].begin(now)
        return done

    def confirm(self, room: int) -> None:
        """Records the room that the hook has, or the part of it that counts."""
        self.room = room

    def end_load(self, *, cut: bool) -> None:
        """Records whether YIELD ended a LOAD."""
        self.cut = cut

    def drop(self) -> None:
        """Forgets the orders to move memory, as no hook carries them out."""
        self.moves = ()

    def preallocate(self, host: int) -> None:
        self.preallocated = host

    def store(self, order: Store) -> None:
        self.stores = (*self.stores, order)

    def stored(self, number: int) -> None:
        """The hook has received the STORE of this number, which ends those before."""
        self.stores = tuple(one for one in self.stores if one.number >= number)

    def borrow(self, lender: Neighbour | None) -> None:
        """Sets the lender. None: nothing is borrowed, so the next lender may be another card."""
        self.lender = lender

    def pass_over(self) -> None:
        """The hook borrowed nothing of the lender: the next lender is another card, if any can."""
        if self.lender is not None:
            last = self.lender.uuid
            self.passed = (*(uuid for uuid in self.passed if uuid != last), last)

    @property
    def rooms(self) -> list[int]:
        """The client's room now, and after each order under way."""
        return [self.room, *(move.order.room for move in self.moves)]

    @property
    def evictions(self) -> list[MoveOrder]:
        """The orders under way that may take host memory or borrow."""
        return [move.order for move in self.moves if move.direction is Direction.OUT]

    def moving(self, direction: Direction) -> bool:
        """Whether an unanswered order loads the bus in this direction."""
        return direction in [move.direction for move in self.moves]
