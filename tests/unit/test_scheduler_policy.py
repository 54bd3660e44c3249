# SPDX-License-Identifier: Apache-2.0
"""Policies: fifo, deadline, and one that only this file knows."""

from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from nvshared import names
from nvshared.scheduler.actions import Action
from nvshared.scheduler.card import Card
from nvshared.scheduler.client import ScheduledClient
from nvshared.scheduler.events import (
    Priority,
    SettingsChanged,
    TenantChanged,
    TenantTerms,
    Terms,
    TermsChanged,
)
from nvshared.scheduler.policy import (
    LEAST_TQ,
    LONG_DRAIN,
    PATIENCE,
    POLICIES,
    REGAINED,
    Policy,
)
from nvshared.units import MILLISECOND, SECOND
from tests.unit.scheduler_talk import Talk, loads, paced, runs, stops
from tests.unit.test_scheduler_rows import Row
from tests.unit.test_scheduler_tenants import LARGE, SETTINGS, SMALL, Tenancy

SOON = 50 * MILLISECOND
LATER = 10 * SECOND
REQUESTS = 20


class Ruled(Talk):
    """Programs that have 60 GiB each of a card of 100, each of its own tenant; clients go by
    number."""

    def __init__(self, policy: str, **settings: Any) -> None:
        super().__init__(policy=policy, **settings)

    def terms(self, client: int, **terms: Any) -> list[Action]:
        return self.obey(self.tell(TenantChanged(f"user:{client}", TenantTerms(**terms))))

    def come(self, client: int, size: float = 60, **terms: Any) -> list[Action]:
        if terms:
            self.terms(client, **terms)
        self.join(client, size, tenants=(f"user:{client}",))
        return self.obey(self.want(client))

    def hand_over(self, client: int) -> list[Action]:
        """The client drains, and wants the next turn."""
        return self.obey(self.stopped(client))


def test_each_policy_has_a_name_that_users_can_set() -> None:
    assert [*POLICIES] == [*names.POLICIES]


@pytest.mark.parametrize(("policy", "next_one"), [("fair", 3), ("fifo", 2)])
def test_fifo_serves_the_client_that_waits_longest_whatever_its_tenant_has_used(
        policy: str, next_one: int) -> None:
    talk = Ruled(policy)
    talk.join(1, 60, tenants=("user:alice",))
    talk.obey(talk.want(1))
    talk.wait(1)
    for client, tenant in ((2, "user:alice"), (3, "user:bob")):
        talk.join(client, 60, tenants=(tenant,))
        talk.obey(talk.want(client))
    assert stops(talk.wait(30)) == [1]
    assert next_one in runs(talk.hand_over(1))


def test_fifo_ends_each_turn_after_one_quantum_whatever_the_weights() -> None:
    talk = Ruled("fifo")
    talk.come(1, weight=1000)
    talk.come(2)
    assert stops(talk.wait(30)) == [1]
    talk.hand_over(1)
    assert stops(talk.wait(30)) == [2]


def test_fifo_serves_clients_of_high_priority_first_and_background_clients_last() -> None:
    talk = Ruled("fifo")
    talk.come(1)
    talk.come(2, priority=Priority.BACKGROUND)
    talk.come(3)
    talk.come(4, priority=Priority.HIGH)
    assert [*talk.scheduler.snapshot().waits] == [4, 3, 2]


@pytest.mark.parametrize("policy", ["fair", "fifo"])
def test_deadline_changes_nothing_under_other_policies(policy: str) -> None:
    talk = Ruled(policy)
    talk.come(1)
    talk.come(2)
    assert stops(talk.come(3, deadline=SOON)) == []
    assert stops(talk.wait(29)) == []
    assert [*talk.scheduler.snapshot().waits] == [2, 3]


