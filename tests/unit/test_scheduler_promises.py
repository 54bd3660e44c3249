# SPDX-License-Identifier: Apache-2.0
"""Grants of commit: sizes, control groups, and which figures of clients count."""

import sys
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from nvshared.scheduler import Scheduler, promises
from nvshared.scheduler.actions import Action, Evict, Limits, Load, MoveOrder, Run, Stop, Writeback
from nvshared.scheduler.domains import Domains
from nvshared.scheduler.events import (
    CardLost,
    CommitAsked,
    Event,
    Evicted,
    Evidence,
    Joined,
    Left,
    Loaded,
    Memory,
    MemoryChanged,
    PinReason,
    Reopened,
    Seen,
    Settings,
    Stopped,
    Terms,
    TermsChanged,
    Tick,
    WrittenBack,
)
from nvshared.scheduler.promises import ALL_PROMISED
from nvshared.units import GIB, MIB, MILLISECOND, SECOND
from tests.seeds import seeds
from tests.unit.scheduler_talk import Talk, answer, limits, runs, stops

BOX = ("box",)
CARD, HOST = 8 * GIB, 32 * GIB
SETTINGS = Settings(capacity=CARD, total=CARD, host_budget=HOST, tq=SECOND)
LIARS, HONEST = "user:1000", "user:1001"
NOTHING = Evidence(0, 0)
ONE = 10_000                            # id of the client that reports true figures


def granted(talk: Talk, client: int, size: float, number: int = 1, pins: float = 0) -> bool | None:
    """Whether a COMMIT is granted; None: not answered yet."""
    for told in limits(talk.ask(client, number, size, pins), client):
        if told.number == number:
            return told.granted
    return None


def one_has_half() -> Talk:
    """Two clients on a card of 100 GiB with 10 GiB of host memory; the first has 50 GiB."""
    talk = Talk(100, host=10)
    talk.join(1)
    talk.join(2)
    talk.ask(1, 1, 50)
    talk.changed(1, allocated=50)
    return talk


def test_commit_grant_exceeds_the_request_and_commit_beyond_the_card_is_refused() -> None:
    talk = Talk()
    talk.join(1)
    answer, = limits(talk.ask(1, 1, 50), 1)
    assert 64 * MIB <= answer.commit - 50 * GIB <= GIB
    assert granted(talk, 1, 100, 2)
    assert granted(talk, 1, 100.1, 3) is False


def test_pin_request_is_refused_if_another_client_would_not_fit_beside_the_pinned_memory() -> None:
    talk = Talk()
    talk.join(1, 90)
    talk.join(2, 20)
    assert granted(talk, 2, 31, pins=11) is False
    assert granted(talk, 2, 20.5, 2, pins=11) is False  # 11 of the client's 20 GiB would be pinned
    assert granted(talk, 2, 29, 3, pins=9)
    # A granted pin counts before the memory is pinned.
    assert granted(talk, 2, 31, 4, pins=2) is False
    assert granted(talk, 1, 92) is False
    assert granted(talk, 1, 91, 2)
    talk.wait(61)                       # a grant to pin expires unused
    assert granted(talk, 2, 22, 5, pins=2)


def test_grant_to_pin_counts_as_pinned_until_the_hook_reports_the_outcome() -> None:
    talk = Talk()
    talk.join(1, 90)
    talk.join(2, 2)
    assert granted(talk, 2, 4, 1, pins=2)
    assert granted(talk, 2, 6, 2, pins=4)
    talk.changed(2, answered=1, to_pin=2)               # the hook has not received the second grant
    assert granted(talk, 2, 7, 3, pins=5) is False
    talk.changed(2, answered=3, to_pin=6)
    assert granted(talk, 2, 7, 4, pins=5) is False
    talk.changed(2, pinned=2, answered=4, to_pin=4)     # pinned and to_pin add up to the same
    assert granted(talk, 2, 7, 5, pins=5) is False
    talk.changed(2, pinned=2, answered=5, to_pin=0)     # refused by the driver, or freed
    assert granted(talk, 2, 9, 6, pins=5)


def test_commit_request_is_dropped_when_a_later_request_has_been_answered() -> None:
    """Requests for memory beyond the card are answered at once; an earlier one is repeated."""
    talk = one_has_half()
    probe = next(a for a in talk.ask(2, 1, 59) if isinstance(a, Evict) and a.client == 1)
    talk.beyond(2, 2, 0)
    talk.changed(2, answered=2)
    assert [a.number for a in limits(talk.evicted(probe), 2) if a.number] == []


