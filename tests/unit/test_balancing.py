# SPDX-License-Identifier: Apache-2.0
"""Setting balance: which waiting client the daemon moves to which card, without an order."""

import asyncio
from dataclasses import replace
from math import inf
from random import Random
from typing import Any

import pytest

from nvshared.machine.nvml import Sample
from nvshared.machine.tenant import Kind, Tenant
from nvshared.scheduler.events import Memory
from nvshared.sharing import balancing
from nvshared.sharing.balancing import CardLoad, Choice, Contender, choose
from nvshared.sharing.gpu import GPU, Client
from nvshared.sharing.manager import Manager
from nvshared.units import GIB, MIB, SECOND
from tests.unit.scripted import DEFAULTS, FACTS, Time, joined, peer

SECOND_CARD = replace(FACTS, index=1, uuid="GPU-99112233-4455-6677-8899-aabbccddeeff")


@pytest.fixture
def manager(time: Time) -> Manager:
    made = Manager(lambda: replace(DEFAULTS, balance=True), time.clock, time.timer)
    for facts in (FACTS, SECOND_CARD):
        made.add(facts, Sample(), gather=False)
    return made


def join(manager: Manager, size: int = 40 * GIB, **fields: Any) -> Client:
    id = manager.next_id()
    return joined(
        manager.gpus[0], id, memory=Memory(allocated=size, host=size),
        process=replace(peer(id, uid=0), **fields), wants=True, commit=size)


def run(manager: Manager, card: int, size: int) -> None:
    id = manager.next_id()
    joined(
        manager.gpus[card], id, memory=Memory(allocated=size, resident=size, room=size),
        process=peer(id, uid=0), running=True, commit=size)


def chosen(manager: Manager, time: Time) -> list[int]:
    """Ids of the client chosen to move after 100 s of waiting; empty if none."""
    manager.balancing.find_move()
    time.now += 100 * SECOND
    choice = manager.balancing.find_move()
    return [] if choice is None else [choice.client]


@pytest.mark.parametrize(("size", "moves"), [(40 * GIB, True), (GIB, False)])
def test_balancing_moves_a_waiting_client_to_an_empty_card_unless_all_clients_fit_together(
        manager: Manager, time: Time, size: int, moves: bool) -> None:
    _, waiting = join(manager, size), join(manager, size)
    assert chosen(manager, time) == ([waiting.id] if moves else [])


@pytest.mark.parametrize(("attribute", "value"), [
    ("impossible", "checkpoint: operation not supported (801)"),
    ("moves", 1_000_000),               # each failed try raises the cost of a move
])
def test_balancing_moves_no_client_whose_parking_failed(
        manager: Manager, time: Time, attribute: str, value: object) -> None:
    join(manager)
    waiting = join(manager)
    setattr(waiting.parking, attribute, value)
    assert chosen(manager, time) == []


async def test_balancing_does_not_look_while_off_and_forgets_earlier_waits(
        manager: Manager, time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Choice | None] = []

    async def look() -> None:
        looks.append(manager.balancing.find_move())

    monkeypatch.setattr(balancing, "CHOOSE_EVERY", 0)
    monkeypatch.setattr(manager.balancing, "_choose_and_move", look)
    join(manager)
    join(manager)
    manager.balancing.find_move()
    time.now += 100 * SECOND
    before = manager.balancing.find_move()
    manager.balancing.use(on=False)
    watch = asyncio.create_task(manager.balancing.watch())
    for _ in range(100):
        await asyncio.sleep(0)
    assert looks == []
    time.now += 100 * SECOND
    manager.balancing.use(on=True)
    while not looks:                    # noqa: ASYNC110
        await asyncio.sleep(0)
    assert before is not None
    assert looks[0] is not None
    assert looks[0].lost < before.lost
    watch.cancel()


