# SPDX-License-Identifier: Apache-2.0
"""Brings in the memory of idle programs that will probably be asked for next, before they are.

Where several models share a card, a request to one that is away waits for its weights. While the
card has nothing to do, the bus can bring them in. It is done only with the setting, as it pays
where some programs are asked for much more often than others, and costs the bus's time where all
are alike.

**Who is next.** Each program has a heat: 1 for each time that it came to its shut gate, halved
every five minutes since. So who was asked for lately and often is hotter than others; who never
was is left alone. As all heats halve alike, their order changes only when somebody asks.

**What leaves for it.** Free room first. Then memory of idle programs that are not half as hot, the
coldest first. So nothing is exchanged between programs that are about alike; and because the order
stays between two requests, and what comes in is always hotter than what goes, nothing goes round
in circles: it comes to rest.

**It makes way.** It needs a calm in which nobody has a turn, waits, or asks for memory. So it takes
nothing from anybody who computes, and all that could leave can be compared. When somebody comes,
what moves is cut short (YIELD) before anything else is decided; but not what comes in for the very
program that asks. At most one program is brought in at a time, a step at a time.
"""

import math

from nvshared.scheduler.card import Card
from nvshared.scheduler.client import Phase, ScheduledClient, Way
from nvshared.scheduler.decision import Decision
from nvshared.scheduler.taking import Taking
from nvshared.units import GIB, SECOND

HALF_LIFE = 300 * SECOND
COLDER = 2                              # so many times as hot is what comes in than what leaves
CUSHION_PART = 128                      # of the card: left for running programs to grow


def asked(client: ScheduledClient, now: int) -> None:
    """It came to its gate."""
    client.heat = heat(client, now) + 1
    client.heated = now


def heat(client: ScheduledClient, now: int) -> float:
    """How lately and how often it was asked for."""
    return client.heat * math.exp2((client.heated - now) / HALF_LIFE)


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
    idle.sort(key=lambda client: (heat(client, card.now), client.since))
    for client in reversed(idle):
        if client.heat and _lacks(client) and _bring_in(decision, client, idle):
            return


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
        taking = Taking(decision)
        colder = [
            c for c in idle if COLDER * heat(c, card.now) < heat(client, card.now)]
        taking.take(colder, min(missing, card.settings.step) - max(0, room), [])
        taking.order(ahead=True)
        early = [move for id in taking.amounts for move in card.clients[id].moves]
        for move in early:
            move.early = move.order.ahead
        if early:
            return True                 # the rest is planned anew when that is answered
    piece = min(missing, max(0, room), card.settings.step)
    if piece < min(missing, card.settings.block) or not (piece or client.cut):
        return False
    decision.load(client, client.ordered + piece, client.memory.host, ahead=True)
    client.moves[-1].early = True
    return True
