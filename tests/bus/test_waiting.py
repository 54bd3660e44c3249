# SPDX-License-Identifier: Apache-2.0
"""Waiting clients, their last turns, and unshared processes, over the bus."""

import os
from dataclasses import replace

from nvshared.machine.nvml import Process
from nvshared.names import CLIENT_INTERFACE, STATISTICS_INTERFACE, UNKNOWN, client_path, gpu_path
from nvshared.scheduler.actions import TurnEnd, TurnEnded, TurnStarted
from nvshared.scheduler.snapshot import Forecast
from nvshared.sharing.manager import Manager
from nvshared.units import GIB, SECOND
from tests.bus.service import UNUSED_PID, Peeper, a_client, decide
from tests.bus.test_commands import Run, ctl
from tests.unit.scripted import Scripted

__all__ = ["ctl"]                       # a fixture


async def test_client_properties_show_time_waited_and_expected_wait(
        manager: Manager, other: Peeper, ctl: Run) -> None:
    client = a_client(manager, manager.gpus[0])
    scheduler = client.gpu.scheduler
    assert isinstance(scheduler, Scripted)
    shown = await other.properties(client_path(client.id), CLIENT_INTERFACE)
    names = ("WaitingUSec", "ExpectedUSec", "Position", "IdleUSec")
    assert [shown[name] for name in names] == [0, 0, 0, 0]

    view = client.view
    scheduler.waits = {client.id: Forecast(2, 1000 * SECOND)}
    scheduler._clients[client.id] = replace(view, waiting=5 * SECOND, idle=7 * SECOND)
    decide(client)
    shown = await other.properties(client_path(client.id), CLIENT_INTERFACE)
    assert shown["IdleUSec"] >= 7 * SECOND
    assert "IDLE" in (await ctl("clients")).out.splitlines()[0]
    assert shown["Position"] == 2
    waiting, expected = shown["WaitingUSec"], shown["ExpectedUSec"]
    assert waiting >= 5 * SECOND
    # As time passes, WaitingUSec grows and ExpectedUSec falls; both are read a moment apart.
    assert abs(waiting + expected - 1005 * SECOND) < SECOND

    scheduler.waits = {client.id: Forecast(1, None)}
    decide(client)
    shown = await other.properties(client_path(client.id), CLIENT_INTERFACE)
    assert shown["ExpectedUSec"] == UNKNOWN


async def test_listturns_returns_the_last_turns_of_a_client(manager: Manager,
                                                            other: Peeper) -> None:
    client = a_client(manager, manager.gpus[0])
    for held in range(20):
        decide(client, TurnStarted(client.id))
        decide(client, TurnEnded(client.id, TurnEnd.QUANTUM, held))
    decide(client, TurnStarted(client.id))
    turns = await other.result(
        "ListTurns", path=client_path(client.id), interface=CLIENT_INTERFACE)
    assert len(turns) == 16
    ago, held, _, _, reason, more = turns[0]
    assert (reason, more) == ("", {})
    assert ago == held  # the turn has not ended: its length is the time since its start
    assert [(held, reason) for _, held, _, _, reason, _ in turns[1:4]] == [
        (19, "quantum"), (18, "quantum"), (17, "quantum")]


async def test_gpu_property_unshared_lists_processes_without_the_library(
        manager: Manager, other: Peeper) -> None:
    gpu = manager.gpus[0]
    client = a_client(manager, gpu, pid=1)
    processes = (
        Process(client.peer.pid, 20 * GIB), Process(UNUSED_PID, None), Process(os.getpid(), GIB))
    gpu.sample = replace(gpu.sample, processes=processes)
    shown = await other.properties(gpu_path(0), STATISTICS_INTERFACE)
    (own, gone) = shown["Unshared"]
    assert own[0] == os.getpid()
    assert own[1] == os.getuid()
    assert own[2] not in ("", "?")
    assert own[3:] == [GIB]
    assert gone == [UNUSED_PID, (1 << 32) - 1, "?", 0]
