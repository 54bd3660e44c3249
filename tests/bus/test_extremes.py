# SPDX-License-Identifier: Apache-2.0
"""Every method of the bus is called with the smallest and largest values of its arguments."""

import logging
import time
from collections.abc import AsyncIterator, Iterator
from itertools import product
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from dbus_next.constants import MessageType
from dbus_next.signature import Variant

from nvshared.bus import publish
from nvshared.clock import monotonic
from nvshared.history import History, HistoryFile
from nvshared.names import CLIENT_PATH, GPU_PATH, MANAGER_PATH
from nvshared.settings.state import StateFile, TenantsFile
from nvshared.sharing.manager import Manager
from nvshared.sharing.tenancy import Tenancy
from tests.bus.service import PROPERTIES, Peeper, PrivateBus, a_client, a_manager, a_timer, peeper
from tests.unit.scripted import FACTS

TENANT = "sa{sv}"
NAMES = ["", "0", "1", FACTS.uuid, "user", "auto", "9" * 5000, "user:" + "9" * 200, "user:٣",
         "user:4294967295", "unit:4294967296/x.service", "GPU-" + "x" * 1000, "pod:\ud7ff/:"]
VALUES: dict[str, list[Any]] = {
    "b": [False, True],
    "u": [0, 1, (1 << 32) - 2, (1 << 32) - 1],
    "t": [0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 2, (1 << 64) - 1],
    "s": NAMES,
    "a{sv}": [
        {}, *({"weight": Variant(kind, value)} for kind, values in (
            ("t", [0, (1 << 64) - 1]), ("x", [-(1 << 63)]), ("d", [float("nan"), float("inf")]),
            ("s", ["9" * 5000]), ("b", [True]), ("v", [Variant("t", 1)])) for value in values),
        {"memory-limit": Variant("t", (1 << 64) - 1), "source": Variant("t", (1 << 64) - 1)}],
    "a(sssa{ss})": [[], [["", "", "", {}]], [["9" * 300, "\x7f", "/", {"": "/"}]]],
}
FEWER: dict[str, list[Any]] = {
    "s": ["", "user", "0", "9" * 300], "t": [0, 1, 1 << 63, (1 << 64) - 1]}


def arguments(types: list[str]) -> Iterator[tuple[Any, ...]]:
    """All combinations of the values, of fewer values for methods with many arguments."""
    known: dict[str, list[Any]] = VALUES | FEWER if len(types) > 2 else VALUES
    return product(*[known[one] for one in types])


@pytest.fixture
async def real(tmp_path: Path) -> Manager:
    """Two GPUs with real schedulers and a client; what is changed is kept."""
    manager = a_manager(StateFile(tmp_path), Tenancy(TenantsFile(tmp_path)))
    a_client(manager, manager.gpus[0])
    return manager


@pytest.fixture
async def root(real: Manager, private: PrivateBus, tmp_path: Path) -> AsyncIterator[Peeper]:
    history = History(HistoryFile(tmp_path, 1 << 22), monotonic, a_timer(), time.time)
    publication = await publish(real, private.address, history)
    async with peeper(private.address) as someone:
        yield someone
    await publication.close()
    history.close()


async def test_dbus_call_with_an_extreme_value_of_any_argument_is_answered_without_a_fault(
        root: Peeper, real: Manager, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    called = set()
    for path in (MANAGER_PATH, f"{GPU_PATH}/0", f"{CLIENT_PATH}/1"):
        text = await root.result(
            "Introspect", path=path, interface="org.freedesktop.DBus.Introspectable")
        for interface in ElementTree.fromstring(text).iter("interface"):
            if interface.get("name", "").startswith("org."):
                continue
            for method in interface.iter("method"):
                member = method.get("name", "")
                types = [one.get("type", "") for one in method.iter("arg")
                         if one.get("direction") != "out"]
                for values in arguments(types):
                    reply = await root.call(member, "".join(types), list(values), path=path,
                                            interface=interface.get("name", ""))
                    called.add(member)
                    if reply.message_type is MessageType.ERROR:
                        assert "failed inside" not in reply.body[0], (member, values)
    assert {"GetHistory", "SetTenantTerms", "SetClientTerms", "GetTenant", "SetTQUSec"} <= called
    for path in (MANAGER_PATH, f"{GPU_PATH}/0", f"{CLIENT_PATH}/1"):
        assert await root.result("GetAll", "s", [""], path=path, interface=PROPERTIES)
    assert await root.result("ListTenants") is not None
    assert [one for one in caplog.records if one.exc_info] == []
    assert [*real.clients]
