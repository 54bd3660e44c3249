# SPDX-License-Identifier: Apache-2.0
"""Terms of tenants and clients: shares of time, priorities, limits of time and of memory."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvshared.quantity import HEAVIEST
from nvshared.scheduler import queue
from nvshared.scheduler.actions import (
    Action,
    ClientState,
    Limits,
    Order,
    Publish,
    Report,
    Run,
    Stop,
    TurnEnd,
    TurnStarted,
    Watch,
)
from nvshared.scheduler.client import Phase
from nvshared.scheduler.domains import Domains
from nvshared.scheduler.events import (
    Accounting,
    AntiThrash,
    CapacityChanged,
    Joined,
    Memory,
    Preempted,
    Priority,
    Record,
    Settings,
    Stopped,
    TenantChanged,
    TenantTerms,
    Terms,
    TermsChanged,
    Tick,
)
from nvshared.scheduler.policy import LEAST_TQ
from nvshared.scheduler.snapshot import CardState
from nvshared.units import GIB, MIB, MILLISECOND, SECOND
from tests.unit.scheduler_hookmodel import Hook
from tests.unit.scheduler_talk import Talk, answer, limits, runs, stops
from tests.unit.scheduler_world import World
from tests.unit.test_scheduler_stopped import Stoppable

SETTINGS = Settings(
    capacity=4 * GIB, total=4 * GIB, host_budget=64 * GIB, step=256 * MIB, tq=SECOND // 2)
TURNS = replace(SETTINGS, anti_thrash=AntiThrash.ON)    # clients take turns although all fit
WINDOW = 2 * SECOND
LIMITS = replace(SETTINGS, tq=SECOND, accounting=Accounting(window=WINDOW))
DRAIN = 25 * MILLISECOND                # a kernel and two messages
LARGE = 2600 * MIB                      # bytes; no two such programs fit the card
SMALL = 32 * MIB
ALICE = ("user:alice",)
POD = ("user:alice", "pod:lab/train")


class Tenancy(World):
    """Programs of tenants, with work for hours, and terms of programs and tenants."""

    repeats = False                     # for speed; the random sequences check it

    def __init__(self, settings: Settings = SETTINGS, seed: int = 0) -> None:
        self.terms: dict[int, Terms] = {}
        self.tenants: dict[int, tuple[str, ...]] = {}
        self.joining: tuple[str, ...] = ()
        self.gone: Counter[int] = Counter()
        super().__init__(settings, seed)

    def say(self, hook: Hook, record: Record | Joined) -> None:
        if isinstance(record, Joined):
            record = replace(record, tenants=self.tenants.setdefault(hook.id, self.joining))
        super().say(hook, record)

    def program(self, *tenants: str, size: int = SMALL, work: int = 10_000 * SECOND) -> Hook:
        self.joining = tenants
        hook = self.join()
        self.advance(SECOND // 100)
        hook.kernel = SECOND // 20
        hook.allocate(size)
        hook.compute(work)
        return hook

    def put(self, hook: Hook, **changes: Any) -> None:
        """Sets terms of a client that the daemon knows."""
        if hook.id in self.scheduler.snapshot().clients:
            self.terms[hook.id] = replace(self.terms.get(hook.id, Terms()), **changes)
            self.tell(TermsChanged(hook.id, self.terms[hook.id]))
            self.check()

    def set_terms(self, tenant: str, **terms: Any) -> None:
        self.put_tenant(tenant, TenantTerms(**terms))

    def state(self, hook: Hook) -> ClientState:
        return self.scheduler.snapshot().clients[hook.id].state

    def held(self) -> Counter[int]:
        """Time (us) held by each program, ended programs included."""
        seen = self.scheduler.snapshot()
        return self.gone + Counter({
            id: self.scheduler.usage(id, seen.now).held for id in seen.clients})

    def shares(self, seconds: int) -> dict[str, float]:
        """The share of each innermost tenant in the time held from now on."""
        before = self.held()
        self.advance(seconds * SECOND)
        times: Counter[str] = Counter()
        for id, time in (self.held() - before).items():
            times[self.tenants[id][-1]] += time
        return {tenants[-1]: times[tenants[-1]] / times.total()
                for tenants in self.tenants.values()}

    def computed(self, *hooks: Hook, time: int) -> list[float]:
        """The part of the next `time` us in which the kernels of each program run."""
        before = [hook.computed for hook in hooks]
        self.advance(time)
        return [(hook.computed - was) / time for hook, was in zip(hooks, before, strict=True)]

    def end(self, hook: Hook) -> None:
        self.gone[hook.id] = self.held()[hook.id]
        self.kill(hook)

    def restart(self) -> None:
        super().restart()
        self.terms.clear()              # a restarted daemon does not know terms of clients

    def _check_action(self, action: Order | Report, starting: set[int]) -> None:
        terms = self.terms.get(action.client, Terms())
        of_tenants = [self.tenant_terms.get(name, TenantTerms())
                      for name in self.tenants.get(action.client, ())]
        suspended = terms.suspended or any(one.suspended for one in of_tenants)
        limited = min([terms.compute_limit, *(one.compute_limit for one in of_tenants)]) < 100
        if isinstance(action, Stop) and (suspended or limited):
            return                      # suspension or a compute limit is reason enough
        if isinstance(action, Run | TurnStarted):
            running = action.client not in starting     # RUN may change a running client
            assert running or not suspended, "it is suspended, and started"
        super()._check_action(action, starting)


@pytest.mark.parametrize(("mode", "size", "inner"), [
    (TURNS, SMALL, ("job:0", "job:1", "job:2")), (SETTINGS, LARGE, ())])
def test_user_with_many_programs_or_jobs_gets_the_same_time_as_a_user_with_a_single_program(
        mode: Settings, size: int, inner: tuple[str, ...]) -> None:
    world = Tenancy(mode)
    for number in range(6):
        world.program("user:alice", *inner[number % 3:][:1], size=size)
    world.program("user:bob", "job:9", size=size)
    world.advance(5 * SECOND)
    assert world.shares(30)["job:9"] == pytest.approx(0.5, abs=0.02)


# Tenants and weight of each program; weights of tenants; shares by program.
WEIGHTS: dict[str, tuple[list[tuple[str, int]], dict[str, int], list[float]]] = {
    "clients": ([("user:a", 300), ("user:a", 100), ("user:a", 200)], {}, [3 / 6, 1 / 6, 2 / 6]),
    "least": ([("user:a", 1000), ("user:a", 100)], {}, [10 / 11, 1 / 11]),
    "tenants": (
        [("user:a", 100), ("user:b", 100), ("user:c", 100)],
        {"user:a": 100, "user:b": 200, "user:c": 400}, [1 / 7, 2 / 7, 4 / 7]),
    "tenants of several": (
        [("user:a", 100), ("user:a", 100), ("user:b", 100), ("user:b", 100), ("user:b", 100)],
        {"user:b": 200}, [1 / 6, 1 / 6, 2 / 9, 2 / 9, 2 / 9]),
    "clients in tenants": (
        [("user:a", 300), ("user:a", 100), ("user:b", 100)], {}, [3 / 8, 1 / 8, 1 / 2]),
    "jobs": (                           # a client in no job: as one job of weight 100
        [("user:a job:1", 100), ("user:a job:2", 100), ("user:a", 100), ("user:b", 100)],
        {"user:b": 300, "job:1": 400, "job:2": 200}, [1 / 7, 1 / 14, 1 / 28, 3 / 4]),
    "users in units": (
        [*[("unit:hub user:b", 100)] * 2, ("unit:hub user:a", 100), ("unit:x user:a", 100)],
        {"user:a": 300}, [1 / 16, 1 / 16, 3 / 8, 1 / 2]),
    "all levels": (
        [("user:a job:1", 300), ("user:a job:1", 100), ("user:a job:2", 100), ("user:b", 100)],
        {"job:2": 300}, [3 / 32, 1 / 32, 3 / 8, 1 / 2]),
}


@pytest.mark.parametrize("case", WEIGHTS)
def test_card_time_is_shared_by_the_weights_of_all_tenant_levels(case: str) -> None:
    programs, weights, expected = WEIGHTS[case]
    world = Tenancy(TURNS)
    hooks = [world.program(*tenants.split()) for tenants, _ in programs]
    for hook, (_, weight) in zip(hooks, programs, strict=True):
        world.put(hook, weight=weight)
    for tenant, weight in weights.items():
        world.set_terms(tenant, weight=weight)        # while they run
    world.advance(5 * SECOND)
    shares = world.computed(*hooks, time=56 * SECOND)
    assert [share / sum(shares) for share in shares] == pytest.approx(expected, abs=0.025)


@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 1000), weight=st.integers(1, 1000))
def test_clients_and_tenants_of_equal_weight_are_first_come_first_served(
        seed: int, weight: int) -> None:
    plain, weighed, divided = (Tenancy(TURNS, seed) for _ in range(3))
    for world in (plain, weighed, divided):
        for number in range(5):
            tenant = f"user:{number}" if world is divided else "user:0"
            hook = world.program(tenant, work=SECOND + number * SECOND // 3)
            hook.kernel = SECOND // (10 + number)
            if world is weighed:
                world.put(hook, weight=weight)
        world.advance(15 * SECOND)
    assert plain.turns == weighed.turns == divided.turns
    assert len(plain.turns) > 5


# Tenants of the idle and of the other programs; weight of the first program and compute
# request of the idle program's tenant; share of the idle program afterwards.
IDLERS: dict[str, tuple[list[str], dict[str, Any], float]] = {
    "tenant": (["user:b", "user:a", "user:a"], {}, 1 / 2),
    "job": (["user:a job:2", "user:a job:1", "user:b"], {}, 1 / 4),
    "client": (["user:a", "user:a", "user:a"], {"weight": 200}, 1 / 4),
    "request": (["user:b", "user:0", "user:1", "user:2"], {"compute_request": 50}, 1 / 2),
}


@pytest.mark.parametrize("case", IDLERS)
def test_client_or_tenant_that_idled_gets_no_extra_share_afterwards(case: str) -> None:
    programs, terms, share = IDLERS[case]
    world = Tenancy(TURNS)
    if "compute_request" in terms:
        world.set_terms(programs[0], **terms)
    idler, first, *_ = (world.program(*one.split()) for one in programs)
    if "weight" in terms:
        world.put(first, **terms)
    world.advance(2 * SECOND)
    idler.work = 0
    world.advance(SECOND)
    assert world.computed(idler, time=30 * SECOND) == [0]
    idler.compute(1000 * SECOND)
    world.advance(SECOND)
    assert world.computed(idler, time=20 * SECOND) == pytest.approx([share], abs=0.05)


def test_returning_tenant_is_still_charged_for_overused_time() -> None:
    world = Tenancy(TURNS)
    world.set_terms("user:bob", weight=10)
    world.program("user:alice")
    for _ in range(40):                 # a new program whenever the last program has had a turn
        hook = world.program("user:bob")
        for _ in range(100):
            if hook.open:
                break
            world.advance(SECOND // 10)
        world.advance(SECOND // 2)
        world.end(hook)
        world.advance(SECOND // 10)     # the scheduler learns of the end before the next program
    held = world.held()
    assert held[1] / held.total() > 0.8


def test_scheduler_forgets_a_tenant_after_the_last_program_has_ended() -> None:
    world = Tenancy(TURNS)
    hooks = [world.program("user:alice", f"job:{number % 3}") for number in range(6)]
    hooks += [world.program(f"unit:{number % 3}.service") for number in range(6)]
    world.advance(5 * SECOND)
    for hook in hooks:
        world.kill(hook)
    world.advance(SECOND)
    tenants = world.scheduler._card.tenants
    assert not any(root.children for root in tenants.roots.values())
    assert not tenants.accounts


def test_scheduler_forgets_the_oldest_ended_tenants_with_overused_time_beyond_a_maximum(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "GONE_KNOWN", 3)
    world = Tenancy(TURNS)
    world.program("user:alice", "job:0")
    for number in range(1, 8):
        job = world.program("user:alice", f"job:{number}")
        world.advance(2 * SECOND)
        world.kill(job)
        world.advance(SECOND // 10)
    (alice,) = world.scheduler._card.tenants.roots[Priority.NORMAL].children.values()
    assert "job:0" in alice.children
    assert len(alice.children) <= 4


def crowd(world: Tenancy, size: int = SMALL) -> list[Hook]:
    """Start four busy programs of users with the greatest weight."""
    for number in range(4):
        world.set_terms(f"user:{number}", weight=HEAVIEST)
    return [world.program(f"user:{number}", size=size) for number in range(4)]


def test_compute_request_is_met_against_four_clients_of_the_greatest_weight() -> None:
    world = Tenancy()
    world.set_terms("user:alice", compute_request=30)
    others = crowd(world, LARGE)
    hook = world.program("user:alice", size=LARGE)
    world.advance(5 * SECOND)
    shares = world.computed(hook, *others, time=40 * SECOND)
    assert 0.29 <= shares[0] / sum(shares) <= 0.33
    assert shares[1:] == pytest.approx([sum(shares) * 0.175] * 4, abs=0.03)


def test_compute_requests_are_all_met_and_a_great_weight_gives_more_than_requested() -> None:
    world = Tenancy(TURNS)
    world.set_terms("user:alice", compute_request=40)
    world.set_terms("user:bob", compute_request=20)
    world.set_terms("user:carol", compute_request=2, weight=HEAVIEST)
    crowd(world)
    for tenant in ("user:alice", "user:bob", "user:carol"):
        world.program(tenant)
    world.advance(5 * SECOND)
    shares = world.shares(100)
    assert shares["user:alice"] >= 0.39
    assert shares["user:bob"] >= 0.19
    assert shares["user:carol"] == pytest.approx(0.08, abs=0.01)


def test_compute_request_of_a_client_is_a_share_of_the_card_except_while_idle() -> None:
    world = Tenancy(TURNS)
    world.set_terms("job:0", compute_request=30)
    crowd(world)
    asking, *_ = (world.program("user:alice", f"job:{number}") for number in range(3))
    world.advance(5 * SECOND)
    assert world.shares(80)["job:0"] >= 0.29
    world.set_terms("user:alice", weight=HEAVIEST)    # alice's other jobs get a share, too
    world.advance(5 * SECOND)
    shares = world.shares(80)
    assert shares["job:0"] >= 0.29
    assert shares["job:1"] == pytest.approx(shares["job:2"], abs=0.02)
    world.set_terms("user:alice")
    asking.work = 0
    world.advance(40 * SECOND)
    assert world.shares(82)["job:1"] == pytest.approx(1 / 82, abs=0.02)


def test_compute_requests_beyond_100_percent_are_met_in_part() -> None:
    world = Tenancy(TURNS)
    for tenant in ("user:alice", "user:bob"):
        world.set_terms(tenant, compute_request=80)
        world.program(tenant)
    crowd(world)
    world.advance(5 * SECOND)
    shares = world.shares(60)
    assert min(shares["user:alice"], shares["user:bob"]) >= 0.45
    for tenant in ("user:alice", "user:bob"):
        world.set_terms(tenant)
    world.advance(5 * SECOND)
    assert world.shares(84)["user:alice"] == pytest.approx(1 / 42, abs=0.02)


def test_client_in_a_background_tenant_has_background_priority_until_the_term_is_removed() -> None:
    world = Tenancy(TURNS)
    world.set_terms("user:alice", priority=Priority.HIGH)
    world.set_terms("job:1", priority=Priority.BACKGROUND)
    world.program("user:alice", "job:1")
    ahead = world.program("user:alice", "job:2")
    world.program("user:bob")
    world.advance(5 * SECOND)
    assert world.computed(ahead, time=10 * SECOND) == pytest.approx([1], abs=0.01)
    world.set_terms("user:alice")
    world.advance(5 * SECOND)
    assert world.shares(20) == pytest.approx({"job:2": 0.5, "job:1": 0, "user:bob": 0.5}, abs=0.03)
    world.set_terms("job:1")
    world.advance(5 * SECOND)
    assert world.shares(20)["job:1"] == pytest.approx(0.25, abs=0.03)


def test_client_with_a_priority_of_its_own_is_never_above_its_tenants_priority() -> None:
    world = Tenancy(TURNS)
    world.set_terms("user:alice", priority=Priority.HIGH)
    programs = world.program("user:alice"), world.program("user:bob")

    def shares(priority: Priority) -> list[float]:
        world.put(programs[0], priority=priority)
        world.advance(5 * SECOND)
        return world.computed(*programs, time=20 * SECOND)

    assert shares(Priority.BACKGROUND) == pytest.approx([0, 1], abs=0.03)
    assert shares(Priority.NORMAL) == pytest.approx([0.5, 0.5], abs=0.06)
    assert shares(Priority.HIGH) == pytest.approx([1, 0], abs=0.03)
    world.set_terms("user:alice")       # only a rule gives a high priority
    assert shares(Priority.HIGH) == pytest.approx([0.5, 0.5], abs=0.06)


class Ranked(Talk):
    """Tenants of several priorities; their programs have 60 GiB of a card of 100."""

    def rank(self, tenant: str, priority: Priority) -> list[Action]:
        return self.obey(self.tell(TenantChanged(tenant, TenantTerms(priority=priority))))

    def come(self, client: int, tenant: str, size: float = 60) -> list[Action]:
        self.join(client, size, tenants=(tenant,))
        return self.obey(self.want(client))


def test_background_holder_is_stopped_at_once_for_a_normal_client() -> None:
    talk = Ranked(100)
    talk.rank("user:alice", Priority.BACKGROUND)
    assert runs(talk.come(1, "user:alice")) == [1]
    talk.wait(1)
    assert stops(talk.come(2, "user:bob")) == [1]
    talk.obey(talk.stopped(1))
    assert talk.view(2).counters.turns == 1
    talk.wait(60)                       # the background client waits as long as the other is busy
    assert talk.view(1).counters.turns == 1
    assert stops(talk.idle(2)) == [2]
    assert runs(talk.obey(talk.stopped(2, wants=False))) == [1]
    assert stops(talk.obey(talk.want(2))) == []
    assert stops(talk.wait(LEAST_TQ / SECOND)) == [1]  # a turn of the least length


def test_background_clients_take_turns_of_the_usual_length_among_themselves() -> None:
    talk = Ranked(100)
    for tenant in ("user:alice", "user:bob"):
        talk.rank(tenant, Priority.BACKGROUND)
    talk.come(1, "user:alice")
    talk.come(2, "user:bob")
    assert stops(talk.wait(29)) == []
    assert stops(talk.wait(1)) == [1]


def test_background_client_that_loads_returns_to_the_queue_for_a_normal_client() -> None:
    talk = Ranked(100)
    talk.rank("user:alice", Priority.BACKGROUND)
    talk.come(1, "user:carol")
    talk.idle(1)
    talk.join(2, 60, tenants=("user:alice",))
    talk.want(2)
    talk.stopped(1, wants=False)        # no memory of client 1 is evicted yet
    assert talk.view(2).state == "loading"
    talk.join(3, 60, tenants=("user:bob",))
    talk.obey(talk.want(3))
    assert talk.view(2).state == "waiting"


def test_high_priority_client_ends_no_turn_and_background_client_overtakes_no_normal_client(
        ) -> None:
    talk = Ranked(100)
    talk.rank("user:alice", Priority.HIGH)
    talk.rank("user:erin", Priority.BACKGROUND)
    talk.come(1, "user:bob")
    talk.come(2, "user:carol")
    assert runs(talk.come(4, "user:erin", 10)) == []
    assert 5 in runs(talk.come(5, "user:dave", 10))  # client 5, of normal priority, does overtake
    talk.leave(5)
    talk.wait(1)
    assert stops(talk.come(3, "user:alice")) == []
    assert stops(talk.wait(29)) == [1]
    assert runs(talk.obey(talk.stopped(1)))[0] == 3


def flight_orders(orders: list[Action]) -> list[tuple[int, ...]]:
    """The orders to publish (client, on) and to watch (client, watched client, on)."""
    return [
        (order.client, order.on) if isinstance(order, Publish)
        else (order.client, order.watched, order.on)
        for order in orders if isinstance(order, Publish | Watch)]


def test_background_client_watches_all_holders_with_a_higher_priority() -> None:
    talk = Ranked(200)
    talk.rank("user:alice", Priority.BACKGROUND)
    orders = [
        talk.come(1, "user:bob"), talk.come(2, "user:alice"),
        talk.join(3, 0, tenants=("user:carol",)),
        talk.join(4, 0, tenants=("user:alice",)),       # client 4 has no memory and no turn
        talk.come(5, "user:dave", 150),                 # client 5 does not fit and has no turn
        talk.leave(5), talk.leave(3), talk.rank("user:alice", Priority.NORMAL),
        talk.rank("user:bob", Priority.BACKGROUND), talk.leave(1)]
    assert [*map(flight_orders, orders)] == [
        [], [(1, True), (2, 1, True)], [(3, True), (2, 3, True)], [], [], [], [(2, 3, False)],
        [(2, 1, False), (1, False)], [(2, True), (4, True), (1, 2, True), (1, 4, True)],
        [(2, False), (4, False)]]


def limited(percent: int, settings: Settings = LIMITS, size: int = SMALL) -> tuple[Tenancy, Hook]:
    world = Tenancy(settings)
    one = world.program("user:alice", size=size)
    one.kernel = 10 * MILLISECOND
    world.put(one, compute_limit=percent)
    return world, one


def test_compute_limited_client_without_time_left_waits_for_the_next_accounting_window() -> None:
    world, one = limited(50)
    one.kernel = MILLISECOND
    world.advance(WINDOW * 3 // 4)
    assert world.state(one) is ClientState.LIMITED
    now = world.scheduler.snapshot()
    assert now.queue_length == 0
    assert now.state is CardState.IDLE
    world.advance(WINDOW // 2)
    assert one.open
    world.advance(20 * SECOND)
    # Each turn lasts at least 50 ms, also the first, which ends with the present window.
    assert all(end.held_time >= 50 * MILLISECOND for end in world.ends)


@pytest.mark.parametrize(("tail", "carryover", "least", "most"), [
    (100, 100, 0.095, 0.105),           # overused time is taken off later windows
    (100, 25, 0.095, 0.12),             # a quarter of the overused time is taken off later windows
    (100, 0, 0.5, 1),                   # the overused time is not taken off
    (70, 100, 0.12, 0.1 / 0.7 + 0.02),  # most of each kernel is a drain
])
def test_compute_limited_client_with_long_kernels_gets_more_if_overuse_is_billed_in_part(
        tail: int, carryover: int, least: float, most: float) -> None:
    accounting = Accounting(window=WINDOW, tail=tail, carryover=carryover)
    world, one = limited(10, replace(LIMITS, accounting=accounting))
    one.kernel = 3 * SECOND
    (share,) = world.computed(one, time=300 * SECOND)
    assert least < share <= most


@pytest.mark.parametrize(("percent", "kernel"), [
    (5, 7 * MILLISECOND), (75, 7 * MILLISECOND), (75, 2 * SECOND)])
def test_compute_limit_of_a_client_that_moves_no_memory_is_exact_in_short_periods(
        percent: int, kernel: int) -> None:
    world, one = limited(percent, SETTINGS)
    one.kernel = kernel
    world.advance(2 * kernel)
    parts = [world.computed(one, time=5 * SECOND)[0] for _ in range(12)]
    assert sum(parts[:6]) / 6 == pytest.approx(percent / 100, abs=max(0.01, kernel / (30 * SECOND)))
    grain = max(0.03, kernel / (5 * SECOND))        # `computed` grows only when a kernel ends
    assert all(part == pytest.approx(percent / 100, abs=grain) for part in parts)
    assert sum(parts) / 12 == pytest.approx(percent / 100, abs=max(0.005, kernel / (60 * SECOND)))
    if kernel < 50 * MILLISECOND and percent > 5:
        world.advance(SECOND)
        for _ in range(10):             # no pause lasts 200 ms
            assert world.computed(one, time=200 * MILLISECOND) != [0]


@pytest.mark.parametrize(
    ("used", "answered", "after"),
    [(50, 95, 100), (30, 70, 70), (1, 95, 100), (1, 190, 200), (None, 95, 200), (1000, 95, 200)])
def test_compute_limited_client_is_charged_at_least_half_of_the_time_until_the_reply(
        used: int | None, answered: int, after: int) -> None:
    """On a busy machine messages may take as long as the turn. At least half of the time until the
    reply is charged, whatever the hook reports, as the user controls the hook."""
    talk = Talk()
    talk.join(1, 1, 1)
    talk.tell(TermsChanged(1, Terms(compute_limit=50)))
    talk.obey(talk.want(1))
    talk.now = 50 * MILLISECOND
    assert [type(action) for action in talk.tell(Tick())] == [Stop]
    talk.now = answered * MILLISECOND
    said = used and used * MILLISECOND
    actions = talk.tell(Stopped(1, talk.memory[1], True, 1, said))
    while not any(isinstance(action, Run) for action in actions):
        deadline = talk.scheduler.deadline()
        assert deadline is not None
        talk.now = deadline
        actions = talk.tell(Tick())
    assert talk.now == after * MILLISECOND


def test_compute_limited_client_idle_for_years_gets_at_most_the_share_of_one_window() -> None:
    world, one = limited(10)
    one.work = 0
    world.advance(WINDOW)
    world.now += 10 * 365 * 86400 * SECOND
    world.tell(Tick())                  # one event skips all windows
    one.compute(1000 * SECOND)
    assert world.computed(one, time=WINDOW)[0] <= 0.2 + DRAIN / WINDOW


def test_changed_compute_limit_takes_effect_within_the_current_accounting_window() -> None:
    world, one = limited(1)
    world.advance(WINDOW // 2)
    assert world.state(one) is ClientState.LIMITED
    for percent, state in (
        (50, ClientState.RUNNING), (1, ClientState.LIMITED), (100, ClientState.RUNNING),
    ):
        world.put(one, compute_limit=percent)
        world.advance(WINDOW // 4)
        assert world.state(one) is state
    assert not one.paced
    runs = one.runs
    world.advance(20 * WINDOW)
    assert one.runs == runs


def test_idle_client_beyond_its_compute_limit_is_run_and_stopped_once_a_window_while_draining(
        ) -> None:
    world = Tenancy()
    hook = world.program(*ALICE, work=0)
    world.put(hook, compute_limit=20)
    hook.compute(SECOND)
    world.advance(2 * SECOND)
    before = len(world.orders_of(Run))
    world.configure(replace(world.settings, draining=True, anti_thrash=AntiThrash.OFF))
    world.advance(10 * SECOND)
    assert len(world.orders_of(Run)) - before <= 10 * SECOND // Accounting().length(turns=False)


@pytest.mark.parametrize(("pause", "kernel"), [(10, 10), (700, 1500)])
def test_repeated_changes_of_a_compute_limit_give_no_extra_time(pause: int, kernel: int) -> None:
    """Users may lower and raise limits of their programs, up to the administrator's."""
    world, one = limited(10)
    one.kernel = kernel * MILLISECOND
    before = one.computed
    changes = (20 if kernel < 100 else 200) * WINDOW // (pause * MILLISECOND)
    for change in range(changes):
        world.put(one, compute_limit=9 + change % 2)
        world.advance(pause * MILLISECOND)
    share = (one.computed - before) / (changes * pause * MILLISECOND)
    assert 0.08 < share <= 0.10 + DRAIN / WINDOW


