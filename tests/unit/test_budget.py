# SPDX-License-Identifier: Apache-2.0
"""Host memory shared by several cards: each card gets its needs; no byte is promised twice."""

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvshared.machine.nvml import Sample
from nvshared.report.families import CARD_GAUGES
from nvshared.scheduler.domains import SharedBudget, least_host, margin
from nvshared.scheduler.events import Memory
from nvshared.units import GIB, SECOND
from tests.unit.budget_site import Site

CARD = 137 * GIB
WHOLE = 108 * GIB
BYTES = st.integers(0, 1 << 42)


@given(st.integers(0, 1 << 45), st.lists(st.tuples(BYTES, st.booleans()), min_size=1, max_size=8))
def test_host_budget_covers_the_needs_of_each_card_and_grants_no_byte_twice(
        whole: int, cards: list[tuple[int, bool]]) -> None:
    budget = SharedBudget(whole)
    parts = [budget.join() for _ in cards]
    for part, (needs, lost) in zip(parts, cards, strict=True):
        part.needs, part.lost = needs, lost
    assert all(part.takeable >= 0 for part in parts)
    assert sum(part.takeable for part in parts) <= whole
    needed = sum(part.needs for part in parts)
    for part in parts:
        assert part.promisable == whole - needed + part.needs
        if needed <= whole:
            assert part.needs <= part.takeable <= part.promisable
    if needed <= whole and not all(part.lost for part in parts):
        assert sum(part.takeable for part in parts) > whole - len(parts)


@pytest.mark.parametrize("gathering", [False, True])
@given(st.lists(st.tuples(BYTES, BYTES), min_size=1, max_size=8), BYTES)
def test_host_budget_offers_a_card_no_bytes_held_by_clients_of_other_cards(
        gathering: bool, cards: list[tuple[int, int]], free: int) -> None:
    """The needs of a card include margins, so all needs together may exceed the budget."""
    budget = SharedBudget(sum(held for held, _ in cards) + free, gathering=gathering)
    parts = [budget.join() for _ in cards]
    for part, (held, more) in zip(parts, cards, strict=True):
        part.needs = held + more
    for taker in parts:
        held_elsewhere = sum(
            held for part, (held, _) in zip(parts, cards, strict=True) if part is not taker)
        assert taker.takeable + held_elsewhere <= budget.size


@given(st.integers(0, 1 << 42), st.integers(0, 1000))
def test_least_host_returns_the_smallest_budget_that_covers_swapped_bytes_and_the_margin(
        beyond: int, clients: int) -> None:
    host = least_host(beyond, clients)
    assert host - margin(host, clients) >= beyond
    assert host == 0 or host - 2 - margin(host - 2, clients) < beyond


def test_host_budget_leaves_other_cards_the_bytes_that_clients_there_need() -> None:
    site = Site(2, CARD, WHOLE)
    for _ in range(2):
        site.program(1, 90 * GIB)       # both programs together exceed the card by 43 GiB
    needs = WHOLE - site.gpus[0].scheduler.parts["host"].promisable
    assert 45 * GIB < needs < 49 * GIB
    site.program(0, 130 * GIB)
    other = site.program()
    assert not site.grows(other, 70 * GIB)
    assert site.grows(other, 62 * GIB)
    assert site.parts[1] >= needs


def test_commit_limit_includes_host_memory_that_other_cards_do_not_need() -> None:
    site = Site(4, CARD, WHOLE)
    site.program(size=130 * GIB)
    asks = site.program()
    site.settle()
    assert asks.limits.most > 105 * GIB
    for _ in range(2):
        site.program(1, 90 * GIB)
    site.time.pass_by(SECOND)
    site.settle()
    assert 60 * GIB < asks.limits.most < 65 * GIB
    assert site.grows(asks, asks.limits.most - 2 * GIB)


@pytest.mark.parametrize("joins", [True, False])
def test_host_budget_offers_a_card_more_when_a_program_joins_or_the_capacity_shrinks(
        joins: bool) -> None:
    site = Site(4, CARD, WHOLE)
    site.program(memory=Memory(allocated=130 * GIB), commit=130 * GIB)
    if joins:
        site.program(memory=Memory(allocated=90 * GIB), commit=90 * GIB)
    else:
        for _ in range(2):  # two samples of memory of other processes lower the capacity
            site.gpus[0].capacity.sampled(90 * GIB, 0)
        site.gpus[0].apply_capacity()
    site.check()
    assert site.parts[0] > 83 * GIB


def test_reload_with_a_smaller_host_budget_leaves_each_card_the_bytes_that_clients_need() -> None:
    site = Site(2, CARD, WHOLE)
    for _ in range(2):
        site.program(1, 90 * GIB)
    needs = WHOLE - site.gpus[0].scheduler.parts["host"].promisable
    site.manager.set_tq(5 * SECOND)
    site.check()
    site.resize(50 * GIB)
    assert sum(site.parts) <= 50 * GIB
    assert site.parts[1] >= needs


