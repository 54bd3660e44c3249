# SPDX-License-Identifier: Apache-2.0
"""Takes room away: from whom, how much at a time, and where its bytes may go.

First goes room that is not filled, which costs nothing. Then what holders have beyond their
need. Then memory, in the order in which the victims are given. Memory that leaves the card
needs host memory: what the client has and does not use, and what is left of the budget. Where
that ends, the next victim may still have some.
"""

from collections.abc import Iterable

from nvshared.scheduler.client import ScheduledClient, Way
from nvshared.scheduler.decision import DEPTH, Decision
from nvshared.scheduler.domains import Remaining

# Host memory is taken in pieces, so more may be taken than must be: a few
# blocks, or this part of what is left of the budget.
BLOCKS = 2
PART = 8


class Taking:
    """What is taken from whom in one round; bytes by client."""

    def __init__(self, decision: Decision) -> None:
        self.amounts: dict[int, int] = {}
        self.host_short = 0             # bytes that could leave the card but for host memory
        self._decision = decision
        self._remaining = Remaining(max(0, decision.card.host_free))

    def take(
        self, victims: list[ScheduledClient], short: int, holders: Iterable[ScheduledClient],
        keep: int = 0,
    ) -> int:
        """Plans to take `short` bytes. Returns how many are not to be had.

        `keep`: bytes beyond its need that each holder may keep.
        """
        willing = [
            v for v in victims
            if short > 0 and not v.mute and self._decision.due(v.refuse_until)
        ]
        for victim in willing:
            if not victim.moving(Way.IN):
                short -= self._note(victim, min(short, _unfilled(victim)))
        for holder in holders:
            # What a running client gives up it may fill at any moment; the hook sees to that.
            surplus = holder.ordered - max(holder.need, holder.memory.filled) - keep
            if short > 0 and self._decision.due(holder.refuse_until):
                short -= self._note(holder, min(short, surplus))
        for victim in willing:
            short -= self._note(victim, self._movable(victim, short))
        return max(0, short)

    def order(self, *, ahead: bool = False) -> None:
        """Sends the evictions, in steps; the rest is planned anew when they are answered.

        `ahead`: nobody waits for them yet.
        """
        clients = self._decision.card.clients
        for id, amount in self.amounts.items():
            client = clients[id]
            if client.moving(Way.IN):
                continue                # one way after the other
            while amount > 0 and len(client.moves) < DEPTH:
                unfilled = min(amount, _unfilled(client))
                moved = 0 if client.holds else self._piece(client, amount - unfilled)
                if unfilled + moved == 0:
                    break
                host = client.host_charged + self._allowance(client, moved)
                self._decision.evict(
                    client, client.ordered - unfilled - moved, host, ahead=ahead and moved > 0)
                amount -= unfilled + moved

    def _note(self, client: ScheduledClient, amount: int) -> int:
        if amount <= 0:
            return 0
        self.amounts[client.id] = self.amounts.get(client.id, 0) + amount
        return amount

    def _movable(self, victim: ScheduledClient, short: int) -> int:
        """How much of `short` it can give up, given the host memory there is."""
        movable = victim.ordered - self.amounts.get(victim.id, 0) - victim.memory.pinned
        wanted = min(short, movable)
        if wanted <= 0:
            return 0
        own = _hoped(victim)
        # Hooks move whole blocks: with less than one in host memory, nothing moves.
        block = self._decision.card.settings.block
        left = self._remaining.of(victim)
        possible = min(wanted, own + (left if left >= block else 0))
        # What its domains lack, host memory of others would not give.
        if possible < wanted and left == self._remaining.host:
            self.host_short += max(wanted - possible, block)
        self._remaining.give(victim, max(0, possible - own))
        return possible

    def _piece(self, client: ScheduledClient, amount: int) -> int:
        """How much of it goes with the next order."""
        free = max(0, self._decision.card.host_free_for(client))
        return min(amount, self._decision.card.settings.step, _hoped(client) + free)

    def _allowance(self, client: ScheduledClient, moved: int) -> int:
        """Host memory it may take in addition."""
        if moved == 0:
            return 0
        free = max(0, self._decision.card.host_free_for(client))
        settings = self._decision.card.settings
        ahead = max(BLOCKS * settings.block, min(settings.step, free // PART))
        return min(free, max(0, moved - client.host_spare) + ahead) if free >= settings.block else 0


def _unfilled(client: ScheduledClient) -> int:
    """Room that can be given up without moving anything."""
    filled = max(client.memory.filled, client.need if client.holds else 0)
    return max(0, client.ordered - filled)


def _hoped(client: ScheduledClient) -> int:
    """Bytes that may leave into its own host memory, if all blocks have kept theirs."""
    if client.moving(Way.OUT) or not client.hopeful:
        return client.host_spare        # none, if it has been found to be of no use
    return max(client.host_spare, min(client.staying, client.host_charged))
