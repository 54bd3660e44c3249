# SPDX-License-Identifier: Apache-2.0
"""Moves of memory: room on the card, evictions, loads, loans of other cards, and the disk.

The sum of all clients' room never exceeds the capacity: during an EVICT the client's old room
counts, during a LOAD the new one. docs/internals/scheduler.md explains the moves.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from nvshared.scheduler import policy, promises
from nvshared.scheduler.actions import Evict, Writeback
from nvshared.scheduler.card import DEPTH, Card
from nvshared.scheduler.client import Phase, ScheduledClient
from nvshared.scheduler.domains import Loan
from nvshared.scheduler.events import (
    BLOCK,
    LARGEST_BLOCK,
    Evicted,
    Loaded,
    Moved,
    Standing,
    Stored,
    WrittenBack,
)
from nvshared.scheduler.orders import Goal, Move
from nvshared.scheduler.records import Backoff, Direction
from nvshared.units import GIB, SECOND

SLACK_MOST = GIB                        # room to grow that a holder gets beyond its need,
SLACK_PART = 8                          # at most 1/8 of the room that no client needs,
SLACK_REFILL = 4                        # added again when less than 1/4 of this room is left
RETURN_AGAIN = SECOND // 4              # from a failed return of a loan to the next order
COPY_AGAIN = 2 * SECOND                 # from a failed copy of borrowed memory to the next order
TRIM_AGAIN = SECOND                     # between orders to one client to give back host memory
# Hooks allocate host memory in large pieces, so an EVICT allows more than the evicted bytes:
BLOCKS = 2                              # by 2 blocks, or by 1/8 of free host memory if larger
HOST_PART = 8
EVICT_AGAIN = SECOND                    # from an EVICT without effect to the next
IGNORED_EVICTS = 3                      # EVICTs without effect until a client counts as pinned
WRITEBACK_AFTER = SECOND // 2           # us of idleness before a writeback,
WRITEBACK_AFTER_MOST = 64 * SECOND      # doubled up to this while writebacks are wasted
RESERVE_PART = 8                        # 1/8 of a card is never lent
RETURN_BLOCKS = 2                       # blocks of host memory that a return may take in addition
STORE_FREE_PART = 8                     # less than 1/8 of host memory or disk free: little is free
STORE_EARLY_PART = 10                   # then blocks go to the disk after 1/10 of park_after
STORE_STALLED = 5 * SECOND              # a STORE has failed after so long without a stored block
STORES_MOST = 2                         # a client that has not acknowledged more gets no STORE
COPIES_AGAIN = SECOND                   # between orders to a client to give up copies on the disk
# After such an order the client stores nothing for a while. This must be well below turns.STALLED,
# after which a chosen client that waits for the host memory gives way.
COPIES_TAKE = SECOND // 4


@dataclass(slots=True)
class _Progress:
    at: int = 0                         # when the card last evicted, or the client last loaded


@dataclass(slots=True)
class _Retries:
    """When failed orders to a client are tried again, and what the failures have shown."""

    evict: Backoff = field(default_factory=lambda: Backoff(EVICT_AGAIN, EVICT_AGAIN))
    evictions_ignored: int = 0          # EVICTs without effect in a row
    spare_host_unusable: bool = False   # an EVICT could not use host memory that seemed free
    trim: Backoff = field(default_factory=lambda: Backoff(TRIM_AGAIN, TRIM_AGAIN))
    give_back: Backoff = field(default_factory=lambda: Backoff(RETURN_AGAIN, RETURN_AGAIN))
    copy: Backoff = field(default_factory=lambda: Backoff(COPY_AGAIN, COPY_AGAIN))
    store: Backoff = field(default_factory=lambda: Backoff(SECOND, 64 * SECOND))
    store_since: int = 0                # when a block was last stored, or a STORE was sent
    give_up_copies: Backoff = field(default_factory=lambda: Backoff(COPIES_AGAIN, COPIES_AGAIN))


@dataclass(slots=True)
class _Copies:
    """The part of a client's resident memory that can be evicted without a copy; see ahead.py."""

    bytes: int = 0
    exhausted: bool = False             # no writeback before the next turn: nothing is left
    after: int = WRITEBACK_AFTER        # us of idleness before a writeback


