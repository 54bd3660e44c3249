# SPDX-License-Identifier: Apache-2.0
"""Speculative moves: memory is moved before a client waits for it. Other moves go before these.

docs/internals/scheduler.md explains the goals, calm, wasted writebacks and the sharing of the bus.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from nvshared.scheduler.actions import Preallocate, Writeback, Yield
from nvshared.scheduler.card import Card
from nvshared.scheduler.client import Phase, ScheduledClient
from nvshared.scheduler.events import AntiThrash
from nvshared.scheduler.moves import (
    SLACK_MOST,
    Evictions,
    copies,
    expected_room,
    host_spare,
    latest_first,
    retries,
    victims,
)
from nvshared.scheduler.orders import Goal
from nvshared.scheduler.records import Direction
from nvshared.units import GIB, MILLISECOND, SECOND

CUSHION_PART = 128                      # 1/128 of the card is left free for holders to grow
LATER = 2                               # a victim will stay idle 2 times as long as the client
REPLAN_PART = 4                         # plan a prefetch again after 1/4 of the rest of the pause,
REPLAN_LEAST = SECOND // 10             # us until a prefetch is planned again, at least
HOST_PART = 2                           # speculative moves take at most 1/2 of free host memory
WAIT_LEAST = 100 * MILLISECOND          # no wait begins while BusPatience.left is smaller
CHANGES_APART = 10 * MILLISECOND        # least time between two changes of BusPatience.waits
BURST = 500 * MILLISECOND               # most us in a row that moves wait for a program's copies
BLOCKS = 2                              # blocks preallocated beyond the need: blocks may be split


@dataclass(slots=True)
class BusPatience:
    """How long moves in one direction may still wait for a program that copies. A token bucket of
    microseconds: it drains while moves wait, and fills up to BURST otherwise."""

    left: int = BURST
    waits: bool = False                 # moves wait now
    at: int = 0                         # time at which `left` was computed
    since: int | None = None            # time of the last change of `waits`


class _Patience(dict[Direction, BusPatience]):
    def __init__(self) -> None:
        super().__init__((direction, BusPatience()) for direction in Direction)


def interrupt(card: Card) -> None:
    """Cuts short (YIELD) each speculative move with conditions that no longer hold."""
    copies_out = Direction.OUT in _copying(card)
    for client in card.groups["speculating"]:
        rests = _quiet(card) and not card.groups["queued"] and client.is_idle
        for move in client.orders.moves:
            match move.goal, move.order:
                case Goal.HEAD, _:
                    continues = not card.records.of(_Patience)[move.direction].waits
                case Goal.WRITEBACK, Writeback(size=0):     # copies borrowed memory to the host
                    continues = _quiet(card) and not client.holds and not copies_out
                case Goal.WRITEBACK, _:
                    continues = rests and not copies_out
                case Goal.PREFETCH, _:
                    wanted = move.direction is Direction.IN and client.phase is not Phase.IDLE
                    free = card.settings.prefetch and not card.groups["holding"]
                    continues = wanted or (rests and free)
                case _:
                    continue
            if not continues and not move.cut:
                move.cut_short()
                card.send(Yield(client.id, move.order.number))


def plan(card: Card, head: ScheduledClient | None, tq: int) -> None:
    """Orders speculative moves. `tq`: the quantum (us), if turns end for the head of the queue."""
    _share_bus(card, head, tq)
    interrupt(card)
    if head is not None and not any(c.room_deficit for c in card.groups["lacking"]):
        others = [c for c in victims(card) if c is not head] if head.room_deficit else []
        goal = Goal.HEAD if card.settings.bus_sharing else None
        while _load_ahead(card, head, head.room_deficit, others, goal):
            pass                        # ordered evictions may leave host memory for more evictions
    copies_out = Direction.OUT in _copying(card)
    if _quiet(card) and not card.groups["queued"]:
        if card.settings.prefetch and not card.groups["holding"]:
            _prefetch(card)
        if writeback_pays(card) and not copies_out:
            _write_back(card)
    if card.settings.writeback and _quiet(card) and not copies_out:
        _copy_borrowed(card)
    # After the card has shrunk, its evictions go before in host memory.
    if card.settings.writeback and not (
            _fit_together(card) or card.groups["lacking"] or card.free < 0):
        _preallocate(card, head)


def pauses_matter(card: Card) -> bool:
    """Whether the lengths of idle clients' pauses decide what is written back or parked."""
    return card.settings.deep_idle or (_most_swapped(card)[0] > 0 and not _fit_together(card))


