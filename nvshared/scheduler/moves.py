# SPDX-License-Identifier: Apache-2.0
"""Evictions and loads: who gets room on the card, who gives it, and what hooks answer.

**Room** is what a client may occupy of the card. The sum over all clients never exceeds the
capacity. While an EVICT is under way its old room counts, while a LOAD is, its new room; so the
sum holds whichever messages cross. Holders lack some bytes; some are free or on their way back;
the rest is taken from others: first room that is not filled, which costs nothing, then what
holders have beyond their need, then memory of the clients that will run last. Nothing more is
taken, because what stays need not be loaded again. Moves are cut in steps, two under way for
each client, so that one client's memory is loaded while another's is evicted. Room that no client
needs is given to running clients, so that they need not ask whenever they grow.

**Host memory** takes what is evicted: each EVICT says how much the client may hold, and the sum
keeps to the host budget and to the domains (domains.py). A client keeps its host memory while
its blocks are on the card, to save taking it anew. When host memory is short, LOADs take it
back. So with little left on either side a hand-over proceeds in small steps.

**Answers** come in the order of the orders. A failure is followed by a pause, because its cause
is outside: another program's memory, the host's, the driver. Meanwhile another client is evicted.
A driver that has less memory than accounted lowers the capacity for a while, so that others give
up what is missing.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from nvshared.scheduler import promises, queue, trust
from nvshared.scheduler.actions import Evict, Writeback
from nvshared.scheduler.card import Card
from nvshared.scheduler.client import QUEUING, Goal, Move, Phase, ScheduledClient, Way
from nvshared.scheduler.decision import DEPTH, Decision
from nvshared.scheduler.events import Evicted, Loaded, Moved, Standing, WrittenBack
from nvshared.units import GIB, SECOND

SLACK_MOST = GIB                        # room to grow that a holder gets beyond its need,
SLACK_PART = 8                          # at most this part of the room that no client needs,
SLACK_REFILL = 4                        # filled up when it is down to this part
RETURN_AGAIN = SECOND // 4              # before a loan that could not be given back is asked for
COPY_AGAIN = 2 * SECOND                 # before borrowed memory that was not copied is copied
TRIM_AGAIN = SECOND                     # before a client that gave no host memory is asked anew
# Host memory is taken in pieces, so more may be taken than must be: a few
# blocks, or this part of what is left of the budget.
BLOCKS = 2
HOST_PART = 8
EVICT_AGAIN = SECOND                    # before a client that did not evict is told to again
IN_VAIN = 3                             # so often in a row, it counts as pinned
PINNED_FOR = 60 * SECOND
FIRST_PAUSE = SECOND // 4               # before a failed load is tried again,
LONGEST_PAUSE = 2 * SECOND              # doubled each time up to this
# How long the driver is believed to have less than accounted, unless told anew.
SHORTFALL = 10 * SECOND


def plan(decision: Decision) -> int:
    """Evicts memory that is in the way of holders, and loads into the room there is.

    Returns how many bytes of host memory are missing for that.
    """
    card = decision.card
    if card.shortfall and decision.due(card.shortfall_until):
        card.shortfall = 0
    # Host memory that one order leaves may allow for another.
    before, host_short = -1, 0
    while before != len(decision.actions):
        before = len(decision.actions)
        host_short = _move(decision)
    return host_short


def _move(decision: Decision) -> int:
    card = decision.card
    lacking = card.groups.group("lacking")
    lacking.sort(key=lambda c: (c.phase is Phase.LOADING, c.turn.serial if c.turn else 0))
    short = sum(c.lacks_room for c in lacking) - card.free - coming(card)
    evictions = Evictions(decision)
    host_short = 0
    if short > 0:
        holders = [c for c in card.holders if c.phase is not Phase.DRAINING and not c.unresponsive]
        short = evictions.plan(victims(card), short, holders)
        evictions.order()
        if short > 0:
            host_short = max(0, evictions.host_short - _host_coming(card))
    host_short = _load(decision, lacking, host_short)
    _trim(decision, host_short, evictions)
    _relieve(decision)
    _slacken(decision, lacking)
    # The suspended leave the card, as far as host memory goes.
    suspended = [c for c in card.groups.group("suspended") if c.turn is None]
    if suspended:
        evictions = Evictions(decision)
        evictions.plan(suspended, sum(c.ordered - c.memory.pinned for c in suspended), [])
        evictions.order()
        host_short += evictions.host_short
    return host_short


def coming(card: Card) -> int:
    """Room on its way back that can be counted on."""
    back = sum(c.charged - c.ordered for c in card.moving if not c.unresponsive)
    return back + card.neighbour.returning


def _host_coming(card: Card) -> int:
    """Host memory on its way back."""
    return sum(
        max(0, c.memory.host - move.order.host)
        for c in card.moving for move in c.moves if move.way is Way.IN and not c.unresponsive
    )


def victims(card: Card, group: str = "occupying") -> list[ScheduledClient]:
    """Clients of a group without a turn, in the order in which room is taken.

    The suspended, then the idle, then those that wait, first for their gangs; of each, the client
    that will run last goes first.
    """
    occupying = card.groups.group(group)
    suspended = [c for c in occupying if c.terms.suspended and c.turn is None]
    away = [c for c in occupying if c.phase in (Phase.IDLE, Phase.LIMITED)]
    idle = [c for c in away if not c.terms.suspended]
    idle = latest_first(idle, card.now)
    wait = [c for c in occupying if c.phase is Phase.WAITING and not c.terms.suspended]
    waiting = [c for c in wait if c.standing in QUEUING]
    granted = [c for c in wait if c.standing is Standing.GRANTED]
    apart = [c for c in wait if c.standing not in (*QUEUING, Standing.GRANTED)]
    return suspended + idle + apart[::-1] + queue.ordered(card, waiting)[::-1] + granted[::-1]


def latest_first(idle: Iterable[ScheduledClient], now: int) -> list[ScheduledClient]:
    """The client that will probably stay idle longest comes first."""
    return sorted(idle, key=lambda c: (-c.pauses.left(now - c.since), c.since, c.id))


class Evictions:
    """Room taken from clients in one round; bytes by client.

    Memory that is evicted needs host memory: what its client has and does not use, and what is
    left of the budget and of the client's domains. Where that ends, the next client may still
    have some.
    """

    def __init__(self, decision: Decision) -> None:
        self.amounts: dict[int, int] = {}
        self.host_short = 0             # bytes that could be evicted but for host memory
        self._decision = decision
        self._host_left = max(0, decision.card.host_free)
        self._given: Counter[str] = Counter()   # of host memory, by domain

    def plan(
        self, victims: list[ScheduledClient], short: int, holders: Iterable[ScheduledClient],
        keep: int = 0,
    ) -> int:
        """Plans to take `short` bytes. Returns how many are not to be had.

        `keep`: bytes beyond its need that each holder may keep.
        """
        willing = [
            v for v in victims
            if short > 0 and not v.unresponsive and self._decision.due(v.failures.evict_after)
        ]
        for victim in willing:
            if not victim.moving(Way.IN):
                short -= self._note(victim, min(short, _unfilled(victim)))
        for holder in holders:
            # A running client may fill its surplus at any moment; then the hook keeps it.
            surplus = holder.ordered - max(holder.need, holder.memory.filled) - keep
            if short > 0 and self._decision.due(holder.failures.evict_after):
                short -= self._note(holder, min(short, surplus))
        for victim in willing:
            short -= self._note(victim, self._movable(victim, short))
        return max(0, short)

    def order(self, goal: Goal | None = None) -> None:
        """Sends the evictions, in steps; the rest is planned anew when they are answered."""
        card = self._decision.card
        for id, amount in self.amounts.items():
            client = card.clients[id]
            if client.moving(Way.IN):
                continue                # one way after the other
            while amount > 0 and len(client.moves) < DEPTH:
                free = max(0, card.host_free_for(client))
                unfilled = min(amount, _unfilled(client))
                moved = 0 if client.holds else min(
                    amount - unfilled, card.settings.step, _usable_host(client) + free)
                if unfilled + moved == 0:
                    break
                host = client.host_charged
                if moved and free >= card.settings.block:
                    # What goes to another card gives up its place on the host afterwards.
                    spare = 0 if card.neighbour.lender() else client.host_spare
                    more = max(BLOCKS * card.settings.block,
                               min(card.settings.step, free // HOST_PART))
                    host += min(free, max(0, moved - spare) + more)
                self._decision.evict(
                    client, client.ordered - unfilled - moved, host, goal if moved else None)
                amount -= unfilled + moved

    def _note(self, client: ScheduledClient, amount: int) -> int:
        if amount <= 0:
            return 0
        self.amounts[client.id] = self.amounts.get(client.id, 0) + amount
        return amount

    def _movable(self, victim: ScheduledClient, short: int) -> int:
        """How much of `short` it can give up, given the host memory there is."""
        movable = victim.ordered - self.amounts.get(victim.id, 0) - victim.memory.pinned
        wanted = min(short, movable)
        if wanted <= 0:
            return 0
        own = _usable_host(victim)
        # Hooks move whole blocks: with less than one in host memory, nothing moves.
        block = self._decision.card.settings.block
        domains = victim.domains
        left = max(0, min([self._host_left, *(d.untaken - self._given[d.name] for d in domains)]))
        possible = min(wanted, own + (left if left >= block else 0))
        # Only where the budget is short, not a domain, do others' host bytes help.
        if possible < wanted and left == self._host_left:
            self.host_short += max(wanted - possible, block)
        taken = max(0, possible - own)
        self._host_left -= taken
        for domain in domains:
            self._given[domain.name] += taken
        return possible


def _unfilled(client: ScheduledClient) -> int:
    """Room that can be given up without moving anything."""
    filled = max(client.memory.filled, client.need if client.holds else 0)
    return max(0, client.ordered - filled)


def _usable_host(client: ScheduledClient) -> int:
    """Bytes that may be evicted into its own host memory, if all blocks have kept theirs."""
    if client.moving(Way.OUT) or client.failures.spare_host_unusable:
        return client.host_spare        # 0 if an EVICT found it unusable
    return max(client.host_spare, min(client.staying, client.host_charged))


def _load(decision: Decision, wanting: list[ScheduledClient], host_short: int) -> int:
    """Gives holders the room that they lack. Returns the host memory that is still short."""
    card = decision.card
    free, more_comes = card.free, coming(card) > 0
    for client in wanting:
        want = client.lacks_room
        mine = max(0, min(want, free))  # kept for it, ordered now or later
        free -= mine
        if client.moving(Way.OUT) or not decision.due(client.failures.load_after):
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


def _slacken(decision: Decision, lacking: list[ScheduledClient]) -> None:
    """Gives holders room to grow into, out of room that no client needs."""
    card = decision.card
    spare = card.free - sum(c.lacks_room for c in lacking) - card.groups.sums.queued_want
    slack = min(SLACK_MOST, spare // SLACK_PART)
    if slack <= 0:
        return
    for client in card.holders:
        has = client.ordered - client.need
        if client.phase is not Phase.RUNNING or not client.whole or client.moves:
            continue
        if has < slack // SLACK_REFILL and slack - has <= card.free:
            decision.load(client, client.need + slack, client.host_charged)


def _trim(decision: Decision, host_short: int, evictions: Evictions) -> None:
    """Takes back host memory that resident blocks keep for their next eviction."""
    card = decision.card
    if host_short <= 0 or any(c.moving(Way.OUT) and not c.unresponsive for c in card.moving):
        return                          # evictions under way may need no more host memory
    keepers = [
        c for c in card.everyone
        if c.host_charged > 0 and not c.moves and c.phase is not Phase.DRAINING
        and c.id not in evictions.amounts
    ]
    certain = [c for c in keepers if kept(c) > 0]
    for client in sorted(certain or keepers, key=lambda c: -kept(c)):
        if host_short > 0 and _take_back(decision, client, host_short):
            host_short -= min(host_short, kept(client) or client.host_charged)


def _relieve(decision: Decision) -> None:
    """Takes back unused host memory of domains that have shrunk."""
    for domain in decision.card.domains.lacking:
        short = domain.lacking
        for client in promises.members(decision.card, domain):
            unused = min(short, kept(client))
            free = unused > 0 and not client.moves and client.phase is not Phase.DRAINING
            if free and _take_back(decision, client, unused):
                short -= unused


def _take_back(decision: Decision, client: ScheduledClient, size: int) -> bool:
    """Orders a client to give back host memory, unless it was ordered to a moment ago."""
    if not (decision.due(client.failures.trim_after) and decision.due(client.failures.load_after)):
        return False
    client.failures.trim_after = decision.now + TRIM_AGAIN
    decision.load(client, client.ordered, max(0, client.host_charged - size))
    return True


def kept(client: ScheduledClient) -> int:
    """Host memory that certainly holds nothing. There is more if blocks never held anything."""
    return max(0, client.host_charged - (client.memory.allocated - client.memory.resident))


def answered(card: Card, client: ScheduledClient, answer: Moved) -> None:
    """A hook has carried out an order, or has not."""
    most, before = client.charged, client.room
    done = None
    while client.moves and client.moves[0].order.number <= answer.number:
        done, *rest = client.moves
        client.moves = tuple(rest)
    if done is None or done.order.number != answer.number:
        return                          # there is no such order
    if client.moves:
        client.moves[0].since = card.now
    promise = client.promise
    if promise.confirmed_by and promise.confirmed_by <= answer.number:
        promise.confirmed_by = promise.withdrawn = 0
    client.room = client.memory.room
    failed = answer.no_memory or answer.driver_error
    if isinstance(done.order, Evict) and client.memory.borrowed > done.order.loan:
        client.return_after = card.now + RETURN_AGAIN
    match answer:
        case Evicted():
            client.room = min(client.room, most)
            _evicted(card, client, answer, done, before)
        case Loaded():
            failed = _loaded(card, client, answer, done) or failed
        case WrittenBack() if isinstance(done.order, Writeback) and not done.order.size:
            if client.memory.dirty and not answer.yielded:
                client.copy_after = card.now + COPY_AGAIN
        case WrittenBack() if isinstance(done.order, Writeback):
            done_now = client.writeback.bytes if client.holds else min(
                answer.bytes, client.memory.resident)
            short = answer.bytes < done.order.size and not answer.yielded
            client.writeback = replace(client.writeback, bytes=done_now, exhausted=short)
    if failed:
        client.history.failures += 1
        card.count(failures=1)


def _evicted(
    card: Card, client: ScheduledClient, answer: Evicted, done: Move, before: int
) -> None:
    client.history.bytes_out += answer.bytes
    card.count(bytes_out=answer.bytes)
    if answer.bytes > 0 or client.room < before:
        card.last_evicted = card.now
        client.writeback = client.writeback.used()
    failures = client.failures
    if client.room < before:
        failures.evictions_ignored = 0
    elif done.order.room < before and not (
        (answer.no_memory and not failures.spare_host_unusable) or (answer.yielded and done.cut)
    ):
        if card.now >= failures.evict_after:    # orders under way together count once
            failures.evictions_ignored += 1
            if failures.evictions_ignored >= IN_VAIN and not client.holds:
                failures.pinned_until = card.now + PINNED_FOR
                trust.hear(client, client.memory, card.now)
        failures.evict_after = card.now + EVICT_AGAIN
    if answer.no_memory:
        failures.spare_host_unusable = True     # the next EVICT allows for new host memory


def _loaded(card: Card, client: ScheduledClient, answer: Loaded, done: Move) -> bool:
    """Notes the answer to a LOAD. True: the LOAD has failed."""
    client.history.bytes_in += answer.bytes
    card.count(bytes_in=answer.bytes)
    if answer.bytes > 0:
        client.progress = card.now
    if client.memory.host <= done.order.host:
        client.failures.trim_after = 0
    if answer.no_memory:
        _learn_shortfall(card, client)
    client.cut = answer.yielded and done.cut
    # Room for all of it, and yet something is absent and nothing came.
    idle = answer.bytes == 0 and not client.whole and client.room >= client.need and not client.cut
    failed = answer.no_memory or answer.driver_error or (idle and not client.moves)
    failures = client.failures
    failures.load_pause = min(max(2 * failures.load_pause, FIRST_PAUSE), LONGEST_PAUSE) * failed
    if failed:
        failures.load_after = card.now + failures.load_pause
    return failed


def ask_again(decision: Decision) -> None:
    """Clients that counted as pinned for a while are believed again, if they say nothing more."""
    for client in decision.card.groups.group("ignoring_evicts"):
        if decision.due(client.failures.pinned_until):
            trust.hear(client, client.said, decision.now)


def _learn_shortfall(card: Card, client: ScheduledClient) -> None:
    """The room that could not be filled is not there: others must give as much.

    What was learned before and is not made good yet is the same shortfall seen
    again; only once it is made good does another failure add to it.
    """
    missing = max(0, client.charged - client.memory.filled)
    if card.free >= 0:
        card.shortfall += missing
    else:
        card.shortfall = max(card.shortfall, missing)
    card.shortfall = min(card.shortfall, card.settings.capacity)
    card.shortfall_until = card.now + SHORTFALL
