# SPDX-License-Identifier: Apache-2.0
"""The XML by which an object on the bus tells what it can do.

Written from the declarations in members.py.
"""

from collections.abc import Iterable
from functools import cache
from xml.etree import ElementTree

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
    """The element <interface> of one interface."""
    element = ElementTree.Element("interface", name=interface.name)
    for method in interface.methods.values():
        child = ElementTree.SubElement(element, "method", name=method.name)
        _arguments(child, method.takes, "in")
        _arguments(child, method.gives, "out")
    for signal in interface.signals.values():
        _arguments(ElementTree.SubElement(element, "signal", name=signal.name), signal.carries)
    for member in interface.properties.values():
        access = "readwrite" if member.set else "read"
        child = ElementTree.SubElement(
            element, "property", name=member.name, type=member.type, access=access
        )
        if member.changes is not Changes.ANNOUNCED:
            ElementTree.SubElement(child, "annotation", name=_EMITS, value=member.changes.value)
    return element


def _arguments(
    parent: ElementTree.Element, arguments: Iterable[Argument], direction: str | None = None
) -> None:
    for argument in arguments:
        element = ElementTree.SubElement(parent, "arg", name=argument.name, type=argument.type)
        if direction:
            element.set("direction", direction)