@pytest.mark.parametrize(("wanted", "reason"), [(60, ALL_PROMISED), (101, "")])
def test_commit_is_refused_with_a_reason_only_if_the_card_alone_had_room(
        wanted: int, reason: str) -> None:
    """Programs try how much they can get: beyond the card that is what they expect."""
    talk = one_has_half()
    talk.ask(2, 1, wanted)
    talk.wait(10)                       # the wait for unused commit of others ends
    (refused,) = [one for one in limits(talk.ask(2, 2, wanted), 2) if one.number == 2]
    assert (refused.granted, refused.reason) == (False, reason)


@pytest.mark.parametrize(("used", "is_granted"), [(50, True), (50.5, False), (None, False)])
def test_commit_request_is_granted_only_after_another_client_returns_unused_commit(
        used: float | None, is_granted: bool) -> None:
    """`used`: GiB that client 1 has allocated when it replies to the reclaim; None: no reply."""
    talk = one_has_half()
    assert talk.view(1).commit > 50 * GIB
    wanted = 110 - 1 - 50               # GiB, less the margin
    actions = talk.ask(2, 1, wanted)
    assert [a.number for a in limits(actions, 2)] == []
    smaller = limits(actions, 1)[-1]
    assert (smaller.number, smaller.commit) == (0, 50 * GIB)
    probe = next(a for a in actions if isinstance(a, Evict) and a.client == 1)
    if used is None:
        actions = talk.wait(10)
    else:
        actions = talk.tell(Evicted(1, talk.set(1, allocated=used), probe.number, 0))
    answer, = (a for a in limits(actions, 2) if a.number == 1)
    assert (answer.commit >= wanted * GIB) is is_granted


@pytest.mark.parametrize("uses", [True, False])
def test_new_commit_grant_is_reclaimed_only_after_a_second_without_use(uses: bool) -> None:
    talk = Talk(100, host=0)
    talk.join(1)
    talk.join(2)
    talk.ask(1, 1, 60)                  # the thread has not allocated yet
    assert not [a for a in limits(talk.obey(talk.ask(2, 1, 60)), 2) if a.number]
    assert talk.view(1).commit >= 60 * GIB
    actions = talk.changed(1, allocated=60) if uses else talk.obey(talk.wait(1))
    assert (talk.view(1).commit > 0) is uses
    answer, = (a for a in limits(actions, 2) if a.number)
    assert (answer.commit >= 60 * GIB) is not uses


def test_waiting_commit_requests_are_decided_at_once_after_a_pin_grant_to_another_user() -> None:
    talk = Talk(100, host=0)
    talk.join(1, 2, 2, commit=12, account="user:1")
    talk.join(2, account="user:1")
    talk.join(3, account="user:2")
    assert granted(talk, 2, 98) is None     # the unused commit of client 1 is reclaimed first
    answers = talk.ask(3, 1, 4, pins=4)
    assert [one.commit for one in limits(answers, 3)] == [4 * GIB]
    refused, = (one for one in limits(answers, 2) if one.number == 1)
    assert refused.commit < 98 * GIB        # would not fit beside the memory pinned by client 3


def may_hold_beyond(talk: Talk, client: int, size: float, number: int = 1) -> bool:
    """Whether the request is granted; a refused client has released the memory."""
    answer, = (one for one in limits(talk.beyond(client, number, size), client)
               if one.number == number)
    if answer.beyond < int(size * GIB):
        talk.changed(client, beyond=0)
    return answer.beyond >= int(size * GIB)


def test_host_memory_promised_to_an_allocation_beyond_the_card_is_not_promised_to_commits() -> None:
    talk = Talk(capacity=100, host=64)          # 4 of the 64 GiB are the margin
    talk.join(1, 100)
    assert may_hold_beyond(talk, 1, 59)
    assert not may_hold_beyond(talk, 1, 61, 2)
    talk.join(2, 30)
    assert may_hold_beyond(talk, 1, 29, 3)
    assert not may_hold_beyond(talk, 1, 31, 4)
    assert may_hold_beyond(talk, 1, 20, 5)
    assert talk.scheduler.snapshot().budgets["host"].free == 44 * GIB
    assert answer(talk, 2, 41).commit < 41 * GIB
    talk.changed(1, beyond=0)
    assert talk.scheduler.snapshot().budgets["host"].free == 64 * GIB
    assert answer(talk, 2, 41, 2).commit >= 41 * GIB