def test_deadline_ends_a_turn_at_once_if_it_could_not_be_met_otherwise() -> None:
    talk = Ruled("deadline")
    talk.come(1)
    talk.come(2)
    assert stops(talk.come(3, deadline=SOON)) == [1]
    assert 3 in runs(talk.hand_over(1))
    assert [*talk.scheduler.snapshot().waits] == [2, 1]


def test_deadline_that_is_far_lets_the_turn_go_on_until_a_hand_over_takes_the_rest() -> None:
    talk = Ruled("deadline")
    talk.come(1)
    talk.come(2, deadline=LATER)
    talk.wait((LATER - LONG_DRAIN) / SECOND / 2)
    assert stops(talk.said) == []
    assert stops(talk.wait((LATER - LONG_DRAIN) / SECOND / 2)) == [1]
    assert 2 in runs(talk.hand_over(1))


def test_earliest_deadline_goes_first_and_clients_without_one_follow_as_under_fair() -> None:
    talk = Ruled("deadline")
    talk.come(1)
    talk.come(2)
    talk.come(3, deadline=LATER)
    talk.wait(1)
    talk.come(4, deadline=2 * SECOND)   # its deadline is earlier, although it came later
    talk.come(5, deadline=LATER)
    assert [*talk.scheduler.snapshot().waits] == [4, 3, 5, 2]


def test_deadline_counts_among_clients_of_the_same_priority_only() -> None:
    talk = Ruled("deadline")
    talk.come(1, priority=Priority.HIGH)
    talk.come(2)
    talk.come(3, deadline=SOON, priority=Priority.BACKGROUND)
    talk.come(4, deadline=SOON)
    assert stops(talk.said) == []       # the holder's priority is higher
    talk.come(5, priority=Priority.HIGH)
    assert [*talk.scheduler.snapshot().waits] == [5, 4, 2, 3]


def test_clients_with_deadlines_leave_each_other_turns_of_the_least_length() -> None:
    talk = Ruled("deadline")
    talk.come(1, deadline=SOON)
    talk.come(2, deadline=SOON)
    assert stops(talk.wait((LEAST_TQ - MILLISECOND) / SECOND)) == []
    assert stops(talk.wait(MILLISECOND / SECOND)) == [1]


def test_client_that_loads_returns_to_the_queue_for_a_deadline() -> None:
    talk = Ruled("deadline")
    talk.come(1)
    talk.idle(1)
    talk.join(2, 60)
    talk.want(2)
    talk.stopped(1, wants=False)        # no memory of client 1 is evicted yet
    assert talk.view(2).state == "loading"
    talk.come(3, deadline=SOON)
    assert talk.view(2).state == "waiting"


def test_client_overtakes_no_client_that_waits_with_a_near_deadline() -> None:
    """Its load would delay the load of the client with the deadline."""
    for deadline, overtakes in ((0, True), (2 * SECOND, False)):
        talk = Ruled("deadline")
        talk.come(1, 40)
        talk.come(2, 70, deadline=deadline)
        assert bool(loads(talk.come(3, 30))) is overtakes


def test_deadline_of_a_client_holds_beside_its_tenants_and_the_shortest_counts() -> None:
    talk = Ruled("deadline")
    talk.come(1)
    talk.come(2)
    assert stops(talk.tell(TermsChanged(2, Terms(deadline=LATER)))) == []
    assert stops(talk.terms(2, deadline=SOON)) == [1]
    talk.terms(2)
    assert talk.view(2).terms.deadline == LATER


def test_holders_are_paced_while_a_client_with_a_deadline_may_want_the_card() -> None:
    talk = Ruled("deadline")
    assert (1, False) in paced(talk.come(1))
    talk.terms(2, deadline=SOON)
    talk.join(2, 60, tenants=("user:2",))
    assert paced(talk.said)[-1] == (1, True)
    talk.leave(2)
    assert paced(talk.said)[-1] == (1, False)


