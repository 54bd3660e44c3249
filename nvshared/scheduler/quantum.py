# SPDX-License-Identifier: Apache-2.0
"""How long a turn lasts while others wait, and how long a holder may be idle before it says so.

Both follow from what a hand-over costs. An automatic quantum is as short as it can be while
hand-overs take at most a twentieth of the time.

**The cost of a hand-over** is the time in which no client uses the place of the one that leaves:
from the end of its drain until the gate opens for the client that waited for its room. The drain is
not part of it, as work in flight is work. What was loaded ahead, while others ran, cost nothing. So
the next hand-over will cost

    latency + pace * (bytes that the coming client lacks at that moment)

*Latency* is what passes even if nothing has to move: orders and answers on their way. It is
measured at each STOP: the time until STOPPED came, less the time in which the hook says it drained.

*Pace* is microseconds per byte, from being chosen to being whole. It is learned from whole
hand-overs and not from the times that hooks report for each move: moves of both directions overlap
and wait for each other's room, zero and unchanged blocks cross no bus, a slow host makes everything
longer. Each client has its own, as the content of its memory makes the largest difference: of
100 GiB that a framework has set aside and not used, nothing moves. A client that was not seen yet
is taken to be like the others lately. Hand-overs of a few blocks teach nothing about the pace.

**The quantum, where it is `auto`,** is 19 times the cost of a hand-over. Each client of a round has
one turn and comes in once, so the mean over the clients counts, and all have the same quantum. If
each turn were as long as its own successor is expensive, clients with cheap successors would get
less of the card.

The mean is over the clients that hold the card or wait for it. Each counts with the bytes that
it lacked when it last came in. Clients that came in beside another, without waiting for room, do
not count, as nothing was lost. Only the next client counts with what it lacks now. That shrinks
while it is loaded ahead, so the quantum shrinks during a turn, and the turn ends when it has lasted
long enough for what is still to be moved. Where every client can be loaded ahead, turns become as
long as that takes, and hand-overs cost next to nothing. Where all memory is on the card already,
they are as short as LEAST: a person at a notebook does not feel a tenth of a second, kernels of
some milliseconds drain in a small part of it, and latencies and cold caches are well below the
twentieth. The administrator sets the longest, for where a hand-over takes seconds.

People and hooks are shown what follows from past hand-overs, and shown another figure only when
it changes by an eighth.

**Idleness.** A holder that does nothing while others wait may go on in a moment; then it was wrong
to stop it. Or it does not go on for long; then it was wrong to wait. Waiting exactly as long as a
hand-over costs loses at most twice what the best decision would (the rule for renting skis). So a
hook reports idleness after as long as the next client would take to come in now. But not sooner
than IDLE_LEAST: hooks look every 5 ms, and a program's host work between two launches must not cost
it a turn. And not later than IDLE_MOST: pauses of programs are either short or very long, and a
wrong estimate must not leave the card unused for longer than a person takes to notice.

A program whose turn ends by idleness, and that then stays away for IDLE_MOST, would have been
stopped as rightly before. So its window is half as long after each such turn, down to IDLE_LEAST.
When it comes back before a whole window is over it was stopped too early, and gets all of it again.
No client needs to wait for that: while memory of a client is away all are watched, for IDLE_WATCHED
and then less. A window is told again when it has halved or doubled.
"""

from nvshared.scheduler.actions import TurnEnd
from nvshared.scheduler.card import Card
from nvshared.scheduler.client import ScheduledClient, Turn
from nvshared.scheduler.settings import BLOCK
from nvshared.units import MILLISECOND

WORTH = 19                              # times the cost of a hand-over, as it is 1 of 20 parts
LEAST = 100 * MILLISECOND
BUSY = 500 * MILLISECOND                # where nothing is to be moved; see busy.py
STEADY = 8                              # a change of less than this part is not worth telling
IDLE_LEAST = 10 * MILLISECOND
IDLE_MOST = 500 * MILLISECOND
MOST_HALVINGS = 6                       # of IDLE_MOST, which is IDLE_LEAST then
IDLE_WATCHED = IDLE_MOST // 4           # where no client waits, and the gate opens again at once
IDLE_USUAL = 50 * MILLISECOND           # where no hand-over depends on it; the hook's own default
NEWS = 2                                # a window that is told anew has changed by this factor
TELLING = 4 * BLOCK                     # bytes that must have been lacking to teach the pace
SLOWEST = 100                           # bytes/us; a slower hand-over waited for more than the bus
LEAST_LATENCY, MOST_LATENCY = 100, 50_000


