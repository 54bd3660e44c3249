# SPDX-License-Identifier: Apache-2.0
"""Where programs take turns, high goes first, and the background has what nobody else wants."""

from dataclasses import replace

import pytest

from nvshared.scheduler.actions import Action, Heed, Tell, TurnEnd
from nvshared.scheduler.events import TenantChanged
from nvshared.scheduler.quantum import LEAST
from nvshared.scheduler.settings import AntiThrash, Priority, Settings, TenantTerms
from nvshared.units import MIB, SECOND
from tests.unit.scheduler_talk import Talk, runs, stops
from tests.unit.test_scheduler_fairness import SETTINGS, Users

MOVING = replace(SETTINGS, anti_thrash=AntiThrash.AUTO, step=256 * MIB)
MODES = pytest.mark.parametrize(("settings", "size"), [(SETTINGS, 32 * MIB), (MOVING, 2600 * MIB)])


class Ranks(Users):
    """Tenants of several priorities."""

    def rank(self, tenant: str, priority: Priority, weight: int = 100) -> None:
        self.tell(TenantChanged(tenant, TenantTerms(priority=priority, weight=weight)))

    def computed(self, seconds: int) -> list[float]:
        """The part of the time from now on that the kernels of each program run."""
        before = {id: hook.computed for id, hook in self.hooks.items()}
        self.advance(seconds * SECOND)
        return [
            (hook.computed - before[id]) / (seconds * SECOND) for id, hook in self.hooks.items()]


class Ranked(Talk):
    """The same in a conversation; all have 60 GiB of a card of 100."""

    def rank(self, tenant: str, priority: Priority) -> list[Action]:
        return self.obey(self.tell(TenantChanged(tenant, TenantTerms(priority=priority))))

    def come(self, client: int, tenant: str, size: float = 60) -> list[Action]:
        self.join(client, size, tenants=(tenant,))
        return self.obey(self.want(client))


@MODES
def test_the_background_has_nothing_while_others_are_busy(settings: Settings, size: int) -> None:
    world = Ranks(settings)
    world.rank("user:alice", Priority.BACKGROUND, weight=1000)
    world.program("user:alice", size=size)
    others = [world.program(f"user:{number}", size=size, work=12 * SECOND) for number in range(2)]
    world.advance(3 * SECOND)
    first, *rest = world.computed(10)
    assert first == 0
    assert rest == pytest.approx([0.5, 0.5], abs=0.15)
    for _ in range(100):
        if not any(hook.work for hook in others):
            break
        world.advance(SECOND)
    world.advance(SECOND)
    assert world.computed(10) == pytest.approx([1, 0, 0], abs=0.01)


