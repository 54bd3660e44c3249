# SPDX-License-Identifier: Apache-2.0
"""Busy turns: clients that fit together but leave no gap to each other take short turns.

docs/internals/scheduler.md explains them.
"""

from dataclasses import dataclass, field

from nvshared.scheduler.card import Card
from nvshared.scheduler.client import Phase, ScheduledClient
from nvshared.scheduler.events import AntiThrash, Priority
from nvshared.scheduler.records import Backoff
from nvshared.units import MILLISECOND, SECOND

BUSY_TQ = 500 * MILLISECOND             # quantum of busy turns, in which no memory moves
BUSY_PROOF = SECOND                     # from the last holder's BUSY to the begin of busy turns
RETURNS_WITHIN = 20 * MILLISECOND       # most us from a busy client's drain until it waits again
BUSY_DRAIN_MOST = BUSY_TQ // 2          # longest drain of a client in busy turns
REPORT_MOST = 64                        # with more running clients, hooks report no BUSY
EXCLUDED_RESET = 60 * SECOND            # busy turns of this length reset the exclusion


@dataclass(slots=True)
class _Busy:
    """The busy turns of a card."""

    members: frozenset[int] = frozenset()   # ids of the clients in busy turns
    since: int = 0                      # when `members` changed last

    def change(self, members: frozenset[int], now: int) -> None:
        self.members, self.since = members, now


@dataclass(slots=True)
class _Past:
    """A client's record of busy turns."""

    # After a gap the client has no busy turns until the end of this pause.
    exclusion: Backoff = field(default_factory=lambda: Backoff(2 * SECOND, 64 * SECOND))
    # Ids of clients with which it never has busy turns: there it did not drain.
    apart: frozenset[int] = frozenset()


def members(card: Card) -> frozenset[int]:
    """The ids of the clients in busy turns."""
    return card.records.of(_Busy).members


def one_at_a_time(card: Card) -> bool:
    """Whether clients take turns even if they fit together."""
    return card.settings.anti_thrash is AntiThrash.ON or bool(members(card))


def reports_matter(card: Card) -> bool:
    """Whether holders are to report BUSY. A client that runs alone reports none."""
    if members(card):
        return True
    several = 1 < len(card.groups[Phase.RUNNING]) <= REPORT_MOST
    return several and not card.contended and _allowed(card)


def awaits_idle(card: Card) -> bool:
    """Whether clients that are not busy are to report idleness, so that busy turns could begin."""
    if members(card) or not reports_matter(card):
        return False
    running = card.groups[Phase.RUNNING]
    busy = sum(client.its_turn.busy is not None for client in running)
    return 1 < busy < len(running)


def review(card: Card) -> bool:
    """Begins or ends busy turns. True: the set of clients that may run has changed."""
    ids = members(card)
    if not ids:
        return _begin(card)
    those = [card.clients[id] for id in sorted(ids) if id in card.clients]
    for client in those:
        if _cannot_drain(card, client):
            past = client.records.of(_Past)
            past.apart = ((past.apart | ids) & card.clients.keys()) - {client.id}
    wanting = (*card.groups["holding"], *card.groups["queued"])
    goes_on = (
        all(client.id in ids for client in wanting)
        and _allowed(card) and _suit(those) and card.fits(those))
    gap = next((one for one in those if _has_gap(card, one)), None) if goes_on else None
    if gap is not None or not goes_on:
        end(card, gap)
    return not members(card)


def end(card: Card, excluded: ScheduledClient | None = None) -> None:
    """Ends busy turns. `excluded`: a member with a gap, barred from busy turns for a while."""
    busy = card.records.of(_Busy)
    if excluded is not None:
        exclusion = excluded.records.of(_Past).exclusion
        if card.now - busy.since >= EXCLUDED_RESET:
            exclusion.reset()
        exclusion.fail(card.now)
    busy.change(frozenset(), card.now)


def _allowed(card: Card) -> bool:
    """Whether the anti-thrash mode allows busy turns, and all holders can be stopped."""
    mode = card.settings.anti_thrash is AntiThrash.AUTO and not card.settings.draining
    return mode and not card.groups["permanent"]


def _suit(clients: list[ScheduledClient]) -> bool:
    """Whether terms and state of these clients allow busy turns among them."""
    priority = clients[0].priority if clients else Priority.BACKGROUND
    ids = {client.id for client in clients}
    return len(clients) > 1 and priority is not Priority.BACKGROUND and not any(
        client.priority is not priority or client.rationed or client.memory.pin_reason
        or client.terms.suspended or client.unresponsive or client.standing
        or not client.records.of(_Past).apart.isdisjoint(ids)
        for client in clients)


def _begin(card: Card) -> bool:
    running, busy = card.groups[Phase.RUNNING], card.records.of(_Busy)
    if len(running) < max(2, len(card.groups["holding"])) or not _allowed(card) or any(
        card.groups[name] for name in ("queued", "lacking", Phase.LIMITED)
    ):
        return False
    since = busy.since + BUSY_PROOF
    for client in running:
        turn = client.its_turn
        if turn.busy is None or turn.rests_since is not None:
            return False
        excluded_until = client.records.of(_Past).exclusion.until
        since = max(since, turn.busy + BUSY_PROOF, excluded_until, turn.stop_after)
    if not _suit(running) or not card.fits(running) or not card.due(since):
        return False
    busy.change(frozenset(client.id for client in running), card.now)
    return True


def _has_gap(card: Card, client: ScheduledClient) -> bool:
    """Whether the client does not use its turns."""
    if client.phase is Phase.IDLE:
        return card.due(client.since + RETURNS_WITHIN)
    return client.phase is Phase.RUNNING and client.its_turn.idle


def _drains_long(card: Card, client: ScheduledClient) -> bool:
    return client.phase is Phase.DRAINING and card.due(client.since + BUSY_DRAIN_MOST)


def drains_beside(card: Card, client: ScheduledClient) -> bool:
    """Whether others run while this client drains: its work may wait for theirs.

    The turn began before busy turns, so that much work may be in flight, which is no proof of that.
    """
    busy = card.records.of(_Busy)
    return (client.id in busy.members and (client.its_turn.started or 0) < busy.since
            and _drains_long(card, client))


def _cannot_drain(card: Card, client: ScheduledClient) -> bool:
    """Whether its work waits for others', or takes their time, although little is in flight."""
    if client.phase is Phase.RUNNING:
        return client.its_turn.stop_after > card.now        # a drain has failed
    return (client.phase is Phase.DRAINING
            and (client.its_turn.started or 0) >= card.records.of(_Busy).since
            and _drains_long(card, client))
