# SPDX-License-Identifier: Apache-2.0
"""Speculative moves: writeback, preallocation, prefetch, and what cancels them."""

from dataclasses import replace
from itertools import pairwise

import pytest

from nvshared.scheduler import turn
from nvshared.scheduler.actions import Action, Evict, Load, Run, TurnEnd, TurnEnded, Writeback
from nvshared.scheduler.ahead import BURST
from nvshared.scheduler.domains import Domains
from nvshared.scheduler.events import AntiThrash, SettingsChanged, Terms, TermsChanged
from nvshared.units import GIB, SECOND
from tests.unit.scheduler_talk import (
    Talk,
    evicts,
    loads,
    preallocations,
    runs,
    stops,
    writebacks,
    yields,
)

A, B, C = 1, 2, 3
AFTER = {A: B, B: C, C: A}
TQ = 30


def talking(step: float = 1000, host: float = 1000, domains: Domains | None = None) -> Talk:
    """A scheduler with writeback on."""
    return Talk(host=host, step=step, domains=domains, writeback=True)


def programs(sizes: tuple[int, ...]) -> Talk:
    """Programs of these GiB on a card of 100 GiB."""
    talk = Talk()
    for client, size in enumerate(sizes, A):
        talk.join(client, size)
    return talk


def regular(step: float = 1000) -> Talk:
    """Three programs of 45 GiB on a card of 100 GiB, with prefetch."""
    talk = Talk(step=step, prefetch=True)
    for client in (A, B, C):
        talk.join(client, 45)
    return talk


def missing(talk: Talk, client: int) -> float:
    """GiB of the client that are not on the card."""
    return (talk.memory[client].allocated - talk.memory[client].resident) / GIB


def ask(talk: Talk, client: int) -> float:
    """Give the client a short turn for one request. Returns the GiB that had to be loaded."""
    lacked = missing(talk, client)
    assert client in runs(talk.obey(talk.want(client)))
    talk.wait(0.1)
    if stops(talk.idle(client)) == [client]:
        talk.stopped(client, wants=False)
    return lacked


def sizes(orders: list[Writeback]) -> list[tuple[int, float]]:
    """Client and GiB of each WRITEBACK."""
    return [(order.client, order.size / GIB) for order in orders]


def one_is_away(talk: Talk, size: float = 60) -> list[Run]:
    """Let B evict A and be idle. Returns B's last RUN."""
    talk.run(A, 60)
    talk.run(B, size)
    talk.go_idle(A)
    assert B in talk.granted
    return [action for action in talk.said if isinstance(action, Run) and action.client == B][-1:]


def at_rest(talk: Talk) -> list[Action]:
    """Let B evict A, and stop when idle: no client has a turn."""
    one_is_away(talk)
    assert stops(talk.idle(B)) == [B]
    return talk.stopped(B, wants=False)


def test_writeback_of_an_idle_client_begins_half_a_second_after_the_stop() -> None:
    talk = talking()
    (runs_sent,) = one_is_away(talk)
    assert isinstance(runs_sent, Run)
    assert runs_sent.report_idle
    assert not runs_sent.pace
    assert runs_sent.idle_window == 125_000
    assert stops(talk.idle(B)) == [B]
    told_of_the_end = talk.stopped(B, wants=False)
    assert [end.reason for end in told_of_the_end if isinstance(end, TurnEnded)] == [TurnEnd.IDLE]
    assert not writebacks(told_of_the_end)
    # The writeback of the 20 GiB that A lacks begins after half a second.
    assert not writebacks(talk.wait(0.4))
    (order,) = writebacks(talk.wait(0.2))
    assert sizes([order]) == [(B, 20)]
    assert order.host >= 20 * GIB
    assert not writebacks(talk.written_back(order))
    assert not writebacks(talk.wait(100))


def test_writeback_is_cancelled_when_the_client_wants_the_card() -> None:
    talk = talking()
    at_rest(talk)
    (order,) = writebacks(talk.wait(1))
    said = talk.want(B)
    # The YIELD precedes the RUN, or the hook would read it too late.
    assert yields(said) == [B]
    assert runs(said) == [B]
    assert [type(action).__name__ for action in said][:1] == ["Yield"]
    said = talk.written_back(order, 5, yielded=True)
    assert not writebacks(said)
    assert not runs(said)


def test_writeback_is_ordered_in_steps_of_bounded_size() -> None:
    talk = talking(step=8)
    at_rest(talk)
    orders, ready = writebacks(talk.wait(1)), []
    while orders:
        ready += sizes(orders)
        orders = writebacks(talk.written_back(orders[0]))
    assert ready == [(B, 8), (B, 16), (B, 20)]