def writeback_pays(card: Card) -> bool:
    """Whether a client with swapped memory would need room that idle clients occupy."""
    return card.settings.writeback and not _fit_together(card) and _next_lacks(card) > 0


def _most_swapped(card: Card) -> tuple[int, int]:
    """The idle client with most swapped memory: the bytes and its id; zeros if there is none."""
    if not card.groups.sums.swapped:
        return 0, 0
    return max([(c.swapped, id) for id, c in card.groups.each() if c.swapped], default=(0, 0))


def _quiet(card: Card) -> bool:
    """Whether no client loads, drains or lacks memory, or waits for a reply to COMMIT."""
    busy = ("lacking", "requesting", Phase.LOADING, Phase.DRAINING)
    return not any(card.groups[name] for name in busy) and card.free >= 0


def _fit_together(card: Card) -> bool:
    return card.groups.sums.need <= card.settings.capacity


def _copying(card: Card) -> frozenset[Direction]:
    """The directions in which running clients load the bus, while no client waits for a move."""
    if card.groups["lacking"] or card.groups[Phase.DRAINING]:
        return frozenset()
    return frozenset().union(*(c.its_turn.copying for c in card.groups[Phase.RUNNING]))


def _share_bus(card: Card, head: ScheduledClient | None, tq: int) -> None:
    """Decides in which directions moves for the head wait for a running program's copies."""
    copying = _copying(card)
    early = head is not None and bool(copying) and _is_early(card, head, tq)
    for direction in Direction:
        must_wait = early and direction in copying
        bus, now = card.records.of(_Patience)[direction], card.now
        if not must_wait and not bus.waits:
            continue                    # while no move waits, `left` fills up
        left = bus.left + (bus.at - now if bus.waits else now - bus.at)
        bus.left, bus.at = min(max(left, 0), BURST), now
        if bus.waits and (not must_wait or card.due(now + bus.left)):
            bus.waits, bus.since = False, now
        # A wait that ended just now does not begin again at the same time.
        begins = now + max(0, WAIT_LEAST - bus.left)
        begins = begins if bus.since is None else max(begins, bus.since + CHANGES_APART)
        if not bus.waits and must_wait and card.due(begins):
            bus.waits, bus.since = True, now
            card.due(now + bus.left)


def _is_early(card: Card, head: ScheduledClient, tq: int) -> bool:
    """Whether memory can be loaded for the head, and the turns last long enough to do it later."""
    ahead = min(head.missing_bytes, card.room_left_with(card.holders) - head.memory.resident)
    if ahead <= 0 or card.settings.anti_thrash is AntiThrash.OFF:
        return ahead > 0                # OFF: no turn has a planned end
    started = min((c.its_turn.counted for c in card.groups[Phase.RUNNING]), default=card.now)
    return not card.due(started + tq - card.load_time(head, ahead))


