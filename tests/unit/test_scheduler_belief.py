# SPDX-License-Identifier: Apache-2.0
"""Clients of one user say what they like, and others get what they need."""

import sys
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from nvshared.scheduler import Scheduler
from nvshared.scheduler.actions import Action, Evict, Limits, Load, MoveOrder, Presave, Run, Stop
from nvshared.scheduler.events import (
    CommitAsked,
    Event,
    Evicted,
    Evidence,
    Joined,
    Left,
    Loaded,
    Memory,
    MemoryChanged,
    Presaved,
    Reopened,
    Seen,
    Stays,
    Stopped,
    Tick,
)
from nvshared.scheduler.settings import Settings
from nvshared.units import GIB, MIB, MILLISECOND, SECOND
from tests.seeds import seeds
from tests.unit.scheduler_talk import Talk

CARD, HOST = 8 * GIB, 32 * GIB
SETTINGS = Settings(capacity=CARD, total=CARD, host_budget=HOST, tq=SECOND)
LIARS, HONEST = "user:1000", "user:1001"
NOTHING = Evidence(0, 0)
ONE = 10_000                            # the id of an honest client


class Court:
    """A scheduler, clients that have nothing and say anything, and one that is honest."""

    def __init__(self, seed: int, settings: Settings = SETTINGS) -> None:
        self.now = 0
        self.random = Random(seed)
        self.first = NOTHING            # what is known of a liar when it comes
        self.settings = settings
        self.scheduler = Scheduler(settings, 0)
        self.owed: dict[int, list[MoveOrder]] = {}     # by liar
        self.last: dict[int, Memory] = {}
        self.honest: list[Action] = []  # what the honest one was told

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
        """The driver and the kernel see nothing of the liars, and so much of the honest one."""
        evidence = dict.fromkeys(self.owed, NOTHING)
        filled = {id: self.scheduler.memory(id).filled for id in self.owed}
        if card is not None:
            evidence[ONE] = Evidence(card, 0)
            filled[ONE] = card
        self.tell(Seen(evidence, filled))

    # The liars.

    def figure(self) -> int:
        dice = self.random
        return dice.choice([0, 1, MIB, dice.randrange(CARD + 1), CARD, CARD // 2])

    def memory(self) -> Memory:
        """Within what the session lets through: no more on the card than the card has."""
        pinned = self.figure()
        resident = min(self.figure(), CARD - pinned)
        return Memory(
            allocated=min(CARD - pinned, self.figure()), resident=resident, pinned=pinned,
            pending=self.figure(), room=self.figure(),
            host=self.random.choice([0, self.figure(), 1 << 45]),
            beyond=self.random.choice([0, self.figure(), 1 << 45]),
            answered=self.random.randrange(5), to_pin=self.figure(),
        )

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
            answer = {Load: Loaded, Evict: Evicted, Presave: Presaved}[type(order)]
            self.tell(answer(
                id, memory, order.number, self.figure(), 1, dice.random() < 0.2,
                dice.random() < 0.2))
            return
        said: list[Event] = [
            MemoryChanged(id, memory, wants=dice.random() < 0.5),
            CommitAsked(id, memory, number, self.figure(), dice.choice([0, self.figure()])),
            CommitAsked(id, memory, number, 0),
        ]
        if self.scheduler.stopping(id):
            said += [Stopped(id, memory, dice.random() < 0.5), Reopened(id, memory)]
        self.tell(dice.choice(said))

    def rage(self, steps: int, most: int) -> None:
        """They come, lie and go."""
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

    # The honest one.

    def gets(self, size: int, account: str = HONEST) -> bool:
        """Whether a client that comes now is promised so much at once."""
        self.honest.clear()
        self.tell(Joined(ONE, account=account, evidence=NOTHING))
        self.tell(CommitAsked(ONE, Memory(), 1, size))
        answers = [a for a in self.honest if isinstance(a, Limits) and a.number == 1]
        return bool(answers) and answers[0].commit >= size


WORTH = CARD - CARD // 16               # where somebody may be about to pin


@pytest.mark.parametrize("seed", seeds(12, 60))
def test_whatever_one_user_says_another_gets_a_cards_worth_at_once(seed: int) -> None:
    court = Court(seed)
    court.rage(400, most=40)
    assert court.gets(WORTH)


@pytest.mark.parametrize("seed", range(10))
def test_root_does_too(seed: int) -> None:
    court = Court(seed)
    court.rage(300, most=40)
    assert court.gets(WORTH, account="")


def claim(court: Court, id: int) -> None:
    court.tell(Joined(id, Memory(allocated=CARD), commit=CARD, account=LIARS, evidence=court.first))


def ask(court: Court, id: int) -> None:
    court.tell(Joined(id, account=LIARS, evidence=court.first))
    court.tell(CommitAsked(id, Memory(), 1, CARD))


def silent(court: Court, id: int) -> None:
    court.tell(Joined(id, account=LIARS, evidence=court.first))


def host(court: Court, id: int) -> None:
    court.tell(Joined(id, account=LIARS, evidence=court.first))
    court.tell(MemoryChanged(id, Memory(host=16 * GIB)))


def beyond(court: Court, id: int) -> None:
    court.tell(Joined(id, account=LIARS, evidence=court.first))
    court.tell(MemoryChanged(id, Memory(beyond=16 * GIB)))
    court.tell(CommitAsked(id, Memory(beyond=16 * GIB), 1, 0))


def filled(court: Court, id: int) -> None:
    memory = Memory(allocated=CARD, resident=CARD, room=CARD)
    court.tell(Joined(id, memory, commit=CARD, account=LIARS, evidence=court.first))


def pins(court: Court, id: int) -> None:
    court.tell(Joined(id, account=LIARS, evidence=court.first))
    court.tell(CommitAsked(id, Memory(), 1, CARD, CARD))
    court.tell(MemoryChanged(id, Memory(pinned=CARD, room=CARD, answered=1)))


def pinned(court: Court, id: int) -> None:
    memory = Memory(pinned=CARD, room=CARD)
    court.tell(Joined(id, memory, commit=CARD, account=LIARS, evidence=court.first))


def stays(court: Court, id: int) -> None:
    memory = Memory(allocated=GIB, resident=GIB, pinned=GIB, room=2 * GIB, stays=Stays.GIVEN)
    court.tell(Joined(id, memory, commit=CARD, account=LIARS, evidence=court.first))


CLAIMS = [claim, ask, silent, host, beyond, filled, pins, pinned, stays]
UNKNOWN = Evidence()                    # the driver has named none of our clients yet


@pytest.mark.parametrize("first", [NOTHING, UNKNOWN])
@pytest.mark.parametrize("say", CLAIMS)
def test_no_claim_takes_anything_from_others(
    say: Callable[[Court, int], None], first: Evidence
) -> None:
    court = Court(0)
    court.first = first
    for id in range(1, 200):
        court.owed[id] = []
        say(court, id)
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


def test_a_user_alone_has_all_that_it_uses() -> None:
    """What is promised and used is no promise to be held back."""
    court = Court(0, replace(SETTINGS, host_budget=CARD))
    court.tell(Joined(1, account=HONEST, evidence=NOTHING))
    court.owed[1] = []
    court.tell(CommitAsked(1, Memory(), 1, CARD // 2))
    assert court.scheduler.snapshot().clients[1].commit >= CARD // 2
    # More than a card's worth in all, and nothing of it is used.
    assert court.gets(CARD // 2)
    court.tell(CommitAsked(ONE, Memory(allocated=CARD // 2), 2, CARD // 2 + GIB))
    assert court.scheduler.snapshot().clients[ONE].commit < CARD // 2 + GIB
    has = Memory(allocated=CARD // 2, resident=CARD // 2, room=CARD // 2)
    court.tell(MemoryChanged(1, has))
    court.tell(Seen({1: Evidence(CARD // 2, 0)}, {1: CARD // 2}))
    court.tell(CommitAsked(ONE, Memory(allocated=CARD // 2), 3, CARD // 2 + 2 * GIB))
    assert court.scheduler.snapshot().clients[ONE].commit >= CARD // 2 + 2 * GIB


def test_who_is_busy_for_us_may_have_freed_more_than_it_has_said() -> None:
    """Its hook says so when it is done. The room is its own until then."""
    talk = Talk(100, step=10)
    for id in (1, 2):
        talk.join(id, 80, account=HONEST)
        talk.obey(talk.want(id))

    liar = talk.scheduler._card.clients[1]

    def doubted() -> int:
        """When the driver shows 30 GiB of it, for long enough."""
        for _ in range(2):
            talk.tell(Seen({1: Evidence(30 * GIB, 0)}, {1: talk.memory[1].filled}))
        return liar.overclaims.filled

    talk.wait(30)
    assert talk.scheduler.stopping(1)
    assert not doubted()
    talk.stopped(1, wants=False)
    assert any(isinstance(move.order, Evict) for move in liar.moves)
    assert not doubted()
    talk.leave(2)
    while liar.moves:
        order = liar.moves[0].order
        assert isinstance(order, Evict)
        talk.evicted(order)
    assert doubted() == talk.memory[1].filled - 30 * GIB > 0


def steps(court: Court) -> dict[str, int]:
    """How many functions are called for each record of the honest client."""
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


@pytest.mark.parametrize("say", CLAIMS)
def test_hundreds_of_clients_of_another_user_do_not_make_decisions_dear(
    say: Callable[[Court, int], None]
) -> None:
    """In steps, as times say little on a busy machine."""
    alone, court = steps(Court(0)), Court(0)
    for id in range(1, 501):
        say(court, id)
    for _ in range(2):
        court.look()
    among = steps(court)
    assert {what: n for what, n in among.items() if n > 2 * alone[what]} == {}