def test_writeback_pause_doubles_after_each_wasted_writeback_until_a_writeback_is_useful() -> None:
    talk = talking()
    at_rest(talk)
    pause = 0.5
    for _ in range(3):
        (order,) = writebacks(talk.wait(pause + 0.01))
        talk.written_back(order)
        talk.want(B)
        pause = 2 * pause
        talk.idle(B)
        talk.stopped(B, wants=False)
        assert not writebacks(talk.wait(pause - 0.01))
    (order,) = writebacks(talk.wait(0.02))
    talk.written_back(order)
    # Another client needs the memory: the writeback was useful.
    talk.obey(talk.want(A))
    talk.obey(talk.want(B))
    talk.go_idle(A)
    talk.idle(B)
    talk.stopped(B, wants=False)
    assert writebacks(talk.wait(0.51))


def test_writeback_is_not_ordered_when_all_clients_fit() -> None:
    talk = talking()
    talk.run(A, 50)
    talk.run(B, 50)
    windows = {action.idle_window for action in talk.said if isinstance(action, Run)}
    assert windows == {turn.OTHERS_IDLE}
    talk.idle(A)
    assert not stops(talk.said)
    assert not writebacks(talk.wait(10))


def test_writeback_begins_with_the_longest_idle_client() -> None:
    talk = talking()
    talk.run(A, 50)
    talk.run(B, 30)
    talk.run(C, 60)                     # the LOAD of C evicts 40 GiB of A
    for client in (A, B):
        talk.go_idle(client)
    # A lacks 40 GiB; the writeback of the 30 GiB of idle B begins while C runs.
    assert C in talk.granted
    (order,) = writebacks(talk.wait(1))
    assert sizes([order]) == [(B, 30)]
    talk.written_back(order)
    talk.idle(C)
    talk.stopped(C, wants=False)
    (order,) = writebacks(talk.wait(1))
    assert sizes([order]) == [(C, 10)]
    assert not writebacks(talk.written_back(order))


def test_writeback_that_lacked_host_memory_is_not_tried_again_before_the_next_turn() -> None:
    talk = talking()
    at_rest(talk)
    (order,) = writebacks(talk.wait(1))
    assert not writebacks(talk.written_back(order, 3, no_memory=True))
    assert not writebacks(talk.wait(100))
    talk.want(B)                        # after a turn of B the writeback may be tried again
    talk.idle(B)
    talk.stopped(B, wants=False)
    assert writebacks(talk.wait(1.01))


def test_writeback_leaves_half_of_the_free_host_memory() -> None:
    talk = talking(host=30)
    at_rest(talk)
    left = talk.scheduler.snapshot().budgets["host"].free
    (order,) = writebacks(talk.wait(1))
    assert order.host - preallocations(talk.said)[-1].host == left // 2


@pytest.mark.parametrize("cause", ["its client is suspended", "a holder is stopped"])
def test_writeback_is_cancelled_when_the_client_is_suspended_or_a_holder_is_stopped(
        cause: str) -> None:
    talk = talking()
    at_rest(talk)
    if cause == "a holder is stopped":
        talk.run(C, 5)
    (order,) = writebacks(talk.wait(1))
    if cause == "a holder is stopped":
        said = talk.idle(C)
        assert stops(said) == [C]
        assert not talk.wait(0)
    else:
        said = talk.tell(TermsChanged(B, Terms(suspended=True)))
    assert yields(said) == [B]
    if cause == "its client is suspended":
        talk.obey(talk.written_back(order, 1, yielded=True))
        assert not writebacks(talk.wait(10))


@pytest.mark.parametrize("outward", [True, False])
def test_writeback_is_cancelled_while_a_program_copies_to_the_host(outward: bool) -> None:
    talk = talking()
    at_rest(talk)
    talk.run(C, 10)                     # fits beside A and beside B
    (order,) = writebacks(talk.wait(1))
    said = talk.copying(C, inward=not outward, outward=outward)
    assert yields(said) == ([B] if outward else [])
    said = talk.written_back(order, 1, yielded=True)
    assert sizes(writebacks(said)) == ([] if outward else sizes([order]))
    if outward:
        assert sizes(writebacks(talk.copying(C))) == sizes([order])
    assert not loads(said)


