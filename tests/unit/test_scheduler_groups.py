# SPDX-License-Identifier: Apache-2.0
"""Groups and sums that are kept up are those that one finds by going through all clients."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

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
    Standing,
    Stays,
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


def _wants(client: ScheduledClient) -> int:
    return max(0, client.need - client.ordered)


def _waits(client: ScheduledClient) -> bool:
    waits = client.phase is Phase.WAITING and not client.terms.suspended
    return waits and client.standing in (Standing.FREE, Standing.CLAIMS)


def _stays(client: ScheduledClient) -> bool:
    return client.phase in (Phase.LOADING, Phase.RUNNING)


def _measured(client: ScheduledClient) -> bool:
    has_turn = _waits(client) or client.turn is not None
    return client.cost is not None and has_turn and not client.settled


def _rests(client: ScheduledClient) -> bool:
    return client.phase is Phase.IDLE and not client.terms.suspended


def _unanswering(client: ScheduledClient) -> int:
    """Bytes of a client that was reported to owe an answer, less what it needs if it runs."""
    reported = bool(client.moves) and client.moves[0].reported
    if client.phase is Phase.DRAINING:
        reported = client.turn is not None and client.turn.reported
    held = client.charged - min(client.charged, client.pinned)
    needed = client.takes if client.phase is Phase.RUNNING else 0
    return max(0, held - needed) if reported else 0


def _in_phase(phase: Phase, client: ScheduledClient) -> bool:
    return client.phase is phase


BELONGS: dict[str, Callable[[ScheduledClient], object]] = {
    "queued": _waits,
    "holding": lambda client: client.turn is not None,
    "moving": lambda client: client.moves,
    "speculating": lambda client: any(move.goal for move in client.moves),
    "asking": lambda client: client.question,
    "lent": lambda client: client.committed > client.need,
    "pinning": lambda client: client.pins,
    "bounded": lambda client: client.terms.memory_limit,
    "staying": lambda client: client.memory.stays,
    "keeping": lambda client: client.memory.stays is Stays.KEPT,
    "excessive": lambda client: client.memory.stays and (
        client.granted > client.need
        or client.commit > max(client.used, client.need + client.to_pin)
    ),
    "entering": lambda client: _waits(client) and client.turn is None and client.settled,
    "settled": lambda client: client.turn is not None and client.settled,
    "suspended": lambda client: client.terms.suspended,
    "ganged": lambda client: client.standing,
    "granted": lambda client: (
        client.phase is Phase.WAITING and not client.terms.suspended
        and client.standing is Standing.GRANTED),
    "rationed": lambda client: client.rationed,
    "lacking": lambda client: _stays(client) and (_wants(client) or not client.whole),
    "occupying": lambda client: client.charged,
    "measured": lambda client: _measured(client),
    "background": lambda client: (
        client.priority is Priority.BACKGROUND and client.turn is not None),
    "urgent": lambda client: (
        client.priority is not Priority.BACKGROUND
        and (client.turn is not None or client.whole)),
} | {phase.value: partial(_in_phase, phase) for phase in Phase}

FIGURES: dict[str, Callable[[ScheduledClient], int]] = {
    "charged": lambda client: client.charged,
    "host_charged": lambda client: client.host_counted,
    "committed": lambda client: client.committed,
    "used": lambda client: client.used,
    "pinned": lambda client: client.pinned,
    "fixed": lambda client: client.fixed,
    "beyond": lambda client: client.memory.beyond - client.overclaims.beyond,
    "unshown": lambda client: client.unshown if client.account else 0,
    "staying_take": lambda client: client.takes if _stays(client) else 0,
    "holders_take": lambda client: client.takes if client.turn is not None else 0,
    "queued_want": lambda client: _wants(client) if _waits(client) else 0,
    "cost": lambda client: client.cost or 0 if _measured(client) else 0,
    "need": lambda client: client.need,
    "filled": lambda client: client.memory.filled - client.overclaims.filled,
    "out_of_reach": lambda client: _unanswering(client),
    "presaved": lambda client: min(client.presaved, client.staying) if _rests(client) else 0,
}


def check(scheduler: Scheduler) -> None:
    """Counts everything anew."""
    card = scheduler._card
    everyone = card.everyone
    assert {*BELONGS} == {*groups.GROUPS}
    assert {*FIGURES} == {*groups.SUMS}
    for name, belongs in BELONGS.items():
        assert card.groups.group(name) == [one for one in everyone if belongs(one)], name
        assert card.groups.size(name) == len(card.groups.group(name))
    for name, figure in FIGURES.items():
        assert card.groups.total(name) == sum(map(figure, everyone)), name
    for account in {one.account for one in everyone}:
        mine = [one for one in everyone if one.account == account]
        assert card.groups.accounts().get(account, groups.Account()) == groups.Account(
            sum(one.unshown for one in mine), sum(one.pinning for one in mine),
            sum(one.committed > 0 or not account for one in mine))
    has = {one.account: 0 for one in everyone}
    for one in everyone:
        has[one.account] += one.committed > 0 or not one.account
    assert card.groups.margins() == sum(
        min(has[account], groups.HEADS) if account else has[account] for account in has)
    for domain in card.tenancies:
        mine = [one for one in everyone if domain in one.tenancies]
        assert domain.sums == Stake(
            sum(one.committed for one in mine), sum(one.committed - one.used for one in mine))
    queued = sorted(card.waiting, key=lambda one: one.place)
    assert list(card.groups.queue()) == queued
    lacks = [(one.memory.allocated - one.memory.resident, one) for one in everyone]
    away = [(lack, one.id) for lack, one in lacks if _rests(one) and lack > 0]
    assert card.groups.most_away() == max(away, default=(0, 0))
    sequence = [*queue.sequence(card)]
    assert [one.priority for one in sequence] == sorted(
        (one.priority for one in sequence), reverse=True)
    assert sorted(one.id for one in sequence) == sorted(one.id for one in queued)
    assert queue.ordered(card, queued[::2]) == [one for one in sequence if one in queued[::2]]
    assert card.groups.least_take() == min((one.takes for one in queued), default=0)


class Counted(World):
    """In which everything is counted anew after each event."""

    def tell(self, event: Event) -> None:
        super().tell(event)
        check(self.scheduler)

    def _check_action(self, action: Action, starting: set[int]) -> None:
        """What holds for actions is tested elsewhere, for clients without terms."""


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1 << 32), data=st.data())
def test_groups_and_sums_are_always_right(seed: int, data: st.DataObject) -> None:
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
                hook.stay(Stays.UNSEEN)
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
                    host_limit=data.draw(st.sampled_from([0, 512 * MIB])),
                    suspended=data.draw(st.booleans()),
                ))
        world.advance(data.draw(st.integers(0, 900)) * 1000)


def test_an_event_costs_the_same_however_many_there_are(
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