def retries(client: ScheduledClient) -> _Retries:
    return client.records.of(_Retries)


def copies(client: ScheduledClient) -> _Copies:
    return client.records.of(_Copies)


def progress(card: Card, client: ScheduledClient) -> int:
    """When (us) the client last loaded, or any client of the card evicted anything."""
    return max(one.records.of(_Progress).at for one in (card, client))


def host_spare(client: ScheduledClient) -> int:
    """An estimate of a client's host memory without a swapped block. There may be more, as blocks
    never written need no place, or none, if resident blocks keep their places."""
    if retries(client).spare_host_unusable:
        return 0
    return max(0, client.host_charged - (client.memory.allocated - client.staying))


def begin_turn(client: ScheduledClient) -> None:
    """The client runs, so that its program makes copies stale, and its LOADs have not failed."""
    client.orders.load_again.reset()
    made = copies(client)
    if made.bytes:
        made.after = min(2 * made.after, WRITEBACK_AFTER_MOST)
    made.bytes, made.exhausted = 0, False


def end_turn(client: ScheduledClient) -> None:
    """The client has drained, so its blocks may leave their places in host memory."""
    retries(client).spare_host_unusable = False


def plan(card: Card) -> int:
    """Evicts memory for holders that lack room, and loads their memory into the free room. Returns
    the bytes of host memory that evictions lack."""
    card.end_shortfall()
    while True:                         # an order may need less host memory than was planned
        before, host_short = len(card.actions), _move(card)
        if len(card.actions) == before:
            return host_short


def _move(card: Card) -> int:
    lacking = sorted(
        card.groups["lacking"], key=lambda c: (c.phase is Phase.LOADING, c.its_turn.serial))
    short = sum(c.room_deficit for c in lacking) - card.free - expected_room(card)
    evictions = Evictions(card)
    host_short = 0
    if short > 0:
        holders = [c for c in card.holders if c.phase is not Phase.DRAINING and not c.unresponsive]
        short = evictions.plan(victims(card), short, holders)
        evictions.order()
        if short > 0:
            returning = sum(                # bytes of host memory that LOADs under way free
                max(0, c.memory.host - move.order.host)
                for c in card.groups["answering"] for move in c.orders.moves
                if move.direction is Direction.IN)
            host_short = max(0, evictions.host_short - returning)
    host_short = _load(card, lacking, host_short)
    _take_kept_host(card, host_short, evictions)
    _shrink_to_domains(card)
    _add_slack(card, lacking)
    # Suspended clients are evicted as far as host memory allows.
    suspended = [c for c in card.groups["suspended"] if c.turn is None]
    if suspended:
        evictions = Evictions(card)
        evictions.plan(suspended, sum(c.ordered - c.memory.pinned for c in suspended), [])
        evictions.order()
        host_short += evictions.host_short
    return host_short


def expected_room(card: Card) -> int:
    """Bytes of room that orders under way will free; those to unresponsive clients do not count."""
    back = sum(c.charged - c.ordered for c in card.groups["answering"])
    return back + card.neighbour.returning


def victims(card: Card, group: str = "occupying") -> list[ScheduledClient]:
    """Clients of a group without a turn, in the order in which they are evicted.

    Suspended clients come first, then idle ones, then waiting ones: gang members that are not
    queued, queued clients, granted gang members. In each class the client that will run last comes
    first.
    """
    members = [c for c in card.groups[group] if c.turn is None]
    suspended = [c for c in members if c.terms.suspended]
    awake = [c for c in members if not c.terms.suspended]
    idle = latest_first([c for c in awake if c.phase is not Phase.WAITING], card.now)
    wait = [c for c in awake if c.phase is Phase.WAITING]
    queued = {c.id for c in wait if c.queued}
    granted = [c for c in wait if c.standing is Standing.GRANTED]
    apart = [c for c in wait if not c.queued and c.standing is not Standing.GRANTED]
    in_order = [c for c in policy.of(card).order(card) if c.id in queued]
    return suspended + idle + apart[::-1] + in_order[::-1] + granted[::-1]


def latest_first(idle: Iterable[ScheduledClient], now: int) -> list[ScheduledClient]:
    """Sorts idle clients: the client that will probably stay idle longest comes first."""
    return sorted(idle, key=lambda c: (-c.pauses.left(now - c.since), c.since, c.id))


