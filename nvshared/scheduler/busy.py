# SPDX-License-Identifier: Apache-2.0
"""Busy turns: clients that fit together and all keep the card busy take short turns.

Two trainings finish sooner one at a time: together they reach 93 % of what one after the other does
(H200, 20 s), as the card changes between them every few milliseconds and neither finds its caches
as it left them. Memory stays where it is, so a turn costs only a drain and a RUN, and half a second
is long against that (quantum.py: BUSY).

**Begin.** A client with gaps, such as a service or a notebook, leaves the card to the others
meanwhile, and would wait for them in turns. So no such client is ever put into turns. While several
hold the card, each hook looks whether work is in flight at all times, and says BUSY after a second
of that, or that there are gaps. When all holders have been busy for PROOF and no other client wants
the card, turns begin, as in anti-thrash `on`. A client that cannot be stopped, has a compute limit,
runs in the background or at another priority than the others keeps them from it.

**End.** All run together again, at once, when

  - a member has a gap within its own turn. The wait for its turn is none;
  - a member does not want its next turn after its last, for longer than a thread needs to come
    back;
  - a member takes too long to drain. Its kernels are long, and would make its turns so;
  - another client wants the card. It runs beside them, whichever has the turn;
  - they do not fit any more, or other terms or another mode hold for them.

The member that had the gap rests: no turns with it for 2 s, then 4, up to 64, and 2 again after
turns have gone well for a minute. So a program that looks busy and is not costs the others little.

**Idle holders**, such as notebooks between two cells, do not count. While two clients are busy, the
others are told to report idleness. When all that are not busy have been idle for OTHERS_IDLE, their
gates are shut.
"""

from nvshared.scheduler import quantum
from nvshared.scheduler.card import BusyTurns, Card
from nvshared.scheduler.client import Phase, ScheduledClient
from nvshared.scheduler.decision import Decision
from nvshared.scheduler.settings import AntiThrash, Priority
from nvshared.units import MILLISECOND, SECOND

PROOF = SECOND                          # after the second in which each hook found it
COMES_BACK = 20 * MILLISECOND           # a thread that waited for the work in flight
DRAINS = quantum.BUSY // 2
MOST = 64                               # clients that run together, to be asked and looked at
OTHERS_IDLE = 2 * SECOND
REST_LEAST = 2 * SECOND
REST_MOST = 64 * SECOND
WELL = 60 * SECOND


def reports_matter(card: Card) -> bool:
    """Whether holders are to report BUSY. A client that runs alone never is."""
    if card.busy.members:
        return True
    several = 1 < card.groups.size(Phase.RUNNING) <= MOST
    return several and not card.contended and _may_begin(card)


def awaits_idle(card: Card) -> bool:
    """Whether clients that are not busy are to report idleness, as others could take turns."""
    if card.busy.members or not reports_matter(card):
        return False
    running = card.in_phase(Phase.RUNNING)
    busy = sum(client.its_turn.busy is not None for client in running)
    return 1 < busy < len(running)


def others_are_idle(card: Card) -> bool:
    """Whether all clients that are not busy are idle."""
    return awaits_idle(card) and all(
        client.its_turn.busy is not None or client.its_turn.idle
        for client in card.in_phase(Phase.RUNNING)
    )


def review(decision: Decision) -> bool:
    """Lets busy turns begin or end. True: which clients may run has changed."""
    card = decision.card
    if not card.busy.members:
        return _begin(decision)
    members = [card.clients[id] for id in sorted(card.busy.members) if id in card.clients]
    wanting = (*card.groups.group("holding"), *card.groups.group("queued"))
    goes_on = (
        all(client.id in card.busy.members for client in wanting)
        and _may_begin(card) and _suit(members) and card.fits(members)
    )
    gap = next((one for one in members if _has_gap(decision, one)), None) if goes_on else None
    if goes_on and gap is None:
        return False
    end(card, gap)
    return True


def end(card: Card, why: ScheduledClient | None = None) -> None:
    """All run together again. `why`: the client that had a gap, and rests."""
    if why is not None:
        if card.now - card.busy.since >= WELL:
            why.busy_pause = 0
        why.busy_pause = min(max(REST_LEAST, 2 * why.busy_pause), REST_MOST)
        why.busy_after = card.now + why.busy_pause
    card.busy = BusyTurns(since=card.now)


def _may_begin(card: Card) -> bool:
    """Whether the mode allows busy turns, and all holders can be stopped."""
    mode = card.settings.anti_thrash is AntiThrash.AUTO and not card.settings.draining
    return mode and not card.groups.size("permanent")


def _suit(members: list[ScheduledClient]) -> bool:
    """Whether such clients may be put into turns together."""
    priority = members[0].priority if members else Priority.BACKGROUND
    return len(members) > 1 and priority is not Priority.BACKGROUND and not any(
        client.priority is not priority or client.rationed or client.memory.pin_reason
        or client.terms.suspended or client.unresponsive or client.standing
        for client in members
    )


def _begin(decision: Decision) -> bool:
    card, groups = decision.card, decision.card.groups
    members = card.in_phase(Phase.RUNNING)
    others = ("queued", "lacking", Phase.LIMITED)
    if len(members) < max(2, groups.size("holding")) or not _may_begin(card) or any(
        groups.size(name) for name in others
    ):
        return False
    since = card.busy.since
    for client in members:
        turn = client.its_turn
        if turn.busy is None or turn.idle:
            return False
        since = max(since, turn.busy, client.busy_after - PROOF, turn.stop_after - PROOF)
    if not _suit(members) or not card.fits(members) or not decision.due(since + PROOF):
        return False
    card.busy = BusyTurns(frozenset(client.id for client in members), card.now)
    return True


def _has_gap(decision: Decision, client: ScheduledClient) -> bool:
    """Whether the client does not use its turns, or not only its own."""
    match client.phase:
        case Phase.IDLE:
            return decision.due(client.since + COMES_BACK)
        case Phase.DRAINING:
            # Work submitted before busy turns began may take long, and runs beside the others'.
            turn = client.its_turn
            return (turn.started or 0) >= decision.card.busy.since and decision.due(
                turn.stop_sent + DRAINS)
        case Phase.RUNNING:
            return client.its_turn.idle or client.its_turn.stop_after > decision.now
    return False
