# SPDX-License-Identifier: Apache-2.0
"""Groups and sums that are kept up are those that one finds by going through all clients."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvshared.scheduler import card as groups
from nvshared.scheduler import queue
from nvshared.scheduler.actions import Action
from nvshared.scheduler.client import Phase, ScheduledClient
from nvshared.scheduler.domains import Stake
from nvshared.scheduler.events import (
    Event,
    Ganged,
    Joined,
    Left,
    Memory,
    MemoryChanged,
    PinReason,
    Standing,
    TermsChanged,
    WentIdle,
)
from nvshared.scheduler.scheduler import Scheduler
from nvshared.scheduler.settings import AntiThrash, Priority, Settings, TenantTerms, Terms
from nvshared.units import MIB, SECOND
from tests.unit.scheduler_world import World

SETTINGS = Settings(
    capacity=1024 * MIB, total=1024 * MIB, host_budget=4096 * MIB, step=256 * MIB, tq=SECOND // 4,
)
# After a restart it listens until it knows what others hold.
LISTENING = replace(SETTINGS, gather=SECOND)


def check(scheduler: Scheduler) -> None:
    """Counts everything anew."""
    card = scheduler._card
    everyone = card.everyone
    for name, belongs in groups.GROUPS.items():
        assert card.groups[name] == [one for one in everyone if belongs(one)], name
        assert card.groups.size(name) == len(card.groups[name])
    for phase in Phase:
        assert card.groups[phase] == [one for one in everyone if one.phase is phase]
    figures = [groups.counted(one).figures for one in everyone]
    assert card.groups.sums == groups.Figures(*map(sum, zip(*figures, strict=True)))
    assert card.groups.sums.charged == sum(one.charged for one in everyone)
    for account in {one.account for one in everyone}:
        mine = [one for one in everyone if one.account == account]
        assert card.groups.accounts().get(account, groups.Account()) == groups.Account(
            sum(one.unshown for one in mine),
            sum(one.pinned_expected - one.pinned_shown for one in mine),
            sum(one.committed > 0 or not account for one in mine))
    has = {one.account: 0 for one in everyone}
    for one in everyone:
        has[one.account] += one.committed > 0 or not one.account
    assert card.groups.margins() == sum(
        min(has[account], groups.MARGINS_MOST) if account else has[account] for account in has)
    for domain in card.tenancies:
        mine = [one for one in everyone if domain in one.tenancies]
        assert domain.sums == Stake(
            sum(one.committed for one in mine), sum(one.committed - one.used for one in mine))
    queued = sorted(card.groups["queued"], key=lambda one: one.place)
    assert list(card.groups.queue()) == queued
    sequence = [*queue.sequence(card)]
    assert [one.priority for one in sequence] == sorted(
        (one.priority for one in sequence), reverse=True)
    assert sorted(one.id for one in sequence) == sorted(one.id for one in queued)
    assert queue.ordered(card, queued[::2]) == [one for one in sequence if one in queued[::2]]


class Counted(World):
    """In which everything is counted anew after each event."""

    def tell(self, event: Event) -> None:
        super().tell(event)
        check(self.scheduler)

    def _check_action(self, action: Action, starting: set[int]) -> None:
        """What holds for actions is tested elsewhere, for clients without terms."""


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1 << 32), data=st.data())
def test_groups_and_sums_after_random_events_equal_those_counted_anew(
    seed: int, data: st.DataObject
) -> None:
    world = Counted(
        replace(LISTENING, anti_thrash=data.draw(st.sampled_from(AntiThrash))), seed,
        accounts=data.draw(st.integers(0, 3)), jobs=data.draw(st.booleans()))
    terms = Terms()
    for _ in range(data.draw(st.integers(5, 30))):
        hooks = list(world.hooks.values())
        what = data.draw(st.sampled_from(
            ["join", "allocate", "free", "pin", "compute", "stay", "kill", "restart", "terms",
             "gang", "wait"]
        ))
        if not hooks or (what == "join" and len(hooks) < 8):
            world.join()
            continue
        hook = hooks[data.draw(st.integers(0, 7)) % len(hooks)]
        match what:
            case "allocate":
                hook.allocate(data.draw(st.integers(1, 700)) * MIB)
            case "free":
                hook.free(data.draw(st.integers(0, 9)))
            case "pin":
                hook.pin(data.draw(st.integers(1, 60)) * MIB)
            case "compute":
                hook.compute(data.draw(st.integers(1, 500)) * 1000)
            case "stay":
                hook.stay(PinReason.UNSEEN)
            case "gang":
                standing = data.draw(st.sampled_from(Standing))
                world.tell(Ganged((hook.id,), data.draw(st.integers(1, 2)), standing))
            case "kill":
                world.kill(hook)
            case "restart":
                world.restart()
            case "terms":
                terms = Terms(
                    memory_limit=data.draw(st.sampled_from([0, 512 * MIB])),
                    weight=data.draw(st.sampled_from([50, 100])),
                    suspended=data.draw(st.booleans()),
                    compute_limit=data.draw(st.sampled_from([30, 100])),
                )
                world.tell(TermsChanged(hook.id, terms))
                world.put_tenant("user:1", TenantTerms(
                    terms.memory_limit, terms.weight, terms.compute_limit,
                    priority=data.draw(st.sampled_from(Priority)),
                    compute_request=data.draw(st.sampled_from([0, 30])),
                    host_memory_limit=data.draw(st.sampled_from([0, 512 * MIB])),
                    suspended=data.draw(st.booleans()),
                ))
        world.advance(data.draw(st.integers(0, 900)) * 1000)


def test_event_of_a_client_recounts_fewer_than_ten_clients(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in time, which says little on a busy machine, but in clients that are looked at."""
    looked: list[ScheduledClient] = []
    counted = groups.counted

    def noted(client: ScheduledClient) -> groups.Counted:
        looked.append(client)
        return counted(client)

    for number in (10, 500):
        scheduler = Scheduler(replace(SETTINGS, anti_thrash=AntiThrash.ON), 0)
        memory = Memory(0, 0, 0, 0, 0, 0)
        for id in range(1, number + 1):
            scheduler.handle(Joined(id, memory, False, False, 0), id)
            scheduler.handle(MemoryChanged(id, memory, wants=True), id)
        looked.clear()
        with monkeypatch.context() as patched:
            patched.setattr(groups, "counted", noted)
            scheduler.handle(WentIdle(1, memory), number + 1)
            scheduler.handle(Left(1), number + 2)
        assert 0 < len(looked) < 10
        check(scheduler)
