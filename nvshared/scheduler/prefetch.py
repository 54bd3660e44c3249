# SPDX-License-Identifier: Apache-2.0
"""Brings in the memory of idle programs that will probably be asked for next, before they are.

Where several models share a card, a request to one that is away waits for its weights. While the
card has nothing to do, the bus can bring them in. It is done only with the setting: it pays where
programs come back regularly, or some much more often than others, and elsewhere costs the bus's
time for nothing.

**Who is next** is who has the least of a pause left (pauses.py): who comes regularly comes in
just before, and who comes often before who comes rarely. Who has not paused twice is left alone.

**What leaves for it.** Free room first. Then memory of idle programs that have more than twice as
much left, those that will come last before others. So nothing is exchanged between programs that
are about alike. What came in may leave again when its time is over and nobody came; as pauses
last, all have about the same left, and it comes to rest. While somebody lacks something, it is
looked at again when a quarter of what is left to it has passed.

**It makes way.** It needs a calm in which nobody has a turn, waits, or asks for memory. So it takes
nothing from anybody who computes, and all that could leave can be compared. When somebody comes,
what moves is cut short (YIELD) before anything else is decided; but not what comes in for the very
program that asks. At most one program is brought in at a time, a step at a time.
"""

from nvshared.scheduler import pauses
from nvshared.scheduler.card import Card
from nvshared.scheduler.client import Phase, ScheduledClient, Way
from nvshared.scheduler.decision import Decision
from nvshared.scheduler.moves import Evictions
from nvshared.units import GIB, SECOND

LATER = 2                               # so many times as much is left to who makes room
LOOKS = 4                               # while as much is left as now
LOOKS_LEAST = SECOND // 10
CUSHION_PART = 128                      # of the card: left for running programs to grow


def cut(decision: Decision) -> None:
    """Cuts short what is in the way. To be called before anything else is decided."""
    calm = _calm(decision.card)
    for client in decision.card.moving:
        for move in client.moves:
            disturbed = not calm or client.phase is not Phase.IDLE or client.terms.suspended
            comes_for_it = move.way is Way.IN and client.phase is not Phase.IDLE
            if move.early and disturbed and not comes_for_it and not move.cut:
                decision.cut(client, move)


def plan(decision: Decision) -> None:
    """Has the next bytes brought in, if some are to be."""
    card = decision.card
    if not card.settings.prefetch:
        return
    cut(decision)                       # a stop that was just decided disturbs, too
    if not _calm(card) or any(not move.presaves for c in card.moving for move in c.moves):
        return
    idle = [c for c in card.in_phase(Phase.IDLE) if not c.terms.suspended and not c.moves]
    idle = pauses.latest_first(idle, card.now)
    wanted = [client for client in reversed(idle) if client.strays.number and _lacks(client)]
    for client in wanted:
        if _bring_in(decision, client, idle):
            return
    if wanted:
        soonest = pauses.left(wanted[0], card.now)
        decision.due(card.now + max(LOOKS_LEAST, round(soonest / LOOKS)))


def _lacks(client: ScheduledClient) -> int:
    return max(0, client.need - client.ordered) or client.need * client.cut


def _calm(card: Card) -> bool:
    busy = card.groups.size("holding") or card.groups.size("queued") or card.groups.size("asking")
    return card.settings.prefetch and not busy and card.free >= 0


def _bring_in(decision: Decision, client: ScheduledClient, idle: list[ScheduledClient]) -> bool:
    """Orders a step of it, or that others make room; False if that cannot be, or not yet."""
    card = decision.card
    cushion = min(GIB, card.settings.capacity // CUSHION_PART)
    if not card.fits([client]) or not decision.due(client.load_after):
        return False
    missing = max(0, client.need - client.ordered)
    room = card.free - cushion
    if room < min(missing, card.settings.step):
        taking = Evictions(decision)
        left = LATER * pauses.left(client, card.now)
        later = [c for c in idle if pauses.left(c, card.now) > left]
        taking.plan(later, min(missing, card.settings.step) - max(0, room), [])
        taking.order(ahead=True)
        early = [move for id in taking.amounts for move in card.clients[id].moves]
        for move in early:
            move.early = move.order.ahead
        if early:
            return True                 # the rest is planned anew when that is answered
    piece = min(missing, max(0, room), card.settings.step)
    if piece < min(missing, card.settings.block) or not (piece or client.cut):
        return False
    decision.load(client, client.ordered + piece, client.host_charged, ahead=True)
    client.moves[-1].early = True
    return True