class Evictions:
    """Room to be taken from clients in one round of planning; bytes by client.

    Evicted memory needs host memory: unused host memory of its client, and the rest of the budget
    and of the client's domains. If one client has too little, the next may still have some.
    """

    def __init__(self, card: Card) -> None:
        self.amounts: dict[int, int] = {}
        self.host_short = 0             # bytes that only a lack of host memory keeps on the card
        self._card = card
        self._host_left = max(0, card.host_free)
        self._given: Counter[str] = Counter()   # bytes of host memory planned, by domain

    def plan(
        self, victims: list[ScheduledClient], short: int, holders: Iterable[ScheduledClient],
        keep: int = 0,
    ) -> int:
        """Plans to take `short` bytes. Returns how many of them cannot be taken. Each holder may
        keep `keep` bytes beyond its need."""
        willing = [v for v in victims
                   if short > 0 and not v.unresponsive and self._card.due(retries(v).evict.until)]
        for victim in willing:
            if not victim.orders.moving(Direction.IN):
                short -= self._add(victim, min(short, _unfilled_room(victim)))
        for holder in holders:          # a hook keeps memory that it fills before EVICT comes
            surplus = holder.ordered - max(holder.memory.need, holder.memory.filled) - keep
            if short > 0 and self._card.due(retries(holder).evict.until):
                short -= self._add(holder, min(short, surplus))
        for victim in willing:
            short -= self._add(victim, self._movable(victim, short))
        return max(0, short)

    def order(self, goal: Goal | None = None) -> None:
        """Orders the evictions, in steps. The rest is planned anew after the replies."""
        card = self._card
        for id, amount in self.amounts.items():
            client = card.clients[id]
            loads = client.orders.moving(Direction.IN)     # evict only once the LOAD is done
            while not loads and amount > 0 and len(client.orders.moves) < DEPTH:
                free = max(0, card.host_free_for(client))
                unfilled = min(amount, _unfilled_room(client))
                moved = 0 if client.holds else min(
                    amount - unfilled, card.settings.step, _usable_host(client) + free)
                if unfilled + moved == 0:
                    break
                host, block = client.host_charged, card.settings.block
                if moved and free >= block:
                    # Blocks that go to another card release their host memory only afterwards.
                    spare = 0 if card.neighbour.lender() else host_spare(client)
                    more = max(BLOCKS * block, min(card.settings.step, free // HOST_PART))
                    if retries(client).spare_host_unusable:     # the next block may be larger
                        more = max(more, LARGEST_BLOCK)
                    host += min(free, max(0, moved - spare) + more)
                self._card.evict(
                    client, client.ordered - unfilled - moved, host, goal if moved else None)
                amount -= unfilled + moved

    def _add(self, client: ScheduledClient, amount: int) -> int:
        if amount > 0:
            self.amounts[client.id] = self.amounts.get(client.id, 0) + amount
        return max(0, amount)

    def _movable(self, victim: ScheduledClient, short: int) -> int:
        """Bytes of `short` that the victim can evict, given the host memory that is left."""
        movable = victim.ordered - self.amounts.get(victim.id, 0) - victim.memory.pinned
        wanted, own, block = min(short, movable), _usable_host(victim), self._card.settings.block
        if wanted <= 0:
            return 0
        untaken = [domain.untaken - self._given[domain.name] for domain in victim.bounds.host]
        left = max(0, min([self._host_left, *untaken]))
        # Hooks move whole blocks, so less host memory than a block is of no use.
        possible = min(wanted, own + (left if left >= block else 0))
        # Taking host memory back from other clients helps if the budget is short, not a domain.
        if possible < wanted and left == self._host_left:
            self.host_short += max(wanted - possible, block)
        taken = max(0, possible - own)
        self._host_left -= taken
        for domain in victim.bounds.host:
            self._given[domain.name] += taken
        return possible


def _unfilled_room(client: ScheduledClient) -> int:
    """Bytes of room that the client can give up without moving any block."""
    filled = max(client.memory.filled, client.memory.need if client.holds else 0)
    return max(0, client.ordered - filled)


def _usable_host(client: ScheduledClient) -> int:
    """Bytes that fit the client's own host memory, if resident blocks kept their places in it."""
    if client.orders.moving(Direction.OUT) or retries(client).spare_host_unusable:
        return host_spare(client)       # 0 if an EVICT found it unusable
    return max(host_spare(client), min(client.staying, client.host_charged))


def _load(card: Card, wanting: list[ScheduledClient], host_short: int) -> int:
    """Gives holders the room that they lack. Returns the host memory that is still short."""
    free, expects_room = card.free, expected_room(card) > 0
    for client in wanting:
        want = client.room_deficit
        reserved = max(0, min(want, free))  # bytes of `free` for this client, ordered now or later
        free -= reserved
        if client.orders.moving(Direction.OUT) or not card.due(client.orders.load_again.until):
            continue
        # Smaller pieces are not worth a round trip while orders under way will free more room.
        while reserved > 0 and len(client.orders.moves) < DEPTH and (
            reserved >= min(want, card.settings.step) or not expects_room
        ):
            piece = min(reserved, card.settings.step)
            host = max(0, client.host_charged - host_short)
            host_short -= min(host_short, client.host_charged - host, piece)
            card.load(client, client.ordered + piece, host)
            reserved -= piece
            want -= piece
        if not client.orders.moves and (client.orders.cut or (want == 0 and not client.whole)):
            card.load(client, client.ordered, client.host_charged)
    return host_short


def _add_slack(card: Card, lacking: list[ScheduledClient]) -> None:
    """Gives running clients room to grow, out of room that no client needs."""
    spare = card.free - sum(c.room_deficit for c in lacking) - card.groups.sums.queued_deficit
    slack = min(SLACK_MOST, spare // SLACK_PART)
    if slack <= 0:
        return
    for client in card.holders:
        has = client.ordered - client.memory.need
        if client.phase is not Phase.RUNNING or not client.whole or client.orders.moves:
            continue
        if has < slack // SLACK_REFILL and slack - has <= card.free:
            card.load(client, client.memory.need + slack, client.host_charged)


def _take_kept_host(card: Card, host_short: int, evictions: Evictions) -> None:
    """Takes back host memory that resident blocks keep for their next eviction."""
    if host_short <= 0 or card.groups["evicting"]:
        return                          # the evictions under way may free enough
    keepers = [c for c in card.groups["everyone"]
               if c.host_charged > 0 and not c.orders.moves and c.phase is not Phase.DRAINING
               and c.id not in evictions.amounts]
    certain = [c for c in keepers if _unused_host(c) > 0]
    for client in sorted(certain or keepers, key=lambda c: -_unused_host(c)):
        if host_short > 0 and _order_host_back(card, client, host_short):
            host_short -= min(host_short, _unused_host(client) or client.host_charged)


def _shrink_to_domains(card: Card) -> None:
    """Takes back unused host memory of domains that have shrunk."""
    for domain in card.domains.unevictable:
        short = domain.unevictable
        for client in promises.members(card, domain):
            unused = 0 if client.orders.moves else min(short, _unused_host(client))
            if client.phase is not Phase.DRAINING and unused > 0 and _order_host_back(
                card, client, unused
            ):
                short -= unused


def _order_host_back(card: Card, client: ScheduledClient, size: int) -> bool:
    """Orders a client to give back host memory, at most once in TRIM_AGAIN. False: not ordered."""
    if not (card.due(retries(client).trim.until) and card.due(client.orders.load_again.until)):
        return False
    retries(client).trim.fail(card.now)
    card.load(client, client.ordered, max(0, client.host_charged - size))
    return True


def _unused_host(client: ScheduledClient) -> int:
    """Bytes of host memory without a swapped block, or more: blocks never written need none."""
    return max(0, client.host_charged - client.swapped)


def answered(card: Card, client: ScheduledClient, answer: Moved) -> None:
    """Handles a hook's reply to an order to move memory: carried out, or failed."""
    most, before = client.charged, client.orders.room
    done = client.orders.answer(answer.number, card.now)
    if done is None:
        return                          # no such order is under way
    client.promise.confirm(answer.number, client.memory.need + client.to_pin)
    client.orders.confirm(client.memory.room)
    failed = answer.no_memory or answer.driver_error
    if isinstance(done.order, Evict) and client.memory.borrowed > done.order.loan:
        retries(client).give_back.fail(card.now)
    # Not only memory with copies on the host was moved, and nothing was borrowed: the program may
    # not see that card (CUDA_VISIBLE_DEVICES).
    if done.order.loan and not client.memory.borrowed and answer.bytes > copies(client).bytes:
        client.orders.pass_over()
    match answer, done.order:
        case Evicted(), _:
            client.orders.confirm(min(client.orders.room, most))
            _evicted(card, client, answer, done, before)
        case Loaded(), _:
            failed = _loaded(card, client, answer, done) or failed
        case WrittenBack(), Writeback(size=0):
            if client.memory.dirty and not answer.yielded:
                retries(client).copy.fail(card.now)
        case WrittenBack(), Writeback(size=size):
            made = copies(client)
            if not client.holds:
                made.bytes = min(answer.bytes, client.memory.resident)
            made.exhausted = answer.bytes < size and not answer.yielded
    if failed:
        card.count(client, failures=1)


def _evicted(card: Card, client: ScheduledClient, answer: Moved, done: Move, before: int) -> None:
    card.count(client, bytes_out=answer.bytes)
    if answer.bytes > 0 or client.orders.room < before:
        card.records.of(_Progress).at = card.now
        if copies(client).bytes:        # how many of its copies are left is unknown, so none count
            copies(client).bytes, copies(client).after = 0, WRITEBACK_AFTER
    failures = retries(client)
    excused = (answer.no_memory and not failures.spare_host_unusable) or (
        answer.yielded and done.cut)
    if client.orders.room < before:
        failures.evictions_ignored = 0
    elif done.order.room < before and not excused:
        if card.now >= failures.evict.until:    # EVICTs under way together are one failure
            failures.evictions_ignored += 1
            if failures.evictions_ignored >= IGNORED_EVICTS and not client.holds:
                client.orders.kept.fail(card.now)
                client.record(client.memory, card.now)
        failures.evict.fail(card.now)
    if answer.no_memory:
        failures.spare_host_unusable = True     # so the next EVICT allows new host memory


def _loaded(card: Card, client: ScheduledClient, answer: Moved, done: Move) -> bool:
    """Records the reply to a LOAD. True: the LOAD has failed."""
    card.count(client, bytes_in=answer.bytes)
    if answer.bytes > 0:
        client.records.of(_Progress).at = card.now
    if client.memory.host <= done.order.host:
        retries(client).trim.retry_at(0)
    if answer.no_memory:
        card.fall_short(max(0, client.charged - client.memory.filled))
    client.orders.end_load(cut=answer.yielded and done.cut)
    # The LOAD gave room for all memory, but loaded nothing, and some memory is still swapped.
    idle = not (answer.bytes or client.whole or client.orders.cut or client.orders.moves)
    failed = (answer.no_memory or answer.driver_error
              or (idle and client.orders.room >= client.memory.need))
    if failed:
        client.orders.load_again.fail(card.now)
    else:
        client.orders.load_again.reset()
    return failed


def settle_loans(card: Card) -> None:
    """Records this card's loans and lendable bytes for its neighbours, after an event."""
    for client in card.groups["borrowing"]:
        client.record_loan()
        if client.loan == Loan():       # nothing is borrowed: the next lender may be another card
            client.orders.borrow(None)
    neighbour = card.neighbour
    if card.lost or (neighbour.exclusive and neighbour.alone is False):
        neighbour.lend(0)
    elif card.now < card.gathered or (neighbour.exclusive and neighbour.alone is None):
        neighbour.lend(None)            # the clients have not reported yet, or NVML is not sampled
    else:
        needed = max(card.groups.sums.committed, card.groups.sums.charged)
        left = card.capacity - card.capacity // RESERVE_PART - needed
        neighbour.lend(max(0, left))


def return_loans(card: Card) -> None:
    """Orders this card's clients to return loans that exceed their lenders' lendable bytes."""
    borrowing = card.groups["borrowing"]
    for client in borrowing:
        client.record_loan()            # the current event may have changed the loan
    for client in borrowing:
        lender = client.orders.lender
        excess = 0 if lender is None else max(lender.excess, -(card.borrowable(client) or 0))
        if lender not in card.neighbour.reachable or client.terms.suspended:
            excess = client.loan.ordered
        if not excess or not client.loan.ordered or client.unresponsive:
            continue
        if len(client.orders.moves) >= DEPTH or not card.due(retries(client).give_back.until):
            continue
        home = min(client.memory.dirty, excess, card.free)
        if (home >= card.settings.block and not client.orders.moves and not client.terms.suspended
                and not card.groups["lacking"] and card.due(client.orders.load_again.until)):
            card.load(client, client.ordered + home, client.host_charged)
        # Return `step` bytes more, so that slow growth on the lending card does not always wait.
        loan = max(0, client.loan.ordered - excess - card.settings.step)
        most = max(RETURN_BLOCKS * card.settings.block, LARGEST_BLOCK)
        host = min(max(0, card.host_free_for(client)), most)
        card.evict(client, client.ordered, client.host_charged + host, loan=loan)


def store_blocks(card: Card, short: int) -> None:
    """Sends STORE orders. `short`: bytes of host memory that evictions wait for."""
    block = card.settings.block
    if not (card.disk.budget.size or card.groups["storing"]):
        return
    if short:                           # LOADs free unused bytes
        short -= sum(map(_unused_host, card.groups["everyone"]))
    moves = card.free >= block or card.groups["evicting"]
    chosen = [] if moves else [c for c in card.groups["storable"] if c.phase is Phase.LOADING]
    goes_on = set()
    for client, size in _storing(card, short, [*victims(card, "storable"), *chosen]):
        failures = retries(client)
        if client.unresponsive or not card.due(failures.store.until):
            continue
        # The disk has failed, a limit has shrunk, or the client is to give up copies first.
        if card.disk_free_for(client) < 0 or not card.due(
            failures.give_up_copies.until - COPIES_AGAIN + COPIES_TAKE
        ):
            continue
        most = max([client.memory.disk, *(order.size for order in client.orders.stores[-1:])])
        if most - client.memory.disk < block:       # the last STORE is carried out
            more = min(size + block, card.disk_free_for(client) + client.disk_charged - most)
            if more < min(size, block) or len(client.orders.stores) > STORES_MOST:
                continue
            failures.store_since = card.now
            card.store(client, most + more)
            card.due(card.now + STORE_STALLED)
        elif card.due(failures.store_since + STORE_STALLED):
            failures.store.fail(card.now)
            card.due(failures.store.until)
            continue
        goes_on.add(client.id)
    for client in card.groups["storing"]:
        if client.id not in goes_on and client.orders.stores[-1].size - client.memory.disk >= block:
            card.store(client, client.memory.disk)
    if card.disk.takeable - card.groups.sums.disk < card.disk.takeable // STORE_FREE_PART:
        for client in card.groups["stored"]:
            idle = client.id not in goes_on and client.memory.disk >= block
            idle = idle and len(client.orders.stores) <= STORES_MOST
            if idle and card.due(retries(client).give_up_copies.until):
                retries(client).give_up_copies.fail(card.now)
                card.store(client, 0)


def _storing(
    card: Card, short: int, candidates: Iterable[ScheduledClient]
) -> Iterable[tuple[ScheduledClient, int]]:
    """Clients that are to store blocks, and how many bytes more each is to store."""
    park_after = card.settings.park_after
    little = card.host.takeable // STORE_FREE_PART - card.host_free
    for client in candidates:
        storable = client.storable
        size = min(storable, max(0, short))
        rests = client.phase is Phase.IDLE or client.terms.suspended
        if rests and storable > BLOCK:
            if card.due(client.since + park_after):
                size = storable
            elif little > 0 and card.due(client.since + park_after // STORE_EARLY_PART):
                size = min(storable, max(short, little))
        short, little = short - size, little - size
        if size > 0:
            yield client, size


def stored(card: Card, client: ScheduledClient, answer: Stored) -> None:
    """Handles STORED: a hook has received a STORE, or could not carry it out."""
    client.orders.stored(answer.number)
    if answer.failed:
        retries(client).store.fail(card.now)


def note_stored(client: ScheduledClient, before: int, now: int) -> None:
    """Records that a client may have stored blocks; `before`: bytes on the disk by the figures that
    counted until now."""
    if client.memory.disk > before:
        retries(client).store_since = now
        retries(client).store.reset()
