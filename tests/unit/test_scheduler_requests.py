# SPDX-License-Identifier: Apache-2.0
"""A tenant with a request gets its share of the time whatever the others' weights are."""

from dataclasses import replace

import pytest

from nvshared.quantity import HEAVIEST
from nvshared.scheduler.events import TenantChanged
from nvshared.scheduler.settings import AntiThrash, TenantTerms
from nvshared.units import MIB, SECOND
from tests.unit.test_scheduler_fairness import SETTINGS, Users

OTHERS = [f"user:{number}" for number in range(4)]


class Requests(Users):
    """Programs of tenants who ask for a share."""

    def request(self, tenant: str, percent: int, weight: int = 100) -> None:
        self.tell(TenantChanged(tenant, TenantTerms(compute_request=percent, weight=weight)))


def crowd(world: Requests, size: int = 32 * MIB) -> None:
    """Four others who are busy."""
    for tenant in OTHERS:
        world.weigh(tenant, HEAVIEST)
        world.program(tenant, size=size)


@pytest.mark.parametrize("size", [32 * MIB, 2600 * MIB])
def test_a_request_is_met_against_four_of_the_greatest_weight(size: int) -> None:
    world = Requests(replace(SETTINGS, anti_thrash=AntiThrash.AUTO if size > 2000 * MIB
                             else AntiThrash.ON, step=256 * MIB))
    world.request("user:alice", 30)
    crowd(world, size)
    world.program("user:alice", size=size)
    world.advance(5 * SECOND)
    shares = world.shares(80 if size < 2000 * MIB else 40)
    assert 0.29 <= shares["user:alice"] <= 0.33
    assert [shares[one] for one in OTHERS] == pytest.approx([0.175] * 4, abs=0.02)


def test_all_requests_are_met_and_a_weight_may_give_more() -> None:
    world = Requests()
    world.request("user:alice", 40)
    world.request("user:bob", 20)
    world.request("user:carol", 2, weight=HEAVIEST)
    crowd(world)
    for tenant in ("user:alice", "user:bob", "user:carol"):
        world.program(tenant)
    world.advance(5 * SECOND)
    shares = world.shares(100)
    assert shares["user:alice"] >= 0.39
    assert shares["user:bob"] >= 0.19
    assert shares["user:carol"] == pytest.approx(0.08, abs=0.01)


def test_a_request_within_a_tenant_is_of_the_card() -> None:
    world = Requests()
    world.request("job:0", 30)
    crowd(world)
    for number in range(3):
        world.program("user:alice", f"job:{number}")
    world.advance(5 * SECOND)
    assert world.shares(80)["job:0"] >= 0.29
    world.weigh("user:alice", HEAVIEST)     # who gets more now, of which the others have a part
    world.advance(5 * SECOND)
    shares = world.shares(80)
    assert shares["job:0"] >= 0.29
    assert shares["job:1"] == pytest.approx(shares["job:2"], abs=0.02)


def test_who_asks_and_idles_takes_nothing_and_has_saved_nothing_up() -> None:
    world = Requests()
    world.request("user:alice", 50)
    crowd(world)
    idler = world.program("user:alice", work=SECOND)
    world.advance(20 * SECOND)
    assert world.shares(20)["user:alice"] == 0
    idler.compute(1000 * SECOND)
    world.advance(SECOND)
    assert world.shares(40)["user:alice"] == pytest.approx(0.5, abs=0.04)


def test_a_request_within_a_tenant_is_nothing_while_nobody_there_wants_it() -> None:
    world = Requests()
    world.request("job:0", 60)
    crowd(world)
    world.program("user:alice", "job:0", work=SECOND)
    world.program("user:alice", "job:1")
    world.advance(40 * SECOND)
    assert world.shares(42)["job:1"] == pytest.approx(1 / 41, abs=0.02)


def test_a_request_ends_and_those_of_too_much_are_met_in_part() -> None:
    world = Requests()
    for tenant in ("user:alice", "user:bob"):
        world.request(tenant, 80)
        world.program(tenant)
    crowd(world)
    world.advance(5 * SECOND)
    shares = world.shares(60)
    assert min(shares["user:alice"], shares["user:bob"]) >= 0.45
    for tenant in ("user:alice", "user:bob"):
        world.request(tenant, 0)
    world.advance(5 * SECOND)
    assert world.shares(84)["user:alice"] == pytest.approx(1 / 42, abs=0.02)
