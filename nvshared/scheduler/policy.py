# SPDX-License-Identifier: Apache-2.0
"""Policies: the order of the queue, which holders stay, when a turn ends, how long it is.

A policy is a class below with a row in POLICIES; its name is in nvshared/names.py. It decides only
the results of its methods: memory, priorities, gangs and limits are the same under all policies.
docs/internals/scheduler.md explains them.
"""

from dataclasses import dataclass, field
from math import inf

from nvshared.scheduler import busy, queue
from nvshared.scheduler.card import Card
from nvshared.scheduler.client import Phase, ScheduledClient
from nvshared.scheduler.events import AUTO_TQ_MOST, Priority, Standing
from nvshared.units import MILLISECOND, SECOND

HANDOVER_FACTOR = 19                    # automatic quantum / hand-over: 1/20 of time is hand-over
LEAST_TQ = 100 * MILLISECOND
LONG_DRAIN = 100 * MILLISECOND          # a paced client drains in 50 ms as a rule
# While clients without a deadline wait and none of them runs, they lose patience by the time that
# passes; while one runs, they regain REGAINED times that. So they run for a quarter of the time.
PATIENCE = 2 * SECOND
REGAINED = 3
LEAST_PATIENCE = -10 * SECOND           # a single long turn does not cost deadlines more than this


class Policy:
    """`fair`, and the base of the other policies. Each card has an object of its own."""

    def order(self, card: Card) -> list[ScheduledClient]:
        """The waiting clients, the next one first. Clients of higher priority come first."""
        return queue.sequence(card)

    def stays(self, card: Card, holder: ScheduledClient, head: ScheduledClient) -> bool:
        """Whether the holder gets another quantum although the head of the queue waits."""
        return queue.stays_first(card, holder, head)

    def turn_end(
        self, card: Card, holder: ScheduledClient, head: ScheduledClient | None, tq: int
    ) -> int:
        """The time (us) from which on the running holder's turn may end for the head, which has at
        least its priority. `head` None: for any client. `tq`: the quantum, us."""
        return holder.its_turn.counted + tq

    def gives_way(self, card: Card, holder: ScheduledClient, head: ScheduledClient) -> bool:
        """Whether a holder that is being loaded goes back to its place in the queue for the head,
        which has at least its priority."""
        return False

    def paces(self, card: Card) -> bool:
        """Whether holders submit so little ahead that they can be stopped soon, although no client
        waits. They do so anyway while one waits."""
        return False

    def settle(self, card: Card) -> None:
        """Called after each event; the time until the next call passes with the card as it is."""

    def quantum(self, card: Card, head: ScheduledClient | None) -> int:
        """The quantum now, in microseconds, while `head` is blocked."""
        if (tq := self.fixed_quantum(card)) is not None:
            return tq
        measured = card.groups["measured"]
        total, known = sum(client.cost or 0 for client in measured), len(measured)
        if head is not None:
            if head.cost is not None:
                total, known = total - head.cost, known - 1
            total, known = total + card.load_time(head, head.missing_bytes), known + 1
        mean = card.latency.value + (total / known if known else 0)
        return min(max(LEAST_TQ, round(HANDOVER_FACTOR * mean)), AUTO_TQ_MOST)

    def fixed_quantum(self, card: Card) -> int | None:
        """The quantum if it is set or busy turns fix it; None: it follows from hand-over costs."""
        tq = card.settings.tq
        if busy.members(card):
            return busy.BUSY_TQ if tq is None else min(tq, busy.BUSY_TQ)
        return tq


class Fifo(Policy):
    """`fifo`: first come, first served, whatever tenants have used. Each turn is one quantum."""

    def order(self, card: Card) -> list[ScheduledClient]:
        return sorted(card.groups.queue(), key=lambda client: -client.priority)

    def stays(self, card: Card, holder: ScheduledClient, head: ScheduledClient) -> bool:
        return False


