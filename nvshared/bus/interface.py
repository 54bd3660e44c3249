# SPDX-License-Identifier: Apache-2.0
"""Base of the service objects: dbus-next's, with required permissions and change signals added.

`action` has no default: each method names the polkit action that its callers need, or ANYONE.
dispatch.py checks the action before the method runs. A test compares dbus/*.xml with the classes.
"""

import math
from collections.abc import Callable, Iterable
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar
from xml.etree import ElementTree

from dbus_next import introspection, service
from dbus_next.constants import PropertyAccess
from dbus_next.signature import Variant

from nvshared.names import UNKNOWN

ANYONE = ""                             # the action of a method that any user may call


def method(
    name: str, results: str = "", *, action: str, itself: bool = False
) -> Callable[[Any], Any]:
    """Declares a method with named `results`; `itself`: the method authorises its callers."""

    def declare(function: Any) -> Any:
        declared = service.method(name)(function)
        member = declared.__dict__["__DBUS_METHOD"]
        member.action, member.itself = action, itself
        for argument, result in zip(member.introspection.out_args, results.split(), strict=True):
            argument.name = result
        return declared

    return declare


def signal(name: str, carries: str) -> Any:
    """Declares a signal, emitted by a call with its values; `carries`: NAME:TYPE of each value."""
    pairs = [one.split(":") for one in carries.split()]

    def emit(_interface: Any, *values: Any) -> Any:
        return values[0] if len(values) == 1 else list(values)

    emit.__annotations__ = {"return": "".join(kind for _, kind in pairs)}
    declared = service.signal(name)(emit)
    arguments = declared.__dict__["__DBUS_SIGNAL"].introspection.args
    for argument, (value, _) in zip(arguments, pairs, strict=True):
        argument.name, argument.direction = value, None     # "in" and "out" are of methods
    return declared


def declare_property(
    emits: str, signature: str, source: str | Callable[[Any], Any],
    write: Callable[[Any, Any], None] | None = None, action: str | None = None,
) -> Any:
    """Declares a property with the name of the class attribute.

    `emits`: D-Bus's EmitsChangedSignal. `source`: the value's path from the interface object, or a
    function of that object; None becomes NaN or UNKNOWN. `action`: polkit's, for `write`."""
    find = attrgetter(source) if isinstance(source, str) else source
    unknown = math.nan if signature == "d" else UNKNOWN

    def read(interface: Any) -> Any:
        value = find(interface)
        return unknown if value is None else value

    read.__annotations__ = {"return": signature}
    access = PropertyAccess.READ if write is None else PropertyAccess.READWRITE
    declared = service.dbus_property(access)(read)
    declared.options |= {"emits": emits, "action": action}
    return declared if write is None else declared.setter(write)


announced = partial(declare_property, "true")
unannounced = partial(declare_property, "false")
constant = partial(declare_property, "const")


class _Property(introspection.Property):
    """A property with the EmitsChangedSignal annotation, which dbus-next does not support."""

    emits = "true"

    def to_xml(self) -> ElementTree.Element:
        element: ElementTree.Element = super().to_xml()
        if self.emits != "true":
            name = "org.freedesktop.DBus.Property.EmitsChangedSignal"
            ElementTree.SubElement(element, "annotation", name=name, value=self.emits)
        return element


class Interface(service.ServiceInterface):
    """One interface of one object. `path` is set when the interface is exported."""

    path = ""
    _dbus_name: ClassVar[str]           # the argument `name` of the subclass's class statement

    def __init_subclass__(cls, name: str = "") -> None:
        cls._dbus_name = name
        for attribute, member in vars(cls).items():
            if isinstance(member, service._Property):
                for function in filter(None, (member.prop_getter, member.prop_setter)):
                    function.__name__ = attribute
                member.name = attribute
                member.introspection = _Property(attribute, member.signature, member.access)
                member.introspection.emits = member.options["emits"]

    def __init__(self) -> None:
        super().__init__(self._dbus_name)
        self.properties = {one.name: one for one in service.ServiceInterface._get_properties(self)}

    async def refresh(self) -> None:
        """Updates the values of properties; called before a caller reads them."""

    def announced(self) -> dict[str, Any]:
        return {
            name: member.prop_getter(self) for name, member in self.properties.items()
            if member.options["emits"] == "true"}

    def values(self, names: Iterable[str] = ()) -> dict[str, Variant]:
        """The current values of these properties; of all by default."""
        members = (self.properties[name] for name in names or self.properties)
        return {one.name: Variant(one.type, one.prop_getter(self)) for one in members}