def test_client_with_a_memory_limit_may_not_oversubscribe_the_card() -> None:
    talk = Talk(capacity=100, host=64)
    talk.join(1, 10)
    talk.tell(TermsChanged(1, Terms(memory_limit=20 * GIB)))
    assert not may_hold_beyond(talk, 1, 1)
    talk.tell(TermsChanged(1, Terms()))
    assert may_hold_beyond(talk, 1, 1)


def domains(**capacities: float) -> Domains:
    made = Domains()
    for name, size in capacities.items():
        made.set_limit(name, int(size * GIB), f"the limit of {name}")
    return made


def test_control_group_memory_limit_does_not_bound_pinned_memory() -> None:
    talk = Talk(100, domains=domains(box=16))
    talk.join(1, domains=BOX)
    assert answer(talk, 1, 40, pins=40).commit >= 40 * GIB
    talk.changed(1, pinned=40, answered=1)
    assert answer(talk, 1, 55, 2).commit == 55 * GIB
    assert answer(talk, 1, 56, 3).reason


def test_control_group_memory_limit_reclaims_the_commit_of_freed_pinned_memory() -> None:
    talk = Talk(100, domains=domains(box=16))
    talk.join(1, domains=BOX)
    assert answer(talk, 1, 40, pins=40).commit >= 40 * GIB
    talk.changed(1, pinned=40, answered=1)
    talk.wait(2)
    actions = talk.changed(1, pinned=0)
    assert {one.commit for one in limits(actions, 1)} == {0}


def test_unused_commit_is_reclaimed_for_another_client_of_a_full_control_group() -> None:
    talk = Talk(100, domains=domains(box=32))
    for client in (1, 2):
        talk.join(client, domains=BOX)
    talk.changed(1)
    assert talk.view(1).commit > 0      # granted without a request
    assert answer(talk, 2, 30).commit == 30 * GIB
    talk.changed(2, allocated=30)
    assert answer(talk, 1, 1).reason == "the limit of box"


def test_commit_is_bounded_by_the_tightest_memory_limit_of_nested_control_groups() -> None:
    levels = domains(pod=64, one=16, two=60)
    talk = Talk(100, domains=levels)
    talk.join(1, domains=("one", "pod"))
    talk.join(2, domains=("two", "pod"))
    assert answer(talk, 1, 16).reason == "the limit of one"
    assert answer(talk, 1, 14, 2).commit >= 14 * GIB
    talk.changed(1, allocated=14)
    assert answer(talk, 2, 50).reason == "the limit of pod"
    assert answer(talk, 2, 46, 2).commit == 46 * GIB


@pytest.mark.parametrize(("account", "others", "reason"), [
    ("", True, ALL_PROMISED), ("user:1000", True, ALL_PROMISED),
    # The account may not have all that is left: more host memory is not what it lacks.
    ("user:1000", False, "")])
def test_allocation_too_large_for_the_card_is_refused_for_host_memory_only_if_that_is_promised(
        account: str, others: bool, reason: str) -> None:
    talk = Talk(100, host=200)
    talk.join(1, account=account)
    talk.join(2, account="user:1001")
    talk.join(3)
    if others:
        assert may_hold_beyond(talk, 3, 100)
        talk.ask(3, 2, 100)
        talk.changed(3, allocated=100, beyond=100, answered=2)
    (refused,) = [one for one in limits(talk.beyond(1, 1, 150), 1) if one.number]
    assert (refused.granted, refused.reason) == (False, reason)


@pytest.mark.parametrize("account", ["", "user:1000"])
def test_control_group_memory_limit_bounds_allocations_too_large_for_the_card(
        account: str) -> None:
    talk = Talk(100, domains=domains(box=16))
    first, *_ = talk.join(1, domains=BOX, account=account)
    assert isinstance(first, Limits)
    assert 0 < first.beyond <= 15 * GIB
    refused, = (one for one in limits(talk.beyond(1, 1, 20), 1) if one.number)
    assert refused.beyond < 20 * GIB
    assert refused.reason == "the limit of box"


