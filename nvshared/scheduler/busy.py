# SPDX-License-Identifier: Apache-2.0
"""Has programs take short turns that fit together and all keep the card busy.

Two trainings finish sooner one at a time: together they reach 93 % of what one after the other
does (H200, scheduling for 20 s), as the card changes between them every few milliseconds and
neither finds its caches as it left them. Memory stays where it is, so a turn costs only a drain
and a RUN, and half a second is long against that (quantum.py: BUSY).

Nobody who is not always busy is ever put into turns. A program with gaps, a service or a
notebook, leaves the card to the others meanwhile, and in turns it would wait for them.

**Begin.** While several hold the card, each hook looks whether work is in flight at all times,
and says BUSY after a second of that, or that there are gaps (libhook's flight/busyness.c). When
all who hold the card have been busy for PROOF and nobody else wants it, turns begin. From then on
the card does as in anti-thrash `on`, with the order of turns and their shares.

**End.** All run together again, at once, when

  - one of them has a gap within its own turn. The wait for its turn is none;
  - one does not want its next turn when its last is over, for longer than it takes a thread to
    come back;
  - one takes too long to drain. Its kernels are long, and would make its turns so;
  - somebody else wants the card. He runs beside them, whoever's turn it is;
  - they do not fit any more, or other terms or another mode hold for them.

Programs that hold the card and do nothing, notebooks between two cells, do not count. While two
are busy, the others are asked whether they are idle, and when all who are not busy have been idle
for IDLE, their gates are shut. To run again costs each a message and its answer, after seconds of
nothing.

Whoever had the gap rests: no turns with him for 2 s, then 4, up to 64, and 2 again after turns
have gone well for a minute. So a program that looks busy and is not costs the others little.

Who cannot be stopped, has a limit on his time, runs in the background or at another priority than
the others is not put into turns by this, nor is anybody beside him.
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
MOST = 64                               # who run together, to be asked, and looked at each time
IDLE = 2 * SECOND
REST_LEAST = 2 * SECOND
REST_MOST = 64 * SECOND
WELL = 60 * SECOND


def matters(card: Card) -> bool:
    """Whether those who run are to say if they are busy. One who runs alone never is."""
    if card.busy.members:
        return True
    several = 1 < card.groups.size(Phase.RUNNING.value) <= MOST
    return several and not card.contended and _may(card)


def awaits_idle(card: Card) -> bool:
    """Whether those who are not busy are to say if they are idle, as others could take turns."""
    if card.busy.members or not matters(card):
        return False
    busy = rest = 0
    for client in card.in_phase(Phase.RUNNING):
        if client.turn is not None and client.turn.busy is not None:
            busy += 1
        else:
            rest += 1
        if busy > 1 and rest:
            return True
    return False


def idle(card: Card) -> bool:
    """All of them are."""
    return awaits_idle(card) and all(
        client.turn is not None and (client.turn.busy is not None or client.turn.idle)
        for client in card.in_phase(Phase.RUNNING)
    )


def review(decision: Decision) -> bool:
    """Lets turns begin or end. True: who may run has changed."""
    card = decision.card
    if not card.busy.members:
        return _begin(decision)
    over, why = _over(decision)
    if over:
        end(card, why)
    return over


def end(card: Card, why: ScheduledClient | None = None) -> None:
    """All run together again. `why`: who had a gap, and rests."""
    if why is not None:
        if card.now - card.busy.since >= WELL:
            why.busy_pause = 0
        why.busy_pause = min(max(REST_LEAST, 2 * why.busy_pause), REST_MOST)
        why.busy_after = card.now + why.busy_pause
    card.busy = BusyTurns(since=card.now)


def _may(card: Card) -> bool:
    """As far as it does not depend on who they are."""
    settings = card.settings
    return (
        settings.anti_thrash is AntiThrash.AUTO and not settings.draining
        and not card.groups.size("settled")
    )


def _suits(members: list[ScheduledClient]) -> bool:
    """Whether such clients may be put into turns together."""
    return len(members) > 1 and all(
        client.priority is members[0].priority and not client.rationed
        and not client.memory.stays and not client.terms.suspended and not client.mute
        and not client.standing
        for client in members
    ) and members[0].priority is not Priority.BACKGROUND


def _begin(decision: Decision) -> bool:
    card = decision.card
    groups = card.groups
    number = groups.size(Phase.RUNNING.value)
    others = ("queued", "lacking", Phase.LIMITED.value)
    if number < 2 or number < groups.size("holding") or not _may(card) or any(
        groups.size(name) for name in others
    ):
        return False
    members = card.in_phase(Phase.RUNNING)
    since = card.busy.since
    for client in members:
        turn = client.turn
        if turn is None or turn.busy is None or turn.idle:
            return False
        since = max(since, turn.busy, client.busy_after - PROOF, turn.stop_after - PROOF)
    if not _suits(members) or not card.fits(members) or not decision.due(since + PROOF):
        return False
    card.busy = BusyTurns(frozenset(client.id for client in members), card.now)
    return True


def _over(decision: Decision) -> tuple[bool, ScheduledClient | None]:
    """Whether turns end, and who is to rest then."""
    card = decision.card
    members = [card.clients[id] for id in sorted(card.busy.members) if id in card.clients]
    wanting = [*card.groups.group("holding"), *card.waiting]
    over = (
        any(client.id not in card.busy.members for client in wanting)
        or not _may(card) or not _suits(members) or not card.fits(members)
    )
    if over:
        return True, None
    why = next((client for client in members if _gap(decision, client)), None)
    return why is not None, why


def _gap(decision: Decision, client: ScheduledClient) -> bool:
    """It does not use its turns, or not only its own."""
    turn = client.turn
    match client.phase:
        case Phase.IDLE:
            return decision.due(client.since + COMES_BACK)
        case Phase.DRAINING:
            # What it had submitted before may take long, and runs beside the others'.
            return (
                turn is not None and (turn.started or 0) >= decision.card.busy.since
                and decision.due(turn.stop_sent + DRAINS)
            )
        case Phase.RUNNING:
            return turn is not None and (turn.idle or turn.stop_after > decision.now)
    return False
