# SPDX-License-Identifier: Apache-2.0
"""Base of the service objects: their methods, signals and properties, as class attributes.

`action` has no default: each method names the polkit action that its callers need, or ANYONE.
dispatch.py checks the action before the method runs. A test compares dbus/*.xml with the classes.
"""

import inspect
import math
from collections.abc import Callable, Iterable
from copy import copy
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar
from xml.etree import ElementTree

from dbus_next import introspection
from dbus_next.constants import ArgDirection, PropertyAccess
from dbus_next.introspection import Arg
from dbus_next.signature import SignatureTree, Variant

from nvshared.names import UNKNOWN

ANYONE = ""                             # the action of a method that any user may call
IN: Any = ArgDirection.IN               # typed as Any: dbus-next's annotation wants a list
OUT: Any = ArgDirection.OUT
NONE: Any = None                        # of signals: "in" and "out" are of methods


class Method(introspection.Method):
    """A method of an interface. Annotations of `act` are types on the bus."""

    def __init__(self, name: str, results: str, action: str, itself: bool,
                 act: Callable[..., Any]) -> None:
        signature = inspect.signature(act)
        _, *given = signature.parameters.values()
        kinds = SignatureTree(signature.return_annotation or "").types
        super().__init__(
            name, [Arg(one.annotation, IN, one.name) for one in given],
            [Arg(kind, OUT, result) for kind, result in zip(kinds, results.split(), strict=True)])
        self.act, self.action, self.itself = act, action, itself


def method(
    name: str, results: str = "", *, action: str, itself: bool = False
) -> Callable[[Any], Any]:
    """Declares a method with named `results`; `itself`: the method authorises its callers."""
    return partial(Method, name, results, action, itself)


def method_of(
    name: str, declared: Method, argument: str, find: Callable[[Any, Any], Any]
) -> Method:
    """Declares a method of another object once more, with one more argument, NAME:TYPE, first.

    `find` finds the object by this method's interface and that argument."""
    first, kind = argument.split(":")

    def act(interface: Any, which: Any, *values: Any) -> Any:
        return declared.act(find(interface, which), *values)

    again = copy(declared)
    again.act = act
    introspection.Method.__init__(again, name, [Arg(kind, IN, first), *declared.in_args])
    return again


def signal(name: str, carries: str) -> introspection.Signal:
    """Declares a signal for Interface.emit(); `carries`: NAME:TYPE of each value."""
    pairs = [one.split(":") for one in carries.split()]
    return introspection.Signal(name, [Arg(kind, NONE, value) for value, kind in pairs])


class Property(introspection.Property):
    """A property with the name of the class attribute.

    `emits`: D-Bus's EmitsChangedSignal, which dbus-next does not support. `source`: the value's
    path from the interface object, or a function of that object; None becomes NaN or UNKNOWN.
    `action`: polkit's, for `write`."""

    def __init__(
        self, emits: str, signature: str, source: str | Callable[[Any], Any],
        write: Callable[[Any, Any], None] | None = None, action: str | None = None,
    ) -> None:
        access = PropertyAccess.READ if write is None else PropertyAccess.READWRITE
        super().__init__("Unnamed", signature, access)
        self.emits, self.write, self.action = emits, write, action
        self._find = attrgetter(source) if isinstance(source, str) else source
        self._unknown = math.nan if signature == "d" else UNKNOWN

    def __set_name__(self, _owner: type, name: str) -> None:
        self.name = name

    def read(self, interface: "Interface") -> Any:
        value = self._find(interface)
        return self._unknown if value is None else value

    def to_xml(self) -> ElementTree.Element:
        element: ElementTree.Element = super().to_xml()
        if self.emits != "true":
            name = "org.freedesktop.DBus.Property.EmitsChangedSignal"
            ElementTree.SubElement(element, "annotation", name=name, value=self.emits)
        return element


announced = partial(Property, "true")
unannounced = partial(Property, "false")
constant = partial(Property, "const")


class Interface:
    """One interface of one object. `path` and `bus` are set while the interface is exported."""

    path = ""
    bus: Any = None
    shown: dict[str, Any]               # values of announced properties, as callers know them
    name: ClassVar[str]
    methods: ClassVar[dict[str, Method]]
    properties: ClassVar[dict[str, Property]]
    described: ClassVar[introspection.Interface]

    def __init_subclass__(cls, name: str = "") -> None:
        members: list[Any] = [member for _, member in inspect.getmembers(cls)]
        cls.name = name
        cls.methods = {one.name: one for one in members if isinstance(one, Method)}
        cls.properties = {one.name: one for one in members if isinstance(one, Property)}
        if name:                        # else the base class of several interfaces
            cls.described = introspection.Interface(
                name, [*cls.methods.values()],
                [one for one in members if isinstance(one, introspection.Signal)],
                [*cls.properties.values()])

    def emit(self, signal: introspection.Signal, *values: Any) -> None:
        """Emits a signal. No-op if the interface is not exported."""
        if self.bus is not None:
            self.bus.signal(self.path, self.name, signal.name, signal.signature, [*values])

    async def refresh(self) -> None:
        """Updates the values of properties; called before a caller reads them."""

    def announced(self) -> dict[str, Any]:
        return {name: one.read(self) for name, one in self.properties.items()
                if one.emits == "true"}

    def values(self, names: Iterable[str] = ()) -> dict[str, Variant]:
        """The current values of these properties; of all by default."""
        members = (self.properties[name] for name in names or self.properties)
        return {one.name: Variant(one.type, one.read(self)) for one in members}
