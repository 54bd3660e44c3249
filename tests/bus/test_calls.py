# SPDX-License-Identifier: Apache-2.0
"""Calls of the daemon over D-Bus: their replies, and the errors for wrong calls."""

import asyncio
import errno
import logging
import os
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from dbus_next.constants import MessageFlag, MessageType
from dbus_next.message import Message
from dbus_next.signature import Variant

from nvshared.bus import Publication, dispatch
from nvshared.dbus import marshalled
from nvshared.names import (
    BUS_NAME,
    GPU_INTERFACE,
    LOG_CONTROL_INTERFACE,
    LOG_CONTROL_PATH,
    MANAGER_INTERFACE,
    MANAGER_PATH,
    STATISTICS_INTERFACE,
    client_path,
    gpu_path,
)
from nvshared.settings.state import FILE_NAME, TENANTS_FILE, StateFile, TenantsFile, saved
from nvshared.sharing.manager import Manager
from nvshared.sharing.tenancy import Tenancy
from nvshared.units import SECOND
from tests.bus.service import (
    PROPERTIES,
    Peeper,
    PrivateBus,
    a_client,
    a_manager,
    peeper,
    private_bus,
    published,
)
from tests.unit.scripted import FACTS, OTHER, script

STANDARD = "org.freedesktop.DBus.Error."
OBJECT_MANAGER = "org.freedesktop.DBus.ObjectManager"


def refusal(reply: Message) -> tuple[str, str]:
    assert reply.message_type is MessageType.ERROR, reply.body
    assert reply.error_name is not None
    (sentence,) = reply.body
    assert "Traceback" not in sentence
    assert "\n" not in sentence
    return reply.error_name, sentence


