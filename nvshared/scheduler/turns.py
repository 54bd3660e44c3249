# SPDX-License-Identifier: Apache-2.0
"""Who holds the card: admission, the ends of turns, and who gives way.

The essay is in plan.py.
"""

from collections.abc import Callable
from itertools import chain

from nvshared.scheduler import busy, gang, order, pauses, presave, quantum
from nvshared.scheduler.actions import TurnEnd, TurnStarted
from nvshared.scheduler.card import Card, crowd
from nvshared.scheduler.client import Conduct, Phase, ScheduledClient, Turn, Way
from nvshared.scheduler.decision import Decision
from nvshared.scheduler.events import Standing
from nvshared.scheduler.settings import AntiThrash, Priority
from nvshared.units import SECOND

# A chosen client that gets no room although nothing is on its way, and others wait.
STALLED = SECOND
# For so long it is not chosen again.
GAVE_WAY = SECOND
# Overtaking pays only while at least this part of a turn is left.
WORTHWHILE = 10
MAY_START = (Standing.FREE, Standing.OPEN)


def plan(decision: Decision) -> ScheduledClient | None:
    """Chooses and stops clients. Returns the next one that does not fit, if there is one."""
    _invite(decision)
    _suspend(decision)
    gang.plan(decision)
    _give_way(decision)
    _repair(decision)
    busy.review(decision)               # whoever waits because of others, and need not any more
    blocked = _let_run(decision)
    while busy.review(decision):
        blocked = _let_run(decision)
    blocked = blocked or gang.claim(decision.card)
    decision.card.contended = blocked is not None or _crowded(decision.card)
    decision.card.head = None if blocked is None else blocked.id
    _rest(decision)
    _announce(decision, blocked)
    return blocked


def _let_run(decision: Decision) -> ScheduledClient | None:
    blocked = _settle(decision)
    while _start(decision):             # what that took may have changed the quantum
        blocked = _settle(decision)
    return blocked


def _settle(decision: Decision) -> ScheduledClient | None:
    """Chooses as many as fit, and ends turns for the next one, if it does not and they may end."""
    blocked = _admit_all(decision)
    if _crowded(decision.card):
        _stop_enough(decision, None, lambda staying: crowd(staying) <= 1)
    while blocked is not None and _stop_enough(
        decision, blocked, _fits_with(decision.card, blocked)
    ):
        blocked = _admit_all(decision)  # who was put back may stand before it
    return blocked


def _admit_all(decision: Decision) -> ScheduledClient | None:
    """Once more while some are chosen: their turns, foreseen, may put another in front."""
    groups = decision.card.groups
    while True:
        before = groups.size("holding")
        blocked = _admit(decision)
        if blocked is None or groups.size("holding") == before:
            return blocked


def _fits_with(card: Card, client: ScheduledClient) -> Callable[[list[ScheduledClient]], bool]:
    """Whether it may hold the card with these, beside what those keep who do not answer."""
    kept = card.out_of_reach

    def fits(staying: list[ScheduledClient]) -> bool:
        members = [c for c in (*staying, client) if not c.settled]
        alone = sum(not c.mute for c in members) <= 1
        return (alone or not card.one_at_a_time) and card.beside(members) >= kept

    return fits


def _crowded(card: Card) -> bool:
    """More than one runs although they are to take turns from now on."""
    if not card.one_at_a_time:
        return False
    return crowd(card.in_phase(Phase.RUNNING)) > 1


def _choose(
    decision: Decision, client: ScheduledClient, beside: frozenset[int] = frozenset()
) -> None:
    waited = client.id == decision.card.head
    client.turn = Turn(
        next(decision.card.serials), chosen=decision.now, beside=beside,
        lacked=quantum.lacks(client) if waited else None,
    )
    client.enter(Phase.LOADING, decision.now)
    order.choose(decision.card, client)


def _put_back(decision: Decision, client: ScheduledClient) -> None:
    """To its old place: its turn never began."""
    client.turn = None
    client.enter(Phase.WAITING, decision.now)
    order.account(decision.card)


