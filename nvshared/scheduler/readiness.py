# SPDX-License-Identifier: Apache-2.0
"""Being ready to leave: what idle programs have is copied to the host before anybody comes for it.

A notebook lies idle for minutes between two cells, and the bus with it. When somebody
comes whose memory is away, what makes room for him has to cross the bus first, and
the first time host memory has to be made for it, which takes several times as long.
Both can be done before, while nobody waits for anything: then what leaves has only to
be unmapped, and he has the bus for himself.

That pays only where somebody will come. Of those who are idle and whose memory is not
all on the card (they are *away*), the one that lacks most is taken for the next; what
it lacks, less what is free, is what has to be ready. It is prepared where it would be
taken: of the program that is idle longest first, and of its blocks those that would
leave first. Where all fit together nothing is prepared and nobody is stopped.

What was copied is right until the program runs again. So the gates of those who do
nothing are to be shut: as long as somebody is away, programs that run are asked to
say when they are idle although nobody waits, and are stopped when they do. Running
again costs such a one a message and its answer.

If it runs again before anybody came, the copy was made in vain. Each time that happens
it is left alone for twice as long as before, from half a second to a minute; and when
something of it was wanted, that begins anew. Thus one that computes a little every few
seconds is hardly ever copied, and a notebook that its owner has left is.

All of it gives way to everything. It is done only in a calm: nobody waits, asks, drains, is
to come in or lacks anything, and nobody who runs copies to the host. As soon as that ends
the copying is cut short (YIELD), before any other order, so that a program which is
wanted back does not wait for it; and for a stop that is decided then, right behind that.
And it takes half of the host memory that is left at most, so that those who must leave
find some.
"""

from nvshared.scheduler.card import Card
from nvshared.scheduler.client import CALM, Phase, ScheduledClient, Way
from nvshared.scheduler.decision import Decision
from nvshared.units import SECOND

PAUSE_MOST = 64 * SECOND
HOST_PART = 2                           # of the host memory that is left


def coveted(card: Card) -> bool:
    """Whether there is somebody who may come for the memory of those who are idle."""
    together = card.groups.total("need") <= card.settings.capacity
    return card.settings.presave and not together and _short(card) > 0


def window(client: ScheduledClient) -> int:
    """How long it is to be idle before its memory is copied; microseconds."""
    return client.save_pause


def cut(decision: Decision) -> None:
    """Ends copying that is in the way of anything. To be called before all else is decided."""
    card = decision.card
    for client in card.groups.group("saving"):
        disturbed = client.phase is not Phase.IDLE or client.terms.suspended or not _calm(card)
        for move in client.moves:
            if move.saves and disturbed and not move.cut:
                decision.cut(client, move)


def plan(decision: Decision) -> None:
    """Has the next bytes copied, if some are to be."""
    card = decision.card
    cut(decision)                       # a stop that was just decided disturbs, too
    if card.groups.size("saving") or not coveted(card) or not _calm(card):
        return
    short = _short(card) - card.groups.total("ready")
    if short <= 0:
        return
    _, coming = card.groups.most_away()
    short = _short(card)
    idle = [c for c in card.in_phase(Phase.IDLE) if not c.terms.suspended and c.id != coming]
    for client in sorted(idle, key=lambda c: c.since):
        part = min(short, client.staying)
        if client.ready < part and _save(decision, client, part):
            return
        short -= part
        if short <= 0:
            return


def answered(client: ScheduledClient, ready: int, wanted: int, *, cut_short: bool) -> None:
    """So many bytes can leave without a copy, and `wanted` were to; 0 for a running client."""
    if client.turn is None:
        client.ready = min(ready, client.memory.resident)
    client.exhausted = not cut_short and ready < wanted


def begins(client: ScheduledClient) -> None:
    """A turn of it begins, so what was copied is worth nothing any more."""
    if client.ready:
        client.save_pause = min(2 * client.save_pause, PAUSE_MOST)
    client.ready = 0
    client.exhausted = False


def taken(client: ScheduledClient) -> None:
    """Memory of it has left: it was right to have it ready. What still is, is not known."""
    if client.ready:
        client.save_pause = CALM
    client.ready = 0


def _short(card: Card) -> int:
    """What one who is away would lack if it came, beyond what is empty.

    By what hooks say, not by what is ordered: what follows from it may not change with the
    orders of the same moment.
    """
    lack, _ = card.groups.most_away()
    return lack - max(0, card.settings.capacity - card.groups.total("filled")) if lack else 0


def _calm(card: Card) -> bool:
    groups = card.groups
    busy = ("queued", "lacking", "asking", Phase.LOADING.value, Phase.DRAINING.value)
    return (
        not any(groups.size(name) for name in busy)
        and card.free >= 0
        and not any(c.turn is not None and Way.OUT in c.turn.copying
                    for c in card.in_phase(Phase.RUNNING))
    )


def _save(decision: Decision, client: ScheduledClient, wanted: int) -> bool:
    """Orders a step of it; False if that cannot be, or not yet."""
    card = decision.card
    if client.moves or client.exhausted or not decision.due(client.refuse_until):
        return False
    if not decision.due(client.since + client.save_pause):
        return False
    ready = min(wanted, client.ready + card.settings.step)
    # Of what it has to spare, what is ready already has its part.
    spare = max(0, client.host_spare - client.ready)
    more = max(0, ready - client.ready - spare) + card.settings.block
    left = max(0, card.host_free) // HOST_PART
    host = client.host_held + min(more, left)
    if host < client.host_held + card.settings.block and not spare:
        return False
    decision.save(client, ready, host)
    return True