@MODES
def test_high_goes_before_all_others_who_wait(settings: Settings, size: int) -> None:
    world = Ranks(settings)
    world.rank("user:alice", Priority.HIGH)
    for number in range(3):
        world.program(f"user:{number}", size=size)
    world.advance(5 * SECOND)
    for _ in range(3):
        hook = world.program("user:alice", size=size, work=SECOND // 5)
        before = len(world.turns)
        while hook.work:
            assert world.step()
        assert world.turns[before:].index(hook.id) <= 1     # one was chosen already, perhaps
        world.kill(hook)


def test_the_background_is_asked_to_leave_at_once() -> None:
    talk = Ranked(100)
    talk.rank("user:alice", Priority.BACKGROUND)
    assert runs(talk.come(1, "user:alice")) == [1]
    talk.wait(1)
    assert stops(talk.come(2, "user:bob")) == [1]
    talk.obey(talk.stopped(1))
    assert talk.view(2).turns == 1
    talk.wait(60)                       # and then it waits, however long that is
    assert talk.view(1).turns == 1
    assert stops(talk.idle(2)) == [2]
    assert runs(talk.obey(talk.stopped(2, wants=False))) == [1]
    assert stops(talk.obey(talk.want(2))) == []
    assert stops(talk.wait(LEAST / SECOND)) == [1]  # its turn lasts as long as the shortest


def test_one_that_is_still_coming_in_goes_back_at_once() -> None:
    talk = Ranked(100)
    talk.rank("user:alice", Priority.BACKGROUND)
    talk.come(1, "user:carol")
    talk.idle(1)
    talk.join(2, 60, tenants=("user:alice",))
    talk.want(2)
    talk.stopped(1, wants=False)        # and nothing of it has left yet
    assert talk.view(2).state == "loading"
    talk.join(3, 60, tenants=("user:bob",))
    talk.obey(talk.want(3))
    assert talk.view(2).state == "waiting"


def test_high_does_not_end_the_turn_of_who_is_in_no_background() -> None:
    talk = Ranked(100)
    talk.rank("user:alice", Priority.HIGH)
    talk.come(1, "user:bob")
    talk.come(2, "user:carol")
    talk.wait(1)
    assert stops(talk.come(3, "user:alice")) == []
    assert stops(talk.wait(29)) == [1]
    assert runs(talk.obey(talk.stopped(1))) == [3]


def test_the_background_does_not_overtake_who_waits_for_room() -> None:
    talk = Ranked(100)
    talk.rank("user:alice", Priority.BACKGROUND)
    talk.come(1, "user:bob")
    talk.come(2, "user:carol")
    assert runs(talk.come(3, "user:alice", 10)) == []
    assert 4 in runs(talk.come(4, "user:dave", 10))     # others do


def test_what_fits_runs_together_whatever_the_priorities() -> None:
    talk = Ranked(200)
    talk.rank("user:alice", Priority.BACKGROUND)
    talk.rank("user:bob", Priority.HIGH)
    for client, tenant in ((1, "user:alice"), (2, "user:bob"), (3, "user:carol")):
        assert client in runs(talk.come(client, tenant))


def told(orders: list[Action]) -> list[tuple[int, ...]]:
    """Who is to tell (1) or not (0), and who is to heed whom or not."""
    return [
        (order.client, order.on) if isinstance(order, Tell)
        else (order.client, order.whom, order.on)
        for order in orders if isinstance(order, Tell | Heed)]


def test_the_background_heeds_all_others_while_it_holds_the_card_with_them() -> None:
    talk = Ranked(200)
    talk.rank("user:alice", Priority.BACKGROUND)
    assert told(talk.come(1, "user:bob")) == []
    assert told(talk.come(2, "user:alice")) == [(1, True), (2, 1, True)]
    assert told(talk.join(3, 0, tenants=("user:carol",))) == [(3, True), (2, 3, True)]
    assert told(talk.join(4, 0, tenants=("user:alice",))) == []     # it holds nothing yet
    assert told(talk.leave(3)) == [(2, 3, False)]
    assert told(talk.rank("user:alice", Priority.NORMAL)) == [(2, 1, False), (1, False)]
    assert told(talk.rank("user:bob", Priority.BACKGROUND)) == [(2, True), (4, True),
                                                               (1, 2, True), (1, 4, True)]
    assert told(talk.leave(1)) == [(2, False), (4, False)]


def test_who_has_to_wait_for_memory_is_not_heeded() -> None:
    talk = Ranked(100)
    talk.rank("user:alice", Priority.BACKGROUND)
    assert told(talk.come(1, "user:alice")) == []
    talk.wait(1)
    assert told(talk.come(2, "user:bob")) == []


def test_it_is_the_background_if_any_of_its_tenants_is_and_changes_live() -> None:
    world = Ranks()
    world.rank("user:alice", Priority.HIGH)
    world.rank("job:1", Priority.BACKGROUND)
    behind = world.program("user:alice", "job:1")
    ahead = world.program("user:alice", "job:2")
    world.program("user:bob")
    for tenants, priority in ((behind, Priority.BACKGROUND), (ahead, Priority.HIGH)):
        assert world.scheduler._card.clients[tenants.id].priority is priority
    world.advance(5 * SECOND)
    assert world.computed(10) == pytest.approx([0, 1, 0], abs=0.01)
    world.rank("user:alice", Priority.NORMAL)
    world.advance(5 * SECOND)
    assert world.shares(20) == pytest.approx({"job:2": 0.5, "job:1": 0, "user:bob": 0.5}, abs=0.03)
    world.rank("job:1", Priority.NORMAL)
    world.advance(5 * SECOND)
    assert world.shares(20)["job:1"] == pytest.approx(0.25, abs=0.03)


def test_a_weight_counts_among_those_of_one_priority() -> None:
    world = Ranks()
    world.rank("user:alice", Priority.BACKGROUND, weight=300)
    world.rank("user:bob", Priority.BACKGROUND)
    for tenant in ("user:alice", "user:bob"):
        world.program(tenant)
    world.advance(5 * SECOND)
    assert world.shares(40)["user:alice"] == pytest.approx(0.75, abs=0.03)


def test_a_turn_that_ends_for_another_is_shown_as_one_that_was_over() -> None:
    world = Ranks()
    world.rank("user:alice", Priority.BACKGROUND)
    world.program("user:alice")
    world.advance(5 * SECOND)
    world.program("user:bob")
    world.advance(SECOND)
    assert [end.reason for end in world.ends] == [TurnEnd.QUANTUM]
