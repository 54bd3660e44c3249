# SPDX-License-Identifier: Apache-2.0
"""Busy turns: clients that fit together and all keep the card busy take short turns.

Two trainings finish sooner one at a time. Run together, they reach 93 % of the throughput that they
have one after the other (H200, 20 s), because the card switches between them every few milliseconds
and each finds its caches overwritten. No memory is moved, so a turn costs only a drain and a RUN,
which is little against half a second (quantum.py: BUSY).

**Begin.** A client with gaps, such as a service or a notebook, leaves the card to the others in its
gaps. With turns it would have to wait for them. So no such client is ever put into turns. While
several clients hold the card, each hook samples whether work is in flight. It sends BUSY after a
second of work in all samples, or when it finds gaps. When all holders have been busy for PROOF and
no other client wants the card, turns begin, as in anti-thrash `on`. Turns do not begin while a
holder cannot be stopped, has a compute limit, runs in the background, or has another priority than
the others.

**End.** All clients run together again at once when

  - a member has a gap within its own turn; the wait for its turn does not count as a gap;
  - a member does not want another turn within COMES_BACK after the last;
  - a member takes longer than DRAINS to drain: its long kernels would prolong its turns;
  - another client wants the card; that client runs beside the members at once;
  - the members do not fit any more, or their terms or the mode have changed.

The member that had the gap is excluded from busy turns for 2 s, then for 4, up to 64, and for 2
again after busy turns have lasted a minute. So a program that only looks busy costs the others
little.

**Idle holders**, such as notebooks between two cells, do not prevent busy turns. While two clients
are busy, the other holders are ordered to report idleness. When all of these have been idle for
OTHERS_IDLE, their gates are shut.
"""

from nvshared.scheduler import quantum
from nvshared.scheduler.card import Card
from nvshared.scheduler.client import Phase, ScheduledClient
from nvshared.scheduler.settings import AntiThrash, Priority
from nvshared.units import MILLISECOND, SECOND

PROOF = SECOND                          # counted from the latest holder's BUSY
COMES_BACK = 20 * MILLISECOND           # until a thread that waited for the drained work launches
DRAINS = quantum.BUSY // 2              # longest drain of a member
MOST = 64                               # with more running clients, hooks report no BUSY
OTHERS_IDLE = 2 * SECOND                # idleness after which holders that are not busy are stopped
REST_LEAST = 2 * SECOND                 # a member with a gap is excluded for so long,
REST_MOST = 64 * SECOND                 # doubled each time up to this
WELL = 60 * SECOND                      # busy turns of this length reset the exclusion


def reports_matter(card: Card) -> bool:
    """Whether holders are to report BUSY. A client that runs alone never has to."""
    if card.busy_members:
        return True
    several = 1 < card.groups.size(Phase.RUNNING) <= MOST
    return several and not card.contended and _may_begin(card)


def awaits_idle(card: Card) -> bool:
    """Whether clients that are not busy are to report idleness, so that busy turns could begin."""
    if card.busy_members or not reports_matter(card):
        return False
    running = card.groups[Phase.RUNNING]
    busy = sum(client.its_turn.busy is not None for client in running)
    return 1 < busy < len(running)


def review(card: Card) -> bool:
    """Begins or ends busy turns. True: the set of clients that may run has changed."""
    if not card.busy_members:
        return _begin(card)
    members = [card.clients[id] for id in sorted(card.busy_members) if id in card.clients]
    wanting = (*card.groups["holding"], *card.groups["queued"])
    goes_on = (
        all(client.id in card.busy_members for client in wanting)
        and _may_begin(card) and _suit(members) and card.fits(members)
    )
    gap = next((one for one in members if _has_gap(card, one)), None) if goes_on else None
    if goes_on and gap is None:
        return False
    end(card, gap)
    return True


def end(card: Card, why: ScheduledClient | None = None) -> None:
    """Ends busy turns. `why`: the member that had a gap and is excluded for a while."""
    if why is not None:
        if card.now - card.busy_since >= WELL:
            why.busy_pause = 0
        why.busy_pause = min(max(REST_LEAST, 2 * why.busy_pause), REST_MOST)
        why.busy_after = card.now + why.busy_pause
    card.busy_members, card.busy_since = frozenset(), card.now


def _may_begin(card: Card) -> bool:
    """Whether the mode allows busy turns, and all holders can be stopped."""
    mode = card.settings.anti_thrash is AntiThrash.AUTO and not card.settings.draining
    return mode and not card.groups.size("permanent")


def _suit(members: list[ScheduledClient]) -> bool:
    """Whether terms and state of these clients allow busy turns among them."""
    priority = members[0].priority if members else Priority.BACKGROUND
    return len(members) > 1 and priority is not Priority.BACKGROUND and not any(
        client.priority is not priority or client.rationed or client.memory.pin_reason
        or client.terms.suspended or client.unresponsive or client.standing
        for client in members
    )


def _begin(card: Card) -> bool:
    groups = card.groups
    members = card.groups[Phase.RUNNING]
    others = ("queued", "lacking", Phase.LIMITED)
    if len(members) < max(2, groups.size("holding")) or not _may_begin(card) or any(
        groups.size(name) for name in others
    ):
        return False
    since = card.busy_since
    for client in members:
        turn = client.its_turn
        if turn.busy is None or turn.idle:
            return False
        since = max(since, turn.busy, client.busy_after - PROOF, turn.stop_after - PROOF)
    if not _suit(members) or not card.fits(members) or not card.due(since + PROOF):
        return False
    card.busy_members = frozenset(client.id for client in members)
    card.busy_since = card.now
    return True


def _has_gap(card: Card, client: ScheduledClient) -> bool:
    """Whether the client does not use its turns, or drains so slowly that it uses others'."""
    match client.phase:
        case Phase.IDLE:
            return card.due(client.since + COMES_BACK)
        case Phase.DRAINING:
            # Work submitted before busy turns began may take long, and runs beside the others'.
            turn = client.its_turn
            return (turn.started or 0) >= card.busy_since and card.due(
                turn.stop_sent + DRAINS)
        case Phase.RUNNING:
            return client.its_turn.idle or client.its_turn.stop_after > card.now
    return False