def test_control_group_memory_limit_bounds_the_bytes_evicted_from_a_client() -> None:
    shared = domains(box=64)
    talk = Talk(100, domains=shared)
    talk.run(1, 60, BOX)
    shared.set_limit("box", 20 * GIB)      # other processes use the rest of the group
    talk.join(2, 70)
    actions = talk.obey(talk.want(2))
    # Client 2 does not fit beside memory that cannot be evicted, so no holder is stopped.
    assert not stops(actions)
    assert not talk.view(2).fits
    assert talk.view(1).fits
    assert talk.view(1).memory.resident == 60 * GIB
    talk.join(4)
    assert answer(talk, 4, 61).commit < 61 * GIB
    talk.leave(4)
    talk.join(3, 60)
    actions = talk.obey(talk.want(3))   # client 3 gets the card
    talk.idle(1)
    assert talk.view(1).state == "draining"
    actions += talk.obey(talk.stopped(1, wants=False))
    assert runs(actions)[-1] == 3
    assert max(a.host for a in actions if isinstance(a, Evict)) <= 20 * GIB
    assert talk.view(1).memory.resident >= 40 * GIB


def test_lowered_control_group_memory_limit_reclaims_host_memory_or_loads_swapped_memory() -> None:
    shared = domains(box=64)
    talk = Talk(100, domains=shared)
    talk.run(1, 60, BOX)
    talk.changed(1, host=50)            # swapped before the limit was set; the program runs
    shared.set_limit("box", 40 * GIB)
    orders = [a for a in talk.tell(Tick()) if isinstance(a, Load)]
    assert [(a.client, a.host) for a in orders] == [(1, 30 * GIB)]

    shared = domains(box=64)
    talk = Talk(100, domains=shared)
    talk.join(1, 60, 0, domains=BOX)
    talk.set(1, host=60)
    talk.swapped[1] = 60 * GIB
    talk.changed(1)
    shared.set_limit("box", 40 * GIB)
    talk.obey(talk.tell(Tick()))
    assert talk.view(1).memory.resident == 60 * GIB
    assert talk.view(1).memory.host <= 40 * GIB


def test_cgroup_memory_limit_that_includes_the_daemon_bounds_evictions_but_no_commits() -> None:
    """Three programs of 55 GiB on a card of 139, in a container limited to 110 with the daemon."""
    shared = Domains()
    shared.set_limit("box", 110 * GIB, whole=True)
    talk = Talk(139, host=100, domains=shared)
    for client in (1, 2, 3):
        talk.join(client, domains=BOX)
        assert answer(talk, client, 55).commit >= 55 * GIB
        talk.changed(client, allocated=55)
    assert not shared.unevictable
    shared.set_limit("box", 20 * GIB, whole=True)
    talk.obey(talk.want(1))
    talk.obey(talk.want(2))
    actions = talk.obey(talk.want(3))
    talk.idle(1)
    actions += talk.obey(talk.stopped(1, wants=False))
    assert max(a.host for a in actions if isinstance(a, Evict)) <= 20 * GIB


def test_limits_of_forgotten_control_groups_leave_no_figures_in_the_scheduler() -> None:
    shared = Domains()
    talk = Talk(100, domains=shared)
    talk.join(1, 40, 40, running=True)
    for number in range(2, 6):
        name = f"box{number}"
        shared.set_limit(name, 20 * GIB)
        talk.join(number, domains=(name,))
        assert answer(talk, number, 10).commit >= 10 * GIB
        talk.leave(number)
        shared.forget(())
        talk.tell(Tick())
    assert not talk.scheduler._card.records.of(promises._Checks).left


def test_domains_keep_nothing_of_the_scheduler_of_a_lost_card() -> None:
    shared = domains(box=16)
    talk = Talk(100, domains=shared)
    talk.join(1, domains=BOX)
    assert answer(talk, 1, 10).commit >= 10 * GIB
    assert talk.scheduler._card.groups in shared._changed
    talk.tell(CardLost())
    talk.leave(1)
    assert not shared._changed


def test_control_group_memory_limit_reduces_no_commits_granted_by_an_earlier_daemon() -> None:
    shared = domains(box=16)
    talk = Talk(100, domains=shared)
    talk.join(1, 40, 40, running=True, commit=40, domains=BOX)
    assert talk.view(1).commit == 40 * GIB
    assert answer(talk, 1, 41).reason == "the limit of box"
    other, = shared.named(("other",))
    assert other.untaken > 1 << 60


