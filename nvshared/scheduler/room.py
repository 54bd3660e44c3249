# SPDX-License-Identifier: Apache-2.0
"""Who gets room on the card, and who gives it.

The essay is in plan.py.
"""

from nvshared.scheduler import bounds, bus_sharing, order, pauses
from nvshared.scheduler.card import QUEUING
from nvshared.scheduler.client import Phase, ScheduledClient, Way
from nvshared.scheduler.decision import DEPTH, Decision
from nvshared.scheduler.events import Standing
from nvshared.scheduler.taking import Taking
from nvshared.units import GIB, SECOND

SLACK_MOST = GIB                        # what a holder gets beyond its need, so that it can grow,
SLACK_PART = 8                          # is at most this part of what nobody needs,
SLACK_REFILL = 4                        # and is filled up when it is down to this part
CUSHION_PART = 128                      # of the card: left for holders to grow when loading ahead
TRIM_AGAIN = SECOND                     # before a client that gave no host memory is asked anew


def plan(decision: Decision, blocked: ScheduledClient | None) -> None:
    """Evicts what is in the way and loads what there is room for."""
    card = decision.card
    if card.shortfall and decision.due(card.shortfall_until):
        card.shortfall = 0
    bus_sharing.plan(decision, blocked)
    # What one order leaves of the host's memory may allow for another.
    before = -1
    while before != len(decision.actions):
        before = len(decision.actions)
        _move(decision, blocked)


def _move(decision: Decision, blocked: ScheduledClient | None) -> None:
    card = decision.card
    lacking = card.groups.group("lacking")
    lacking.sort(key=lambda c: (c.phase is Phase.LOADING, c.turn.serial if c.turn else 0))
    short = sum(_wants(c) for c in lacking) - card.free - _coming(decision)

    taking = Taking(decision)
    if short > 0:
        holders = [c for c in card.holders if c.phase is not Phase.DRAINING and not c.mute]
        short = taking.take(_victims(decision), short, holders)
        taking.order()
    host_short = max(0, taking.host_short - _host_coming(decision)) if short > 0 else 0
    host_short = _load(decision, lacking, host_short)
    _trim(decision, host_short, taking)
    _relieve(decision)

    _slacken(decision, lacking)
    if blocked is not None and not any(_wants(c) for c in lacking):
        _load_ahead(decision, blocked)
    _clear(decision)


def _wants(client: ScheduledClient) -> int:
    """Room it needs and has not been promised."""
    return max(0, client.need - client.ordered)


def _coming(decision: Decision) -> int:
    """Room on its way back, and to be counted on."""
    return sum(c.charged - c.ordered for c in decision.card.moving if not c.mute)


def _host_coming(decision: Decision) -> int:
    """Host memory on its way back."""
    return sum(
        max(0, c.memory.host - move.order.host)
        for c in decision.card.moving
        for move in c.moves
        if move.way is Way.IN and not c.mute
    )


def _victims(decision: Decision) -> list[ScheduledClient]:
    """Clients without a turn that occupy the card, in the order in which room is taken.

    The suspended, then the idle, then those that wait, first for their gangs; of each, who will run
    last goes first.
    """
    card = decision.card
    occupying = card.groups.group("occupying")
    suspended = [c for c in occupying if c.terms.suspended and c.turn is None]
    away = [c for c in occupying if c.phase in (Phase.IDLE, Phase.LIMITED)]
    idle = [c for c in away if not c.terms.suspended]
    idle = pauses.latest_first(idle, decision.now)
    wait = [c for c in occupying if c.phase is Phase.WAITING and not c.terms.suspended]
    waiting = [c for c in wait if c.standing in QUEUING]
    granted = [c for c in wait if c.standing is Standing.GRANTED]
    apart = [c for c in wait if c.standing not in (*QUEUING, Standing.GRANTED)]
    return suspended + idle + apart[::-1] + order.ordered(card, waiting)[::-1] + granted[::-1]


def _clear(decision: Decision) -> None:
    """Has the suspended leave the card, as far as host memory goes."""
    suspended = [c for c in decision.card.groups.group("suspended") if c.turn is None]
    if suspended:
        taking = Taking(decision)
        taking.take(suspended, sum(c.ordered - c.memory.pinned for c in suspended), [])
        taking.order()


