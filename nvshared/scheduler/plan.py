# SPDX-License-Identifier: Apache-2.0
"""The plan: what follows from how things stand. It is made after each event.

An event only changes what we know. Then the plan looks at everything we know and orders
whatever is missing. The same state gives the same orders, so nothing depends on which of two
messages that crossed came first, and an order lost with a client simply shows as missing.

**Holders** are the clients that have been chosen: loading, running, draining. They may run
together because the sum of what they need (allocated + pinned + pending), with all others out
as far as they can be, fits the card. All others wait in a queue, in which tenants get
equal time and clients of one are first come first served (queue.py), or are idle.

**Admission** (turns.py). The head of the queue is chosen if it fits beside the holders; with
anti-thrash `on`, only if there are none. So when everyone fits, everyone runs and nobody is
ever stopped. If the head does not fit it is *blocked*, and turns begin. A client behind it may
be chosen if there is room beside the holders, but its turn ends with the first of theirs, so
the head loses nothing. A client that could not run even alone holds up nobody.

Those that fit may take turns nevertheless, as in `on`, while all of them keep the card busy
(turns.py). That ends before anybody waits who has gaps.

**Priority** (queue.py). The background waits behind all others, and does not overtake them. It
leaves as soon as one of them is blocked and it has run for the shortest quantum; nobody's turn
ends for it unless he is idle. So it may wait for ever. High goes before others in the queue and
ends no turns of theirs. Where all hold the card together, the background gives way by launches
(background.py).

**Turns end** only for a blocked head: those of holders that are idle (they are told to report
it), and those whose quantum, counted from RUN, is over. Holders are stopped when that is enough
for the head to fit, and no more of them than needed: to stop some of them early would only
leave the card unused. Every turn ends within one quantum, and nobody overtakes beyond that. So
the head waits at most one quantum plus the hand-over; several quanta, where by its weight the
holder would be the next again (queue.py). A drain that does not end opens the gate again; we ask
later, ever more rarely.

What fits may cease to: a holder grows, the card shrinks. Then clients that do not run yet go
back to their place in the queue. Then a holder that asks for more room has to wait for it in
the queue. Last, the oldest turns end. A holder that is alone and has all it needs keeps its
turn, as stopping it would help nobody.

**Who stays** (client.py: `settled`). Some programs cannot be stopped, or only seem to be: their
work never ends, or their hook does not see it. Their hooks say so, from then on move nothing out
and count what is on the card as pinned. Once such a client is whole it runs beside whoever has
the turn, in every mode, and only its own terms stop it. What it may grow to counts as pinned, so
it gets more only if each other client still fits beside it. While it lacks something it waits
for its turn like others.

**Terms of one client** (terms.py). A suspended client loses its turn, whether others wait or
not, stands in no queue, and leaves the card as far as host memory goes. Preempting lets the
present turns end; a blocked head ends those that it needs. A memory limit bounds what is
promised, never what is allocated already. A client with a compute limit (terms.py) is stopped
when it has had its share of a window, and stands in no queue until the next.

**Gangs** (gang.py) are clients on several cards that run together or not at all. When one's turn
could begin here, nobody is stopped before all its cards are to be had.

**Memory.** Everything allocated fits on card and host together (promises.py, and trust.py for what
clients claim). What holders lack is evicted from others and loaded (moves.py).

When holders have all they need, memory is moved before clients wait for it (ahead.py). Only for
that do turns end while nobody waits, and only turns of clients that say they are idle.

**A chosen client** for which no room is found for a while goes to the end of the queue, if others
wait. One that does not answer at all, as it was stopped, is waited for until people are told of
it, and by nobody from then on (turns.py).

**Before its end** (`draining`) those that hold the card keep it, and all others that fit beside
them are let in, whether they want it or not. Whoever has a turn then goes on without us.

**After a restart** of the daemon programs are running and hold memory. At first the scheduler
only listens until all have said what they have. It orders nothing and lets nobody grow, as it
does not know yet what is left. Clients whose connections were kept are known to be there. While
one of them drains, or moves memory, it cannot answer yet, and is waited for somewhat longer.

**Time** comes in with each event. Each comparison with a future moment notes it. The earliest
of them is the deadline, at which the plan may change without an event.
"""

from nvshared.scheduler import (
    ahead,
    background,
    moves,
    promises,
    terms,
    turns,
)
from nvshared.scheduler.decision import Decision


def plan(decision: Decision) -> None:
    """Adds to the decision what has to be done now."""
    card = decision.card
    if card.lost:
        return
    if not decision.due(card.gathered):
        return                          # what others hold and were promised is not known yet
    moves.ask_again(decision)
    turns.report_stuck(decision)        # before, as others do not wait for who is
    ahead.interrupt(decision)
    promises.plan(decision)
    terms.plan(decision)
    blocked = turns.plan(decision)
    moves.plan(decision)
    ahead.plan(decision, blocked)
    background.plan(decision)
    promises.tell(decision)
    turns.report_stuck(decision)                # again, for when to look after what was ordered now