# Tenants of the programs; compute limits in percent of tenants and of the first program; maximum
# share of each program; sum of their shares.
LIMITED: dict[str, tuple[Settings, list[str], dict[str, int], int, list[float], float]] = {
    "in turns": (TURNS, ["user:a"] * 4, {"user:a": 40}, 100, [0.4] * 4, 0.4),
    "and its own": (SETTINGS, ["user:a"] * 2, {"user:a": 60}, 20, [0.2, 0.6], 0.8),
    "all levels": (
        TURNS, ["user:a job:1", "user:a"], {"user:a": 50, "job:1": 20}, 100, [0.2, 0.5], 0.5),
    "together": (                       # time in which several programs run counts once
        SETTINGS, ["user:a"] * 3 + ["user:b"], {"user:a": 50}, 100, [0.5, 0.5, 0.5, 1], 2.48),
}


@pytest.mark.parametrize("case", LIMITED)
def test_compute_limits_of_all_tenant_levels_hold(case: str) -> None:
    mode, programs, tenants, own, each, together = LIMITED[case]
    world = Tenancy(mode)
    for tenant, percent in tenants.items():
        world.set_terms(tenant, compute_limit=percent)
    hooks = [world.program(*one.split()) for one in programs]
    for hook in hooks:
        hook.kernel = 10 * MILLISECOND
    world.put(hooks[0], compute_limit=own)
    shares = world.computed(*hooks, time=60 * SECOND)
    assert all(share <= most + 0.03 for share, most in zip(shares, each, strict=True))
    assert sum(shares) == pytest.approx(together, abs=0.05)