@pytest.mark.parametrize(("whole", "uid", "held", "wanted"), [
    (WHOLE, 0, 100 * GIB, 130 * GIB),
    # A user gets less of this smaller host memory: other users must be left a card's size.
    (300 * GIB, 1000, 100 * GIB, 60 * GIB),
], ids=["of root", "of a user"])
def test_commit_request_waits_until_clients_of_all_cards_have_reconnected(
        whole: int, uid: int, held: int, wanted: int) -> None:
    site = Site(2, CARD, whole, gather=True)
    site.program(0, memory=Memory(allocated=held), commit=held, uid=uid)
    asks = site.program(uid=uid)
    # Delays the timer of the second card.
    late = next(one for one in site.time.timers
                if isinstance(one[1], partial) and one[1].func == site.gpus[1].tell)
    site.time.timers.remove(late)
    site.time.pass_by(SECOND)
    asks.request(wanted)
    site.settle()
    assert asks.answers == {}
    late[1]()
    site.time.pass_by(0)
    site.settle()
    assert asks.answers == {1: True}


def test_host_budget_after_each_return_of_a_lost_card_ends_its_gathering() -> None:
    site = Site(2, CARD, WHOLE, gather=True)
    first = site.program(0)
    site.program(1)
    site.time.pass_by(2 * SECOND)
    for _ in range(2):
        lost = site.gpus[1]
        lost.lose("it fell off the bus")
        site.manager.replace(lost, lost.facts, Sample(memory_used=0))
        assert site.gpus[1].state == "gathering"
        for program in site.programs[1:]:
            site.programs.remove(program)   # its hook never says HELLO again
        site.time.pass_by(60 * SECOND)
        assert not site.manager.budget.shared.gathering
        site.program(1)
    site.settle()
    assert site.grows(first, 130 * GIB)


def test_lost_cards_that_return_together_all_wait_for_late_hellos() -> None:
    site = Site(2, CARD, WHOLE)
    for card in range(2):
        site.program(card)
    lost = [*site.gpus]
    for gpu in lost:
        gpu.lose("it fell off the bus")
    for gpu in lost:
        site.manager.replace(gpu, gpu.facts, Sample(memory_used=0))
    site.time.pass_by(2 * SECOND)       # no HELLO has come within the usual second
    assert [gpu.state for gpu in site.gpus] == ["gathering"] * 2


@pytest.mark.parametrize("beyond", [0, 10 * GIB])
def test_host_budget_reserves_for_a_lost_card_only_bytes_that_clients_hold(
        beyond: int) -> None:
    site = Site(2, CARD, WHOLE)
    programs = [site.program(1, memory=Memory(beyond=beyond))]
    if not beyond:
        programs += [site.program(1, 130 * GIB), site.program(1, 60 * GIB)]
        for _ in range(4):              # let both programs have turns
            site.time.pass_by(SECOND)
            site.settle()
    held = sum(one.memory.host for one in programs) + beyond
    assert held > 0
    site.gpus[1].lose("it fell off the bus")
    site.time.pass_by(SECOND)
    assert site.parts == [WHOLE - held, held]
    for program in programs:
        site.end(program)
    site.time.pass_by(SECOND)
    assert site.parts == [WHOLE, 0]


def test_used_swap_metric_of_an_idle_card_is_zero_when_other_cards_exceed_the_host_budget() -> None:
    site = Site(2, CARD, 8 * GIB)
    site.program(1, CARD)
    last = site.program(1)
    site.settle()
    assert site.grows(last, last.limits.most)
    for _ in range(8):                  # each program needs a margin of host memory
        site.program(1)
    idle = site.gpus[0]
    assert idle.scheduler.parts["host"].promisable < 0
    figures = {name: figure(idle) for name, _, figure in CARD_GAUGES}
    assert (figures["swap_budget_bytes"], figures["swap_used_bytes"]) == (0, 0)


STEPS = st.lists(
    st.tuples(st.sampled_from(("start", "start", "start", "grow", "free", "end", "wait")),
              st.integers(0, 7), st.integers(1, 8)),
    min_size=5, max_size=20,
)


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 3), st.integers(8, 32), STEPS)
def test_commit_request_that_fits_card_and_host_budget_is_never_refused(
        cards: int, whole: int, steps: list[tuple[str, int, int]]) -> None:
    site = Site(cards, 8 * GIB, whole * GIB)
    for step, which, size in steps:
        program = site.programs[which] if which < len(site.programs) else None
        if step == "start":
            program = site.program(which % cards)
            site.settle()
        elif step == "wait":
            site.time.pass_by(size * SECOND // 10)
        elif program is not None and step == "free":
            program.free(size * GIB // 2)
        elif program is not None and step == "end":
            site.end(program)
        if program is not None and step in ("start", "grow"):
            fits = site.fits(program, size * GIB)
            assert site.grows(program, size * GIB) or not fits
        site.settle()