def _load(decision: Decision, wanting: list[ScheduledClient], host_short: int) -> int:
    """Gives holders what they lack. Returns the host memory still to be found elsewhere."""
    card = decision.card
    free, more_comes = card.free, _coming(decision) > 0
    for client in wanting:
        want = _wants(client)
        mine = max(0, min(want, free))  # kept for it, ordered now or later
        free -= mine
        if client.moving(Way.OUT) or not decision.due(client.load_after):
            continue
        # Smaller pieces are not worth a round trip while more is about to come.
        while mine > 0 and len(client.moves) < DEPTH and (
            mine >= min(want, card.settings.step) or not more_comes
        ):
            piece = min(mine, card.settings.step)
            host = max(0, client.host_charged - host_short)
            host_short -= min(host_short, client.host_charged - host, piece)
            decision.load(client, client.ordered + piece, host)
            mine -= piece
            want -= piece
        if not client.moves and (client.cut or (want == 0 and not client.whole)):
            decision.load(client, client.ordered, client.host_charged)
    return host_short


def _load_ahead(decision: Decision, client: ScheduledClient) -> None:
    """Brings in what room can be had for the one that runs next, while others run.

    Not in a direction in which the bus is left to a program that copies (bus_sharing.py).
    """
    card = decision.card
    cushion = min(GIB, card.settings.capacity // CUSHION_PART)
    # Only for one that lacks something: the cushion alone is worth no eviction.
    short = _wants(client) + cushion - card.free - _coming(decision) if _wants(client) else 0
    if short > 0 and not card.yielding[Way.OUT].giving:
        taking = Taking(decision)
        victims = [c for c in _victims(decision) if c is not client]
        # What a holder has freed, it may need again, but hardly all of it soon.
        taking.take(victims, short, card.in_phase(Phase.RUNNING), keep=SLACK_MOST)
        taking.order(ahead=card.settings.bus_sharing)
    if card.yielding[Way.IN].giving or client.moves or not decision.due(client.load_after):
        return
    piece = max(0, min(_wants(client), card.free - cushion, card.settings.step))
    if client.cut or (piece > 0 and (
        piece >= min(_wants(client), card.settings.step) or _coming(decision) == 0
    )):
        ahead = card.settings.bus_sharing
        decision.load(client, client.ordered + piece, client.host_charged, ahead=ahead)


def _slacken(decision: Decision, lacking: list[ScheduledClient]) -> None:
    """Gives holders room to grow into, out of what nobody needs."""
    card = decision.card
    spare = card.free - sum(_wants(c) for c in lacking) - card.groups.total("queued_want")
    slack = min(SLACK_MOST, spare // SLACK_PART)
    if slack <= 0:
        return
    for client in card.holders:
        has = client.ordered - client.need
        if client.phase is not Phase.RUNNING or not client.whole or client.moves:
            continue
        if has < slack // SLACK_REFILL and slack - has <= card.free:
            decision.load(client, client.need + slack, client.host_charged)


def _trim(decision: Decision, host_short: int, taking: Taking) -> None:
    """Takes back host memory that resident blocks keep for their next way out."""
    leaving = [c for c in decision.card.moving if c.moving(Way.OUT) and not c.mute]
    if host_short <= 0 or leaving:
        return                          # what is leaving may yet find host memory of its own
    keepers = [
        c for c in decision.card.everyone
        if c.host_charged > 0 and not c.moves and c.phase is not Phase.DRAINING
        and c.id not in taking.amounts
    ]
    certain = [c for c in keepers if _kept(c) > 0]
    for client in sorted(certain or keepers, key=lambda c: -_kept(c)):
        if host_short <= 0:
            return
        if decision.due(client.trim_after) and decision.due(client.load_after):
            client.trim_after = decision.now + TRIM_AGAIN
            decision.load(client, client.ordered, max(0, client.host_charged - host_short))
            host_short -= min(host_short, _kept(client) or client.host_charged)


def _relieve(decision: Decision) -> None:
    """Takes back what is not in use of the host memory of domains that have shrunk."""
    card = decision.card
    for domain in card.domains.lacking:
        short = domain.lacking
        for client in bounds.members(card, domain):
            kept = min(short, _kept(client))
            if kept <= 0 or client.moves or client.phase is Phase.DRAINING:
                continue
            if decision.due(client.trim_after) and decision.due(client.load_after):
                client.trim_after = decision.now + TRIM_AGAIN
                decision.load(client, client.ordered, client.host_charged - kept)
                short -= kept


def _kept(client: ScheduledClient) -> int:
    """Host memory that certainly holds nothing. There is more if blocks never held anything."""
    return max(0, client.host_charged - (client.memory.allocated - client.memory.resident))
