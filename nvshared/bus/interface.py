# SPDX-License-Identifier: Apache-2.0
"""Base of the service objects: dbus-next's, with required permissions and change signals added.

    class GPUInterface(Interface):
        @method("SetTQ", action=ACTION_SET_TQ)
        def set_tq(self, seconds: "u") -> None: ...

        TQ = read_only("TQ", "u", lambda self: self._settings.tq)

        @signal("TurnStarted", "client")
        def turn_started(self, client: str) -> "o": ...

`action` has no default: each method names the polkit action that its callers need, or ANYONE.
dispatch.py checks the permission before the method runs.

dbus/*.xml declares and describes the same members; a test compares it with the classes.
"""

import struct
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, ClassVar
from xml.etree import ElementTree

from dbus_next import introspection, service
from dbus_next.constants import PropertyAccess
from dbus_next.signature import Variant

ANYONE = ""                             # the action of a method that anybody may call


class Emits(Enum):
    """How changes of a property are announced: the values of D-Bus's EmitsChangedSignal."""

    VALUE = "true"                      # PropertiesChanged carries the new value
    NOTHING = "false"                   # changes all the time: callers must poll
    CONST = "const"


def method(
    name: str, results: str = "", *, action: str, itself: bool = False
) -> Callable[[Any], Any]:
    """Declares a method; `results` are the names of its results.

    `itself`: the method authorises its caller itself, since some callers need no polkit check.
    """

    def declare(function: Any) -> Any:
        declared = service.method(name)(function)
        member = declared.__dict__["__DBUS_METHOD"]
        member.action, member.itself = action, itself
        _name(member.introspection.out_args, results)
        return declared

    return declare


def signal(name: str, carries: str) -> Callable[[Any], Any]:
    """Declares a signal; `carries` are the names of its values."""

    def declare(function: Any) -> Any:
        declared = service.signal(name)(function)
        arguments = declared.__dict__["__DBUS_SIGNAL"].introspection.args
        _name(arguments, carries)
        for argument in arguments:
            argument.direction = None   # arguments of a signal have no direction
        return declared

    return declare


def dbus_property(
    emits: Emits = Emits.VALUE, *, access: PropertyAccess = PropertyAccess.READ,
    action: str | None = None,
) -> Callable[[Any], Any]:
    """Declares a property; `action` permits writing it."""

    def declare(function: Any) -> Any:
        declared = service.dbus_property(access)(function)
        declared.set_options(declared.options | {"emits": emits, "action": action})
        return declared

    return declare


def read_only(
    name: str, signature: str, read: Callable[[Any], Any], emits: Emits = Emits.VALUE
) -> Any:
    """Declares a read-only property; `read` returns its value from the interface object."""
    read.__name__ = name
    read.__annotations__ = {"return": signature}
    return dbus_property(emits)(read)


def _name(arguments: list[Any], names: str) -> None:
    for argument, name in zip(arguments, names.split(), strict=True):
        argument.name = name


class _Property(introspection.Property):
    """A property with the EmitsChangedSignal annotation, which dbus-next does not support."""

    emits = Emits.VALUE

    def to_xml(self) -> ElementTree.Element:
        element: ElementTree.Element = super().to_xml()
        if self.emits is not Emits.VALUE:
            name = "org.freedesktop.DBus.Property.EmitsChangedSignal"
            ElementTree.SubElement(element, "annotation", name=name, value=self.emits.value)
        return element


class Interface(service.ServiceInterface):
    """One interface of one object. `path` is set when the interface is exported."""

    path = ""
    properties: dict[str, Any]
    _found: ClassVar[dict[str, Any]]    # the attributes that dbus-next's __init__ sets, per class

    def __init__(self, name: str) -> None:
        if "_found" not in vars(type(self)):
            super().__init__(name)
            members = service.ServiceInterface._get_properties(self)
            self.properties = {one.name: one for one in members}
            type(self)._found = dict(vars(self))
        # dbus-next's __init__ would inspect the class for each object: 0.3 ms for each client.
        vars(self).update(type(self)._found, _ServiceInterface__buses=set())

    def introspect(self) -> introspection.Interface:
        described = super().introspect()
        described.properties = []
        for name, member in self.properties.items():
            shown = _Property(name, member.signature, member.access)
            shown.emits = member.options["emits"]
            described.properties.append(shown)
        return described

    async def refresh(self) -> None:
        """Called before a caller reads properties, to update their values."""

    def announced(self) -> dict[str, Any]:
        """The current values of the properties whose changes are announced."""
        return {
            name: member.prop_getter(self) for name, member in self.properties.items()
            if member.options["emits"] is Emits.VALUE
        }

    def values(self, names: Iterable[str] = ()) -> dict[str, Variant]:
        """The current values of these properties; of all by default."""
        members = (self.properties[name] for name in names or self.properties)
        return {one.name: Variant(one.type, one.prop_getter(self)) for one in members}


def array(entries: Iterable[bytes]) -> bytes:
    """Marshals a body that is one array, from marshalled entries aligned to eight bytes."""
    out = bytearray(8)
    for entry in entries:
        out += bytes(-len(out) % 8) + entry
    struct.pack_into("<I", out, 0, len(out) - 8)
    return bytes(out)