def _invite(decision: Decision) -> None:
    """Before we end: without us, who has no turn stands still. The smallest first: most fit."""
    card = decision.card
    if card.settings.draining:
        for client in sorted(card.in_phase(Phase.IDLE), key=lambda c: c.takes):
            if not client.terms.suspended:
                order.arrive(card, client)


def _suspend(decision: Decision) -> None:
    """Ends the turns of suspended clients."""
    suspended = [c for c in decision.card.groups.group("suspended") if c.turn is not None]
    for client in sorted(suspended, key=lambda c: c.turn.serial if c.turn else 0):
        turn = client.turn
        assert turn is not None
        if client.phase is Phase.LOADING:
            _put_back(decision, client)
        elif client.phase is Phase.RUNNING and decision.due(turn.stop_after):
            decision.stop(client, TurnEnd.SUSPENDED)


def _give_way(decision: Decision) -> None:
    """A chosen client for which no room is found lets others try, and one that does not answer."""
    card = decision.card
    # What is kept for it, others could use; and what it is to give up may be more than it needs.
    for client in [c for c in card.in_phase(Phase.LOADING) if c.mute]:
        _put_back(decision, client)
    stalled = [client for client in card.in_phase(Phase.LOADING) if not client.whole]
    if not stalled or not any(c.not_before <= decision.now for c in card.groups.queue()):
        return
    for client in stalled:
        assert client.turn is not None
        under_way = client.moves or any(c.moving(Way.OUT) and not c.mute for c in card.moving)
        patience = card.settings.stuck_after if under_way else STALLED
        if decision.due(max(client.turn.chosen, client.progress, card.last_evicted) + patience):
            client.turn = None
            order.join(card, client)
            order.account(card)
            client.not_before = decision.now + GAVE_WAY
            card.count(gave_way=1)


def _repair(decision: Decision) -> None:
    """What fitted may no longer fit: a client grew, the card shrank, the mode changed."""
    card = decision.card
    groups = card.groups
    fits = groups.total("staying_take") <= card.settings.capacity - card.pinned and not card.tight
    crowded = (
        card.one_at_a_time and groups.size(Phase.LOADING.value) > 0
        and groups.size(Phase.LOADING.value) + groups.size(Phase.RUNNING.value) > 1
    )
    if fits and not crowded:
        return
    staying = [c for c in card.holders if c.phase is not Phase.DRAINING]
    for client in reversed([c for c in staying if c.phase is Phase.LOADING]):
        if card.admits(staying):
            return
        staying.remove(client)
        _put_back(decision, client)
    # Who asks for more waits first, the youngest turn before others; then the oldest.
    asking = [c for c in reversed(staying) if not c.whole]
    content = [c for c in staying if c.whole and not c.settled]
    for client in asking + content:
        # One that is whole and alone disturbs nobody: it keeps its turn.
        alone = [c for c in staying if not c.settled] == content[-1:]
        if card.fits(staying) or alone:
            return
        assert client.turn is not None
        if decision.due(client.turn.stop_after):
            staying.remove(client)
            decision.stop(client, TurnEnd.ROOM if client in asking else TurnEnd.CAPACITY)


def _admit(decision: Decision) -> ScheduledClient | None:
    card = decision.card
    one_at_a_time = card.one_at_a_time
    _let_in(decision)
    number = card.groups.size("holding") - card.groups.size("settled")
    number -= sum(c.mute and not c.settled for c in card.groups.group("holding"))
    alone = card.alone
    draining = sum(c.takes for c in card.in_phase(Phase.DRAINING) if c.mute)
    beside = alone - (card.groups.total("holders_take") - draining)
    least = card.groups.least_take()
    card.quantum = quantum.now(card, None)
    tight = card.tight
    blocked = None
    overtaken: list[ScheduledClient] = []
    for client in chain(card.groups.group("granted"), order.sequence(card)):
        claims = client.standing is Standing.CLAIMS
        if claims and (client.ready or not gang.may_claim(card, client)):
            continue
        # One that cannot run at all at present does not hold up the others.
        if not decision.due(client.not_before) or client.takes > alone or client.mute or (
            tight and not card.fits([client])
        ):
            decision.crowded(client, alone)
            continue
        crowded = one_at_a_time and number > gang.siblings(card.holders, client)
        fits = client.takes <= beside and not crowded and not (
            tight and not card.fits([*card.holders, client])
        )
        if claims and (fits or blocked is not None):
            client.ready = blocked is None
            continue
        if blocked is None and not fits:
            blocked, overtaken = client, card.holders
            card.quantum = quantum.now(card, blocked)
            # Nobody else fits either, or nobody may overtake: no need to ask each of them.
            if beside < least or one_at_a_time or not _may_overtake(decision, blocked, overtaken):
                break
            continue
        if blocked is not None and client.priority is Priority.BACKGROUND < blocked.priority:
            break                       # the background has what nobody else wants
        if blocked is not None and not (fits and _may_overtake(decision, blocked, overtaken)):
            continue
        serials = [holder.turn.serial for holder in overtaken if holder.turn]
        _choose(decision, client, frozenset(serials))
        if blocked is not None:
            overtaken.append(client)    # the youngest turn, so they are in order still
        beside -= client.takes
        number += 1
    return blocked


