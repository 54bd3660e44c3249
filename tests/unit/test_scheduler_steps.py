# SPDX-License-Identifier: Apache-2.0
"""The cost of a decision does not grow with the square of the number of tenants.

The tests count the interpreter's instructions, because times vary on a busy machine.
"""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from nvshared.scheduler.actions import Action
from nvshared.scheduler.domains import Domains
from nvshared.scheduler.events import Event, Joined, Memory, TenantChanged, TenantTerms
from nvshared.units import GIB
from tests.unit.scheduler_talk import Talk, runs, stops

FEW, MANY = 20, 200
MORE = 6                                # maximum factor of the steps for ten times the tenants
TERMS: dict[str, list[TenantTerms]] = {
    "none": [TenantTerms()],
    "request": [TenantTerms(), TenantTerms(compute_request=30), *[TenantTerms()] * MANY],
    "weights": [TenantTerms(weight=weight) for weight in (50, 100, 300)],
}


class Counting(Talk):
    """A world that counts the steps of each decision."""

    counting = False
    most = 0

    def tell(self, event: Event) -> list[Action]:
        if not self.counting:
            return super().tell(event)
        number, actions = steps(lambda: super(Counting, self).tell(event))
        self.most = max(self.most, number)
        return actions


def steps(call: Callable[[], list[Action]]) -> tuple[int, list[Action]]:
    number = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal number
        frame.f_trace_opcodes = True
        number += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        found = call()
    finally:
        sys.settrace(before)
    return number, found


def handing_over(tenants: int, terms: list[TenantTerms]) -> int:
    """The most steps of a decision while three of these tenants alternate on the card."""
    talk = Counting(100, 100 * tenants)
    for client in range(1, tenants + 1):
        name = f"user:{client}"
        talk.tell(TenantChanged(name, terms[client % len(terms)]))
        talk.memory[client] = Memory(80 * GIB, host=80 * GIB)
        talk.tell(Joined(
            client, talk.memory[client], commit=80 * GIB, account=name, tenants=(name,)))
    talk.wait(tenants / 100)            # by then all clients have received LIMITS
    for client in range(1, tenants + 1):
        talk.obey(talk.want(client))
    holder, = talk.granted
    talk.counting = True
    for _ in range(3):
        actions = talk.idle(holder)
        assert stops(actions) == [holder]
        actions = talk.obey(talk.stopped(holder, wants=False))
        talk.want(holder)
        holder, = runs(actions)
    return talk.most


@pytest.mark.parametrize("terms", TERMS)
def test_function_calls_of_a_hand_over_grow_little_with_the_number_of_tenants(terms: str) -> None:
    few, many = (handing_over(number, TERMS[terms]) for number in (FEW, MANY))
    assert many < MORE * few


def report_of_one_client(limits: int) -> int:
    """The steps of a report of client 0 while each other client is in as many control groups."""
    domains = Domains()
    talk = Counting(domains=domains)
    for client in range(FEW):
        names = tuple(f"group {client}/{number}" for number in range(limits if client else 1))
        for name in names:
            domains.set_limit(name, 100 * GIB)
        talk.join(client, domains=names, commit=1)
    talk.wait(60)
    talk.counting = True
    talk.changed(0, allocated=0.5)
    return talk.most


def test_steps_of_a_report_grow_little_with_the_control_groups_of_other_clients() -> None:
    assert report_of_one_client(limits=30) < 2 * report_of_one_client(limits=1)
