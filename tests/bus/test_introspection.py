# SPDX-License-Identifier: Apache-2.0
"""D-Bus introspection equals dbus/*.xml, and each method that changes state needs an action."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from dbus_next import introspection

from nvshared import bus
from nvshared.bus import Publication
from nvshared.bus.dispatch import OBJECT_MANAGER
from nvshared.bus.interface import ANYONE, Interface
from nvshared.names import LOG_CONTROL_PATH, MANAGER_PATH, client_path, gpu_path
from nvshared.sharing.manager import Manager
from tests.bus.service import Peeper, a_client

DBUS = Path(__file__).parents[2] / "dbus"
OURS = {                                # interfaces, and the path of an object with each
    "com.nvshare.Manager": MANAGER_PATH, "com.nvshare.GPU": gpu_path(0),
    "com.nvshare.GPU.Statistics": gpu_path(0), "com.nvshare.Client": client_path(1),
}

# The methods that any user may call.
OPEN = {
    "GetGPU", "ListGPUs", "ListClients", "ListTurns", "GetClientsByPID", "ListTenants",
    "GetTenant",
}


def plain(element: ElementTree.Element) -> object:
    """A form of an XML element that does not depend on comments, blanks or the children's order."""
    return (
        element.tag,
        tuple(sorted(element.attrib.items())),
        sorted((plain(child) for child in element if isinstance(child.tag, str)), key=repr)
        # The order of a method's or signal's arguments matters.
        if element.tag not in ("method", "signal")
        else [plain(child) for child in element])


async def introspect(other: Peeper, path: str) -> ElementTree.Element:
    text = await other.result("Introspect", path=path,
                              interface="org.freedesktop.DBus.Introspectable")
    return ElementTree.fromstring(text)


def written(name: str) -> ElementTree.Element:
    """An interface as its file in dbus/ describes it."""
    (found,) = ElementTree.parse(DBUS / f"{name}.xml").getroot()
    return found


@pytest.mark.parametrize("name", OURS)
async def test_dbus_introspection_of_the_running_daemon_equals_the_xml_files(
        name: str, manager: Manager, other: Peeper) -> None:
    a_client(manager, manager.gpus[0])
    running = {one.get("name"): one for one in await introspect(other, OURS[name])}
    assert plain(running[name]) == plain(written(name))
    assert (OBJECT_MANAGER in running) == (OURS[name] == MANAGER_PATH)


@pytest.mark.parametrize("name", OURS)
def test_server_names_each_dbus_member_in_its_code(name: str) -> None:
    """So that a search for the name of a method or property finds what carries it out."""
    code = (Path(bus.__file__).parent / "services.py").read_text()
    missing = [member.get("name") for member in written(name)
               if not re.search(rf"\b{member.get('name')}\b", code)]
    assert not missing


@pytest.mark.parametrize("name", OURS)
def test_every_dbus_member_has_a_comment_with_all_arguments_in_the_xml(name: str) -> None:
    interface = introspection.Interface.from_xml(written(name))
    text = (DBUS / f"{name}.xml").read_text()
    comments = [comment.strip() for comment in re.findall("<!--(.*?)-->", text, re.DOTALL)]
    members = [
        *((one.name, one.in_args + one.out_args) for one in interface.methods),
        *((one.name, one.args) for one in interface.signals),
        *((one.name, []) for one in interface.properties)]
    for member, arguments in members:
        (described,) = [one for one in comments if one.startswith(f"{member}:")]
        assert described.endswith("."), f"{name}.{member}: no full sentence"
        named = re.findall(r"@(\w+):", described)
        assert named == [argument.name for argument in arguments], member


def test_every_dbus_method_needs_a_polkit_action_or_is_listed_as_open_to_all(
        manager: Manager, publication: Publication) -> None:
    a_client(manager, manager.gpus[0])
    actions = {
        action.get("id")
        for action in ElementTree.parse(DBUS / "com.nvshare.policy").getroot().iter("action")}
    used = set()
    for path in (MANAGER_PATH, LOG_CONTROL_PATH, gpu_path(0), client_path(1)):
        for interface in publication._bus._exports[path]:
            assert isinstance(interface, Interface)
            for method in interface.methods.values():
                if method.action is ANYONE:
                    assert method.name in OPEN, f"anybody may call {interface.name}.{method.name}"
                else:
                    used.add(method.action)
            for member in interface.properties.values():
                if member.write is not None:
                    assert member.action, f"anybody may write {member.name}"
                    used.add(member.action)
    assert used == actions