class Deadline(Policy):
    """`deadline`: among clients of one priority, those with a deadline come first, the earliest
    first; the others are served as by `fair`. Holders without a deadline make room in time.

    The others may be held up until their patience (us) is used up. Then deadlines do not count
    until the others have run for so long that all of it is regained.
    """

    def __init__(self) -> None:
        self._patience, self._at = float(PATIENCE), 0   # the patience at the time `_at`, us
        self._rate = 0                  # by which it grows or falls each microsecond since then
        self._counts = True             # whether deadlines counted at `_at`
        self._held_up: Priority | None = None   # priority of the client that holds the others up

    def order(self, card: Card) -> list[ScheduledClient]:
        return sorted(
            super().order(card), key=lambda client: (-client.priority, self._due(card, client)))

    def stays(self, card: Card, holder: ScheduledClient, head: ScheduledClient) -> bool:
        return self._due(card, head) == inf and super().stays(card, holder, head)

    def turn_end(
        self, card: Card, holder: ScheduledClient, head: ScheduledClient | None, tq: int
    ) -> int:
        end = super().turn_end(card, holder, head, tq)
        if head is None or self._due(card, head) == inf:
            return end
        in_time = self._end_in_time(card, head)
        # Else two clients with deadlines would stop each other before either gets anything done.
        least = holder.its_turn.counted + LEAST_TQ if holder.terms.deadline else 0
        return min(end, max(in_time, least))

    def gives_way(self, card: Card, holder: ScheduledClient, head: ScheduledClient) -> bool:
        hurries = self._due(card, head) < inf and not holder.terms.deadline
        return hurries and card.due(self._end_in_time(card, head))

    def paces(self, card: Card) -> bool:
        return any(not one.open and not one.terms.suspended for one in card.groups["hurried"])

    def settle(self, card: Card) -> None:
        self._patience, self._counts = self._patience_now(card), self._count_now(card)
        self._at = card.now
        running = [one for one in card.groups["hurried"] if one.holds]
        if running:
            self._held_up = min(one.priority for one in running)
        least = self._held_up
        others = [one for one in (*card.groups["queued"], *card.groups["holding"])
                  if not one.terms.deadline and least is not None and one.priority >= least]
        held_up = not any(one.open for one in others) and any(
            self._could_run(card, one) for one in others)
        if not held_up and not running:
            self._held_up = None
        self._rate = -1 if held_up else REGAINED
        if held_up and self._counts:
            card.due(card.now + int(self._patience) + 1)
        elif not held_up and not self._counts:
            card.due(card.now + int(PATIENCE - self._patience) // REGAINED + 1)

    def _patience_now(self, card: Card) -> float:
        now = self._patience + self._rate * (card.now - self._at)
        return min(max(now, LEAST_PATIENCE), PATIENCE)

    def _count_now(self, card: Card) -> bool:
        """Whether deadlines count."""
        return self._patience_now(card) > (0 if self._counts else PATIENCE - 1)

    def _due(self, card: Card, client: ScheduledClient) -> float:
        """The time by which the client's turn is to begin; inf: it has no deadline that counts."""
        within = client.terms.deadline
        return client.waits_since + within if within and self._count_now(card) else inf

    def _end_in_time(self, card: Card, head: ScheduledClient) -> int:
        """The time at which a turn must end for the head's deadline. Twice the usual cost of a
        hand-over: an average of past ones is too short for half of them."""
        handover = round(card.latency.value) + card.load_time(head, head.missing_bytes)
        return head.waits_since + head.terms.deadline - LONG_DRAIN - 2 * handover

    @staticmethod
    def _could_run(card: Card, client: ScheduledClient) -> bool:
        """Whether only the turns of other clients of this card keep the client from running."""
        failing = max(client.not_before, client.orders.load_again.until)
        return (
            client.phase in (Phase.WAITING, Phase.LOADING) and not client.unresponsive
            and failing <= card.now and client.unpinned_need <= card.room_if_alone
            and (client.standing is Standing.FREE or not client.ready)
            and (not card.tight or card.fits([client])))


POLICIES: dict[str, type[Policy]] = {"fair": Policy, "fifo": Fifo, "deadline": Deadline}


@dataclass(slots=True)
class _Current:
    policy: Policy = field(default_factory=Policy)


def of(card: Card) -> Policy:
    """The policy in force on a card. A change of the setting begins with a new object."""
    kind, current = POLICIES[card.settings.policy], card.records.of(_Current)
    if type(current.policy) is not kind:
        current.policy = kind()
    return current.policy
