# SPDX-License-Identifier: Apache-2.0
"""Host memory, split between cards: each gets what it needs, and nobody what is not there."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvshared.budget import least, split
from nvshared.clock import SECOND
from nvshared.defaults import Defaults
from nvshared.gpu import GPU, Client
from nvshared.manager import Manager
from nvshared.nvml import Sample
from nvshared.scheduler.actions import Limits, Order
from nvshared.scheduler.events import CommitAsked, Memory, MemoryChanged
from tests.unit.scripted import DEFAULTS, FACTS, GIB, OTHER, Time, peer

BUDGET = 64 * GIB


@given(st.integers(0, 1 << 45), st.lists(st.integers(0, 1 << 42), min_size=1, max_size=8))
def test_never_more_than_the_whole_and_to_each_what_it_needs(whole: int, needs: list[int]) -> None:
    parts = split(whole, needs)
    assert sum(parts) <= whole
    if sum(needs) <= whole:
        assert all(part >= need for part, need in zip(parts, needs, strict=True))
        assert sum(parts) > whole - len(needs)
        spare = [part - need for part, need in zip(parts, needs, strict=True)]
        assert len(set(spare)) == 1


def test_what_is_promised_beyond_the_card_must_stay() -> None:
    assert least(10 * GIB, 16 * GIB, 0, 2) == 0
    assert least(10 * GIB, 16 * GIB, 3 * GIB, 2) == 3 * GIB
    assert 30 * GIB < least(46 * GIB, 16 * GIB, 0, 2) < 33 * GIB
    assert least(16 * GIB + 2, 16 * GIB, 0, 9) == 4


class Greedy:
    """A program that asks for memory and takes what it is promised."""

    def __init__(self, manager: Manager, gpu: GPU) -> None:
        self.granted = 0
        self.client = Client(manager.next_id(), gpu, peer(4711), self, Memory())
        gpu.join(self.client, running=False, wants=False, commit=0)

    def order(self, order: Order) -> None:
        """Link.order."""
        if isinstance(order, Limits):
            self.granted = order.commit

    def ask(self, size: int) -> bool:
        """Whether it may have so much."""
        gpu = self.client.gpu
        gpu.tell(CommitAsked(self.client.id, self.client.memory, 1, size))
        if self.granted >= size:
            gpu.tell(MemoryChanged(self.client.id, replace(self.client.memory, allocated=size)))
        return self.granted >= size


@pytest.fixture
def time() -> Time:
    return Time()


def a_manager(time: Time, *, gather: bool = False) -> Manager:
    half = replace(DEFAULTS.settings, host_budget=BUDGET // 2, gather=SECOND)
    defaults = Defaults(half, DEFAULTS.card, BUDGET)
    made = Manager(lambda: defaults, time.clock, time.timer)
    for facts in (FACTS, OTHER):
        made.add(facts, Sample(memory_used=0), gather=gather)
    return made


def budgets(manager: Manager) -> list[int]:
    found = [gpu.host_budget for gpu in manager.gpus]
    assert sum(found) <= BUDGET
    return found


def test_a_card_in_need_gets_what_the_others_do_not_need(time: Time) -> None:
    manager = a_manager(time)
    assert budgets(manager) == [BUDGET // 2] * 2
    busy = manager.gpus[1]              # of 32 GiB
    programs = [Greedy(manager, busy) for _ in range(3)]
    for program in programs[:2]:
        assert program.ask(30 * GIB)
        time.pass_by(SECOND)
    first, second = budgets(manager)
    assert second > first
    # With half of the whole there would not be room for a third one.
    assert programs[2].ask(14 * GIB)
    time.pass_by(SECOND)
    first, second = budgets(manager)
    assert second > BUDGET * 5 // 6
    assert not Greedy(manager, busy).ask(30 * GIB)
    for program in programs:
        busy.leave(program.client)
    time.pass_by(SECOND)
    first, second = budgets(manager)
    assert abs(first - second) <= BUDGET // 32


def test_a_reload_leaves_a_card_what_it_needs(time: Time) -> None:
    manager = a_manager(time)
    programs = [Greedy(manager, manager.gpus[1]) for _ in range(2)]
    for program in programs:
        assert program.ask(30 * GIB)
        time.pass_by(SECOND)
    before = budgets(manager)
    manager.set_tq(5)
    assert budgets(manager) == before
    half = replace(manager._defaults, budget=BUDGET // 2)
    manager._read = lambda: half
    manager.reload()
    assert sum(budgets(manager)) <= BUDGET // 2
    assert manager.gpus[1].host_budget > 28 * GIB


def test_nothing_moves_before_it_is_known_what_was_promised(time: Time) -> None:
    manager = a_manager(time, gather=True)
    Greedy(manager, manager.gpus[1])
    time.pass_by(SECOND // 2)
    manager.set_tq(5)
    assert budgets(manager) == [BUDGET // 2] * 2
    program = Greedy(manager, manager.gpus[1])
    time.pass_by(3 * SECOND)
    assert program.ask(30 * GIB)
    assert program.ask(31 * GIB)
