# SPDX-License-Identifier: Apache-2.0
"""The length of a turn while others wait, and the idle time after which a holder reports IDLE.

Both follow from the cost of a hand-over. An automatic quantum is as short as possible while
hand-overs take at most a twentieth of the time.

**The cost of a hand-over** is the time in which no client uses the room that changes hands: from
the end of the old holder's drain until the gate opens for the client that waited for its room. The
drain is not part of the cost, because work in flight is work. Memory that was loaded ahead, while
others ran, cost nothing. So the next hand-over will cost

    latency + pace * (bytes that the next client lacks when it is chosen)

*Latency* passes even if no memory has to move: orders and replies take time. It is measured at each
STOP: the time until STOPPED arrives, less the time that the drain took by the hook's report.

*Pace* is microseconds per byte, from being chosen to being whole. It is learned from whole
hand-overs and not from the times that hooks report for each move: moves in both directions overlap
and wait for each other's room, zero and unchanged blocks are not copied, and a slow host delays
everything. Each client has its own pace, because the content of its memory matters most: of
100 GiB that a framework has reserved and not used, nothing is copied. A client without a
measurement gets the recent average of the card. Hand-overs of a few blocks teach nothing about the
pace.

**The automatic quantum** is 19 times the cost of a hand-over. Each client of a round has one turn
and is loaded once, so the mean over the clients counts, and all have the same quantum. If the
length of each turn followed from the cost of its own successor, clients with cheap successors would
get less of the card.

The mean is over the clients that hold the card or wait for it. Each counts with the bytes that it
lacked when it was last chosen. Clients that were loaded beside a holder, without waiting for room,
do not count, because no time was lost. Only the next client counts with the bytes that it lacks
now. These shrink while it is loaded ahead, so the quantum shrinks during a turn, and the turn ends
when it has lasted long enough for the bytes that are still to be moved. Where every client can be
loaded ahead, turns become as long as that loading takes, and hand-overs cost next to nothing. Where
all memory is on the card already, turns are as short as LEAST: a person at a notebook does not
notice a tenth of a second, kernels of some milliseconds drain in a small part of it, and latencies
and cold caches cost well below the twentieth. The administrator sets the longest quantum, for cards
where a hand-over takes seconds.

The quantum that people are shown follows from past hand-overs. It is updated only when it changes
by an eighth.

**Idleness.** If an idle holder continues soon, stopping it was wrong. If it stays idle for long,
waiting for it was wrong. Waiting exactly as long as a hand-over costs loses at most twice the
loss of the best decision (the ski-rental rule). So a hook reports idleness after the time that
loading the next client would take now. That window is at least IDLE_LEAST: hooks poll
every 5 ms, and a program's host work between two launches must not cost it a turn. It is at most
IDLE_MOST: pauses of programs are either short or very long, and a wrong estimate must not leave the
card unused for longer than a person takes to notice.

If a program's turn ends by idleness and the program then stays idle for IDLE_MOST, stopping it
earlier would have been right. So its window is halved after each such turn, down to IDLE_LEAST. If
the program wants the card again within a whole window, it was stopped too early, and gets the whole
window again. The windows adapt even if no client waits: while a client has swapped memory all
clients are watched for idleness, with a window of IDLE_WATCHED, halved in the same way. A window is
sent again when it has halved or doubled.
"""

from nvshared.scheduler.card import Card
from nvshared.scheduler.client import ScheduledClient
from nvshared.scheduler.settings import BLOCK
from nvshared.units import MILLISECOND

WORTH = 19                              # times the cost of a hand-over, as it is 1 of 20 parts
LEAST = 100 * MILLISECOND
BUSY = 500 * MILLISECOND                # where nothing is to be moved; see turns.py
STEADY = 8                              # a change of less than 1/8 is not shown
IDLE_LEAST = 10 * MILLISECOND
IDLE_MOST = 500 * MILLISECOND
MOST_HALVINGS = 6                       # these bring IDLE_MOST down to IDLE_LEAST
IDLE_WATCHED = IDLE_MOST // 4           # if no client waits: the gate would open again at once
IDLE_USUAL = 50 * MILLISECOND           # if no hand-over depends on it; the hook's own default
RESEND_FACTOR = 2                       # a window is sent again after a change by this factor
MEASURABLE = 4 * BLOCK                  # a hand-over of fewer bytes teaches nothing about the pace
SLOWEST = 100                           # bytes/us; a slower hand-over waited for more than the bus
LEAST_LATENCY, MOST_LATENCY = 100, 50_000   # us; measurements are clamped to this range