def open_together(world: Tenancy, *hooks: Hook, time: int) -> float:
    """The part of the next `time` us in which more than one of the gates is open."""
    step, several = MILLISECOND, 0
    for _ in range(time // step):
        world.advance(step)
        several += sum(hook.open for hook in hooks) > 1
    return several * step / time


def each_limited(percents: tuple[int, ...]) -> tuple[Tenancy, list[Hook]]:
    """Programs of short kernels, each of a user and with a compute limit, after a second."""
    world = Tenancy()
    hooks = [world.program(f"user:{number}") for number in range(len(percents))]
    for hook, percent in zip(hooks, percents, strict=True):
        hook.kernel = MILLISECOND
        world.put(hook, compute_limit=percent)
    world.advance(SECOND)
    return world, hooks


@pytest.mark.parametrize("percents", [(50, 50), (30, 70), (25, 25, 50)])
def test_limited_clients_with_limits_that_fit_together_run_in_sequence(
        percents: tuple[int, ...]) -> None:
    """Together, each would pay for a whole card and get a part, and the card would idle later."""
    world, hooks = each_limited(percents)
    before = [hook.computed for hook in hooks]
    assert open_together(world, *hooks, time=10 * SECOND) < 0.1
    had = [(hook.computed - was) / (10 * SECOND) for hook, was in zip(hooks, before, strict=True)]
    assert had == pytest.approx([percent / 100 for percent in percents], abs=0.01)


@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1)])
def test_compute_limited_client_runs_at_once_when_the_limit_of_another_ends_its_turn(
        first: int, second: int) -> None:
    """The window of the second client begins 0.3 s after that of the first."""
    talk = Talk(100, accounting=Accounting(window=SECOND))
    for client, later in ((first, 0.3), (second, 0.1)):
        talk.join(client, 1, 1)
        talk.tell(TermsChanged(client, Terms(compute_limit=40)))
        talk.obey(talk.want(client))
        stopped = stops(talk.wait(later))
    assert stopped == [first]
    talk.stopped(first)
    assert stops(talk.wait(0.3)) == [second]
    talk.stopped(second)
    assert runs(talk.wait(0.3)) == [first]
    assert stops(talk.wait(0.4)) == [first]
    assert runs(talk.stopped(first)) == [second]


