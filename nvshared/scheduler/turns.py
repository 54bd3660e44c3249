# SPDX-License-Identifier: Apache-2.0
"""Turns: which clients begin one, when turns end, and clients' reports during turns.

docs/internals/scheduler.md explains admission, busy turns, background clients, the quantum and
idleness.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import chain

from nvshared.scheduler import ahead, busy, events, gang, moves, policy, queue
from nvshared.scheduler.actions import Run, Stuck, TurnEnd, TurnStarted
from nvshared.scheduler.card import Card, count_turn_takers
from nvshared.scheduler.client import Phase, ScheduledClient
from nvshared.scheduler.events import AUTO_TQ_MOST, BLOCK, AntiThrash, Priority, Standing
from nvshared.scheduler.orders import Move
from nvshared.scheduler.policy import LEAST_TQ
from nvshared.scheduler.records import Backoff
from nvshared.scheduler.turn import OTHERS_IDLE, Turn
from nvshared.units import MILLISECOND, SECOND

SHOWN_CHANGE = 8                        # a change of the quantum by less than 1/8 is not shown
IDLE_LEAST = 10 * MILLISECOND
IDLE_MOST = 500 * MILLISECOND
IDLE_WATCHED = IDLE_MOST // 4           # idle window while no client waits: next turns begin fast
IDLE_USUAL = 50 * MILLISECOND           # idle window of compute-limited clients if none waits
RESEND_FACTOR = 2                       # an idle window is sent again after a change by this factor
MEASURABLE = 4 * BLOCK                  # a hand-over of fewer bytes is no measurement of the pace
SLOWEST_PACE = 100                      # bytes/us; a slower hand-over waited for more than the bus
LEAST_LATENCY, MOST_LATENCY = 100, 50_000   # us; bounds of each latency that is measured
DRAIN_PATIENCE = 2 * SECOND             # from the first failed drain to the next STOP
DOUBLINGS = 6                           # most doublings of the time from a failed drain to a STOP
# Idle time that a hook reports reduces the bill of a turn by at most 1/2: a hook that lies gets
# twice its share at most, and not all of the card.
BELIEVED_PART = 2
# With these standings, a drained gang member keeps its turn until all members have drained.
TOGETHER = (Standing.OPEN, Standing.ENDS, Standing.STEPS)
NOT_CHOSEN = (Standing.APART, Standing.CLAIMS, Standing.ENDS)
# us after which a chosen client without room is queued again
STALLED = SECOND
NOT_CHOSEN_FOR = SECOND                 # us for which that client is not chosen again
WORTHWHILE = 10                         # no client overtakes the head in the last 1/10 of a quantum
MAY_START = (Standing.FREE, Standing.OPEN)


@dataclass(slots=True)
class _Runs:
    """The last RUNs on a card."""

    common: Run | None = None           # before changes for single clients
    watched: bool = False               # holders report idleness though no client waits; ahead.py
    shown_tq: int | None = None         # us; the last automatic quantum, as shown to people


@dataclass(slots=True)
class _Drains:
    """From a client's failed drain to the next STOP."""

    failed: Backoff = field(
        default_factory=lambda: Backoff(DRAIN_PATIENCE, DRAIN_PATIENCE << DOUBLINGS))


def note_report(card: Card, client: ScheduledClient, report: events.Record) -> None:
    """Records IDLE, COPIES and BUSY, except reports that only an earlier RUN requested."""
    turn = client.turn
    if turn is None or turn.last_run is None or client.phase is not Phase.RUNNING:
        return
    turn.note(report, turn.last_run, card.now)
    client.use(card.now)
    gaps = isinstance(report, events.Busy) and turn.last_run.report_busy and report.gaps
    if gaps and client.id in busy.members(card):
        busy.end(card, client)


