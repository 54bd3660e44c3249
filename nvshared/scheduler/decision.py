# SPDX-License-Identifier: Apache-2.0
"""One round of planning: its actions, and when to plan again if no event arrives.

All orders are created here, so that orders under way are recorded in one place.
"""

from nvshared.scheduler import actions
from nvshared.scheduler.card import Card
from nvshared.scheduler.client import Goal, Move, Phase, ScheduledClient

# Orders to a client under way at a time, so that the hook begins the next without a round trip.
DEPTH = 2


class Decision:
    """The actions of one event, and the earliest time at which a new plan may differ."""

    def __init__(self, card: Card, now: int) -> None:
        self.card = card
        self.now = now
        self.actions: list[actions.Action] = []
        self.deadline: int | None = None

    def due(self, moment: int) -> bool:
        """Whether the time `moment` has been reached. If not, lowers the deadline to it."""
        if moment <= self.now:
            return True
        if self.deadline is None or moment < self.deadline:
            self.deadline = moment
        return False

    def crowded(self, client: ScheduledClient, alone: int) -> None:
        """Reports a client that has waited for long, and would not fit even alone."""
        if client.takes <= alone or client.crowded:
            return
        client.crowded = self.due(client.since + self.card.settings.stuck_after)
        if client.crowded:
            pinned = min(client.need, client.memory.pinned)
            self.add(actions.Crowded(client.id, client.need, alone + pinned))

    def add(self, action: actions.Action) -> None:
        """Adds a report, or an order that needs no record of being under way."""
        self.actions.append(action)

    def stop(self, client: ScheduledClient, why: actions.TurnEnd) -> None:
        """Orders a running client to drain (STOP)."""
        turn = client.its_turn
        turn.ending, turn.stop_sent, turn.reported = why, self.now, False
        client.enter(Phase.DRAINING, self.now)
        self.actions.append(actions.Stop(client.id))

    def end(self, client: ScheduledClient, why: actions.TurnEnd) -> None:
        """Ends a client's turn, and reports the end if the gate was open."""
        turn = client.turn
        client.turn = None
        if turn is not None and turn.started is not None:
            self.add(actions.TurnEnded(client.id, why, self.now - turn.started))

    def evict(
        self, client: ScheduledClient, room: int, host: int, goal: Goal | None = None,
        loan: int | None = None,
    ) -> None:
        """Orders a client to shrink to `room` bytes, and to hold up to `host` bytes on the host and
        `loan` bytes on another card; None: as many as the limits allow."""
        if loan is None:
            loan = self._lend(client, max(0, client.ordered - room))
        self._move(client, actions.Evict(
            client.id, next(self.card.numbers), room, host, goal is not None, loan,
            client.lender.uuid if client.lender else ""), goal)

    def load(
        self, client: ScheduledClient, room: int, host: int, goal: Goal | None = None
    ) -> None:
        """Gives a client room. The sum of room never exceeds the capacity of a card that works."""
        more = max(0, room - client.charged)
        assert more == 0 or more <= self.card.free or self.card.lost, "the card has no such room"
        client.cut = False
        number = next(self.card.numbers)
        self._move(client, actions.Load(client.id, number, room, host, goal is not None), goal)

    def write_back(self, client: ScheduledClient, size: int, host: int) -> None:
        """Orders a client to copy `size` bytes to its tier, with up to `host` bytes on the host."""
        loan = self._lend(client, size)
        self._move(client, actions.Writeback(
            client.id, next(self.card.numbers), client.ordered, host, True, loan,
            client.lender.uuid if client.lender else "", size), Goal.WRITEBACK)

    def store(self, client: ScheduledClient, size: int) -> None:
        """Orders a client to move swapped blocks to the disk, up to `size` bytes there in all."""
        order = actions.Store(client.id, next(self.card.numbers), size)
        client.stores = (*client.stores, order)
        self.actions.append(order)

    def limits(
        self, client: ScheduledClient, number: int, most: int, beyond: int, why: str = ""
    ) -> None:
        """Sends LIMITS. `why`: the limit because of which a COMMIT request was refused."""
        promise = client.promise
        promise.last_most, promise.last_total = most, self.card.total_for(client)
        self.actions.append(actions.Limits(
            client.id, number, promise.commit, most, promise.last_total, beyond, why))

    def _lend(self, client: ScheduledClient, moved: int) -> int:
        """Bytes that may lie on another card after `moved` more bytes were evicted or copied."""
        loan = client.loan.ordered
        left = self.card.borrowable(client)
        moved = moved if left is None else min(moved, max(0, left))
        if client.terms.suspended:
            return loan                 # see loans.py
        if client.lender is None and moved:
            client.lender = self.card.neighbour.lender()
        return loan if client.lender is None else loan + min(moved, client.lender.available)

    def _move(
        self, client: ScheduledClient, order: actions.MoveOrder, goal: Goal | None = None
    ) -> None:
        host = client.host_counted
        if not isinstance(order, actions.Load):
            host += max(0, order.host - client.host_charged)
        client.moves = (*client.moves, Move(order, self.now, host, goal))
        client.preallocated = 0         # a move ends the preallocation; the order's host covers it
        client.note_loan()
        self.actions.append(order)
