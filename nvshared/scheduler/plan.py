# SPDX-License-Identifier: Apache-2.0
"""What follows from how things stand. Called after each event.

The algorithm, in prose
=======================

Nothing is decided by an event itself. An event changes what we know; then this
plan looks at everything we know and orders whatever is missing. The same state
gives the same orders, so nothing depends on which of two messages that crossed
came first, and an order lost with a client is simply seen to be missing.

**Holders** are the clients that have been chosen: loading, running, draining.
They may run together because the sum of what they need (allocated + pinned +
pending), with all others out as far as they can be, fits the card. All others
wait in a queue, first come first served (order.py), or are idle.

**Admission** (turns.py). The head of the queue is chosen if it fits beside the
holders; with anti-thrash `on`, only if there are none. So when everyone fits,
everyone runs and nobody is ever stopped. If the head does not fit it is
*blocked*, and turns begin. Someone behind it may be chosen if there is room
beside the holders, but its turn ends with the first of theirs, so that the head
loses nothing by it. A client that could not run even alone holds up nobody.

**Turns end** only for a blocked head: of holders that are idle (they are told
that others wait, and then report it) and of those whose quantum, counted from
RUN, is over. They are stopped when that is enough for the head to fit, and no
more of them than that: stopping some of them early would only leave the card
unused. Every turn ends within one quantum, and nobody overtakes beyond that, so
the head waits one quantum at most, plus the hand-over. A drain that does not
end opens the gate again; we ask later, ever more rarely.

What fits may cease to: a holder grows, the card shrinks. Then those not yet
running go back to their place in the queue, then a holder that asks for more
room has to wait for it in the queue, and last the oldest turns end; but a
holder that is alone and has all it needs keeps its turn, as stopping it would
help nobody.

**What is set for one client** (terms.py). One that is suspended loses its turn,
others waiting or not, stands in no queue, and is emptied as far as host memory
goes. Preempting makes the present turns ones that may end; a blocked head ends
of them what it needs. A memory limit bounds what is promised, never what is
allocated already. One whose share of the time is limited (compute.py) is stopped
when it has had its share of a window, and stands in no queue until the next.

**Room** (room.py, taking.py) is what a client may occupy of the card, and the
sum over all clients never exceeds the capacity. While an EVICT is on its way
the old room counts, while a LOAD is, the new one; so the sum is true at every
moment whatever crosses. Holders lack so many bytes; so many are free or on
their way back; the rest is taken from others, those first who will need theirs
last. Nobody loses anything that nobody needs: what stays is what need not be
loaded again. Evictions and loads are cut in steps, two under way per client, so
that the newcomer's memory comes in while the other's still goes out.

When all holders have what they need, the same is done for the blocked head in
advance, out of free room and of those that run after it; but not while that
would take the bus from a running program that copies (courtesy.py). What nobody needs at
all is lent to the running clients, so that they need not ask whenever they grow.

When nobody waits for anything, but somebody who is idle has memory that is not on the
card, what would have to leave for him is copied to the host beforehand (readiness.py).
Only for that do turns end while nobody waits, and only those of clients that say
they are idle.

**Host memory** takes what leaves the card. Each EVICT says how much the client
may take, and the sum of what they hold and may take keeps to the budget.
Usually a client keeps its host memory while its blocks are on the card, to save
taking it anew. When it is short, LOADs take it back as blocks come in. So with
little left on either side a hand-over proceeds by turns: something leaves, and
makes room on the card for something to come in, which makes room on the host.
Since no more is ever committed than both hold together, less a margin
(commit.py), there is always something that can move.

**When something fails** (move.py) it is tried again after a pause, with another
victim meanwhile. A driver that has less than we account lowers the capacity for
a while, so that others give up what is missing. A chosen client for which
nothing can be found for a while goes to the end of the queue, if others wait. One
that does not answer at all, as it was stopped, is waited for until people are told
of it, and by nobody from then on (stuck.py).

**After a restart** of the daemon programs are running and hold memory. For a
while the scheduler only listens until all have said what they have; it neither
orders anything nor lets anyone grow, for it does not know yet what is left. Those
whose connections were kept are known to be there; while one of them drains, or
moves what it has, it cannot say so yet, and is waited for somewhat longer.

**Time** comes in with each event. Each comparison with a moment that has not
come notes it; the earliest of them is the deadline, at which the plan may
change without an event.
"""

from nvshared.scheduler import commit, compute, readiness, room, stuck, turns
from nvshared.scheduler.decision import Decision


def plan(decision: Decision) -> None:
    """Adds to the decision what has to be done now."""
    card = decision.card
    if card.lost:
        return
    if not decision.due(card.gathered):
        return                          # what others hold and were promised is not known yet
    stuck.plan(decision)                # before, as others do not wait for who is
    readiness.cut(decision)
    commit.plan(decision)
    compute.plan(decision)
    blocked = turns.plan(decision)
    room.plan(decision, blocked)
    readiness.plan(decision)
    stuck.plan(decision)                # again, for when to look after what was ordered now
