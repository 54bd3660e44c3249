# SPDX-License-Identifier: Apache-2.0
"""The XML by which an object on the bus tells what it can do.

Made by dbus-next from the declarations in members.py.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any, cast
from xml.etree import ElementTree

from dbus_next import introspection
from dbus_next.constants import ArgDirection, PropertyAccess

from nvshared.bus.members import Argument, Changes, Interface

DOCTYPE = (
    '<!DOCTYPE node PUBLIC "-//freedesktop//DTD D-BUS Object Introspection 1.0//EN"\n'
    '"http://www.freedesktop.org/standards/dbus/1.0/introspect.dtd">\n'
)
_EMITS = "org.freedesktop.DBus.Property.EmitsChangedSignal"


def document(interfaces: Iterable[type[Interface]], children: Iterable[str]) -> str:
    """The introspection of an object with these interfaces and children."""
    parts = [_text(interface) for interface in interfaces]  # type: ignore[arg-type]
    # There may be thousands of them: names of objects need no escaping.
    parts += [f'  <node name="{child}" />\n' for child in sorted(children)]
    return f"{DOCTYPE}<node>\n{''.join(parts)}</node>\n"


@cache
def _text(interface: type[Interface]) -> str:
    element = describe(interface)
    ElementTree.indent(element, level=1)
    return f"  {ElementTree.tostring(element, encoding='unicode').rstrip()}\n"


def describe(interface: type[Interface]) -> ElementTree.Element:
    """The element <interface> of one interface. dbus-next refuses names and types that are none."""
    described = introspection.Interface(
        interface.name,
        [
            introspection.Method(
                one.name, _arguments(one.takes, ArgDirection.IN),
                _arguments(one.gives, ArgDirection.OUT),
            )
            for one in interface.methods.values()
        ],
        [
            introspection.Signal(one.name, _arguments(one.carries))
            for one in interface.signals.values()
        ],
        [
            introspection.Property(
                one.name, one.type, PropertyAccess.READWRITE if one.set else PropertyAccess.READ
            )
            for one in interface.properties.values()
        ],
    )
    element = described.to_xml()
    for child in element.iter("property"):
        changes = interface.properties[child.attrib["name"]].changes
        if changes is not Changes.ANNOUNCED:
            ElementTree.SubElement(child, "annotation", name=_EMITS, value=changes.value)
    return element


def _arguments(
    arguments: Iterable[Argument], direction: ArgDirection | None = None
) -> list[introspection.Arg]:
    # Its annotations say otherwise, but an argument of a signal has no direction.
    return [introspection.Arg(one.type, cast(Any, direction), one.name) for one in arguments]