@pytest.mark.parametrize("state", ["suspended", "stopped", "too large"])
def test_compute_limited_client_does_not_wait_for_a_limited_client_that_cannot_run(
        state: str) -> None:
    world = Tenancy(replace(SETTINGS, stuck_after=SECOND))
    hook = world.program(*ALICE)
    world.joining = ("user:bob",)
    other = Stoppable(hook.id + 1, world)
    world.welcome(other)
    world.advance(SECOND // 100)
    other.allocate(LARGE)
    other.compute(10_000 * SECOND)
    for one in (hook, other):
        one.kernel = MILLISECOND
        world.put(one, compute_limit=50)
    world.advance(SECOND)
    match state:
        case "suspended":
            world.put(other, suspended=True)
        case "stopped":
            other.is_stopped = True
        case "too large":
            world.tell(CapacityChanged(LARGE // 2))
    world.advance(5 * SECOND)           # until the other client has used its time, and is given up
    card = world.scheduler._card
    for _ in range(2 * SECOND // MILLISECOND):
        world.advance(MILLISECOND)
        client = card.clients[hook.id]
        has_time = queue.time_left(card, client)[1]
        assert not (client.phase is Phase.LIMITED and has_time), "it waits for the other client"


@pytest.mark.parametrize("percents", [(75, 75), (50, 50, 50), (5, 95, 95)])
def test_limited_clients_with_limits_beyond_the_card_get_all_their_time(
        percents: tuple[int, ...]) -> None:
    world, hooks = each_limited(percents)
    had = world.computed(*hooks, time=10 * SECOND)
    assert had == pytest.approx([percent / 100 for percent in percents], abs=0.01)


def test_tenants_keep_no_account_of_an_ended_tenant_whose_compute_limit_is_removed() -> None:
    world = Tenancy()
    world.set_terms("pod:lab/train", compute_limit=40)
    hook = world.program(*POD)
    world.advance(SECOND)
    world.end(hook)
    world.advance(SECOND)
    accounts = world.scheduler._card.tenants.accounts
    assert [*accounts] == ["pod:lab/train"]     # use in the window still counts
    world.set_terms("pod:lab/train")
    assert not accounts


def test_tenant_compute_limit_holds_for_new_programs_until_the_limit_is_removed() -> None:
    world = Tenancy()
    hook = world.program("user:alice")
    assert world.computed(hook, time=4 * SECOND) > [0.9]
    world.set_terms("user:alice", compute_limit=30)
    world.advance(2 * SECOND)
    for _ in range(10):                 # each new program belongs to the same tenant
        world.kill(hook)
        hook = world.program("user:alice")
        assert world.computed(hook, time=4 * SECOND) <= [0.3 + 0.08]
    world.set_terms("user:alice")
    assert world.computed(hook, time=4 * SECOND) > [0.9]


def test_tenant_is_charged_in_full_if_one_of_two_running_programs_reports_too_little_time() -> None:
    talk = Talk()
    talk.tell(TenantChanged("user:alice", TenantTerms(compute_limit=50)))
    for client in (1, 2):
        talk.join(client, 1, 1, tenants=ALICE)
        talk.obey(talk.want(client))
    talk.now = 50 * MILLISECOND
    assert stops(talk.tell(Tick())) == [1, 2]
    for client, used in ((1, 50), (2, 1)):
        answer = Stopped(client, talk.memory[client], True, 1, used * MILLISECOND)
        assert runs(talk.tell(answer)) == []
    assert talk.scheduler.deadline() == 100 * MILLISECOND


@pytest.mark.parametrize("drains", [0, 1])
def test_suspended_holder_is_stopped_and_evicted_even_after_a_late_drain(drains: int) -> None:
    world = Tenancy()
    one, two = world.program("user:alice", size=LARGE), world.program("user:alice", size=LARGE)
    world.advance(5 * SECOND)
    holder, waiter = (one, two) if one.granted else (two, one)
    if drains:
        holder.undrainable, holder.kernel = drains, 3 * SECOND
    world.put(holder, suspended=True)
    world.advance((60 if drains else 2) * SECOND)
    assert waiter.open
    assert holder.resident == 0
    assert world.state(holder) is ClientState.SUSPENDED
    assert world.ends[-1].reason is TurnEnd.SUSPENDED
    runs = holder.runs
    world.advance(20 * SECOND)
    assert holder.runs == runs
    assert not waiter.paced         # no other client waits
    world.put(holder, suspended=False)
    world.advance(5 * SECOND)
    assert holder.runs > runs


def test_suspended_client_is_evicted_as_far_as_host_memory_allows() -> None:
    world = Tenancy(replace(SETTINGS, host_budget=GIB))
    one = world.program("user:alice", size=2 * GIB)
    world.advance(SECOND)
    world.put(one, suspended=True)
    world.advance(5 * SECOND)
    assert not one.open
    assert 0 < one.resident < 2 * GIB
    assert one.host <= GIB
    world.put(one, suspended=False)
    world.advance(SECOND)
    assert world.state(one) is ClientState.RUNNING
    one.work = 0
    for suspended in (True, False):
        world.put(one, suspended=suspended)
        world.advance(5 * SECOND)
    assert world.state(one) is ClientState.IDLE     # resumed without work


def test_preempt_ends_a_single_turn_and_only_if_another_client_waits() -> None:
    world = Tenancy(replace(SETTINGS, tq=3600 * SECOND))
    one = world.program("user:alice", size=LARGE)
    world.advance(SECOND)
    world.tell(Preempted())             # no client waits
    two = world.program("user:alice", size=LARGE)
    world.advance(5 * SECOND)
    assert (one.open, one.runs) == (True, 1)
    world.tell(Preempted())
    world.advance(SECOND)
    assert two.open
    assert world.ends[-1].reason is TurnEnd.PREEMPTED
    runs, ends = one.runs, len(world.ends)
    world.advance(60 * SECOND)
    assert len(world.ends) == ends      # the next turn lasts a whole quantum
    world.tell(Preempted())
    world.advance(SECOND)
    assert one.runs == runs + 1


def test_preempt_overrules_weights_for_a_single_turn() -> None:
    world = Tenancy(TURNS)
    one, two = world.program("user:alice"), world.program("user:bob")
    world.set_terms("user:alice", weight=1000)
    world.advance(20 * SECOND)
    while not two.open:
        world.advance(SECOND // 10)
    while not one.open:
        world.advance(SECOND // 10)
    world.tell(Preempted())
    world.advance(SECOND // 5)
    assert two.open


def test_suspending_a_tenant_suspends_present_and_later_clients() -> None:
    world = Tenancy()
    inside = [world.program("user:alice", "job:1", size=LARGE // 2) for _ in range(2)]
    outside = [world.program("user:alice", size=LARGE // 2), world.program("user:bob")]
    world.advance(3 * SECOND)
    world.set_terms("job:1", suspended=True)
    inside.append(world.program("user:alice", "job:1"))
    world.put(inside[0], suspended=True)
    world.advance(3 * SECOND)
    runs = [hook.runs for hook in inside]
    world.advance(10 * SECOND)
    assert [hook.resident for hook in inside] == [0] * len(inside)
    assert any(hook.open for hook in outside)   # one of them runs, or busy programs take turns
    world.restart()
    world.advance(10 * SECOND)
    assert [hook.runs for hook in inside] == runs
    world.put(inside[0], suspended=True)
    world.set_terms("job:1")
    world.advance(10 * SECOND)
    assert inside[0].runs == runs[0]    # the program is still suspended itself
    assert all(hook.runs > before for hook, before in zip(inside[1:], runs[1:], strict=True))


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 1 << 32), data=st.data())
def test_randomly_changed_limits_weights_and_tenants_keep_scheduler_invariants(
        seed: int, data: st.DataObject) -> None:
    mode = data.draw(st.sampled_from(AntiThrash))
    world = Tenancy(replace(LIMITS, gather=SECOND // 2, tq=SECOND // 4, anti_thrash=mode), seed)
    world.advance(SECOND)
    hooks = [world.program(f"user:{number % 2}", size=data.draw(
        st.sampled_from([SMALL, LARGE // 2]))) for number in range(4)]
    for _ in range(data.draw(st.integers(1, 12))):
        hook = data.draw(st.sampled_from(hooks))
        match data.draw(st.sampled_from([
            "limit", "suspend", "resume", "weight", "memory", "tenant", "preempt", "idle", "grow",
            "free", "restart", "wait",
        ])):
            case "limit":
                world.put(hook, compute_limit=data.draw(st.integers(1, 100)))
            case "suspend":
                world.put(hook, suspended=True)
            case "resume":
                world.put(hook, suspended=False)
            case "weight":
                world.put(hook, weight=data.draw(st.integers(1, 1000)))
            case "memory":
                world.put(hook, memory_limit=data.draw(st.integers(0, 4)) * GIB)
            case "tenant":
                world.set_terms("user:0", weight=data.draw(st.integers(1, 1000)),
                          compute_limit=data.draw(st.integers(1, 100)),
                          compute_request=data.draw(st.sampled_from([0, 30])),
                          priority=data.draw(st.sampled_from(Priority)),
                          suspended=data.draw(st.booleans()))
            case "preempt":
                world.tell(Preempted())
            case "idle":
                hook.work = 0
            case "grow":
                hook.allocate(64 * MIB)
            case "free":
                hook.free(data.draw(st.integers(0, 100)))
            case "restart":
                world.restart()
            case "wait":
                world.advance(SECOND)
        world.advance(data.draw(st.integers(0, 500)) * MILLISECOND)
    world.advance(SECOND)               # after a restart all clients have joined again
    world.set_terms("user:0")
    for hook in hooks:
        world.put(hook, suspended=False, compute_limit=20)
        hook.kernel = 10 * MILLISECOND
        hook.compute(1000 * SECOND)
    assert max(world.computed(*hooks, time=40 * WINDOW)) <= 0.2 + 0.02
    for hook in hooks:
        world.put(hook, compute_limit=data.draw(st.sampled_from([5, 50, 100])))
        hook.work = SECOND
    world.settle(600 * SECOND)
    assert [hook.work for hook in hooks] == [0] * len(hooks)
    assert not world.stuck


def put(talk: Talk, tenant: str, memory: float = 0, host: float = 0) -> None:
    terms = TenantTerms(memory_limit=int(memory * GIB), host_memory_limit=int(host * GIB))
    talk.obey(talk.tell(TenantChanged(tenant, terms)))


def last_limits(talk: Talk, client: int) -> Limits:
    return limits(talk.said, client)[-1]


def test_client_memory_limit_below_allocated_memory_refuses_further_commits() -> None:
    talk = Talk(100)
    talk.join(1)
    answer(talk, 1, 20)
    talk.changed(1, allocated=20)
    talk.obey(talk.tell(TermsChanged(1, Terms(memory_limit=15 * GIB))))
    assert (last_limits(talk, 1).total, talk.view(1).commit) == (15 * GIB, 20 * GIB)
    assert answer(talk, 1, 20.5, 2).commit == 20 * GIB
    talk.changed(1, allocated=5)
    assert answer(talk, 1, 16, 3).commit < 16 * GIB
    assert answer(talk, 1, 15, 4).commit == 15 * GIB
    talk.obey(talk.tell(TermsChanged(1, Terms())))
    assert (last_limits(talk, 1).total, answer(talk, 1, 90, 5).reason) == (100 * GIB, "")


def test_tenant_memory_limit_bounds_the_sum_over_all_clients_of_the_tenant() -> None:
    talk = Talk(100)
    put(talk, "user:alice", 10)
    for client in (1, 2):
        talk.join(client, tenants=ALICE)
    assert answer(talk, 1, 6).commit >= 6 * GIB
    talk.changed(1, allocated=6)
    refused = answer(talk, 2, 5)
    assert refused.commit < 5 * GIB
    assert refused.reason == "all programs of user:alice together are limited to 10GiB"
    # Users know the tenant by another name, which may become known late.
    talk.tell(TenantChanged("user:alice", TenantTerms(10 * GIB, shown="user:ada")))
    assert answer(talk, 2, 5, 2).reason == (
        "all programs of user:ada together are limited to 10GiB")
    assert answer(talk, 2, 4, 3).commit == 4 * GIB
    talk.join(3, tenants=("user:bob",))
    assert answer(talk, 3, 80).commit >= 80 * GIB


def test_tenant_memory_limit_is_reported_to_clients_as_the_size_of_the_card() -> None:
    talk = Talk(100)
    talk.tell(Joined(1, tenants=ALICE, terms={"user:alice": TenantTerms(memory_limit=10 * GIB)}))
    talk.memory[1] = Memory()
    talk.join(2, tenants=ALICE)
    assert (last_limits(talk, 1).total, last_limits(talk, 1).most) == (10 * GIB, 10 * GIB)
    assert last_limits(talk, 1).beyond == 0
    assert answer(talk, 1, 11).commit < 11 * GIB
    answer(talk, 1, 6, 2)
    talk.changed(1, allocated=6)
    for limit, size, most in ((10, 10, 4), (20, 20, 14), (0, 100, 100)):
        put(talk, "user:alice", limit)
        talk.wait(1)
        assert (last_limits(talk, 2).total, last_limits(talk, 2).most) == (size * GIB, most * GIB)


def test_tenant_memory_limit_below_allocated_memory_refuses_further_commits() -> None:
    talk = Talk(100)
    talk.join(1, tenants=ALICE)
    talk.join(2, tenants=ALICE)
    for client in (1, 2):
        answer(talk, client, 20)
        talk.changed(client, allocated=20)
    put(talk, "user:alice", 30)
    assert [talk.view(client).commit for client in (1, 2)] == [20 * GIB, 20 * GIB]
    refused = answer(talk, 1, 20.5, 2)
    assert refused.commit == 20 * GIB
    assert "user:alice" in refused.reason
    assert "30GiB" in refused.reason
    talk.obey(talk.changed(2, allocated=5))
    talk.obey(talk.wait(2))
    assert answer(talk, 1, 25, 3).commit == 25 * GIB
    assert answer(talk, 1, 31, 4).reason == refused.reason    # the limit holds for one client, too


def test_commit_is_bounded_by_the_tightest_memory_limit_of_all_tenant_levels() -> None:
    talk = Talk(100)
    put(talk, "user:alice", 30)
    put(talk, "pod:lab/train", 10)
    talk.join(1, tenants=POD)
    talk.join(2, tenants=ALICE)
    assert "pod:lab/train" in answer(talk, 1, 11).reason
    assert answer(talk, 1, 10, 2).commit == 10 * GIB
    talk.changed(1, allocated=10)
    assert "user:alice" in answer(talk, 2, 21).reason
    assert answer(talk, 2, 20, 2).commit == 20 * GIB


def test_tenant_host_memory_limit_bounds_the_sum_over_all_clients_of_the_tenant() -> None:
    """The limit bounds promised memory that can be evicted, not pinned memory."""
    talk = Talk(100)
    put(talk, "user:alice", host=10)
    for client in (1, 2):
        talk.join(client, tenants=ALICE)
    assert answer(talk, 1, 6).commit >= 6 * GIB
    talk.changed(1, allocated=6)
    refused = answer(talk, 2, 5)
    assert refused.commit < 5 * GIB
    assert refused.reason == (
        "all programs of user:alice together are limited to 10GiB of host memory")
    assert answer(talk, 2, 4, 2).commit == 4 * GIB
    talk.changed(2, allocated=4)
    assert answer(talk, 2, 54, 3).reason == refused.reason
    talk.obey(talk.ask(2, 4, 54, pins=50))
    assert limits(talk.said, 2)[-1].commit >= 54 * GIB
    talk.join(3, tenants=("user:bob",))
    assert answer(talk, 3, 40).commit >= 40 * GIB
    assert last_limits(talk, 1).total == 100 * GIB     # the limit does not reduce the card's size


def test_tenant_host_memory_limit_holds_for_the_sum_over_cards_and_control_groups() -> None:
    shared = Domains()
    shared.set_limit("box", 200 * GIB, "the limit of box")
    one, two = Talk(100, domains=shared), Talk(100, domains=shared)
    for talk in (one, two):
        put(talk, "user:alice", host=10)
    one.join(1, tenants=ALICE, domains=("box",))
    two.join(2, tenants=ALICE)
    assert answer(one, 1, 8).commit >= 8 * GIB
    one.changed(1, allocated=8)
    assert "10GiB of host memory" in answer(two, 2, 3).reason
    one.scheduler.belongs(1, [])
    assert "10GiB of host memory" in answer(one, 1, 11, 2).reason
    one.scheduler.belongs(1, ["box"])
    for talk in (one, two):
        put(talk, "user:alice")
    assert answer(one, 1, 90, 3).commit >= 90 * GIB
    assert [domain.name for domain in shared] == ["box"]


def test_tenant_host_memory_limit_below_swapped_memory_allows_evictions() -> None:
    talk = Talk(30)
    talk.join(1, tenants=ALICE)
    answer(talk, 1, 20)
    talk.changed(1, allocated=20)
    talk.obey(talk.want(1))
    put(talk, "user:alice", host=5)
    assert talk.view(1).commit == 20 * GIB
    assert "user:alice" in answer(talk, 1, 20.5, 2).reason
    talk.obey(talk.idle(1))
    talk.join(2, tenants=("user:bob",))
    answer(talk, 2, 30)
    talk.changed(2, allocated=30)
    talk.obey(talk.want(2))
    talk.obey(talk.stopped(1, wants=False))
    talk.obey(talk.wait(3))
    assert talk.swapped[1] == 20 * GIB  # the eviction exceeds the limit
    assert 2 in talk.granted


def test_queue_order_counts_a_chosen_clients_turn_once_for_other_clients_of_the_tenant() -> None:
    talk = Talk(mode=AntiThrash.OFF)
    for client in (1, 2, 3):
        talk.join(client, 30, tenants=("user:alice",))
    talk.join(4, 80, tenants=("user:bob",))
    talk.obey(talk.want(4))
    for client in (1, 2, 3):
        talk.obey(talk.want(client))
    talk.wait(70)                       # client 4 uses more than two turns of 30 s
    assert stops(talk.idle(4)) == [4]
    talk.set(4, allocated=35, resident=35)
    assert runs(talk.obey(talk.stopped(4))) == [1, 2, 3]
    assert talk.view(4).state is ClientState.WAITING