def _let_in(decision: Decision) -> None:
    """Chooses those that are on the card for good, whoever else has it."""
    for client in decision.card.groups.group("entering"):
        if not client.mute:
            _choose(decision, client)


def _may_overtake(
    decision: Decision, blocked: ScheduledClient, holders: list[ScheduledClient]
) -> bool:
    """Beside the present holders, until the first of their turns ends."""
    tq = decision.card.quantum
    if decision.card.settings.anti_thrash is AntiThrash.OFF:
        return True
    ended = _ended(decision, blocked, holders)
    heard = [h for h in holders if not h.mute and not h.settled]
    soonest = min(
        (h.turn.counted for h in heard if h.turn and h.turn.started is not None),
        default=decision.now,
    )
    return (
        not any(h.phase is Phase.DRAINING or h.id in ended for h in heard)
        and soonest + tq >= decision.now + tq // WORTHWHILE
    )


def _ended(
    decision: Decision, head: ScheduledClient | None, holders: list[ScheduledClient]
) -> dict[int, TurnEnd]:
    """Whose turns may end now, for the one that waits first, and why.

    Takes note of when the next will be over.
    """
    settings = decision.card.settings
    lasting: set[int] = set()
    ended: dict[int, TurnEnd] = {}
    for holder in holders:              # oldest first, so whom it came beside is known
        turn = holder.turn
        assert turn is not None
        if holder.mute or (holder.settled and holder.phase is not Phase.DRAINING):
            lasting.add(turn.serial)    # to which nobody can put an end
            continue
        if gang.lasts(holder, head):
            lasting.add(turn.serial)
            continue
        if head is not None and head.standing is Standing.GRANTED:
            ended[holder.id] = TurnEnd.GANG
            continue
        rank = holder.priority if head is None else head.priority
        yields = holder.priority is Priority.BACKGROUND < rank
        over = not turn.beside <= lasting
        if holder.phase is Phase.RUNNING and turn.started is not None and rank >= holder.priority:
            usual = decision.card.quantum
            lasts = min(usual, quantum.LEAST) if yields else usual
            again = head is not None and order.stays_first(decision.card, holder, head)
            if not over and again and decision.due(turn.counted + lasts):
                turn.renewed = decision.now
            over = over or decision.due(turn.counted + lasts)
        elif holder.phase is not Phase.DRAINING:
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
    decision: Decision, head: ScheduledClient | None,
    enough: Callable[[list[ScheduledClient]], bool],
) -> bool:
    """Ends turns that may end: as few as are enough, and none if all together are not enough.

    True: some of them had not begun.
    """
    staying = [c for c in decision.card.holders if c.phase is not Phase.DRAINING]
    claims = head is not None and head.standing is Standing.CLAIMS
    if enough(staying):
        return claims and gang.gets_ready(head)     # as soon as the others have drained
    ended = _ended(decision, head, decision.card.holders)
    leaving: list[ScheduledClient] = []
    may_leave = [
        c for c in staying
        if c.id in ended and c.turn is not None and decision.due(c.turn.stop_after)
    ]
    for client in sorted(
        may_leave, key=lambda c: (ended[c.id] is not TurnEnd.IDLE, c.priority)
    ):
        staying.remove(client)
        leaving.append(client)
        if enough(staying):
            break
    else:
        return False
    for client in leaving.copy():
        if enough([*staying, client]):
            staying.append(client)
            leaving.remove(client)
    if claims:
        return gang.gets_ready(head)
    for client in leaving:
        if client.phase is Phase.RUNNING:
            decision.stop(client, ended[client.id])
        else:
            _put_back(decision, client)
    return any(client.turn is None for client in leaving)


