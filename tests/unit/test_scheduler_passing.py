# SPDX-License-Identifier: Apache-2.0
"""Whose memory goes to whom without being freed, and what becomes of that which nobody wants."""

import os
import subprocess
from dataclasses import replace
from random import Random

import pytest

from nvshared.machine.peer import describe
from nvshared.machine.tenant import Kind, Tenant, fellows
from nvshared.scheduler.actions import Evict, Load
from nvshared.scheduler.client import ScheduledClient
from nvshared.scheduler.events import (
    Evicted,
    Evidence,
    GPULost,
    Joined,
    Left,
    Memory,
    Seen,
    SettingsChanged,
    TermsChanged,
    Tick,
)
from nvshared.scheduler.settings import Settings, Terms
from nvshared.units import GIB, MILLISECOND, SECOND
from tests.seeds import seeds
from tests.unit.scheduler_talk import Talk
from tests.unit.scheduler_world import World

TQ = 30


class Passing(Talk):
    """Clients of 80 GiB of a card of 100; blocks of 1 GiB."""

    def __init__(self, *fellows: str, pass_from: int = 1) -> None:
        super().__init__(100, step=10)
        self.tell(SettingsChanged(replace(self.settings, pass_from=pass_from)))
        self.ids = iter(range(1, 1000))
        for client, name in enumerate(fellows, 1):
            self.memory[client] = Memory(allocated=80 * GIB)
            self.tell(Joined(client, self.memory[client], fellows=name))
            self.obey(self.want(client))

    def passes(self, order: Evict) -> list[Load]:
        """All that leaves for it is passed on. What is loaded then."""
        assert order.passes
        memory = self.memory[order.client]
        size = memory.filled - order.room
        self.memory[order.client] = memory = replace(
            memory, resident=memory.resident - size, room=order.room, host=memory.host + size)
        parcels = tuple((next(self.ids), GIB) for _ in range(size // GIB))
        actions = self.tell(Evicted(order.client, memory, order.number, size, passed=parcels))
        return [one for one in actions if isinstance(one, Load)]

    def first_evict(self, client: int) -> Evict:
        """Of those that follow when its turn has ended."""
        self.wait(TQ)
        orders = self.stopped(client)
        return next(one for one in orders if isinstance(one, Evict))


def test_what_one_gives_up_goes_to_its_fellow() -> None:
    talk = Passing("a", "a")
    (load,) = talk.passes(talk.first_evict(1))
    assert load.client == 2
    assert (load.passed, len(load.parcels)) == (GIB, 10)
    assert not talk.scheduler.parcels


@pytest.mark.parametrize(("one", "other"), [("a", "b"), ("", ""), ("a", "")])
def test_nothing_goes_to_others(one: str, other: str) -> None:
    assert not Passing(one, other).first_evict(1).passes


def test_it_is_off_if_nobody_has_switched_it_on() -> None:
    assert not Passing("a", "a", pass_from=0).first_evict(1).passes


def test_what_nobody_claims_is_let_go_within_a_second() -> None:
    talk = Passing("a", "a")
    order = talk.first_evict(1)
    talk.tell(Left(2))
    assert not talk.passes(order)
    assert len(talk.scheduler.parcels) == 10
    deadline = talk.scheduler.deadline()
    assert deadline is not None
    assert deadline <= talk.now + SECOND
    talk.now = deadline
    talk.tell(Tick())
    assert not talk.scheduler.parcels


def test_what_lies_in_room_that_others_have_is_let_go() -> None:
    talk = Passing("a", "a")
    order = talk.first_evict(1)
    talk.tell(Left(2))
    talk.passes(order)
    assert len(talk.scheduler.parcels) == 10
    talk.join(3, 27, 27)
    assert len(talk.scheduler.parcels) == 3


def test_more_than_was_given_back_is_not_kept() -> None:
    talk = Passing("a", "a")
    order = talk.first_evict(1)
    memory = talk.memory[1]                 # all of it still fills its room
    talk.tell(Evicted(1, memory, order.number, 0, passed=((1, 50 * GIB),)))
    assert not talk.scheduler.parcels


def test_who_is_suspended_neither_gives_nor_takes() -> None:
    talk = Passing("a", "a")
    order = talk.first_evict(1)
    talk.tell(TermsChanged(1, Terms(suspended=True)))
    assert not any(load.parcels for load in talk.passes(order))
    talk = Passing("a", "a")
    order = talk.first_evict(1)
    talk.tell(TermsChanged(2, Terms(suspended=True)))
    assert not any(load.parcels for load in talk.passes(order))


def test_what_was_meant_for_one_who_has_left_goes_to_no_stranger() -> None:
    talk = Passing("a", "a", "b")
    order = talk.first_evict(1)
    talk.tell(Left(2))
    loads = talk.passes(order)
    assert [load.client for load in loads] == [3]
    assert not loads[0].parcels


def test_a_lost_card_has_none() -> None:
    talk = Passing("a", "a")
    order = talk.first_evict(1)
    talk.tell(Left(2))
    talk.passes(order)
    assert talk.scheduler.parcels
    talk.tell(GPULost())
    assert not talk.scheduler.parcels


def alike(kind: Kind, name: str, uid: int = 1000, *, contained: bool = False) -> str:
    return fellows(Tenant(kind, name), uid, contained=contained)


def test_who_may_see_whose_memory() -> None:
    at_home = alike(Kind.USER, "ann")
    assert at_home == alike(Kind.UNIT, "ann/jupyter.service") == alike(Kind.JOB, "12")
    different = [
        at_home, alike(Kind.USER, "bob", 1001), alike(Kind.CONTAINER, "ann/c0"),
        alike(Kind.CONTAINER, "c0"), alike(Kind.UNIT, "web.service"), alike(Kind.POD, "0f"),
        alike(Kind.POD, "0f", 0), alike(Kind.POD, "1f"),
    ]
    assert len(set(different)) == len(different)
    assert alike(Kind.POD, "0f") == alike(Kind.POD, "0f", contained=True)
    assert alike(Kind.USER, "ann", contained=True) == ""    # in something that has no name


def test_a_process_of_its_own_namespace_is_alone() -> None:
    me = describe(os.getpid(), os.getuid(), os.getuid())
    assert me.fellows == describe(os.getppid(), os.getuid(), os.getuid()).fellows != ""
    apart = ["unshare", "--user", "--map-root-user", "sh", "-c", "echo; read end"]
    with subprocess.Popen(apart, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL) as child:
        if child.stdout is not None and child.stdout.readline():
            assert describe(child.pid, os.getuid(), os.getuid()).fellows == ""


@pytest.mark.parametrize("seed", seeds(1, 3))
def test_it_lies_in_room_that_is_free_whatever_comes(seed: int) -> None:
    random = Random(seed)
    capacity = 4 * GIB
    world = World(Settings(
        capacity=capacity, total=capacity, host_budget=8 * capacity, step=GIB // 4, tq=SECOND // 10,
        pass_from=1), seed, delay=50 * MILLISECOND)
    for _ in range(5):
        world.join().allocate(random.randrange(capacity // 3, capacity * 3 // 4))
    for _ in range(60):
        random.choice(list(world.hooks.values())).compute(SECOND // 2)
        world.advance(random.randrange(SECOND))
    assert world.passed


def seen(talk: Talk, client: int, card: int) -> None:
    """The driver shows so much of a client, for long enough."""
    filled = talk.scheduler.memory(client).filled
    for _ in range(2):
        talk.tell(Seen({client: Evidence(card, 0)}, {client: filled}))


def comes_back(
    imported: int, *, fellows: str = "a", after: float = 0
) -> tuple[Talk, ScheduledClient]:
    """One to a daemon that was started anew, with 40 GiB of which the driver shows nothing."""
    talk = Talk(gather=1)
    talk.wait(after)
    talk.memory[1] = memory = Memory(allocated=40 * GIB, resident=40 * GIB, room=40 * GIB)
    talk.tell(Joined(
        1, memory, commit=40 * GIB, account="user:1", evidence=Evidence(0, 0), fellows=fellows,
        imported=imported))
    seen(talk, 1, 0)
    return talk, talk.scheduler._card.clients[1]


def test_one_that_has_others_memory_is_believed_after_a_restart_as_before() -> None:
    _, client = comes_back(40 * GIB)
    assert client.charged == client.shown == 40 * GIB
    assert not client.unshown
    _, client = comes_back(30 * GIB)
    assert client.charged == client.shown == 30 * GIB


def test_who_can_have_been_given_nothing_is_not_believed() -> None:
    for _, client in (comes_back(40 * GIB, fellows=""), comes_back(40 * GIB, after=2)):
        assert client.charged == client.shown == 0


def test_what_was_given_is_shown_to_whom_it_matters() -> None:
    """Its account would run out of what is not shown, and it could get no more."""
    talk = Passing("a", "a")
    (load,) = talk.passes(talk.first_evict(1))
    client = talk.scheduler._card.clients[2]
    client.evidence = Evidence(client.memory.filled, 0)
    talk.loaded(load)
    assert client.shown == client.memory.filled > (client.evidence.card or 0)


@pytest.mark.parametrize("seed", seeds(1, 2))
def test_nobody_is_taken_for_a_liar_whatever_comes(seed: int) -> None:
    """Drivers show what was passed on with its maker, and a daemon is killed now and then."""
    random = Random(seed)
    capacity = 4 * GIB
    world = World(Settings(
        capacity=capacity, total=capacity, host_budget=8 * capacity, step=GIB // 4, tq=SECOND // 10,
        pass_from=1, gather=SECOND), seed, delay=MILLISECOND, accounts=2)
    for _ in range(5):
        world.join().allocate(random.randrange(capacity // 3, capacity * 3 // 4))
    for step in range(12):
        for hook in world.hooks.values():
            hook.compute(SECOND // 2)
        world.advance(random.randrange(SECOND))
        if step % 4 == 3:
            world.restart()
            world.advance(2 * SECOND)
    world.settle(600 * SECOND)
    world.advance(SECOND)
    assert world.passed
    for hook in world.hooks.values():
        client = world.scheduler._card.clients[hook.id]
        assert client.charged >= hook.filled
        assert not client.doubts.filled