def missing_bytes(client: ScheduledClient) -> int:
    """Bytes to be loaded, or made room for, before the client is whole."""
    return max(0, client.need - client.memory.filled)


def measure(card: Card, client: ScheduledClient) -> bool:
    """Learns the cost of the hand-over to a client whose gate opens now. False: no news."""
    turn = client.its_turn
    if turn.bytes_missing is None:
        known, client.cost = client.cost is not None, None
        return known
    took = card.now - turn.chosen
    if turn.bytes_missing >= MEASURABLE:
        pace = min(took / turn.bytes_missing, 1 / SLOWEST)
        client.pace, card.pace = client.pace.after(pace), card.pace.after(pace)
    client.cost = load_time(card, client, turn.bytes_missing)
    card.count(client, handovers=1, handover=took)
    return True


def now(card: Card, head: ScheduledClient | None) -> int:
    """The quantum now, in microseconds, while `head` is blocked."""
    if (tq := _fixed_tq(card)) is not None:
        return tq
    total, known = card.groups.sums.cost, card.groups.size("measured")
    if head is not None:
        if head.cost is not None:
            total, known = total - head.cost, known - 1
        total, known = total + load_time(card, head, missing_bytes(head)), known + 1
    return _quantum(card, total, known)


def update_shown(card: Card, head: ScheduledClient | None) -> None:
    """Updates the automatic quantum that is shown: by past hand-overs, not by current moves."""
    if _fixed_tq(card) is not None:
        return
    fresh = now(card, head)
    if head is None or head.cost is not None:
        fresh = _quantum(card, card.groups.sums.cost, card.groups.size("measured"))
    if STEADY * abs(fresh - card.shown_tq) > card.shown_tq:
        card.shown_tq = fresh


def in_force(card: Card) -> int:
    """The quantum in force; where it is auto and no client waits, the last one."""
    tq = _fixed_tq(card)
    return min(card.shown_tq, card.settings.longest_tq) if tq is None else tq


def idle_window(card: Card, head: ScheduledClient | None) -> int:
    """Microseconds of idleness until IDLE is sent; the last window, unless RESEND_FACTOR off."""
    if not card.contended:
        return IDLE_USUAL
    costs = 0
    if head is not None:
        costs = round(card.latency.value) + load_time(card, head, missing_bytes(head))
    window = min(max(costs, IDLE_LEAST), IDLE_MOST)
    before = 0 if card.common_run is None else card.common_run.idle_window
    return before if before < RESEND_FACTOR * window and window < RESEND_FACTOR * before else window


def patience(client: ScheduledClient, window: int) -> int:
    """The client's idle window: the common window, halved `halvings` times."""
    return max(min(window, IDLE_LEAST), window >> client.halvings)


def adapt_idle_window(client: ScheduledClient, now: int) -> None:
    """Adapts the idle window of a client that wants the card again."""
    if client.idle_end_window is not None:
        if now - client.since >= IDLE_MOST:
            client.halvings = min(client.halvings + 1, MOST_HALVINGS)
        elif now - client.since < client.idle_end_window:
            client.halvings = 0
    client.idle_end_window = None


def load_time(card: Card, client: ScheduledClient, size: int) -> int:
    """Microseconds to load `size` bytes of a client, and to make room for them."""
    pace = client.pace if client.pace.number else card.pace
    return round(pace.value * size)


def _fixed_tq(card: Card) -> int | None:
    """The quantum if it is set or busy turns fix it; None: it follows from hand-over costs."""
    tq = card.settings.tq
    if card.busy_members:
        return BUSY if tq is None else min(tq, BUSY)
    return tq


def _quantum(card: Card, total: int, known: int) -> int:
    mean = card.latency.value + (total / known if known else 0)
    return min(max(LEAST, round(WORTH * mean)), card.settings.longest_tq)