def test_change_of_the_policy_holds_for_turns_under_way() -> None:
    talk = Ruled("fair")
    talk.come(1)
    talk.come(2, deadline=SOON)
    assert stops(talk.wait(1)) == []
    assert stops(talk.tell(SettingsChanged(replace(talk.settings, policy="deadline")))) == [1]


def test_clients_without_deadlines_run_for_a_quarter_of_the_time_beside_endless_requests() -> None:
    """Two clients with deadlines want the card all the time; two others do so, too."""
    world = Tenancy(replace(SETTINGS, policy="deadline", tq=SECOND))
    for tenant in ("user:a", "user:b"):
        world.set_terms(tenant, deadline=SOON)
    for tenant in ("user:a", "user:b", "user:c", "user:d"):
        world.program(tenant, size=LARGE)
    world.advance(2 * PATIENCE)
    shares = world.shares(60)
    others = shares["user:c"] + shares["user:d"]
    assert 1 / (1 + REGAINED) - 0.02 < others < 0.5
    assert shares["user:c"] == pytest.approx(shares["user:d"], abs=0.06)


def test_client_too_large_for_the_card_does_not_end_the_precedence_of_deadlines() -> None:
    talk = Ruled("deadline")
    talk.come(1, 60)
    talk.come(2, 200)                   # never runs
    talk.come(3, 60, deadline=SOON)
    talk.hand_over(1)
    talk.wait(30)
    assert talk.scheduler.snapshot().holders == (3,)


def requests_met(policy: str, **terms: Any) -> tuple[float, float]:
    """Of requests of 10 ms, each 250 ms, beside two trainings that do not fit the card together:
    the part that began in time, and the part of the time that the trainings got."""
    world = Tenancy(replace(SETTINGS, policy=policy, tq=None))
    trainings = [world.program(tenant, size=LARGE) for tenant in ("user:a", "user:b")]
    world.set_terms("user:service", **terms)
    service = world.program("user:service", size=SMALL * 48, work=0)
    for hook in trainings:
        hook.kernel = 5 * MILLISECOND
    service.kernel = 10 * MILLISECOND
    world.advance(5 * SECOND)
    before, met = sum(hook.computed for hook in trainings), 0
    for _ in range(REQUESTS):
        service.compute(service.kernel)
        done = service.computed
        world.advance(200 * MILLISECOND)
        met += service.computed > done
        world.advance(SECOND)
    computed = sum(hook.computed for hook in trainings) - before
    return met / REQUESTS, computed / (REQUESTS * 6 * SECOND / 5)


def test_deadline_begins_more_requests_in_time_than_high_priority_does() -> None:
    fair, _ = requests_met("fair")
    high, _ = requests_met("fair", priority=Priority.HIGH)
    deadline, trainings = requests_met("deadline", deadline=100 * MILLISECOND)
    assert max(fair, high) < deadline > 0.9
    assert trainings > 0.5


class Smallest(Policy):
    """The client with the least memory goes first, and turns have a tenth of the quantum."""

    def order(self, card: Card) -> list[ScheduledClient]:
        return sorted(card.groups.queue(), key=lambda one: (-one.priority, one.memory.need))

    def stays(self, card: Card, holder: ScheduledClient, head: ScheduledClient) -> bool:
        return False

    def turn_end(
        self, card: Card, holder: ScheduledClient, head: ScheduledClient | None, tq: int
    ) -> int:
        return super().turn_end(card, holder, head, tq // 10)


def test_policy_of_a_test_decides_order_and_turns_and_keeps_the_invariants() -> None:
    with mock.patch.dict(POLICIES, smallest=Smallest):
        talk = Ruled("smallest")
        for client, size in ((1, 90), (2, 80), (3, 60), (4, 70)):
            talk.come(client, size)
        assert [*talk.scheduler.snapshot().waits] == [3, 4, 2]
        assert stops(talk.wait(3)) == [1]
        assert 3 in runs(talk.hand_over(1))
        Row(9, "smallest").happens()    # a large client may starve: no teardown
