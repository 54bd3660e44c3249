# SPDX-License-Identifier: Apache-2.0
"""The interfaces that every object on a bus has, by the D-Bus specification."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from dbus_next.constants import ErrorType

from nvshared.bus.authority import Caller
from nvshared.bus.collection import Collection
from nvshared.bus.introspection import document
from nvshared.bus.members import ANYONE, Body, Interface, Property, SignalMember, method
from nvshared.bus.tree import OBJECT_MANAGER, PROPERTIES, Tree
from nvshared.dbus.types import Variant
from nvshared.dbus.writing import begin, end
from nvshared.errors import InvalidArgs, NvshareError


class UnknownInterface(NvshareError, bus_name=ErrorType.UNKNOWN_INTERFACE.value):
    """The object has no interface of that name."""


class UnknownProperty(NvshareError, bus_name=ErrorType.UNKNOWN_PROPERTY.value):
    """The interface has no property of that name."""


class PropertyReadOnly(NvshareError, bus_name=ErrorType.PROPERTY_READ_ONLY.value):
    """The property cannot be written."""


class PeerInterface(Interface, name="org.freedesktop.DBus.Peer"):
    """Is somebody there, and on which machine?"""

    @method("Ping", action=ANYONE)
    def ping(self, _caller: Caller) -> None:
        """Answers."""

    @method("GetMachineId", gives="machine_uuid:s", action=ANYONE)
    def machine_id(self, _caller: Caller) -> str:
        """The id of this machine, 32 hexadecimal digits."""
        for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
            if Path(path).is_file():
                return Path(path).read_text().strip()
        raise NvshareError("this machine has no /etc/machine-id", "run systemd-machine-id-setup")


class Introspectable(Interface, name="org.freedesktop.DBus.Introspectable"):
    """What an object can do."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    @method("Introspect", gives="xml_data:s", action=ANYONE)
    def introspect(self, _caller: Caller) -> str:
        """The object described in XML."""
        interfaces = self._tree.interfaces(self.path).values()
        return document([type(one) for one in interfaces], self._tree.children(self.path))


class Properties(Interface, name=PROPERTIES):
    """Reading and writing the properties of the other interfaces of the object."""

    properties_changed = SignalMember.of(
        "PropertiesChanged",
        "interface_name:s changed_properties:a{sv} invalidated_properties:as",
    )

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    @method("Get", "interface_name:s property_name:s", "value:v", action=ANYONE)
    async def get(self, _caller: Caller, interface_name: str, property_name: str) -> Variant:
        """One property."""
        interface, member = self._find(interface_name, property_name)
        await interface.refresh()
        return Variant(member.type, member.get(interface))

    @method("GetAll", "interface_name:s", "properties:a{sv}", action=ANYONE)
    async def get_all(self, _caller: Caller, interface_name: str) -> Body:
        """All properties of an interface; of all interfaces if the name is empty."""
        chosen = self._chosen(interface_name)
        for interface in chosen:
            await interface.refresh()
        out = bytearray()
        properties = begin(out)
        for interface in chosen:
            interface.put(out)
        end(out, properties)
        return Body(out)

    # Open as a method; each property that can be written has an action of its own.
    @method("Set", "interface_name:s property_name:s value:v", action=ANYONE)
    async def set(
        self, caller: Caller, interface_name: str, property_name: str, value: Variant
    ) -> None:
        """Writes a property."""
        interface, member = self._find(interface_name, property_name)
        if member.set is None:
            raise PropertyReadOnly(f"{interface.name}.{property_name} cannot be written")
        if value.type != member.type:
            raise InvalidArgs(
                f"property {property_name} has type {member.type!r}, not {value.type!r}"
            )
        if isinstance(member.action, str):
            await caller.authorise(member.action)
        member.set(interface, value.value)
        self._tree.changed(interface)

    def _chosen(self, name: str) -> list[Interface]:
        interfaces = self._tree.interfaces(self.path)
        if name and name not in interfaces:
            raise UnknownInterface(f"{self.path} has no interface {name!r}")
        return [interfaces[name]] if name else list(interfaces.values())

    def _find(self, interface_name: str, name: str) -> tuple[Interface, Property[Any]]:
        for interface in self._chosen(interface_name):
            if name in interface.properties:
                return interface, interface.properties[name]
        where = interface_name or self.path
        raise UnknownProperty(f"{where} has no property {name!r}")


class ObjectManager(Interface, name=OBJECT_MANAGER):
    """All objects below this one, with one question."""

    interfaces_added = SignalMember.of(
        "InterfacesAdded", "object_path:o interfaces_and_properties:a{sa{sv}}"
    )
    interfaces_removed = SignalMember.of("InterfacesRemoved", "object_path:o interfaces:as")

    def __init__(self, tree: Tree, refresh: Callable[[], Awaitable[None]]) -> None:
        self._collection = Collection(tree, refresh)

    @method(
        "GetManagedObjects", gives="object_paths_interfaces_and_properties:a{oa{sa{sv}}}",
        action=ANYONE,
    )
    async def managed_objects(self, _caller: Caller) -> Body:
        """Every object, its interfaces and their properties."""
        return await self._collection.body()


def standard(tree: Tree) -> list[Interface]:
    """What every object starts with."""
    return [PeerInterface(), Introspectable(tree), Properties(tree)]
