# SPDX-License-Identifier: Apache-2.0
"""How long a turn lasts while others wait, and how long a holder may be idle before it says so.

The quantum, where it is `auto`
===============================

As short as possible, so that nobody waits longer than it must, while no more than
one part in twenty of the time goes to hand-overs: 19 times what one costs. Each
client of a round has one turn and comes in once, so it is the mean over them that
counts, and the quantum is one for all: were each turn as long as its own successor
is expensive, those whose successors are cheap would get less of the card.

The mean is over those that hold the card or wait for it: each counts with the bytes
it lacked when it last came in, at its pace (cost.py); not those that came in beside
another, without waiting for room, for nothing was lost by that. Only the next one counts with
what it lacks now. That is less and less as it is brought in ahead, so the quantum
shrinks during a turn, and the turn is over when it has lasted long enough for what
is still to be moved. Where everyone can be brought in ahead, turns become as long
as that takes, and hand-overs cost next to nothing; where everyone is there already,
they are as short as LEAST. Nothing swings: what is not ready yet makes the turn
before it longer at once, and by no more than its part of the round.

LEAST is a tenth of a second: a person at a notebook does not feel it, kernels of
some milliseconds drain in a small part of it, and latencies and cold caches, a few
hundred microseconds for each hand-over, are well below the twentieth. The longest is
the administrator's (settings), for where a hand-over takes seconds somebody may
rather lose some of the card's time than wait for minutes.

People and hooks are told what follows from the hand-overs that were, and told anew
only when that changes by an eighth: the moment at which the present turn will end is
not known to a few per cent, and nobody wants to read that it moved by these.

Idleness
========

A holder that does nothing while others wait could go on in a moment, and then it was
wrong to stop it; or not for long, and then it was wrong to wait. Who waits exactly as
long as the hand-over costs loses at most twice what was to be lost by someone who
knew (the rule for renting skis: rent until what was paid would have bought them). So
that is what the hook is told: to report after being idle for as long as the next one
would take to come in now.

But not below IDLE_LEAST: hooks look every 5 ms, and a program's host work between two
launches, a few milliseconds, must not cost it a turn. And not above IDLE_MOST: pauses
of programs are either short or very long, so that one of half a second will most
probably last; and an estimate that is wrong shall not leave the card unused for
longer than a person takes to notice.

A window is told anew when it has halved or doubled, so a few times in a turn while the
next one is brought in.
"""

from nvshared.scheduler import cost
from nvshared.scheduler.card import Card
from nvshared.scheduler.client import ScheduledClient
from nvshared.units import MILLISECOND

WORTH = 19                              # times the cost of a hand-over, as it is 1 of 20 parts
LEAST = 100 * MILLISECOND
STEADY = 8                              # a change of less than this part is not worth telling
IDLE_LEAST = 10 * MILLISECOND
IDLE_MOST = 500 * MILLISECOND
IDLE_USUAL = 50 * MILLISECOND           # where no hand-over depends on it; the hook's own default
NEWS = 2                                # a window that is told anew has changed by this factor


def lacks(client: ScheduledClient) -> int:
    """Bytes that are to be brought or made room for before it is whole."""
    return max(0, client.need - client.memory.filled)


def measure(card: Card, client: ScheduledClient) -> bool:
    """It is whole, and its gate opens now: what did that take? False: nothing new is known."""
    turn = client.turn
    assert turn is not None
    if turn.lacked is None:
        known, client.cost = client.cost is not None, None
        return known
    took = card.now - turn.chosen
    client.pace = cost.paced(client.pace, turn.lacked, took)
    card.pace = cost.paced(card.pace, turn.lacked, took)
    client.cost = moving(card, client, turn.lacked)
    card.count(handover=took)
    return True


def now(card: Card, head: ScheduledClient | None) -> int:
    """Microseconds after which turns may end as things stand, with `head` blocked."""
    if card.settings.tq is not None:
        return card.settings.tq
    total, known = card.groups.total("cost"), card.groups.size("measured")
    if head is not None:
        if head.cost is not None:
            total, known = total - head.cost, known - 1
        total, known = total + moving(card, head, lacks(head)), known + 1
    return _quantum(card, total, known)


def told(card: Card, head: ScheduledClient | None) -> int:
    """The quantum as people and hooks are told: what it comes to, not what it is at a moment."""
    if card.settings.tq is not None:
        return card.settings.tq
    fresh = now(card, head)
    if head is None or head.cost is not None:
        fresh = _quantum(card, card.groups.total("cost"), card.groups.size("measured"))
    if STEADY * abs(fresh - card.told_quantum) > card.told_quantum:
        card.told_quantum = fresh
    return card.told_quantum


def in_force(card: Card) -> int:
    """The quantum for whoever asks; where it is auto and nobody waits, what it was last."""
    tq, longest = card.settings.tq, card.settings.longest_tq
    return min(card.told_quantum, longest) if tq is None else tq


def idle_window(card: Card, head: ScheduledClient | None) -> int:
    """How long holders are to be idle before they say so: what they were told, if about right."""
    if not card.contended:
        return IDLE_USUAL
    costs = 0 if head is None else round(card.latency.value) + moving(card, head, lacks(head))
    window = min(max(costs, IDLE_LEAST), IDLE_MOST)
    before = 0 if card.told_turns is None else card.told_turns.window
    return before if before < NEWS * window and window < NEWS * before else window


def moving(card: Card, client: ScheduledClient, size: int) -> int:
    """Microseconds in which so many bytes of a client would come in, and room be made for them."""
    pace = client.pace if client.pace.number else card.pace
    return round(pace.value * size)


def _quantum(card: Card, total: int, known: int) -> int:
    mean = card.latency.value + (total / known if known else 0)
    return min(max(LEAST, round(WORTH * mean)), card.settings.longest_tq)