def test_balancing_counts_a_client_that_moves_to_a_card_for_the_load_of_that_card(
        manager: Manager, time: Time) -> None:
    moving = join(manager, uid=1000)
    join(manager)
    waiting = join(manager)
    assert chosen(manager, time) == [waiting.id]
    manager.moving.arriving[moving] = manager.gpus[1], 40 * GIB
    for number in range(2):             # as many as on the other card
        manager.moving.arriving[joined(
            manager.gpus[0], 100 + number, process=peer(100 + number))] = manager.gpus[1], 1
    assert chosen(manager, time) == []


async def test_balancing_moves_a_user_although_moves_of_another_users_clients_never_end(
        manager: Manager, time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    moves: list[Client] = []

    async def never(client: Client, target: GPU, why: str) -> None:
        moves.append(client)
        await asyncio.Event().wait()

    monkeypatch.setattr(balancing, "CHOOSE_EVERY", 0)
    monkeypatch.setattr(manager.moving, "move", never)
    silent = [join(manager, uid=1000, owner=1000) for _ in range(24)]
    mine = join(manager, uid=1001, owner=1001)
    watch = asyncio.create_task(manager.balancing.watch())
    for _ in range(100):
        time.now += SECOND
        await asyncio.sleep(0)
    assert mine in moves
    assert len([client for client in moves if client in silent]) == 1
    for task in (watch, *manager.balancing._tasks):
        task.cancel()


@pytest.mark.parametrize("fields", [
    {"gang": "all"}, {"is_contained": True}, {"pid": 0}, {"pid": 4711},
    {"tenants": (*peer().tenants, Tenant(Kind.POD, "00000001-0000-0000-0000-000000000000"))},
    {"tenants": (*peer().tenants, Tenant(Kind.JOB, "7"))},
])
def test_balancing_skips_clients_of_gangs_pods_jobs_and_shared_processes(
        manager: Manager, time: Time, fields: dict[str, Any]) -> None:
    join(manager, **fields)
    join(manager, **fields)
    assert chosen(manager, time) == []


@pytest.mark.parametrize(("budget", "moves"), [(200 * GIB, True), (21 * GIB, False)])
def test_balancing_moves_a_client_only_if_the_clients_memory_fits_the_host_budget(
        manager: Manager, time: Time, budget: int, moves: bool) -> None:
    manager.budget.resize(budget)
    run(manager, 0, 34 * GIB)
    memory = Memory(allocated=40 * GIB, resident=20 * GIB, room=20 * GIB, host=20 * GIB)
    joined(manager.gpus[0], manager.next_id(), memory=memory, process=peer(uid=0), wants=True,
           commit=40 * GIB)
    assert bool(chosen(manager, time)) is moves


@pytest.mark.parametrize(("used", "moves"), [(1.0, False), (0.05, True)])
def test_balancing_reads_the_load_from_nvml_for_a_card_without_waiting_clients(
        manager: Manager, time: Time, used: float, moves: bool) -> None:
    join(manager)
    join(manager)
    run(manager, 1, 40 * GIB)
    manager.gpus[1].sample = Sample(utilisation=used)
    assert bool(chosen(manager, time)) is moves


def test_balancing_avoids_a_card_where_the_tenant_memory_limit_leaves_too_little_space(
        manager: Manager, time: Time) -> None:
    manager.tenancy.set_terms("user:root", {"memory-limit": 41 * GIB})
    run(manager, 1, 2 * MIB)
    manager.gpus[1].sample = Sample(utilisation=0.0)
    join(manager)
    join(manager)
    assert chosen(manager, time) != []
    run(manager, 1, 2 * GIB)
    manager.gpus[1].sample = Sample(utilisation=0.0)
    assert chosen(manager, time) == []


PRICE = 2.0 * SECOND
EMPTY = CardLoad(0, 80 * GIB)


def contender(client: int, **changed: Any) -> Contender:
    return Contender(client, "a", 100, 50 * GIB, 0.0, PRICE, ("b",))._replace(**changed)


@pytest.mark.parametrize(("here", "there", "wait", "lost"), [
    (CardLoad(200, 80 * GIB), EMPTY, 3.0 * SECOND, 3.0 * SECOND),
    (CardLoad(200, 80 * GIB), EMPTY, 1.0 * SECOND, None),  # a move takes longer than the wait
    # the client has 50 GiB, the other card 40 GiB
    (CardLoad(200, 80 * GIB), CardLoad(0, 40 * GIB), inf, None),
    (CardLoad(100, 40 * GIB), CardLoad(300, 80 * GIB), inf, inf),     # exceeds its own card
])
def test_balancing_moves_a_client_that_fits_another_card_and_waits_longer_than_a_move_takes(
        here: CardLoad, there: CardLoad, wait: float, lost: float | None) -> None:
    _, choice = choose({"a": here, "b": there}, [contender(1, wait=wait)], {}, 0)
    assert choice == (None if lost is None else Choice(1, "b", lost, PRICE))


def test_balancing_moves_a_client_once_short_waits_add_up_to_the_cost_of_a_move() -> None:
    loads = {"a": CardLoad(200, 80 * GIB), "b": EMPTY}
    lost: dict[int, float] = {}
    looks = 0
    choice = None
    while choice is None:
        looks += 1
        lost, choice = choose(loads, [contender(1, wait=0.1 * SECOND)], lost, SECOND // 10)
        if choice is None:          # no move: the client gets a turn
            lost, _ = choose(loads, [contender(1, wait=None)], lost, SECOND // 10)
    assert looks == pytest.approx(PRICE / (0.1 * SECOND), abs=1)


def test_balancing_resets_summed_waits_when_no_other_card_would_be_better_for_the_client() -> None:
    loads = {"a": CardLoad(200, 80 * GIB), "b": EMPTY}
    lost, _ = choose(loads, [contender(1)], {}, SECOND)
    assert lost == {1: SECOND}
    lost, _ = choose(loads | {"b": CardLoad(100, 80 * GIB)}, [contender(1)], lost, SECOND)
    assert lost == {}


def test_balancing_moves_the_client_that_gains_most_to_the_card_with_the_least_load() -> None:
    loads = {"a": CardLoad(400, 80 * GIB), "b": CardLoad(100, 80 * GIB), "c": EMPTY}
    _, choice = choose(loads, [
        contender(1, wait=9.0 * SECOND, cards=("b", "c")),
        contender(2, wait=9.0 * SECOND, cards=("b", "c"), price=PRICE / 2)], {}, 0)
    assert choice is not None
    assert (choice.client, choice.card) == (2, "c")


@pytest.mark.parametrize("seed", range(6))
def test_balancing_with_random_loads_and_weights_ends_after_few_moves(
        seed: int) -> None:
    """Each move must lower the load on the moved client, so moves of the same clients end."""
    random = Random(seed)
    cards = ["a", "b", "c"]
    weights = {client: random.choice([50, 100, 200]) for client in range(12)}
    at = {client: random.choice(cards) for client in weights}
    moves = 0
    lost: dict[int, float] = {}
    for _ in range(1000):
        load = {card: sum(w for c, w in weights.items() if at[c] == card) for card in cards}
        lost, choice = choose(
            {card: CardLoad(load[card], 80 * GIB) for card in cards},
            [Contender(client, at[client], weight, GIB,
                       random.choice([None, random.random() * 10 * SECOND]), PRICE,
                       tuple(card for card in cards if card != at[client]))
             for client, weight in weights.items()],
            lost, SECOND)
        if choice is not None:
            weight = weights[choice.client]
            assert load[choice.card] + weight < load[at[choice.client]]
            at[choice.client] = choice.card
            lost.pop(choice.client)
            moves += 1
    assert choice is None
    assert moves <= 2 * len(weights)