def made(actions: list[Action]) -> list[tuple[int, int]]:
    """Client and GiB of each preallocation, rounded down."""
    return [(order.client, order.host // GIB) for order in preallocations(actions)]


def test_host_memory_preallocation_covers_the_expected_eviction_of_a_running_client() -> None:
    talk = talking()
    talk.run(A, 60)
    # A turn of B would evict 20 GiB of A; preallocation does not wait until B asks for a turn.
    assert made(talk.join(B, 60)) == [(A, 20)]
    assert not preallocations(talk.changed(A, host=20.25))
    assert not preallocations(talk.obey(talk.want(B)))
    talk.obey(talk.wait(30))
    assert stops(talk.said) == [A]
    # Now 60 GiB of B are loaded, and A lacks 20 GiB: B preallocates 20 GiB during the turn.
    assert made(talk.obey(talk.stopped(A))) == [(B, 20)]


def test_host_memory_preallocation_is_not_ordered_when_all_clients_fit_or_when_off() -> None:
    talk = talking()
    talk.run(A, 60)
    talk.run(B, 40)
    talk.wait(100)
    assert not preallocations(talk.said)
    talk.settings = replace(talk.settings, writeback=False)
    talk.tell(SettingsChanged(talk.settings))
    talk.obey(talk.join(C, 60))
    assert not preallocations(talk.said)


def test_host_memory_preallocation_proceeds_in_steps_up_to_half_of_the_free_bytes() -> None:
    talk = talking(step=8)
    talk.run(A, 60)
    assert made(talk.join(B, 60)) == [(A, 8)]
    for host, expected in ((3, []), (5, [(A, 16)]), (13, [(A, 20)]), (20, [])):
        assert made(talk.changed(A, host=host)) == expected

    talk = talking(host=24)
    talk.run(A, 60)
    assert made(talk.join(B, 60)) == [(A, 12)]
    assert not preallocations(talk.changed(A, host=12))


def test_host_memory_preallocation_takes_at_most_half_of_free_memory_of_a_control_group() -> None:
    domains = Domains()
    domains.set_limit("box", 62 * GIB)
    talk = talking(domains=domains)
    talk.run(A, 60, domains=("box",))
    assert made(talk.join(B, 100)) == [(A, 31)]
    # A domain too small for evictions takes back unused host memory.
    domains.set_limit("box", 59 * GIB)
    talk.obey(talk.changed(A, host=31))
    assert talk.memory[A].host < 31 * GIB
    assert len(preallocations(talk.said)) == 1


def test_preallocated_host_memory_counts_as_used_until_the_next_move() -> None:
    talk = talking(host=100)
    talk.run(A, 60)
    (order,) = preallocations(talk.join(B, 60))
    assert talk.scheduler.snapshot().budgets["host"].free == 100 * GIB - order.host
    talk.changed(A, host=5)
    assert talk.scheduler.snapshot().budgets["host"].free == 100 * GIB - order.host
    talk.obey(talk.want(B))
    talk.wait(30)
    (evict,) = (order for order in talk.stopped(A) if isinstance(order, Evict))
    talk.set(A, host=12)
    talk.evicted(evict)
    assert talk.scheduler.snapshot().budgets["host"].free <= 100 * GIB - talk.memory[A].host


def test_load_keeps_host_memory_of_a_preallocation_in_progress() -> None:
    talk = talking()
    talk.run(A, 60)
    (order,) = preallocations(talk.join(B, 60))
    said = talk.changed(A, allocated=70)
    (load,) = (order for order in said if isinstance(order, Load))
    assert load.host == order.host
    # The LOAD ended the preallocation; a larger one follows, as A needs more now.
    assert made(talk.obey([load])) == [(A, 30)]


def test_preallocated_host_memory_is_returned_first_when_host_memory_is_short() -> None:
    talk = talking(host=60)
    talk.run(A, 40)
    talk.run(B, 60)
    assert made(talk.join(C, 60)) == [(A, 30), (B, 15)]
    talk.changed(A, host=30)
    talk.changed(B, host=15)
    talk.obey(talk.idle(B))
    talk.obey(talk.want(C))
    assert stops(talk.said) == [B]
    said = talk.obey(talk.stopped(B, wants=False))
    # B needs 60 of host memory, so A returns its preallocation.
    assert A in dict(loads(said))
    assert talk.memory[A].host == 0
    assert C in talk.granted


def unanswered(talk: Talk) -> list[Evict | Load]:
    """EVICT and LOAD orders without a reply."""
    return [a for a in talk.said if isinstance(a, Evict | Load)
            and talk.scheduler.unanswered(a.client, a.number) is not None]


def early(talk: Talk) -> list[Evict | Load]:
    """Moves for a client that does not want a turn yet."""
    return [order for order in unanswered(talk) if order.ahead]


def pause(talk: Talk, seconds: float) -> None:
    for _ in range(round(10 * seconds)):
        talk.wait(0.1)
        talk.obey([*unanswered(talk)])


def by_turns(talk: Talk, rounds: int) -> list[float]:
    """One request a second to A, B and C in turn. Returns the GiB that each had to load."""
    waited = []
    for client in (A, B, C) * rounds:
        pause(talk, 0.9)
        waited.append(missing(talk, client))
        ask(talk, client)
    return waited


def on_its_way(talk: Talk) -> int:
    """Send requests until a prefetch is in progress. Returns its client."""
    by_turns(talk, 6)
    for client in (A, B, C) * 2:
        if early(talk):
            return client
        pause(talk, 0.9)
        ask(talk, client)
    raise AssertionError("nothing moves ahead")


def test_prefetch_before_a_turn_loads_all_memory_of_a_client_with_regular_pauses() -> None:
    assert sum(by_turns(regular(), 10)[12:]) == 0
    without = regular()
    without.tell(SettingsChanged(replace(without.settings, prefetch=False)))
    assert sum(by_turns(without, 10)[12:]) > 0


def test_prefetch_stops_when_no_client_wants_a_turn_any_more() -> None:
    talk = regular()
    by_turns(talk, 6)
    pause(talk, 10)
    before = len(talk.said)
    pause(talk, 1000)
    assert not [a for a in talk.said[before:] if isinstance(a, Evict | Load)]


def test_prefetch_skips_clients_that_wanted_a_single_turn() -> None:
    talk = regular()
    for client in (A, B, C):
        ask(talk, client)
    pause(talk, 100)
    assert not [a for a in talk.said if isinstance(a, Evict | Load) and a.ahead]


@pytest.mark.parametrize("cause", ["another client", "its victim", "the setting"])
def test_prefetch_is_cancelled_when_turned_off_or_when_a_victim_or_third_client_wants_a_turn(
        cause: str) -> None:
    talk = regular(step=2)
    coming = on_its_way(talk)
    (order,) = early(talk)
    if cause == "the setting":
        said = talk.tell(SettingsChanged(replace(talk.settings, prefetch=False)))
    else:
        said = talk.want(AFTER[coming] if cause == "another client" else order.client)
    assert yields(said) == [order.client]
    if cause == "its victim":
        assert order.client not in {client for client, _ in evicts(said)}
    if cause == "the setting":
        talk.obey([*unanswered(talk)])
        assert loads(talk.wait(10)) == []


def test_prefetch_continues_when_the_prefetched_client_wants_a_turn() -> None:
    talk = regular(step=2)
    coming = on_its_way(talk)
    while not isinstance((order := early(talk)[0]), Load):
        talk.obey([one for one in unanswered(talk) if not one.ahead])
        talk.evicted(order)
    assert order.client == coming
    assert not yields(talk.want(coming))
    talk.obey([*unanswered(talk)])
    assert coming in talk.granted


def test_prefetch_is_not_ordered_while_a_client_runs() -> None:
    talk = regular(step=2)
    talk.run(4, 2)                      # fits beside all others, and stays busy
    by_turns(talk, 6)
    assert not [a for a in talk.said if isinstance(a, Evict | Load) and a.ahead]


def test_evict_chooses_a_client_idle_for_longer_than_usual() -> None:
    talk = programs((40, 40, 20, 60))
    for _ in range(6):                  # A has a request every second, B every 20 s
        for _ in range(20):
            talk.wait(0.9)
            ask(talk, A)
        ask(talk, B)
    talk.wait(5)
    ask(talk, A)
    talk.wait(120)                      # A gets no more requests
    ask(talk, B)
    talk.obey(talk.want(4))
    assert missing(talk, A) == 40
    assert missing(talk, B) == 0


def three(bus_sharing: bool = True) -> Talk:
    """Client 1 runs; 2 is next and not loaded; idle client 3 has the rest of the card."""
    talk = Talk(75, step=5, mode=AntiThrash.ON, stuck_after=1000, bus_sharing=bus_sharing)
    talk.join(3, 30, 30)
    talk.join(1, 30, 30)
    talk.obey(talk.want(1))
    talk.join(2, 30)
    return talk


def answered(talk: Talk, actions: list[Action], rounds: int) -> list[Action]:
    """Answer this number of moves; return the moves still open."""
    waiting = [action for action in actions if isinstance(action, Evict | Load)]
    for _ in range(rounds):
        order = waiting.pop(0)
        more = talk.evicted(order) if isinstance(order, Evict) else talk.loaded(order)
        waiting += [action for action in more if isinstance(action, Evict | Load)]
    return list(waiting)


def test_load_for_the_queue_head_waits_while_a_program_copies_to_the_card() -> None:
    talk = three()
    under_way = answered(talk, talk.want(2), 1)
    assert {type(order) for order in under_way} == {Evict, Load}
    assert all(order.ahead for order in under_way if isinstance(order, Evict | Load))
    assert yields(talk.copying(1, inward=True)) == [2]
    load = next(order for order in under_way if isinstance(order, Load))
    eviction = next(order for order in under_way if isinstance(order, Evict))
    # The LOAD is cut short after 2 of 5 GiB; the eviction goes on.
    rest = [order for order in under_way if order not in (load, eviction)]
    actions = talk.loaded(load, lacking=3, yielded=True)
    assert loads(actions) == []
    actions += talk.evicted(eviction)
    assert evicts(actions)
    assert loads(actions) == []
    actions += talk.copying(1)
    assert loads(actions)
    talk.obey([*rest, *actions])
    assert talk.memory[2].resident == talk.memory[2].allocated


def test_evict_for_the_queue_head_waits_while_a_program_copies_to_the_host() -> None:
    talk = three()
    under_way = talk.want(2)
    evictions = [order for order in under_way if isinstance(order, Evict)]
    assert [order.ahead for order in evictions] == [True, True]
    assert yields(talk.copying(1, outward=True)) == [3, 3]
    moved = talk.memory[3].resident
    actions = [*talk.evicted(evictions[0]), *talk.evicted(evictions[1])]
    assert talk.memory[3].resident < moved
    assert evicts(actions) == []
    load = next(order for order in under_way if isinstance(order, Load))
    assert loads(talk.loaded(load))     # the other direction continues
    assert evicts(talk.copying(1))


@pytest.mark.parametrize("copies", [True, False])
def test_evict_that_a_client_interrupts_without_a_yield_order_counts_as_failed(
        copies: bool) -> None:
    talk = three()
    evictions = [a for a in talk.want(2) if isinstance(a, Evict)]
    if copies:
        talk.copying(1, outward=True)   # makes the scheduler send YIELD
    for order in evictions:
        assert 3 not in dict(evicts(talk.evicted(order, yielded=True)))
    if copies:
        assert {client for client, _ in evicts(talk.copying(1))} == {3}


def test_program_that_copies_all_the_time_delays_moves_at_most_half_of_the_time() -> None:
    talk = three()
    (load,) = (order for order in talk.want(2) if isinstance(order, Load))
    said = talk.copying(1, inward=True)
    changes = [talk.now]                # times at which moves pause and continue
    while talk.now < 20 * SECOND:
        if yields(said):
            changes.append(talk.now)
            said = talk.loaded(load, lacking=5, yielded=True)
        for order in said:
            if isinstance(order, Load):
                load = order
                changes.append(talk.now)
        deadline = talk.scheduler.deadline()
        assert deadline is not None
        said = talk.wait((deadline - talk.now) / SECOND)
    spans = [end - start for start, end in pairwise(changes[1:])]
    waited, moved = sum(spans[::2]), sum(spans[1::2])
    assert waited <= moved + BURST
    assert waited > 0.9 * moved
    assert len(changes) < 20 * 12       # at most twelve changes a second


def test_moves_are_not_interrupted_for_copies_of_programs_when_bus_sharing_is_off() -> None:
    talk = three(bus_sharing=False)
    actions = talk.want(2)
    assert not any(action.report_copies for action in actions if isinstance(action, Run))
    assert not any(action.ahead for action in actions if isinstance(action, Evict | Load))
    assert yields(talk.copying(1, inward=True, outward=True)) == []
    assert loads(talk.obey(actions))


@pytest.mark.parametrize("how", ["leaves", "stops", "reopens"])
def test_copies_of_a_client_that_stopped_running_delay_no_moves(how: str) -> None:
    talk = three()
    under_way = talk.want(2)
    assert yields(talk.copying(1, inward=True, outward=True))
    said = talk.leave(1) if how == "leaves" else talk.idle(1)
    if how != "leaves":
        said += talk.stopped(1) if how == "stops" else talk.reopened(1)
    for order in under_way:
        if isinstance(order, Evict):
            said += talk.evicted(order, yielded=True)
        if isinstance(order, Load):
            said += talk.loaded(order, yielded=True)
    assert not yields(said)
    assert evicts(said) or loads(said)
