# SPDX-License-Identifier: Apache-2.0
"""nvsharectl suspend --wait and drain end when what they wait for cannot come any more."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from nvshared.errors import ExitCode
from nvshared.machine.tenant import Kind, Tenant
from nvshared.scheduler.actions import ClientState
from nvshared.scheduler.events import PinReason
from nvshared.sharing.gpu import Client
from nvshared.sharing.manager import Manager
from nvshared.terms import TERMS
from tests.bus.service import PrivateBus, a_client, a_manager, decide, published
from tests.bus.test_commands import NVSHARECTL, Ended, run
from tests.unit.scripted import Scripted

PATIENCE = 600.0                        # seconds until a command counts as one that never ends
LOOK = 0.01                             # seconds between two looks

JOB = (Tenant(Kind.JOB, "7"), Tenant(Kind.USER, "0"))
Waiting = Callable[..., "asyncio.Task[Ended]"]


@pytest.fixture
async def waiting(private: PrivateBus) -> AsyncIterator[Waiting]:
    """Starts nvsharectl, which is ended after the test."""
    started: list[asyncio.Task[Ended]] = []

    def start(*words: str) -> asyncio.Task[Ended]:
        # timeout(1) ends a command that waits for ever, with status 124.
        command = run("timeout", str(PATIENCE), *NVSHARECTL, *words, NVSHARE_BUS=private.address)
        started.append(asyncio.ensure_future(command))
        return started[-1]

    yield start
    for one in started:
        one.cancel()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():          # noqa: ASYNC110
            await asyncio.sleep(LOOK)


def leave(client: Client, **memory: Any) -> None:
    """The scheduler has evicted what it can: it is suspended, with these figures of memory."""
    scheduler = client.gpu.scheduler
    assert isinstance(scheduler, Scripted)
    scheduler._clients[client.id] = replace(
        client.view, state=ClientState.SUSPENDED, memory=replace(client.memory, **memory))
    decide(client)


@pytest.mark.usefixtures("publication")
@pytest.mark.parametrize("target", ["11", "job:7"])
async def test_suspend_wait_fails_when_the_program_is_resumed_meanwhile(
        manager: Manager, waiting: Waiting, target: str) -> None:
    client = a_client(manager, manager.gpus[0], pid=11, tenants=JOB)
    ended = waiting("suspend", "--wait", target)
    if target == "11":
        await until(lambda: client.terms.in_force.suspended)
        manager.set_term(client.id, TERMS["suspended"], 0, by_owner=False)
    else:
        await until(lambda: manager.tenancy.tenant(target).terms)
        manager.tenancy.set_terms(target, {"suspended": 0})
    found = await ended
    assert found.code == ExitCode.FAILURE
    name = "process 11" if target == "11" else target
    assert found.err.startswith(f"nvsharectl: {name} was resumed before its memory had left")


@pytest.mark.usefixtures("publication")
async def test_suspend_wait_of_a_program_whose_tenant_stays_suspended_goes_on_after_its_resume(
        manager: Manager, waiting: Waiting) -> None:
    client = a_client(manager, manager.gpus[0], pid=11, tenants=JOB)
    manager.tenancy.set_terms("job:7", {"suspended": 1})
    ended = waiting("suspend", "--wait", "11")
    await until(lambda: client.terms.in_force.suspended)
    manager.set_term(client.id, TERMS["suspended"], 0, by_owner=False)
    leave(client, resident=0)
    assert (await ended).code == 0


@pytest.mark.usefixtures("publication")
@pytest.mark.parametrize("state", ["ended", "parked", "lost", "pinned", "gpu lost"])
async def test_suspend_wait_returns_when_no_memory_of_the_program_will_leave_the_gpu(
        manager: Manager, waiting: Waiting, state: str) -> None:
    client = a_client(manager, manager.gpus[0], pid=11)
    ended = waiting("suspend", "--wait", "11")
    await until(lambda: client.terms.in_force.suspended)
    if state == "ended":
        client.gpu.leave(client)
    elif state == "gpu lost":
        client.gpu.lose("it fell off the bus")
    elif state == "pinned":
        leave(client, pin_reason=PinReason.UNDRAINED)
    else:
        client.parking.enter(state)
    assert (await ended).code == 0


@pytest.mark.parametrize("verb", ["suspend --wait 11", "drain"])
@pytest.mark.parametrize("again", [False, True])
async def test_wait_ends_as_not_running_when_the_daemon_ends_or_is_started_again(
        manager: Manager, private: PrivateBus, waiting: Waiting, verb: str, again: bool) -> None:
    """A new daemon has no clients at first, which must not count as done."""
    async with published(manager, private.address):
        client = a_client(manager, manager.gpus[0], pid=11)
        ended = waiting(*verb.split())
        await until(lambda: client.terms.in_force.suspended or client.gpu.settings.draining)
        other = a_manager()
    if again:
        async with published(other, private.address):
            found = await ended
    else:
        found = await ended
    assert found.code == ExitCode.NOT_RUNNING
    assert "can be stopped" not in found.out
    assert found.err.startswith("nvsharectl: nvshared ")


@pytest.mark.usefixtures("publication")
@pytest.mark.parametrize("gpu", [False, True])
async def test_drain_does_not_wait_for_a_program_that_is_lost_or_was_on_a_lost_gpu(
        manager: Manager, waiting: Waiting, gpu: bool) -> None:
    client = a_client(manager, manager.gpus[0], pid=11)
    ended = waiting("drain")
    await until(lambda: client.gpu.settings.draining)
    if gpu:
        client.gpu.lose("it fell off the bus")
    else:
        client.parking.enter("lost")
    found = await ended
    assert (found.code, found.out.splitlines()[-1]) == (
        0, "nvshared can be stopped: no program needs it now.")
