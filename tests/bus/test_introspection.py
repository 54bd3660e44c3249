# SPDX-License-Identifier: Apache-2.0
"""The running daemon says what dbus/*.xml says, and what changes something is guarded."""

import re
from enum import StrEnum
from pathlib import Path
from xml.etree import ElementTree

import pytest

from nvshared.bus.client import ClientInterface
from nvshared.bus.gpu import GPUInterface, StatisticsInterface
from nvshared.bus.logcontrol import LogControl
from nvshared.bus.manager import ManagerInterface
from nvshared.bus.members import ANYONE, Interface, Owned
from nvshared.bus.standard import Introspectable, ObjectManager, PeerInterface, Properties
from nvshared.names import LOG_CONTROL_PATH, MANAGER_PATH, client_path, gpu_path
from nvshared.scheduler.actions import ClientState, TurnEnd
from nvshared.scheduler.snapshot import CardState
from nvshared.sharing.manager import Manager
from tests.bus.service import Peeper, a_client

DBUS = Path(__file__).parents[2] / "dbus"
OURS: list[type[Interface]] = [ManagerInterface, GPUInterface, StatisticsInterface, ClientInterface]
STANDARD: list[type[Interface]] = [PeerInterface, Introspectable, Properties, ObjectManager]

# The methods that anybody may call. One that is not here and has no action fails below.
OPEN = {
    "GetGPU", "ListGPUs", "ListClients", "ListTurns", "GetClientsByPID", "ListTenants",
    "GetTenant", "Ping", "GetMachineId", "Introspect", "Get", "GetAll", "GetManagedObjects",
    "Set",                              # has no action itself: each writable property does
}


def plain(element: ElementTree.Element) -> object:
    """An element without comments, blanks and the order of what is in it."""
    return (
        element.tag,
        tuple(sorted(element.attrib.items())),
        sorted((plain(child) for child in element if isinstance(child.tag, str)), key=repr)
        # The order of arguments means something.
        if element.tag not in ("method", "signal")
        else [plain(child) for child in element],
    )


async def introspect(other: Peeper, path: str) -> ElementTree.Element:
    """What an object tells."""
    text = await other.result(
        "Introspect", path=path, interface="org.freedesktop.DBus.Introspectable"
    )
    return ElementTree.fromstring(text)


@pytest.mark.parametrize("interface", OURS, ids=lambda one: one.name)
async def test_the_running_daemon_says_what_its_xml_says(
    interface: type[Interface], manager: Manager, other: Peeper
) -> None:
    client = a_client(manager, manager.gpus[0])
    path = {
        ManagerInterface: MANAGER_PATH, ClientInterface: client_path(client.id),
    }.get(interface, gpu_path(0))
    found = await introspect(other, path)
    (running,) = [one for one in found if one.get("name") == interface.name]
    (written,) = ElementTree.parse(DBUS / f"{interface.name}.xml").getroot()
    assert plain(running) == plain(written)


@pytest.mark.parametrize("interface", OURS, ids=lambda one: one.name)
def test_every_member_is_described(interface: type[Interface]) -> None:
    text = (DBUS / f"{interface.name}.xml").read_text()
    comments = [comment.strip() for comment in re.findall("<!--(.*?)-->", text, re.DOTALL)]
    for name in [*interface.methods, *interface.signals, *interface.properties]:
        (described,) = [one for one in comments if one.startswith(f"{name}:")]
        assert described.endswith("."), f"{interface.name}.{name}: no full sentence"
    signals = [(one.name, one.carries) for one in interface.signals.values()]
    methods = [(one.name, one.takes + one.gives) for one in interface.methods.values()]
    for name, arguments in signals + methods:
        (described,) = [one for one in comments if one.startswith(f"{name}:")]
        named = re.findall(r"@(\w+):", described)
        assert named == [argument.name for argument in arguments], name


def test_every_method_is_authorised_or_declared_open() -> None:
    actions = {
        action.get("id")
        for action in ElementTree.parse(DBUS / "com.nvshare.policy").getroot().iter("action")
    }
    used = set()
    interfaces: list[type[Interface]] = [*OURS, LogControl, *STANDARD]
    for interface in interfaces:
        for method in interface.methods.values():
            if method.action is ANYONE:
                assert method.name in OPEN, f"anybody may call {interface.name}.{method.name}"
            else:
                action = method.action
                used.add(action.action if isinstance(action, Owned) else action)
        for member in interface.properties.values():
            if member.set is not None:
                assert isinstance(member.action, str), f"anybody may write {member.name}"
                used.add(member.action)
    assert used == actions


@pytest.mark.parametrize(("file", "words"), [
    ("com.nvshare.GPU", TurnEnd), ("com.nvshare.GPU", CardState),
    ("com.nvshare.Client", ClientState),
])
def test_every_word_that_travels_is_explained(file: str, words: type[StrEnum]) -> None:
    text = (DBUS / f"{file}.xml").read_text()
    for word in words:
        assert f'"{word}"' in text


async def test_tools_find_their_way_from_the_root(manager: Manager, other: Peeper) -> None:
    a_client(manager, manager.gpus[0])
    todo, found = ["/"], set()
    while todo:
        path = todo.pop()
        node = await introspect(other, path)
        if node.find("interface[@name='org.freedesktop.DBus.Properties']") is not None:
            found.add(path)
        todo += [f"{path.rstrip('/')}/{child.get('name')}" for child in node.findall("node")]
    assert found == {MANAGER_PATH, LOG_CONTROL_PATH, gpu_path(0), gpu_path(1), client_path(1)}


async def test_one_question_for_everything(manager: Manager, other: Peeper) -> None:
    client = a_client(manager, manager.gpus[1])
    objects = await other.result(
        "GetManagedObjects", interface="org.freedesktop.DBus.ObjectManager"
    )
    assert set(objects) == {gpu_path(0), gpu_path(1), client_path(client.id)}
    shown = objects[client_path(client.id)][ClientInterface.name]
    assert shown["GPU"].value == gpu_path(1)
    assert shown["Name"].value == client.peer.name
    assert "train.py" not in str(objects)       # command lines may have secrets in them