def lacks(client: ScheduledClient) -> int:
    """Bytes to be loaded, or made room for, before the client is whole."""
    return max(0, client.need - client.memory.filled)


def measure(card: Card, client: ScheduledClient) -> bool:
    """Learns the cost of the hand-over to a client whose gate opens now. False: nothing new."""
    turn = client.its_turn
    if turn.lacked is None:
        known, client.cost = client.cost is not None, None
        return known
    took = card.now - turn.chosen
    if turn.lacked >= TELLING:
        pace = min(took / turn.lacked, 1 / SLOWEST)
        client.pace, card.pace = client.pace.after(pace), card.pace.after(pace)
    client.cost = moving(card, client, turn.lacked)
    card.count(handover=took)
    client.history.handovers += 1
    client.history.handover += took
    return True


def learn_latency(card: Card, waited: int, drained: int) -> None:
    """STOPPED came `waited` us after STOP, of which the client drained `drained`."""
    card.latency = card.latency.after(min(max(waited - drained, LEAST_LATENCY), MOST_LATENCY))


def now(card: Card, head: ScheduledClient | None) -> int:
    """Microseconds after which turns may end as things stand, with `head` blocked."""
    if (fixed := _fixed(card)) is not None:
        return fixed
    total, known = card.groups.sums.cost, card.groups.size("measured")
    if head is not None:
        if head.cost is not None:
            total, known = total - head.cost, known - 1
        total, known = total + moving(card, head, lacks(head)), known + 1
    return _quantum(card, total, known)


def shown(card: Card, head: ScheduledClient | None) -> int:
    """The quantum as people and hooks see it: of whole hand-overs, not of this moment."""
    if (fixed := _fixed(card)) is not None:
        return fixed
    fresh = now(card, head)
    if head is None or head.cost is not None:
        fresh = _quantum(card, card.groups.sums.cost, card.groups.size("measured"))
    if STEADY * abs(fresh - card.shown_quantum) > card.shown_quantum:
        card.shown_quantum = fresh
    return card.shown_quantum


def in_force(card: Card) -> int:
    """The quantum in force; where it is auto and no client waits, the last one."""
    fixed = _fixed(card)
    return min(card.shown_quantum, card.settings.longest_tq) if fixed is None else fixed


def idle_window(card: Card, head: ScheduledClient | None) -> int:
    """Microseconds of idleness until IDLE is sent; the last window, if it is about right."""
    if not card.contended:
        return IDLE_USUAL
    costs = 0 if head is None else round(card.latency.value) + moving(card, head, lacks(head))
    window = min(max(costs, IDLE_LEAST), IDLE_MOST)
    before = 0 if card.told is None else card.told.idle_window
    return before if before < NEWS * window and window < NEWS * before else window


def patience(client: ScheduledClient, window: int) -> int:
    """The client's part of a window that holds for all."""
    return max(min(window, IDLE_LEAST), window >> client.halvings)


def rests(card: Card, client: ScheduledClient, turn: Turn) -> None:
    """Notes a turn that is over. If idleness ended it, the pause that follows will teach."""
    told = card.told if turn.ending is TurnEnd.IDLE and turn.told is not None else None
    client.rests = None if told is None else told.idle_window if told.pace else IDLE_WATCHED


def came_back(client: ScheduledClient, now: int) -> None:
    """Adapts the idle window of a client that wants the card again."""
    if client.rests is not None:
        if now - client.since >= IDLE_MOST:
            client.halvings = min(client.halvings + 1, MOST_HALVINGS)
        elif now - client.since < client.rests:
            client.halvings = 0
    client.rests = None


def moving(card: Card, client: ScheduledClient, size: int) -> int:
    """Microseconds to bring in so many bytes of a client, and to make room for them."""
    pace = client.pace if client.pace.number else card.pace
    return round(pace.value * size)


def _fixed(card: Card) -> int | None:
    """The quantum where it does not follow from the cost of hand-overs."""
    tq = card.settings.tq
    if card.busy.members:
        return BUSY if tq is None else min(tq, BUSY)
    return tq


def _quantum(card: Card, total: int, known: int) -> int:
    mean = card.latency.value + (total / known if known else 0)
    return min(max(LEAST, round(WORTH * mean)), card.settings.longest_tq)