def stopped(card: Card, client: ScheduledClient, answer: events.Stopped) -> None:
    """Ends the turn of a client that has drained, or parks the turn until its gang has drained."""
    turn = client.turn
    if turn is None or turn.started is None:
        return
    if client.standing in TOGETHER and not client.is_permanent:
        turn.park(answer)
        card.groups.touch(client)
        return
    client.invite(False)
    if turn.ending is not None and turn.parked is None:
        latency = card.now - client.since - answer.microseconds   # less the drain
        card.note_latency(min(max(latency, LEAST_LATENCY), MOST_LATENCY))
    moves.end_turn(client)
    client.records.of(_Drains).failed.reset()
    card.end_turn(client, turn.ending or TurnEnd.IDLE)
    client.enter(Phase.IDLE, card.now)
    held = card.now - turn.started
    unused = 0 if answer.used is None else min(max(0, held - answer.used), held // BELIEVED_PART)
    for node in client.nodes:
        node.credit(unused)
    queue.leave(client)
    if turn.ending is TurnEnd.PREEMPTED:
        queue.give_precedence(card, client)
    if answer.wants:
        queue.join(card, client)


def reopened(card: Card, client: ScheduledClient) -> None:
    """Resumes the turn of a client that cannot drain: work in flight may depend on later work."""
    turn = client.turn
    if turn is None or client.phase is not Phase.DRAINING or turn.parked is not None:
        return
    failed = client.records.of(_Drains).failed
    failed.fail(card.now)
    turn.postpone(failed.until)
    card.count(client, reopened=1)
    _resume(card, client, turn)


def _resume(card: Card, client: ScheduledClient, turn: Turn) -> None:
    """Resumes a turn after a drain of the client, or of another gang member, that did not end."""
    turn.resume()
    client.use(card.now)
    client.enter(Phase.RUNNING, card.now)


def ganged(card: Card, event: events.Ganged) -> None:
    """Changes the standing of clients in their gang."""
    for client in filter(None, map(card.clients.get, event.clients)):
        standing = event.standing
        client.change_membership(event)
        turn = client.turn
        if turn is not None:
            turn.postpone(max(turn.stop_after, event.stop_after))
            if turn.parked is not None and standing in (Standing.OPEN, Standing.STEPS):
                _resume(card, client, turn)
            elif turn.parked is not None and standing is not Standing.ENDS:
                stopped(card, client, turn.parked)
            elif client.phase is Phase.LOADING and standing in NOT_CHOSEN:
                queue.cancel_turn(card, client)
        elif client.phase is Phase.IDLE and standing in (Standing.CLAIMS, Standing.GRANTED):
            queue.arrive(card, client)
            client.invite(True)
        if client.invited and client.phase is Phase.WAITING and standing < Standing.CLAIMS:
            client.invite(False)
            client.enter(Phase.IDLE, card.now)


def report_stuck(card: Card) -> None:
    """Reports clients that have not answered an order for too long. The order stays in force."""
    owing: list[tuple[ScheduledClient, Turn | Move, int]] = [
        (c, c.its_turn, c.since) for c in card.groups[Phase.DRAINING] if c.its_turn.parked is None]
    # Orders behind a STOP wait for the same drain, so they are not reported as well.
    owing += [(c, c.orders.moves[0], c.orders.moves[0].since) for c in card.groups["moving"]
              if c.phase is not Phase.DRAINING]
    for client, owed, since in owing:
        if not owed.reported and card.due(since + card.settings.stuck_after):
            owed.report_stuck()
            card.groups.touch(client)
            card.send(Stuck(client.id, client.state, card.now - since))
            card.count(client, stuck=1)


# The next client that does not fit, if any, and the microseconds after which turns may end for it.
Admission = tuple[ScheduledClient | None, int]


def plan(card: Card) -> Admission:
    """Chooses and stops clients. Returns the blocked client and how long turns last (us)."""
    _suspend(card)
    gang.plan(card)
    _put_back_stalled(card)
    _repair(card)
    busy.review(card)            # members may run together if busy turns end here
    blocked, tq = _settle(card)
    while busy.review(card):
        blocked, tq = _settle(card)
    blocked = blocked or gang.claim(card)
    card.note_head(blocked, contended=blocked is not None or _crowded(card))
    _stop_idle_holders(card)
    _send_runs(card, blocked, tq)
    return blocked, tq


def _settle(card: Card) -> Admission:
    """Chooses clients that fit, ends turns for the queue's head, starts turns of loaded clients."""
    starts = True
    while starts:
        blocked, tq = _admit_all(card)
        if _crowded(card):
            _stop_enough(card, None, tq, lambda staying: count_turn_takers(staying) <= 1)
        while blocked is not None and _stop_enough(card, blocked, tq, _fits_with(card, blocked)):
            blocked, tq = _admit_all(card)  # a client put back into the queue may be its head now
        starts = _start(card)           # the measured hand-over may have changed the quantum
    return blocked, tq


def _admit_all(card: Card) -> Admission:
    """Repeats admission while it chooses clients, as each choice may change the queue's head."""
    while True:
        before, found = len(card.groups["holding"]), _admit(card)
        if found[0] is None or len(card.groups["holding"]) == before:
            return found


def _fits_with(card: Card, client: ScheduledClient) -> Callable[[list[ScheduledClient]], bool]:
    """Returns a test: may the client hold the card with the clients passed to it?"""
    kept = card.groups.sums.out_of_reach

    def fits(staying: list[ScheduledClient]) -> bool:
        members = [c for c in (*staying, client) if not c.is_permanent]
        alone = sum(not c.unresponsive for c in members) <= 1
        return (alone or not busy.one_at_a_time(card)) and card.room_left_with(members) >= kept

    return fits


def _crowded(card: Card) -> bool:
    """Whether more than one client runs although clients are to take turns."""
    return busy.one_at_a_time(card) and count_turn_takers(card.groups[Phase.RUNNING]) > 1


def _choose(card: Card, client: ScheduledClient, ends_with: frozenset[int] = frozenset()) -> None:
    client.begin_turn(Turn(
        next(card.serials), ends_with=ends_with, swapped=client.swapped,
        bytes_missing=client.missing_bytes if client.id == card.head else None))
    client.enter(Phase.LOADING, card.now)
    queue.bill(card, client)


def _suspend(card: Card) -> None:
    for client in [c for c in card.holders if c.terms.suspended]:
        if client.phase is Phase.LOADING:
            queue.cancel_turn(card, client)
        elif client.phase is Phase.RUNNING and card.due(client.its_turn.stop_after):
            card.stop(client, TurnEnd.SUSPENDED)


def _put_back_stalled(card: Card) -> None:
    """Cancels turns of chosen clients that are unresponsive, or for which no room is found."""
    for client in card.groups[Phase.LOADING]:
        if client.unresponsive:
            queue.cancel_turn(card, client)
    stalled = [client for client in card.groups[Phase.LOADING] if not client.whole]
    if not stalled or not any(c.not_before <= card.now for c in card.groups.queue()):
        return
    for client in stalled:
        under_way = client.orders.moves or card.groups["evicting"]
        patience = card.settings.stuck_after if under_way else STALLED
        if card.due(max(client.since, moves.progress(card, client)) + patience):
            client.queue(next(card.serials), card.now + NOT_CHOSEN_FOR)
            queue.cancel_turn(card, client)
            card.count(client, gave_way=1)


def _repair(card: Card) -> None:
    """Ends turns that no longer fit: a client grew, the card shrank, AntiThrash changed."""
    staying = [c for c in card.holders if c.phase is not Phase.DRAINING]
    for client in reversed([c for c in staying if c.phase is Phase.LOADING]):
        members = [c for c in staying if not c.is_permanent]
        if (not busy.one_at_a_time(card) or count_turn_takers(members) <= 1) and card.fits(members):
            return
        staying.remove(client)
        queue.cancel_turn(card, client)
    # First stop clients that lack memory, the youngest turn first; then others, the oldest first.
    lacking = [c for c in reversed(staying) if not c.whole]
    whole = [c for c in staying if c.whole and not c.is_permanent]
    for client in lacking + whole:
        # A holder that is loaded and alone keeps its turn: no other holder needs its room.
        alone = [c for c in staying if not c.is_permanent] == whole[-1:]
        if card.fits(staying) or alone:
            return
        if card.due(client.its_turn.stop_after):
            staying.remove(client)
            card.stop(client, TurnEnd.ROOM if client in lacking else TurnEnd.CAPACITY)


def _admit(card: Card) -> Admission:
    one_at_a_time, busy_turns = busy.one_at_a_time(card), bool(busy.members(card))
    for client in card.groups["queued_permanent"]:
        if not client.unresponsive:
            _choose(card, client)   # cannot drain: it runs beside any holders
    number = len(card.groups["holding"]) - len(card.groups["permanent"])
    number -= sum(
        (c.unresponsive and not c.is_permanent) or (busy_turns and busy.drains_beside(card, c))
        for c in card.groups["holding"])
    alone = card.room_if_alone
    room_left = alone - sum(c.unpinned_need for c in card.groups["holding"]
                            if c.phase is not Phase.DRAINING or not c.unresponsive)
    rules = policy.of(card)
    tq = rules.quantum(card, None)
    tight = card.tight
    blocked = None
    overtaken: list[ScheduledClient] = []
    queued = rules.order(card)
    for client in chain(card.groups["granted"], queued):
        claims = client.standing is Standing.CLAIMS
        if claims and (client.ready or not gang.may_claim(card, client)):
            continue
        # A client that cannot run at all now does not delay the others.
        if (not card.due(client.not_before) or client.unpinned_need > alone or client.unresponsive
                or (tight and not card.fits([client]))):
            card.report_crowded(client)
            continue
        crowded = one_at_a_time and number > gang.siblings(card.holders, client)
        fits = client.unpinned_need <= room_left and not crowded and not (
            tight and not card.fits([*card.holders, client]))
        if claims:
            gang.take_claim(card, client)
        if claims and (fits or blocked is not None):
            client.claim(blocked is None)
            continue
        if blocked is None and not fits:
            blocked, overtaken = client, card.holders
            tq = rules.quantum(card, blocked)
            # No other client fits or may overtake, so the rest of the queue need not be checked.
            full = one_at_a_time or room_left < min([c.unpinned_need for c in queued], default=0)
            if full or not _may_overtake(card, blocked, overtaken, tq):
                break
            continue
        if blocked is not None and client.priority is Priority.BACKGROUND < blocked.priority:
            break                       # background clients wait behind all others
        if blocked is not None and not (fits and _may_overtake(card, blocked, overtaken, tq)):
            continue
        serials = [holder.its_turn.serial for holder in overtaken]
        _choose(card, client, frozenset(serials))
        if blocked is not None:
            overtaken.append(client)    # the youngest turn, so the list stays sorted by age
        room_left -= client.unpinned_need
        number += 1
    return blocked, tq


def _may_overtake(
    card: Card, blocked: ScheduledClient, holders: list[ScheduledClient], tq: int
) -> bool:
    """Whether clients may overtake `blocked` until a holder's turn ends; `tq`: quantum, us."""
    if card.settings.anti_thrash is AntiThrash.OFF:
        # A granted gang member cancels loads: a client that overtook it would load again at once.
        return blocked.standing is not Standing.GRANTED
    ended = _ended(card, blocked, holders, tq)
    stoppable = [h for h in holders if not h.unresponsive and not h.is_permanent]
    ends = [policy.of(card).turn_end(card, h, blocked, tq)
            for h in stoppable if h.its_turn.started is not None]
    lasts = min(ends, default=card.now + tq) >= card.now + tq // WORTHWHILE
    return lasts and not any(h.phase is Phase.DRAINING or h.id in ended for h in stoppable)


def _ended(
    card: Card, head: ScheduledClient | None, holders: list[ScheduledClient], tq: int
) -> dict[int, TurnEnd]:
    """Ids of holders with turns that may end for the queue's head, and why; `tq`: quantum, us."""
    settings, rules = card.settings, policy.of(card)
    lasting: set[int] = set()
    ended: dict[int, TurnEnd] = {}
    for holder in holders:              # oldest first, so after all turns of `ends_with`
        turn = holder.its_turn
        endless = holder.is_permanent and holder.phase is not Phase.DRAINING
        if holder.unresponsive or endless or gang.turn_is_protected(holder, head):
            lasting.add(turn.serial)
            continue
        if head is not None and head.standing is Standing.GRANTED:
            ended[holder.id] = TurnEnd.GANG
            continue
        rank = holder.priority if head is None else head.priority
        yields = holder.priority is Priority.BACKGROUND < rank
        over = not turn.ends_with <= lasting
        if holder.phase is Phase.RUNNING and turn.started is not None and rank >= holder.priority:
            most = min(tq, LEAST_TQ) if yields else tq
            again = head is not None and rules.stays(card, holder, head)
            if not over and again and card.due(rules.turn_end(card, holder, head, most)):
                turn.renew(card.now)
            over = over or card.due(rules.turn_end(card, holder, head, most))
        elif holder.phase is not Phase.DRAINING:
            over = over or (head is not None and rules.gives_way(card, holder, head))
            over = (over and rank >= holder.priority) or yields
        if turn.idle and not settings.draining and not holder.standing:
            ended[holder.id] = TurnEnd.IDLE
        elif turn.preempted:
            ended[holder.id] = TurnEnd.PREEMPTED
        elif over and settings.anti_thrash is not AntiThrash.OFF:
            ended[holder.id] = TurnEnd.QUANTUM
        elif holder.phase is not Phase.DRAINING:
            lasting.add(turn.serial)
    return ended


def _stop_enough(
    card: Card, head: ScheduledClient | None, tq: int,
    enough: Callable[[list[ScheduledClient]], bool],
) -> bool:
    """Ends as few turns as are enough for the head, and none if all that may end are not enough.

    True: admission must be repeated, as a chosen client's turn was cancelled or the head got ready.
    """
    staying = [c for c in card.holders if c.phase is not Phase.DRAINING]
    leaving: list[ScheduledClient] = []
    ended = {} if enough(staying) else _ended(card, head, card.holders, tq)
    may_leave = [c for c in staying if c.id in ended and card.due(c.its_turn.stop_after)]
    may_leave.sort(key=lambda c: (ended[c.id] is not TurnEnd.IDLE, c.priority))
    while not enough(staying):
        if not may_leave:
            return False
        leaving.append(may_leave.pop(0))
        staying.remove(leaving[-1])
    for client in leaving.copy():
        if enough([*staying, client]):
            staying.append(client)
            leaving.remove(client)
    if head is not None and head.standing is Standing.CLAIMS:
        head.claim(True)                # the member fits once `leaving` and draining clients stop
        return True
    for client in leaving:
        if client.phase is Phase.RUNNING:
            card.stop(client, ended[client.id])
        else:
            queue.cancel_turn(card, client)
    return any(client.turn is None for client in leaving)


def _start(card: Card) -> bool:
    """Starts turns of chosen clients that are loaded. True: a client's `cost` has changed."""
    learnt = False
    for client in card.groups[Phase.LOADING]:
        turn, before = client.its_turn, client.cost
        if not client.whole or client.standing not in MAY_START:
            continue
        took, pace, cost = card.now - client.since, None, None
        turn.start(card.now)
        if turn.bytes_missing is not None:
            if turn.bytes_missing >= MEASURABLE:
                pace = min(took / turn.bytes_missing, 1 / SLOWEST_PACE)
                card.note_pace(pace)
            client.note_handover(pace, None)
            cost = card.load_time(client, turn.bytes_missing)
            card.count(client, handovers=1, handover=took)
        client.note_handover(None, cost)
        learnt = learnt or cost is not None or before is not None
        moves.begin_turn(client)
        card.count(client, turns=1)
        client.enter(Phase.RUNNING, card.now)
        card.send(TurnStarted(client.id))
    return learnt


def _stop_idle_holders(card: Card) -> None:
    """Stops idle clients if their room may soon be needed, or if they prevent busy turns."""
    if card.contended or card.settings.draining:
        return
    running = card.groups[Phase.RUNNING]
    others_idle = busy.awaits_idle(card) and all(
        c.its_turn.busy is not None or c.its_turn.rests_since is not None for c in running)
    if not (ahead.pauses_matter(card) or others_idle):
        return
    for client in running:
        turn = client.its_turn          # gang members are not stopped: other members may be busy
        stays = client.standing or client.is_permanent
        idle = turn.idle or (others_idle and turn.rests_since is not None)
        if idle and not stays and card.due(turn.stop_after):
            card.stop(client, TurnEnd.IDLE)


def _send_runs(card: Card, blocked: ScheduledClient | None, tq: int) -> None:
    """Sends RUN to running clients if their pacing or requested reports have changed."""
    running = card.groups[Phase.RUNNING]
    behind = blocked is not None and all(c.priority > blocked.priority for c in running)
    endless = not card.contended or behind or card.settings.anti_thrash is AntiThrash.OFF
    watched = not card.contended and ahead.pauses_matter(card)
    swaps = card.contended and not busy.members(card)   # whether memory moves between turns
    rules = policy.of(card)
    runs, shown = card.records.of(_Runs), tq_in_force(card)
    if not endless and rules.fixed_quantum(card) is None:
        # By measured hand-overs; that to a blocked client without a measurement is estimated.
        fresh = rules.quantum(
                card, None if blocked is None or blocked.cost is not None else blocked)
        if SHOWN_CHANGE * abs(fresh - shown) > shown:
            runs.shown_tq = fresh
    common = Run(
        0, pace=card.contended or bool(busy.members(card)) or rules.paces(card),
        report_idle=swaps or not card.contended,
        report_copies=(swaps or ahead.writeback_pays(card)) and card.settings.bus_sharing,
        idle_window=_idle_window(card, blocked), report_busy=busy.reports_matter(card))
    changed = card.groups.take_changed("turns")
    if not endless or runs.common != common or runs.watched != watched:
        changed = running
    runs.common, runs.watched = common, watched
    for client in changed:
        turn = client.turn
        if client.phase is not Phase.RUNNING or turn is None or turn.started is None:
            continue
        if not endless:
            # A turn that began in this plan has no deadline for its quantum yet.
            card.due(rules.turn_end(card, client, blocked, tq))
        window = 0
        if swaps or client.rationed or client.membership.paced:
            window = common.idle_window
        elif not card.contended:
            window = IDLE_WATCHED if watched else OTHERS_IDLE
        run = replace(
            common, client=client.id, idle_window=window, report_idle=window > 0,
            pace=common.pace or client.rationed or client.membership.paced)
        if client.is_permanent and not client.rationed:     # no client waits for its turn to end
            run = Run(client.id, report_copies=common.report_copies)
        if client.standing is Standing.STEPS:
            run = Run(client.id, pace=True, step=True, step_pause=client.membership.pause)
        if turn.last_run == run:
            continue
        turn.run(run, copies=common.report_copies)
        client.use(card.now)
        card.send(run)


def tq_in_force(card: Card) -> int:
    """The quantum in force; if it is auto and no client waits, the last automatic one."""
    tq = policy.of(card).fixed_quantum(card)
    return card.records.of(_Runs).shown_tq or AUTO_TQ_MOST if tq is None else tq


def _idle_window(card: Card, head: ScheduledClient | None) -> int:
    """The us of idleness after which holders send IDLE at the latest.

    While other clients wait, hooks send it earlier if their programs' pauses are short.
    """
    if not card.contended:
        return IDLE_USUAL
    costs = 0
    if head is not None:
        costs = round(card.latency.value) + card.load_time(head, head.missing_bytes)
    window = min(max(costs, IDLE_LEAST), IDLE_MOST)
    last = card.records.of(_Runs).common
    before = 0 if last is None else last.idle_window
    return before if before < RESEND_FACTOR * window and window < RESEND_FACTOR * before else window