async def test_settings_call_changes_the_gpu_named_by_the_argument_or_the_object_path(
        manager: Manager, other: Peeper) -> None:
    await other.call("SetGPUTQ", "su", [OTHER.pci_bus_id, 40])
    assert [gpu.tq // SECOND for gpu in manager.gpus] == [30, 40]
    assert await other.result("GetGPU", "s", [OTHER.uuid]) == gpu_path(1)
    await other.call("SetGPUAntiThrash", "ss", [FACTS.uuid, "off"])
    assert [gpu.settings.anti_thrash for gpu in manager.gpus] == ["off", "auto"]
    await other.call("SetTQ", "u", [3], path=gpu_path(0), interface=GPU_INTERFACE)
    await other.call("SetAntiThrash", "s", ["on"], path=gpu_path(0), interface=GPU_INTERFACE)
    assert (manager.gpus[0].tq, manager.gpus[0].settings.anti_thrash) == (3 * SECOND, "on")
    await other.call("SetTQAuto", path=gpu_path(0), interface=GPU_INTERFACE)
    assert [gpu.settings.tq is None for gpu in manager.gpus] == [True, False]


async def test_dbus_list_methods_return_each_gpu_and_client_with_the_object_path(
        manager: Manager, other: Peeper) -> None:
    first, second = (a_client(manager, gpu, pid=os.getpid()) for gpu in manager.gpus)
    gpus = await other.result("ListGPUs")
    assert gpus == [[0, FACTS.uuid, gpu_path(0), {}], [1, OTHER.uuid, gpu_path(1), {}]]
    clients = await other.result("ListClients")
    assert clients == [
        [one.id, os.getpid(), one.gpu.facts.index, client_path(one.id), {}]
        for one in (first, second)]
    of_second = await other.result("ListClients", path=gpu_path(1), interface=GPU_INTERFACE)
    assert of_second == clients[1:]
    paths = [client_path(first.id), client_path(second.id)]
    assert await other.result("GetClientsByPID", "u", [os.getpid()]) == paths
    assert await other.result("GetClientsByPID", "u", [0]) == paths
    assert await other.result("GetClientsByPID", "u", [1]) == []


MACHINE_ID = Path("/etc/machine-id")


@pytest.mark.skipif(not MACHINE_ID.exists(), reason="this machine has no id")
async def test_dbus_peer_interface_tells_the_id_of_the_machine_each_time(other: Peeper) -> None:
    id = MACHINE_ID.read_text().strip()     # noqa: ASYNC240
    for _ in range(2):
        assert await other.result("GetMachineId", interface="org.freedesktop.DBus.Peer") == id


@pytest.mark.parametrize(("member", "signature", "body", "error", "words"), [
    ("SetTQ", "u", [0], STANDARD + "InvalidArgs", "the quantum cannot be 0 seconds"),
    ("SetTQ", "s", ["x"], STANDARD + "InvalidArgs", "SetTQ takes arguments of type 'u'"),
    ("SetAntiThrash", "s", ["maybe"], STANDARD + "InvalidArgs", "'maybe'"),
    ("SetPolicy", "s", ["lifo"], STANDARD + "InvalidArgs", "give fair, fifo"),
    ("SetGPUTQ", "su", ["9", 5], "com.nvshare.Error.NoSuchGPU", "there is no GPU '9'"),
    ("GetGPU", "s", ["GPU-0"], "com.nvshare.Error.NoSuchGPU", "'GPU-0'"),
    ("SetTq", "u", [5], STANDARD + "UnknownMethod", "'SetTq'"),
])
async def test_dbus_call_with_a_wrong_value_is_refused_and_the_error_names_the_value(
        other: Peeper, caplog: pytest.LogCaptureFixture, member: str, signature: str,
        body: list[Any], error: str, words: str) -> None:
    name, sentence = refusal(await other.call(member, signature, body))
    assert name == error
    assert words in sentence
    assert not caplog.records           # a caller's mistake is not written to the journal


@pytest.mark.parametrize(("path", "interface", "member", "body", "error"), [
    (MANAGER_PATH, PROPERTIES, "Get", [MANAGER_INTERFACE, "Tq"], "UnknownProperty"),
    (MANAGER_PATH, PROPERTIES, "Get", ["com.nvshare.Boss", "TQ"], "UnknownInterface"),
    (MANAGER_PATH, "com.nvshare.Boss", "Get", ["", ""], "UnknownInterface"),
    ("/com/nvshare/gpu/9", PROPERTIES, "Get", [GPU_INTERFACE, "TQ"], "UnknownObject"),
    ("/com/nvshare/gpu", PROPERTIES, "Get", [GPU_INTERFACE, "TQ"], "UnknownInterface"),
    (gpu_path(0), MANAGER_INTERFACE, "Get", ["", ""], "UnknownInterface"),
    (MANAGER_PATH, "", "SetTQ", [5], "UnknownInterface"),
    (MANAGER_PATH, PROPERTIES, "Set", [MANAGER_INTERFACE, "TQ", Variant("u", 5)],
     "PropertyReadOnly"),
    (LOG_CONTROL_PATH, PROPERTIES, "Set", [LOG_CONTROL_INTERFACE, "LogTarget", Variant("s", "x")],
     "PropertyReadOnly"),
])
async def test_dbus_call_with_an_unknown_name_or_a_readonly_property_is_refused(
        manager: Manager, other: Peeper, path: str, interface: str, member: str,
        body: list[Any], error: str) -> None:
    signature = {"SetTQ": "u", "Set": "ssv"}.get(member, "ss")
    name, _ = refusal(await other.call(member, signature, body, path=path, interface=interface))
    assert name == STANDARD + error
    assert manager.tq == 30 * SECOND
    assert await other.properties(MANAGER_PATH, OBJECT_MANAGER) == {}   # as busctl asks


async def test_dbus_call_that_expects_no_reply_is_carried_out_and_gets_none(
        manager: Manager) -> None:
    # A bus that passes on replies that the caller has not asked for.
    policy = ('<allow own="*"/><allow send_requested_reply="false"/>'
              '<allow receive_requested_reply="false"/>')
    with private_bus(policy) as bus:
        async with published(manager, bus.address), peeper(bus.address) as other:
            replies: list[int] = []
            other.bus.add_message_handler(lambda one: replies.append(one.reply_serial))
            serials = []
            for quantum in (0, 17):
                message = Message(
                    destination=BUS_NAME, path=MANAGER_PATH, interface=MANAGER_INTERFACE,
                    member="SetTQ", signature="u", body=[quantum],
                    flags=MessageFlag.NO_REPLY_EXPECTED)
                await other.bus.send(message)
                serials.append(message.serial)
            while manager.tq != 17 * SECOND:
                await other.settled()
            await other.settled()
            assert all(serials)
            assert not {*replies} & {*serials}


async def test_unexpected_exception_in_a_dbus_call_is_logged_and_not_sent_to_the_caller(
        manager: Manager, other: Peeper, monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(manager, "reset_settings", fail)
    name, sentence = refusal(await other.call("ResetSettings"))
    assert name == STANDARD + "Failed"
    assert "secret" not in sentence
    assert [record.exc_info is not None for record in caplog.records] == [True]


async def test_log_level_is_read_and_set_over_the_bus(other: Peeper,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "level", logging.INFO)
    name = [LOG_CONTROL_INTERFACE, "LogLevel"]

    async def level() -> str:
        found = await other.result("Get", "ss", name, path=LOG_CONTROL_PATH, interface=PROPERTIES)
        return str(found.value)

    async def write(value: Variant) -> Message:
        body = [*name, value]
        return await other.call("Set", "ssv", body, path=LOG_CONTROL_PATH, interface=PROPERTIES)

    assert await level() == "info"
    await write(Variant("s", "debug"))
    assert await level() == "debug"
    assert root.level == logging.DEBUG
    for wrong, error in ((Variant("s", "chatty"), "Args"), (Variant("u", 7), "Signature")):
        assert refusal(await write(wrong))[0] == f"{STANDARD}Invalid{error}"


async def test_received_calls_are_answered_before_the_daemon_leaves_the_bus(
    publication: Publication, manager: Manager, other: Peeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaving: list[asyncio.Task[None]] = []

    def leave() -> Future[None]:
        leaving.append(asyncio.get_running_loop().create_task(publication.close()))
        return saved()

    monkeypatch.setattr(manager, "reset_settings", leave)
    # The second call arrives before the first makes the daemon leave; both are answered.
    answers = await asyncio.gather(other.call("ResetSettings"), other.call("ListGPUs"))
    await leaving[0]
    assert [answer.message_type for answer in answers] == [MessageType.METHOD_RETURN] * 2
    name, _ = refusal(await other.call("ListGPUs"))
    assert name == STANDARD + "ServiceUnknown"


@pytest.mark.parametrize("how", ["Get", "GetAll", "GetManagedObjects"])
async def test_dbus_read_of_gpu_figures_samples_the_card_first(
        manager: Manager, other: Peeper, how: str) -> None:
    gpu = manager.gpus[0]

    def take_sample(looked: Callable[[], None]) -> None:
        gpu.sample = replace(gpu.sample, temperature=77)
        asyncio.get_running_loop().call_soon(looked)

    gpu.request_sample = take_sample
    path = gpu_path(0)
    if how == "Get":
        body = [STATISTICS_INTERFACE, "Temperature"]
        found = (await other.result(how, "ss", body, path=path, interface=PROPERTIES)).value
    elif how == "GetAll":
        found = (await other.properties(path, STATISTICS_INTERFACE))["Temperature"]
    else:
        objects = await other.result(how, interface=OBJECT_MANAGER)
        found = objects[path][STATISTICS_INTERFACE]["Temperature"].value
    assert found == 77


async def test_getmanagedobjects_omits_clients_that_disconnect_during_the_call(
        manager: Manager, other: Peeper, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = [a_client(manager, manager.gpus[0]) for _ in range(5)]
    call = asyncio.ensure_future(other.result("GetManagedObjects", interface=OBJECT_MANAGER))
    gone = 0

    def describing(signature: str, *values: Any) -> bytes:
        nonlocal gone
        if client_path(clients[1].id) in values[0] and not gone:
            gone = clients[3].id
            manager.gpus[0].leave(clients[3])
        return marshalled(signature, *values)

    monkeypatch.setattr(dispatch, "marshalled", describing)
    found = await call
    kept = {client_path(one.id) for one in clients if one.id != gone}
    assert gone
    assert set(found) == {gpu_path(0), gpu_path(1)} | kept


KEPT = [
    ("SetTQ", "u", [12], FILE_NAME), ("SetGPUAntiThrash", "ss", ["1", "on"], FILE_NAME),
    ("ResetSettings", "", [], FILE_NAME),
    ("SetTenantTerms", "sa{sv}", ["user:alice", {"weight": Variant("t", 7)}], TENANTS_FILE),
]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(("member", "signature", "body", "name"), KEPT)
async def test_dbus_call_that_changes_a_setting_is_answered_after_fsync_and_delays_no_other_call(
        monkeypatch: pytest.MonkeyPatch, private: PrivateBus, tmp_path: Path, member: str,
        signature: str, body: list[object], name: str, fails: bool) -> None:
    script(monkeypatch)
    syncs, goes_on = Event(), Event()

    def slow(_: int) -> None:
        syncs.set()
        goes_on.wait()
        if fails:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", slow)
    manager = a_manager(StateFile(tmp_path), Tenancy(TenantsFile(tmp_path)))
    async with published(manager, private.address), peeper(private.address) as one:
        change = asyncio.create_task(one.call(member, signature, body))
        try:
            await asyncio.to_thread(syncs.wait)
            await one.result("ListTenants")
            assert not change.done()
            assert not (tmp_path / name).exists()
        finally:
            goes_on.set()
        reply = await change
        if fails:
            assert refusal(reply)[0] == "com.nvshare.Error.NotKept"
        assert (reply.message_type is MessageType.ERROR, (tmp_path / name).exists()) == (
            fails, not fails)