def _load_ahead(
    card: Card, client: ScheduledClient, missing: int, victims: Iterable[ScheduledClient],
    goal: Goal | None,
) -> bool:
    """Orders evictions and a LOAD of up to `missing` bytes. False: nothing was ordered."""
    before, patience = len(card.actions), card.records.of(_Patience)
    cushion = min(GIB, card.settings.capacity // CUSHION_PART)  # bytes left free for holders
    short = missing + cushion - card.free - expected_room(card) if missing else 0
    if short > 0 and not patience[Direction.OUT].waits:
        evictions = Evictions(card)
        # A running client keeps up to SLACK_MOST beyond its need: it may soon reuse that much.
        evictions.plan(list(victims), short, card.groups[Phase.RUNNING], keep=SLACK_MOST)
        evictions.order(goal)
    waits = patience[Direction.IN].waits or bool(client.orders.moves)
    if not waits and card.due(client.orders.load_again.until):
        piece = max(0, min(missing, card.free - cushion, card.settings.step))
        whole = min(missing, card.settings.step)
        least = min(missing, card.settings.block) if expected_room(card) == 0 else whole
        if client.orders.cut or (piece > 0 and piece >= least):
            card.load(client, client.ordered + piece, client.host_charged, goal)
    return len(card.actions) > before


def _prefetch(card: Card) -> None:
    """Loads one idle client at a time, at most `step` (a setting, bytes) for each order."""
    moves = [move for client in card.groups["moving"] for move in client.orders.moves]
    if any(move.goal is not Goal.WRITEBACK for move in moves):
        return
    idle = [c for c in card.groups[Phase.IDLE] if not c.terms.suspended and not c.orders.moves]
    idle = latest_first(idle, card.now)
    known = [c for c in reversed(idle) if c.pauses.spread.number]
    wanted = [c for c in known if c.room_deficit or c.memory.need * c.orders.cut]
    for client in wanted:
        later = LATER * client.pauses.left(card.now - client.since)
        others = [c for c in idle if c.pauses.left(card.now - c.since) > later]
        missing = min(client.room_deficit, card.settings.step)
        if card.fits([client]) and card.due(client.orders.load_again.until) and _load_ahead(
            card, client, missing, others, Goal.PREFETCH
        ):
            return
    if wanted:
        soonest = wanted[0].pauses.left(card.now - wanted[0].since)
        card.due(card.now + max(REPLAN_LEAST, round(soonest / REPLAN_PART)))


def _next_lacks(card: Card) -> int:
    """Bytes that the client with most swapped memory would lack beyond free room, by the figures
    that hooks have reported: unanswered orders of the same plan must not change the result."""
    lack, _ = _most_swapped(card)
    return lack - max(0, card.settings.capacity - card.groups.sums.filled) if lack else 0


def _write_back(card: Card) -> None:
    """Writes back one idle client at a time, at most `step` (a setting, bytes) for each order."""
    short, (_, following) = _next_lacks(card), _most_swapped(card)
    idle = [c for c in card.groups["occupying"] if c.is_idle]
    done = sum([min(copies(c).bytes, c.staying) for c in idle if copies(c).bytes])
    if short <= done or card.groups["writing_back"]:
        return
    for client in latest_first([c for c in idle if c.id != following], card.now):
        part = min(short, client.staying)
        if copies(client).bytes < part and _write_back_step(card, client, part):
            return
        short -= part
        if short <= 0:
            return


def _write_back_step(card: Card, client: ScheduledClient, wanted: int) -> bool:
    """Orders a writeback of at most `wanted` bytes. False: it is not possible, or not yet."""
    made = copies(client)
    if client.orders.moves or made.exhausted or not (
        card.due(retries(client).evict.until) and card.due(client.since + made.after)
    ):
        return False
    size = min(wanted, made.bytes + card.settings.step)
    # The copies of memory that is written back occupy a part of `host_spare`.
    spare = max(0, host_spare(client) - made.bytes)
    more = max(0, size - made.bytes - spare) + card.settings.block
    host = client.host_charged + min(more, max(0, card.host_free_for(client)) // HOST_PART)
    if host < client.host_charged + card.settings.block and not spare:
        return False
    card.write_back(client, size, host)
    return True


def _copy_borrowed(card: Card) -> None:
    """Copies memory that only a neighbour card holds to the host, one client at a time."""
    block = card.settings.block
    for client in () if card.groups["writing_back"] else card.groups["borrowing"]:
        wanted = min(client.memory.dirty + block, max(0, card.host_free_for(client)) // HOST_PART)
        unfit = client.orders.moves or client.holds or client.terms.suspended or wanted < block
        if not client.memory.dirty or unfit:
            continue
        after = client.since + copies(client).after
        if card.due(max(after, retries(client).copy.until)):
            card.write_back(client, 0, client.host_charged + wanted)
            return


def _preallocate(card: Card, head: ScheduledClient | None) -> None:
    """Makes running clients allocate host memory for evictions that the next client will cause."""
    following = head or card.clients.get(_most_swapped(card)[1])
    if following is None or following.holds:
        return
    # All memory of other clients can be evicted but for the pinned part. All figures
    # are from hooks' reports, as in `_next_lacks`.
    staying = [following, *card.holders]
    pinned = card.groups.sums.pinned - sum(client.pinned for client in staying)
    filled = sum(client.memory.filled for client in staying) + pinned
    memory = following.memory
    short = memory.need - memory.filled - max(0, card.settings.capacity - filled)
    block, step = card.settings.block, card.settings.step
    for client in card.holders:
        idle = not (client.orders.moves or client.memory.pin_reason or client.claims.over.host)
        # PREALLOCATE is nearly done.
        made = client.orders.preallocated <= client.memory.host + step // 2
        # Clients under a limit of host memory that is exceeded give unused host memory back.
        lacking = any(domain.unevictable for domain in client.bounds.host)
        if short > 0 and client.phase is Phase.RUNNING and idle and made and not lacking:
            spare = max(0, client.host_charged - (client.memory.allocated - client.staying))
            left = (card.host_free_for(client) - spare) // HOST_PART
            more = min(min(short, client.staying) + BLOCKS * block - spare, step, left)
            if more >= block:
                client.orders.preallocate(client.host_charged + more)
                card.send(Preallocate(client.id, client.orders.preallocated))
        short -= client.staying