@pytest.mark.parametrize("account", ["", HONEST], ids=["root", "user"])
def test_memory_allocated_before_a_smaller_commit_arrived_counts_as_promised(account: str) -> None:
    talk = Talk(100, host=40)
    talk.join(1, account=account)
    talk.join(2, account=account and LIARS)
    assert granted(talk, 1, 60)
    talk.changed(1, allocated=40, answered=1)
    talk.wait(5)
    order, = (one for one in talk.ask(2, 1, 80) if isinstance(one, Evict))  # client 1 gives back 20
    memory = talk.set(1, allocated=55)  # the LIMITS has crossed an allocation
    answers = limits(talk.tell(Evicted(1, memory, order.number, 0, 1)), 2)
    assert [one.granted for one in answers if one.number == 1] == [True]
    assert talk.scheduler._card.clients[1].committed == 55 * GIB
    assert not granted(talk, 2, 90, 2)


@pytest.mark.parametrize("account", ["", HONEST], ids=["root", "user"])
def test_commit_for_memory_that_is_still_to_be_pinned_is_not_called_back(account: str) -> None:
    talk = Talk(100, host=40)
    talk.join(1, account=account)
    talk.join(2, account=account and LIARS)
    assert granted(talk, 1, 50, pins=10)
    talk.changed(1, allocated=40, to_pin=10, answered=1)
    talk.wait(5)
    talk.obey(talk.ask(2, 1, 89))
    assert talk.scheduler._card.clients[1].committed >= 50 * GIB