def _start(decision: Decision) -> bool:
    """Opens the gates of chosen clients that are whole. True: a hand-over's cost was measured."""
    learnt = False
    for client in decision.card.in_phase(Phase.LOADING):
        turn = client.turn
        if turn is None or not client.whole or client.standing not in MAY_START:
            continue
        turn.started = decision.now
        learnt = quantum.measure(decision.card, client) or learnt
        client.turns += 1
        client.load_pause = 0
        presave.begins(client)
        decision.card.count(turns=1)
        client.enter(Phase.RUNNING, decision.now)
        decision.report(TurnStarted(client.id))
    return learnt


def _rest(decision: Decision) -> None:
    """Shuts the gates of idle clients if their room may soon be needed, or turns without them."""
    card = decision.card
    if card.contended or card.settings.draining or not (pauses.matter(card) or busy.idle(card)):
        return
    for client in card.in_phase(Phase.RUNNING):
        assert client.turn is not None
        if client.standing:
            continue                    # the others of its gang may not be idle
        if client.turn.idle and not client.settled and decision.due(client.turn.stop_after):
            decision.stop(client, TurnEnd.IDLE)


def _announce(decision: Decision, blocked: ScheduledClient | None) -> None:
    """Tells running clients for how long and how to run, when that has changed."""
    card = decision.card
    running = card.in_phase(Phase.RUNNING)
    behind = blocked is not None and all(c.priority > blocked.priority for c in running)
    endless = not card.contended or behind or card.settings.anti_thrash is AntiThrash.OFF
    tq = 0 if endless else quantum.shown(card, blocked)
    idle_window = quantum.idle_window(card, blocked)
    watched = not card.contended and pauses.matter(card)
    paced = card.contended or bool(card.busy.members)
    moves = card.contended and not card.busy.members    # memory does, between turns
    copies = (moves or presave.pays(card)) and card.settings.bus_sharing    # they are to say when
    busies = busy.matters(card)
    hinders = busy.awaits_idle(card)
    conduct = Conduct(paced, tq, idle_window, moves or watched or hinders, copies, busies)
    changed = card.groups.news("turns")
    if not endless or card.conduct != conduct or card.watched != watched:
        changed = card.in_phase(Phase.RUNNING)
    card.conduct, card.watched = conduct, watched
    for client in changed:
        turn = client.turn
        if client.phase is not Phase.RUNNING or turn is None or turn.started is None:
            continue
        if not endless:
            # A gate that opened just now will shut then.
            decision.due(turn.counted + card.quantum)
        pace = paced or client.rationed or client.paced
        rests = moves or client.rationed
        window = quantum.patience(client, quantum.IDLE_WATCHED) if watched else 0
        if rests:
            window = quantum.patience(client, idle_window) if card.contended else idle_window
        elif hinders and turn.busy is None and not window:
            window = busy.IDLE
        news = Conduct(pace, tq, window, window > 0, copies, busies)
        if client.settled and not client.rationed:
            news = Conduct(False, 0, 0, False, copies)      # nobody waits for its end
        if client.standing is Standing.STEPS:
            news = Conduct(True, 0, 0, False, False, pause=client.pause)
        if turn.conduct == news:
            continue
        if not copies:
            turn.copying = frozenset()
        if not news.report_idle:
            turn.idle = False           # when it is asked again to say so, it says it anew
        if not news.report_busy:
            turn.busy = None
        turn.conduct = news
        left = max(1, turn.counted + tq - decision.now) if news.tq else 0
        decision.run(client, left if news.pause is None else news.pause, news)
