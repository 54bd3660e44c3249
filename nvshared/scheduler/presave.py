# SPDX-License-Identifier: Apache-2.0
"""Prepares what will have to leave: copies memory of the idle, makes host memory for the others.

What was copied leaves as fast as memory can be unmapped, so whoever comes next has the bus
for its own memory. The copying is done only while nobody waits for anything, and stops as
soon as somebody does.

A notebook is idle for minutes between two cells, and so is the bus. When a program comes whose
memory is away, what makes room for it has to cross the bus first. The first time, host memory
has to be made as well, which takes several times as long. Presaving does both beforehand.

It pays only if somebody will come. So it is done only while some idle program has memory that
is not on the card. The one that lacks most is taken for the next. What it lacks, less what is
free on the card, is what has to be presaved. It is presaved where it would be taken: from the
program that will want it last, and there from the blocks that would leave first. Where all
programs fit together nothing is presaved and nobody is stopped.

A copy is right until its program runs again. So the gates of programs that do nothing are
shut (pauses.py). To run again costs such a program one message and its answer.

If it runs again before anybody came, the copy was made in vain. Each time that happens, the
program is left alone for twice as long as before, from half a second to a minute. When some
of the copy was needed, the pause is half a second again. So a program that computes a little
every few seconds is hardly ever copied, and a notebook whose owner has left is.

Presaving makes way for everything else. It needs a calm: nobody waits, asks, drains, loads or
lacks anything, and no running program copies to the host. When the calm ends, the copying is
cut short (YIELD) before any other order, so a program that wants to run again does not wait.
A stop that is decided later in the same round cuts it short right behind that. Presaving takes
at most half of the host memory that is left, so that memory which must leave finds some.

What programs that run have on the card changes, so it cannot be copied yet. But the host memory
for it can be made (PROVIDE), by a few threads that take none of the card's time. Programs that
do not fit together will take turns, and what the next one lacks, less what is free and what those
give who do not run, will be taken from those that run, first from the one whose turn began first.
They make as much, and no more. Nobody waits for it: it has no answer, any move ends it, and none
is begun while somebody lacks something. What a client may make counts until its next move. It is
made in steps, and a client never has more ahead than is left after it, so that containers and
other programs find some. Where host memory is short nevertheless, it goes back first (moves.py).
"""

from nvshared.scheduler import pauses
from nvshared.scheduler.card import Card
from nvshared.scheduler.client import CALM, Phase, ScheduledClient, Way
from nvshared.scheduler.decision import Decision
from nvshared.units import SECOND

PAUSE_MOST = 64 * SECOND
HOST_PART = 2                           # of the host memory that is left
BLOCKS = 2                              # made beyond: what is in pieces does not fit everywhere


def pays(card: Card) -> bool:
    """Whether somebody may come who needs the room of idle clients."""
    together = card.groups.total("need") <= card.settings.capacity
    return card.settings.presave and not together and _short(card) > 0


def cut(decision: Decision) -> None:
    """Cuts short copying that is in the way. To be called before anything else is decided."""
    card = decision.card
    for client in card.groups.group("presaving"):
        disturbed = client.phase is not Phase.IDLE or client.terms.suspended or not _calm(card)
        for move in client.moves:
            if move.presaves and disturbed and not move.cut:
                decision.cut(client, move)


def plan(decision: Decision) -> None:
    """Has the next bytes copied, if some are to be."""
    card = decision.card
    cut(decision)                       # a stop that was just decided disturbs, too
    if card.groups.size("presaving") or not pays(card) or not _calm(card):
        return
    short = _short(card) - card.groups.total("presaved")
    if short <= 0:
        return
    _, coming = card.groups.most_away()
    short = _short(card)
    idle = [
        c for c in card.groups.group("occupying")
        if c.phase is Phase.IDLE and not c.terms.suspended and c.id != coming
    ]
    for client in pauses.latest_first(idle, card.now):
        part = min(short, client.staying)
        if client.presaved < part and _presave(decision, client, part):
            return
        short -= part
        if short <= 0:
            return


def provide(decision: Decision) -> None:
    """Has running clients make the next host memory, if some is to be made."""
    card = decision.card
    together = card.groups.total("need") <= card.settings.capacity
    if not card.settings.presave or together or card.groups.size("lacking"):
        return
    short = _short_of_running(card)
    for client in card.holders:
        if short > 0 and client.phase is Phase.RUNNING:
            _provide(decision, client, min(short, client.staying))
        short -= client.staying


def answered(client: ScheduledClient, size: int, wanted: int, *, cut_short: bool) -> None:
    """So many bytes can leave without a copy, of `wanted`; 0 for a running client."""
    if client.turn is None:
        client.presaved = min(size, client.memory.resident)
    client.exhausted = not cut_short and size < wanted


def begins(client: ScheduledClient) -> None:
    """Its turn begins, so what was copied is worth nothing any more."""
    if client.presaved:
        client.presave_pause = min(2 * client.presave_pause, PAUSE_MOST)
    client.presaved = 0
    client.exhausted = False


def taken(client: ScheduledClient) -> None:
    """Some of its memory has left, so it was right to copy it. How much is left is not known."""
    if client.presaved:
        client.presave_pause = CALM
    client.presaved = 0


def _short(card: Card) -> int:
    """What the client that is away would lack if it came, beyond what is free.

    It goes by what hooks say, not by what is ordered: the result must not change with the
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


def _presave(decision: Decision, client: ScheduledClient, wanted: int) -> bool:
    """Orders a step of it; False if that cannot be, or not yet."""
    card = decision.card
    if client.moves or client.exhausted or not decision.due(client.refuse_until):
        return False
    if not decision.due(client.since + client.presave_pause):
        return False
    size = min(wanted, client.presaved + card.settings.step)
    # Of what it has to spare, what is presaved already has its part.
    spare = max(0, client.host_spare - client.presaved)
    more = max(0, size - client.presaved - spare) + card.settings.block
    left = max(0, card.host_free_for(client)) // HOST_PART
    host = client.host_charged + min(more, left)
    if host < client.host_charged + card.settings.block and not spare:
        return False
    decision.presave(client, size, host)
    return True


def _short_of_running(card: Card) -> int:
    """What will be taken from those that have turns for the one that comes next.

    By what hooks say, as in `_short`.
    """
    coming = card.clients.get(card.head or card.groups.most_away()[1])
    if coming is None or coming.holds:
        return 0
    # Of the memory of all others what is pinned stays.
    staying = [coming, *card.holders]
    pinned = card.pinned - sum(client.pinned for client in staying)
    filled = sum(client.memory.filled for client in staying) + pinned
    return coming.need - coming.memory.filled - max(0, card.settings.capacity - filled)


def _provide(decision: Decision, client: ScheduledClient, wanted: int) -> None:
    """Lets it make a step of that, once it has made most of what it may."""
    card, made = decision.card, client.memory.host
    if client.moves or client.memory.stays or client.overclaims.host:
        return
    if client.provided > made + card.settings.step // 2:
        return
    if any(domain.lacking for domain in client.domains):
        return                          # there, what is not in use is taken back
    spare = max(0, client.host_charged - (client.memory.allocated - client.staying))
    left = (card.host_free_for(client) - spare) // HOST_PART
    more = min(wanted + BLOCKS * card.settings.block - spare, card.settings.step, left)
    if more >= card.settings.block:
        decision.provide(client, client.host_charged + more)
