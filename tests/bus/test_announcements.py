# SPDX-License-Identifier: Apache-2.0
"""D-Bus signals, and the announcement of changed properties."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from dbus_next.message import Message

from nvshared.bus import Publication
from nvshared.names import (
    CLIENT_INTERFACE,
    GPU_INTERFACE,
    MANAGER_INTERFACE,
    MANAGER_PATH,
    client_path,
    gpu_path,
)
from nvshared.scheduler.actions import ClientState, Stuck, TurnEnd, TurnEnded, TurnStarted
from nvshared.sharing.manager import Manager
from nvshared.terms import TERMS
from nvshared.units import SECOND
from tests.bus.service import PROPERTIES, Peeper, a_client, decide
from tests.unit.scripted import Scripted


def named(other: Peeper, member: str) -> list[tuple[str, list[Any]]]:
    """Path and body of each received signal `member`."""
    return [(one.path, one.body) for one in other.signals if one.member == member]


async def announced(publication: Publication,
                    other: Peeper) -> list[tuple[str, str, dict[str, Any]]]:
    """Path, interface and new values in each PropertiesChanged signal until now."""
    publication._bus.announce(float("inf"))
    await other.settled()
    return [
        (path, interface, {name: variant.value for name, variant in changes.items()})
        for path, (interface, changes, _) in named(other, "PropertiesChanged")]


async def test_dbus_signals_report_a_client_that_connects_and_disconnects(
        manager: Manager, other: Peeper) -> None:
    await other.watch()
    gpu = manager.gpus[0]
    client = a_client(manager, gpu)
    path = client_path(client.id)
    await other.settled()
    assert named(other, "ClientNew") == [(MANAGER_PATH, [client.id, path])]
    ((where, (added, interfaces)),) = named(other, "InterfacesAdded")
    assert (where, added) == (MANAGER_PATH, path)   # sent by the manager, not by the client
    assert interfaces[CLIENT_INTERFACE]["PID"].value == client.peer.pid

    gpu.leave(client)
    await other.settled()
    assert named(other, "ClientRemoved") == [(MANAGER_PATH, [client.id, path])]
    ((where, (removed, gone)),) = named(other, "InterfacesRemoved")
    assert (where, removed) == (MANAGER_PATH, path)
    assert CLIENT_INTERFACE in gone
    reply = await other.call("GetAll", "s", [""], path=path, interface=PROPERTIES)
    assert reply.error_name == "org.freedesktop.DBus.Error.UnknownObject"


async def test_dbus_signals_report_the_start_and_end_of_a_turn_and_a_stuck_client(
        manager: Manager, other: Peeper) -> None:
    await other.watch()
    client = a_client(manager, manager.gpus[1])
    decide(client, TurnStarted(client.id))
    decide(client, TurnEnded(client.id, TurnEnd.QUANTUM, 30_000_017))
    decide(client, Stuck(client.id, ClientState.DRAINING, 12_000_000))
    await other.settled()
    path = client_path(client.id)
    assert named(other, "TurnStarted") == [(gpu_path(1), [path])]
    assert named(other, "TurnEnded") == [(gpu_path(1), [path, "quantum", 30_000_017])]
    assert named(other, "ClientStuck") == [(MANAGER_PATH, [path, "draining", 12_000_000, {}])]


async def test_dbus_signal_propertieschanged_has_the_new_values_of_changed_properties(
        manager: Manager, publication: Publication, other: Peeper) -> None:
    await other.watch()
    manager.set_tq(9 * SECOND)
    manager.set_tq(30 * SECOND)
    assert await announced(publication, other) == []        # unchanged: no signal
    manager.set_tq(9 * SECOND)
    manager.set_anti_thrash("on", manager.gpus[1])
    found = await announced(publication, other)
    assert sorted(found, key=repr) == sorted([
        (MANAGER_PATH, MANAGER_INTERFACE, {"TQ": 9, "TQUSec": 9_000_000}),
        (gpu_path(0), GPU_INTERFACE, {"TQ": 9, "TQUSec": 9_000_000}),
        (gpu_path(1), GPU_INTERFACE, {"TQ": 9, "TQUSec": 9_000_000, "AntiThrash": "on"})], key=repr)


async def test_dbus_signals_for_101_property_changes_at_once_are_merged_into_two(
        manager: Manager, other: Peeper) -> None:
    await other.watch()
    first, last = 31, 131
    arrived = {first: asyncio.Event(), last: asyncio.Event()}

    def note_change(message: Message) -> None:
        if message.member == "PropertiesChanged":
            arrived[message.body[1]["TQ"].value].set()

    other.bus.add_message_handler(note_change)
    # The first change is sent at once; changes shortly after it are sent together.
    manager.set_tq(first * SECOND, manager.gpus[0])
    await arrived[first].wait()
    for seconds in range(first + 1, last + 1):
        manager.set_tq(seconds * SECOND, manager.gpus[0])
    await arrived[last].wait()
    await other.settled()
    values = [body[1]["TQ"].value for path, body in named(other, "PropertiesChanged")
              if path == gpu_path(0)]
    assert values == [first, last]


@pytest.mark.parametrize("limited", ["the client", "its tenant"])
async def test_dbus_signal_is_sent_when_a_wait_for_a_compute_limit_ends(
        manager: Manager, publication: Publication, other: Peeper, limited: str) -> None:
    client = a_client(manager, manager.gpus[0])
    scheduler = manager.gpus[0].scheduler
    assert isinstance(scheduler, Scripted)

    def becomes(state: ClientState) -> None:
        view = scheduler._clients[client.id]
        scheduler._clients[client.id] = replace(view, state=state)

    await other.watch()
    becomes(ClientState.LIMITED)
    if limited == "the client":
        manager.set_term(client.id, TERMS["compute-limit"], 50)
    else:
        decide(client)
    await announced(publication, other)
    other.signals.clear()
    becomes(ClientState.WAITING)
    assert manager.gpus[0].decides()      # the scheduler handles a Tick
    assert await announced(publication, other) == [
        (client_path(client.id), CLIENT_INTERFACE, {"State": "waiting"})]
    other.signals.clear()
    manager.gpus[0].decides()
    assert publication._bus._dirty == {}       # a tick without a change marks no property