class Court:
    """A scheduler, clients that report false figures, and a client that reports true figures."""

    def __init__(self, seed: int, settings: Settings = SETTINGS) -> None:
        self.now = 0
        self.random = Random(seed)
        self.first = NOTHING            # measured memory of a client with false figures, at HELLO
        self.settings = settings
        self.scheduler = Scheduler(settings, 0)
        self.owed: dict[int, list[MoveOrder]] = {}     # open orders by client with false figures
        self.last: dict[int, Memory] = {}
        self.honest: list[Action] = []  # actions for the client with true figures

    def tell(self, event: Event) -> None:
        for action in self.scheduler.handle(event, self.now):
            client = getattr(action, "client", 0)
            if client >= ONE:
                self.honest.append(action)
            elif client in self.owed and isinstance(action, MoveOrder):
                self.owed[client].append(action)

    def wait(self, microseconds: int) -> None:
        end = self.now + microseconds
        while (due := self.scheduler.deadline()) is not None and due <= end:
            self.now = due
            self.tell(Tick())
        self.now = end

    def look(self, card: int | None = None) -> None:
        """Let driver and kernel report `card` bytes of client ONE, and none of all others."""
        evidence = dict.fromkeys(self.owed, NOTHING)
        filled = {id: self.scheduler.memory(id).filled for id in self.owed}
        if card is not None:
            evidence[ONE] = Evidence(card, 0)
            filled[ONE] = card
        self.tell(Seen(evidence, filled))

    def figure(self) -> int:
        dice = self.random
        return dice.choice([0, 1, MIB, dice.randrange(CARD + 1), CARD, CARD // 2])

    def memory(self) -> Memory:
        """Figures that the session accepts: no more on the card than the card has."""
        pinned = self.figure()
        resident = min(self.figure(), CARD - pinned)
        return Memory(allocated=min(CARD - pinned, self.figure()), resident=resident, pinned=pinned,
                      pending=self.figure(), room=self.figure(),
                      host=self.random.choice([0, self.figure(), 1 << 45]),
                      beyond=self.random.choice([0, self.figure(), 1 << 45]),
                      answered=self.random.randrange(5), to_pin=self.figure())

    def come(self, id: int) -> None:
        dice = self.random
        self.owed[id] = []
        memory = dice.choice([Memory(), self.memory()])
        self.tell(Joined(
            id, memory, dice.random() < 0.3, dice.random() < 0.3,
            dice.choice([0, CARD, self.figure()]), (), LIARS, NOTHING))

    def lie(self, id: int) -> None:
        dice = self.random
        memory, number = self.memory(), dice.randrange(100)
        orders = self.owed[id]
        if orders and dice.random() < 0.5:
            order = orders.pop(0)
            answer = {Load: Loaded, Evict: Evicted, Writeback: WrittenBack}[type(order)]
            self.tell(answer(
                id, memory, order.number, self.figure(), 1, dice.random() < 0.2,
                dice.random() < 0.2))
            return
        said: list[Event] = [
            MemoryChanged(id, memory, wants=dice.random() < 0.5),
            CommitAsked(id, memory, number, self.figure(), dice.choice([0, self.figure()])),
            CommitAsked(id, memory, number, 0)]
        if self.scheduler.stopping(id):
            said += [Stopped(id, memory, dice.random() < 0.5), Reopened(id, memory)]
        self.tell(dice.choice(said))

    def rage(self, steps: int, most: int) -> None:
        """Let clients with false figures join, report and leave at random."""
        for step in range(steps):
            ids = list(self.owed)
            roll = self.random.random()
            if not ids or (roll < 0.1 and len(ids) < most):
                self.come(step + 1)
            elif roll < 0.13:
                gone = self.random.choice(ids)
                del self.owed[gone]
                self.tell(Left(gone))
            elif roll < 0.2:
                self.wait(self.random.choice([1, 10 * MILLISECOND, SECOND]))
            elif roll < 0.25:
                self.look()
            else:
                self.lie(self.random.choice(ids))

    def gets(self, size: int, account: str = HONEST) -> bool:
        """True if a client that joins now is promised this much at once."""
        self.honest.clear()
        self.tell(Joined(ONE, account=account, evidence=NOTHING))
        self.tell(CommitAsked(ONE, Memory(), 1, size))
        answers = [a for a in self.honest if isinstance(a, Limits) and a.number == 1]
        return bool(answers) and answers[0].commit >= size


WORTH = CARD - CARD // 16               # less the part that another client may be about to pin


@pytest.mark.parametrize("account", [HONEST, ""], ids=["user", "root"])
@pytest.mark.parametrize("seed", seeds(5, 60))
def test_user_is_granted_a_whole_card_while_another_user_claims_false_memory(
        seed: int, account: str) -> None:
    court = Court(seed)
    court.rage(400, most=40)
    assert court.gets(WORTH, account)


FULL = Memory(pinned=CARD, room=CARD)
UNDRAINABLE = Memory(
    allocated=GIB, resident=GIB, pinned=GIB, room=2 * GIB, pin_reason=PinReason.GIVEN)
# Memory and commit in HELLO of a client with false figures, and its later records.
CLAIMS: dict[str, tuple[Memory, int, list[Callable[[int], Event]]]] = {
    "commit": (Memory(allocated=CARD), CARD, []),
    "request": (Memory(), 0, [lambda id: CommitAsked(id, Memory(), 1, CARD)]),
    "none": (Memory(), 0, []),
    "host": (Memory(), 0, [lambda id: MemoryChanged(id, Memory(host=16 * GIB))]),
    "beyond": (Memory(), 0, [
        lambda id: MemoryChanged(id, Memory(beyond=16 * GIB)),
        lambda id: CommitAsked(id, Memory(beyond=16 * GIB), 1, 0)]),
    "resident": (Memory(allocated=CARD, resident=CARD, room=CARD), CARD, []),
    "request to pin": (Memory(), 0, [
        lambda id: CommitAsked(id, Memory(), 1, CARD, CARD),
        lambda id: MemoryChanged(id, replace(FULL, answered=1))]),
    "pinned": (FULL, CARD, []),
    "undrainable": (UNDRAINABLE, CARD, []),
}


def make_claim(court: Court, id: int, claim: str) -> None:
    memory, commit, records = CLAIMS[claim]
    court.tell(Joined(id, memory, commit=commit, account=LIARS, evidence=court.first))
    for record in records:
        court.tell(record(id))


UNKNOWN = Evidence()                    # the driver has reported no memory of any client yet


@pytest.mark.parametrize("first", [NOTHING, UNKNOWN])
@pytest.mark.parametrize("claim", CLAIMS)
def test_falsely_claimed_memory_takes_no_commit_from_other_users(
        claim: str, first: Evidence) -> None:
    court = Court(0)
    court.first = first
    for id in range(1, 200):
        court.owed[id] = []
        make_claim(court, id, claim)
    assert court.gets(WORTH)
    memory = Memory(allocated=WORTH)
    court.look()
    court.honest.clear()
    court.tell(MemoryChanged(ONE, memory, wants=True))
    while not any(isinstance(action, Run) for action in court.honest):
        orders = [a for a in court.honest if isinstance(a, Load)]
        court.honest.clear()
        for order in orders:
            came = min(WORTH, order.room) - memory.resident
            memory = replace(memory, resident=min(WORTH, order.room), room=order.room)
            court.tell(Loaded(ONE, memory, order.number, came))
        if not orders:
            assert court.now < 15 * SECOND, "it has to wait for them"
            court.wait(SECOND)
            court.look(memory.resident)
    assert not any(isinstance(action, Stop) for action in court.honest)


def test_commit_is_no_longer_reserved_for_a_user_once_the_memory_is_allocated() -> None:
    """Only the unused part of a commit is reserved."""
    court = Court(0, replace(SETTINGS, host_budget=CARD))
    court.tell(Joined(1, account=HONEST, evidence=NOTHING))
    court.owed[1] = []
    court.tell(CommitAsked(1, Memory(), 1, CARD // 2))
    assert court.scheduler.snapshot().clients[1].commit >= CARD // 2
    # The commits exceed the card's memory, and no byte of the card is used.
    assert court.gets(CARD // 2)
    court.tell(CommitAsked(ONE, Memory(allocated=CARD // 2), 2, CARD // 2 + GIB))
    assert court.scheduler.snapshot().clients[ONE].commit < CARD // 2 + GIB
    has = Memory(allocated=CARD // 2, resident=CARD // 2, room=CARD // 2)
    court.tell(MemoryChanged(1, has))
    court.tell(Seen({1: Evidence(CARD // 2, 0)}, {1: CARD // 2}))
    court.tell(CommitAsked(ONE, Memory(allocated=CARD // 2), 3, CARD // 2 + 2 * GIB))
    assert court.scheduler.snapshot().clients[ONE].commit >= CARD // 2 + 2 * GIB


def test_memory_of_a_client_that_drains_or_evicts_does_not_count_as_falsely_claimed() -> None:
    """The room belongs to the client until its hook reports the end."""
    talk = Talk(100, step=10)
    for id in (1, 2):
        talk.join(id, 80, account=HONEST)
        talk.obey(talk.want(id))

    def overclaimed() -> int:
        """Bytes overclaimed by client 1 after two samples that show 30 GiB of it."""
        for _ in range(2):
            talk.tell(Seen({1: Evidence(30 * GIB, 0)}, {1: talk.memory[1].filled}))
        claimed = sum(talk.memory[id].filled for id in talk.scheduler.snapshot().clients)
        return claimed - talk.scheduler.filled()

    talk.wait(30)
    assert talk.scheduler.stopping(1)
    assert not overclaimed()
    orders = [order for order in talk.stopped(1, wants=False) if isinstance(order, Evict)]
    assert orders
    assert not overclaimed()
    talk.leave(2)
    while orders:
        orders += [more for more in talk.evicted(orders.pop(0)) if isinstance(more, Evict)]
    assert overclaimed() == talk.memory[1].filled - 30 * GIB > 0


def steps(court: Court) -> dict[str, int]:
    """Number of function calls for each record of the client with true figures."""
    memory, found = Memory(), {}

    def tell(what: str, event: Event) -> None:
        calls = 0

        def count(_frame: object, kind: str, _argument: object) -> None:
            nonlocal calls
            calls += kind in ("call", "c_call")

        sys.setprofile(count)
        try:
            court.tell(event)
        finally:
            sys.setprofile(None)
        found[what] = calls

    tell("HELLO", Joined(ONE, account=HONEST, evidence=NOTHING))
    tell("COMMIT", CommitAsked(ONE, memory, 1, GIB))
    memory = Memory(allocated=GIB)
    tell("MEMORY", MemoryChanged(ONE, memory, wants=True))
    load, = (action for action in court.honest if isinstance(action, Load))
    memory = replace(memory, resident=GIB, room=load.room)
    tell("MOVED", Loaded(ONE, memory, load.number, GIB))
    tell("COMMIT, large", CommitAsked(ONE, memory, 2, 6 * GIB))
    tell("COMMIT, to pin", CommitAsked(ONE, memory, 3, 2 * GIB, GIB // 2))
    memory = replace(memory, allocated=6 * GIB)
    tell("MEMORY, more", MemoryChanged(ONE, memory))
    return found


@pytest.mark.parametrize("claim", CLAIMS)
def test_scheduler_decision_with_500_false_claims_takes_at_most_twice_the_function_calls(
        claim: str) -> None:
    """Counts function calls, as durations vary on a busy machine."""
    alone, court = steps(Court(0)), Court(0)
    for id in range(1, 501):
        make_claim(court, id, claim)
    for _ in range(2):
        court.look()
    among = steps(court)
    assert {what: n for what, n in among.items() if n > 2 * alone[what]} == {}
