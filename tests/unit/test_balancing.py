# SPDX-License-Identifier: Apache-2.0
"""Setting balance: which clients the daemon moves to another card without an order."""

from dataclasses import replace
from typing import Any

import pytest

from nvshared.machine.nvml import Sample
from nvshared.machine.tenant import Kind, Tenant
from nvshared.scheduler.events import Memory
from nvshared.sharing.gpu import Client
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


@pytest.mark.parametrize(("part", "attribute", "value"), [
    ("balancing", "on", False), ("moving", "arriving", {1: None}),
    ("waiting", "unparkable", "checkpoint: operation not supported (801)"),
    ("waiting", "tries", 1_000_000),    # each failed try raises the cost of a move
])
def test_balancing_moves_no_client_when_off_unparkable_too_expensive_or_during_a_move(
        manager: Manager, time: Time, part: str, attribute: str, value: object) -> None:
    join(manager)
    waiting = join(manager)
    setattr(waiting if part == "waiting" else getattr(manager, part), attribute, value)
    assert chosen(manager, time) == []


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


def test_balancing_avoids_a_card_on_which_the_tenants_memory_limit_leaves_too_little(
        manager: Manager, time: Time) -> None:
    manager.tenancy.set("user:root", {"memory-limit": 41 * GIB})
    run(manager, 1, 2 * MIB)
    manager.gpus[1].sample = Sample(utilisation=0.0)
    join(manager)
    join(manager)
    assert chosen(manager, time) != []
    run(manager, 1, 2 * GIB)
    manager.gpus[1].sample = Sample(utilisation=0.0)
    assert chosen(manager, time) == []
