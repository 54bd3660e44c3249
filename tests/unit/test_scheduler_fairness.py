# SPDX-License-Identifier: Apache-2.0
"""Time is shared among tenants, however many programs each has, and then within each."""

from collections import Counter
from dataclasses import replace

import pytest

from nvshared.scheduler import queue
from nvshared.scheduler.events import Joined, Record, TenantChanged, TermsChanged
from nvshared.scheduler.settings import AntiThrash, Priority, Settings, TenantTerms, Terms
from nvshared.units import GIB, MIB, SECOND
from tests.unit.scheduler_hookmodel import Hook
from tests.unit.scheduler_world import World

SETTINGS = Settings(
    capacity=4 * GIB, total=4 * GIB, host_budget=64 * GIB, tq=SECOND // 2,
    anti_thrash=AntiThrash.ON,          # all fits, and turns are taken nevertheless
)


class Users(World):
    """Programs of several tenants, who all want the card."""

    def __init__(self, settings: Settings = SETTINGS, seed: int = 0) -> None:
        self.tenant: tuple[str, ...] = ()
        self.whose: dict[int, str] = {}
        self.gone: Counter[str] = Counter()
        super().__init__(settings, seed)

    def say(self, hook: Hook, record: Record | Joined) -> None:
        if isinstance(record, Joined):
            record = replace(record, tenants=self.tenant)
        super().say(hook, record)

    def program(self, *tenants: str, size: int = 32 * MIB, work: int = 1000 * SECOND) -> Hook:
        self.tenant = tenants
        hook = self.join()
        self.whose[hook.id] = tenants[-1]
        self.advance(SECOND // 100)
        hook.kernel = SECOND // 20
        hook.allocate(size)
        hook.compute(work)
        return hook

    def held(self) -> Counter[str]:
        """By each tenant's programs, in all; us."""
        times = self.gone.copy()
        for id, view in self.scheduler.snapshot().clients.items():
            times[self.whose[id]] += view.held_time
        return times

    def shares(self, seconds: int) -> dict[str, float]:
        """Of the time from now on."""
        before = self.held()
        self.advance(seconds * SECOND)
        times = self.held()
        times.subtract(before)
        return {tenant: time / times.total() for tenant, time in times.items()}

    def weigh(self, tenant: str, weight: int) -> None:
        self.tell(TenantChanged(tenant, TenantTerms(weight=weight)))


@pytest.mark.parametrize("number", [100, pytest.param(1000, marks=pytest.mark.long)])
def test_many_programs_of_one_user_get_no_more_than_one_of_another(number: int) -> None:
    world = Users()
    for _ in range(number):
        world.program("user:alice", size=4 * MIB)
    world.program("user:bob")
    world.advance(5 * SECOND)
    assert world.shares(60)["user:bob"] >= 0.49
    views = world.scheduler.snapshot().clients
    served = [view.turns for id, view in views.items() if world.whose[id] == "user:alice"]
    assert max(served) <= 2             # first come, first served; one ran before all had come


def test_nor_when_memory_has_to_move() -> None:
    world = Users(replace(SETTINGS, anti_thrash=AntiThrash.AUTO, step=256 * MIB))
    for _ in range(5):
        world.program("user:alice", size=2600 * MIB)
    world.program("user:bob", size=2600 * MIB)
    world.advance(5 * SECOND)
    assert world.shares(60)["user:bob"] == pytest.approx(0.5, abs=0.02)


def test_nor_with_programs_that_end_and_come_again() -> None:
    world = Users()
    alices = [world.program("user:alice") for _ in range(3)]
    world.program("user:bob")
    for _ in range(30):
        world.advance(SECOND)
        oldest = alices.pop(0)
        world.gone["user:alice"] += world.scheduler.snapshot().clients[oldest.id].held_time
        world.kill(oldest)
        alices.append(world.program("user:alice"))
    held = world.held()
    assert held["user:bob"] / held.total() >= 0.45


@pytest.mark.parametrize("numbers", [(1, 1, 1), (1, 3, 2), (5, 1, 1)])
def test_time_is_shared_by_the_weights_of_tenants(numbers: tuple[int, ...]) -> None:
    world = Users()
    weights = {"user:alice": 100, "user:bob": 200, "job:7": 400}
    for tenant, number in zip(weights, numbers, strict=True):
        world.weigh(tenant, weights[tenant])
        for _ in range(number):
            world.program("user:carol", tenant)
    world.advance(5 * SECOND)
    for tenant, share in world.shares(70).items():
        assert share == pytest.approx(weights[tenant] / 700, abs=0.02)


def test_who_would_be_the_next_again_goes_on() -> None:
    world = Users()
    world.weigh("user:alice", 300)
    alice, bob = world.program("user:alice"), world.program("user:bob")
    world.advance(5 * SECOND)
    before = world.scheduler.snapshot().clients
    assert world.shares(60)["user:alice"] == pytest.approx(0.75, abs=0.02)
    after = world.scheduler.snapshot().clients
    turns = [after[one.id].turns - before[one.id].turns for one in (alice, bob)]
    assert abs(turns[0] - turns[1]) <= 1        # one of three quanta, one of one


def test_the_weight_of_a_program_counts_within_its_tenant() -> None:
    world = Users()
    heavy, light = world.program("user:alice"), world.program("user:alice")
    world.program("user:bob")
    world.tell(TermsChanged(heavy.id, Terms(weight=300)))
    world.advance(5 * SECOND)
    assert world.shares(60)["user:alice"] == pytest.approx(0.5, abs=0.02)
    views = world.scheduler.snapshot().clients
    ratio = views[heavy.id].held_time / views[light.id].held_time
    assert ratio == pytest.approx(3, rel=0.25)


@pytest.mark.parametrize("seed", range(3))
def test_tenants_with_one_program_each_are_first_come_first_served(seed: int) -> None:
    plain, divided = Users(seed=seed), Users(seed=seed)
    for world in (plain, divided):
        for number in range(5):
            name = f"user:{number}" if world is divided else "user:0"
            hook = world.program(name, work=SECOND + number * SECOND // 3)
            hook.kernel = SECOND // (10 + number)
        world.advance(20 * SECOND)
    assert plain.turns == divided.turns
    assert len(plain.turns) > 5


def test_programs_of_one_tenant_that_run_together_hold_the_card_once() -> None:
    world = Users(replace(SETTINGS, anti_thrash=AntiThrash.AUTO, step=256 * MIB))
    together = [world.program("user:alice", size=1200 * MIB) for _ in range(2)]
    alone = world.program("user:bob", size=3600 * MIB)
    world.advance(5 * SECOND)
    world.shares(60)
    views = world.scheduler.snapshot().clients
    for one in together:
        assert views[one.id].held_time == pytest.approx(views[alone.id].held_time, rel=0.15)


def test_a_tenant_that_idled_has_saved_nothing_up() -> None:
    world = Users()
    world.program("user:alice")
    world.program("user:alice")
    idler = world.program("user:bob", work=SECOND)
    world.advance(30 * SECOND)
    idler.compute(1000 * SECOND)
    world.advance(SECOND)
    assert world.shares(10)["user:bob"] == pytest.approx(0.5, abs=0.06)


def test_a_tenant_that_left_still_owes_what_it_had_too_much() -> None:
    world = Users()
    world.weigh("user:bob", 10)
    world.program("user:alice")
    for _ in range(40):                 # a new program as soon as one has had its turn
        hook = world.program("user:bob")
        for _ in range(100):
            if hook.open:
                break
            world.advance(SECOND // 10)
        world.advance(SECOND // 2)
        if hook.id in world.scheduler.snapshot().clients:
            world.gone["user:bob"] += world.scheduler.snapshot().clients[hook.id].held_time
        world.kill(hook)
    held = world.held()
    assert held["user:bob"] / held.total() < 0.2


def test_the_queue_that_people_see_takes_turns_among_tenants() -> None:
    world = Users()
    for _ in range(3):
        world.program("user:alice")
    world.program("user:bob")
    world.program("job:1")
    world.advance(20 * SECOND)
    queue = [world.whose[id] for id in world.scheduler.snapshot().queue]
    assert set(queue[:2]) != {"user:alice"}


def test_a_tenant_without_programs_is_forgotten() -> None:
    world = Users()
    jobs = [world.program("user:alice", f"job:{number % 3}") for number in range(6)]
    units = [world.program(f"unit:{number % 3}.service") for number in range(6)]
    world.advance(5 * SECOND)
    for hook in [*jobs, *units]:
        world.kill(hook)
    world.advance(SECOND)
    tenants = world.scheduler._card.tenants
    assert not any(root.children for root in tenants.roots.values())
    assert not tenants.accounts


def test_of_very_many_that_owe_something_the_oldest_are_forgotten(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "GONE_KNOWN", 3)
    world = Users()
    world.program("user:alice", "job:0")
    for number in range(1, 8):
        job = world.program("user:alice", f"job:{number}")
        world.advance(2 * SECOND)
        world.kill(job)
        world.advance(SECOND // 10)
    (alice,) = world.scheduler._card.tenants.roots[Priority.NORMAL].children.values()
    known = alice.children
    assert "job:0" in known
    assert len(known) <= 4


def test_many_jobs_of_one_user_get_no_more_than_one_of_another() -> None:
    world = Users()
    for number in range(20):
        world.program("user:alice", f"job:{number}")
    world.program("user:bob", "job:20")
    world.advance(5 * SECOND)
    assert world.shares(40)["job:20"] >= 0.49


def test_nor_jobs_that_end_and_come_again_with_other_numbers() -> None:
    world = Users()
    world.program("user:bob")
    jobs = [world.program("user:alice", f"job:{number}") for number in range(3)]
    for number in range(3, 30):
        world.advance(SECOND)
        oldest = jobs.pop(0)
        world.gone["job:0"] += world.scheduler.snapshot().clients[oldest.id].held_time
        world.kill(oldest)
        jobs.append(world.program("user:alice", f"job:{number}"))
    held = world.held()
    assert held["user:bob"] / held.total() >= 0.45


@pytest.mark.parametrize("number", [1, 3])
def test_the_weight_of_a_job_counts_among_those_of_its_user(number: int) -> None:
    world = Users()
    weights = {"user:alice": 100, "user:bob": 300, "job:1": 400, "job:2": 200}
    for tenant, weight in weights.items():
        world.weigh(tenant, weight)
    for job in ("job:1", "job:2"):
        for _ in range(number):
            world.program("user:alice", job)
    for _ in range(number):
        world.program("user:alice")     # in no job: together as one of weight 100
    world.program("user:bob")
    world.advance(5 * SECOND)
    shares = world.shares(84)
    assert shares == pytest.approx({
        "job:1": 1 / 7, "job:2": 1 / 14, "user:alice": 1 / 28, "user:bob": 3 / 4}, abs=0.02)


def test_a_user_counts_within_each_unit_of_the_system() -> None:
    world = Users()
    world.weigh("user:alice", 300)
    for _ in range(5):
        world.program("unit:hub.service", "user:bob")
    world.program("unit:hub.service", "user:alice")
    world.program("unit:other.service", "user:alice")
    world.whose[7] = "other"
    world.advance(5 * SECOND)
    assert world.shares(80) == pytest.approx({
        "user:bob": 1 / 8, "user:alice": 3 / 8, "other": 1 / 2}, abs=0.02)


def test_weights_of_all_levels_and_of_programs_count() -> None:
    world = Users()
    heavy, light = (world.program("user:alice", "job:1") for _ in range(2))
    world.program("user:alice", "job:2")
    world.program("user:bob")
    world.tell(TermsChanged(heavy.id, Terms(weight=300)))
    world.advance(5 * SECOND)
    assert world.shares(80)["job:1"] == pytest.approx(1 / 4, abs=0.02)
    views = world.scheduler.snapshot().clients
    assert views[heavy.id].held_time / views[light.id].held_time == pytest.approx(3, rel=0.25)
    world.weigh("job:2", 300)           # while they run
    assert world.shares(80)["job:2"] == pytest.approx(3 / 8, abs=0.03)


def test_a_job_that_idled_has_saved_nothing_up() -> None:
    world = Users()
    world.program("user:alice", "job:1")
    idler = world.program("user:alice", "job:2", work=SECOND)
    world.program("user:bob")
    world.advance(30 * SECOND)
    idler.compute(1000 * SECOND)
    world.advance(SECOND)
    assert world.shares(20)["job:2"] == pytest.approx(1 / 4, abs=0.04)
