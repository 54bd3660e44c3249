# SPDX-License-Identifier: Apache-2.0
"""How an interface on the bus is declared: methods, properties, signals.

    class GPUInterface(Interface, name="com.nvshare.GPU"):
        turn_started = SignalMember.of("TurnStarted", "client:o")

        @method("SetTQ", "seconds:u", action=ACTION_SET_TQ)
        def set_tq(self, caller: Caller, seconds: int) -> None: ...

        listed: ClassVar[tuple[Property["GPUInterface"], ...]] = (
            Property("TQ", "u", Changes.ANNOUNCED, lambda self: self._gpu.tq),
        )

`action` has no default: whoever exports a method says who may call it, either
a polkit action or ANYONE. That is all of the access control a method needs;
nvshared.bus.dispatch sees to the rest before the method runs.

The names and types here are what the running daemon shows to those who
introspect it. dbus/*.xml says the same with a description of each member, and
a test compares the two.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Final, Generic, TypeVar

from nvshared.dbus.writing import Writer, encode, pad, writer


class Body(bytes):
    """All that a method answers, ready to be sent. Methods may return one instead of values."""


Function = TypeVar("Function", bound=Callable[..., Any])
Owner = TypeVar("Owner")


class Anyone(Enum):
    """Who may call a method that changes nothing."""

    ANYONE = "anyone"


ANYONE: Final = Anyone.ANYONE


@dataclass(frozen=True, slots=True)
class Owned:
    """A polkit action; and where nothing is in the way, the user whose program it is about.

    `obstacle` takes the interface, the caller's uid and the arguments. It gives
    None if the caller may; else what keeps the owner from it, in words, or "" if
    there is nothing to say. The method finds in `caller.as_owner` which it was.
    """

    action: str
    obstacle: Callable[..., str | None] = field(compare=False)


Action = str | Anyone | Owned


class Changes(Enum):
    """What becomes of the watchers of a property, in the words of EmitsChangedSignal."""

    ANNOUNCED = "true"                  # PropertiesChanged carries the new value
    SILENT = "false"                    # moves all the time: ask when you want to know
    NEVER = "const"


@dataclass(frozen=True, slots=True)
class Argument:
    """One value going in or out: its name and its D-Bus type."""

    name: str
    type: str


def arguments(text: str) -> tuple[Argument, ...]:
    """Arguments from "NAME:TYPE NAME:TYPE …"."""
    return tuple(Argument(*item.split(":")) for item in text.split())


def signature(of: tuple[Argument, ...]) -> str:
    """Their types, joined."""
    return "".join(argument.type for argument in of)


@dataclass(frozen=True, slots=True)
class Method:
    """A method; `function` takes the interface, the caller and the arguments."""

    name: str
    takes: tuple[Argument, ...]
    gives: tuple[Argument, ...]
    action: Action
    function: Callable[..., Any] = field(compare=False)


@dataclass(frozen=True, slots=True)
class Property(Generic[Owner]):
    """A property of an interface; `set` and `action` are there if it may be written."""

    name: str
    type: str
    changes: Changes
    get: Callable[[Owner], Any] = field(compare=False)
    set: Callable[[Owner, Any], None] | None = field(default=None, compare=False)
    action: Action | None = None


@dataclass(frozen=True, slots=True)
class SignalMember:
    """A signal and what it carries."""

    name: str
    carries: tuple[Argument, ...]

    @classmethod
    def of(cls, name: str, carries: str) -> "SignalMember":
        """A signal from its name and "NAME:TYPE …"."""
        return cls(name, arguments(carries))


def method(
    name: str, takes: str = "", gives: str = "", *, action: Action
) -> Callable[[Function], Function]:
    """Declares a method; `takes` and `gives` are "NAME:TYPE …"."""

    def declare(function: Function) -> Function:
        member = Method(name, arguments(takes), arguments(gives), action, function)
        function.__dict__["declared_on_the_bus"] = member
        return function

    return declare


class Interface:
    """One interface of one object. `path` is known once it is exported."""

    name: ClassVar[str]
    listed: ClassVar[tuple[Property[Any], ...]] = ()
    methods: ClassVar[dict[str, Method]]
    properties: ClassVar[dict[str, Property[Any]]]
    signals: ClassVar[dict[str, SignalMember]]
    _entries: ClassVar[dict[str, tuple[bytes, Writer]]]     # how an entry of a property starts,
                                                            # and what writes the rest of it
    _moving: ClassVar[dict[str, Property[Any]]]             # the properties that may change
    path: str = ""
    _constant: bytes | None = None      # its properties that never change, as bytes

    def __init_subclass__(cls, *, name: str) -> None:
        cls.name = name
        members = vars(cls).values()
        methods = [getattr(one, "declared_on_the_bus", None) for one in members]
        cls.methods = {one.name: one for one in methods if one is not None}
        cls.signals = {one.name: one for one in members if isinstance(one, SignalMember)}
        cls.properties = {one.name: one for one in cls.listed}
        cls._entries = {
            name: (encode("sg", [name, member.type]), writer(member.type))
            for name, member in cls.properties.items()
        }
        cls._moving = {
            name: member for name, member in cls.properties.items()
            if member.changes is not Changes.NEVER
        }

    async def refresh(self) -> None:
        """Called before its properties are shown to somebody who asks for them."""

    def values(self, *changes: Changes) -> dict[str, Any]:
        """The properties by name as they are now; all, or those of these kinds."""
        return {
            name: member.get(self)
            for name, member in self.properties.items()
            if not changes or member.changes in changes
        }

    def put(self, out: bytearray) -> None:
        """Appends all properties as they are now: the content of an a{sv}."""
        if self._constant is None:
            constant = bytearray()
            self.put_properties(constant, self.values(Changes.NEVER))
            self._constant = bytes(constant)
        pad(out)
        out += self._constant
        self.put_properties(out, {name: one.get(self) for name, one in self._moving.items()})

    def put_properties(self, out: bytearray, values: dict[str, Any]) -> None:
        """Appends these: entries of an a{sv}."""
        for name, value in values.items():
            head, put_value = self._entries[name]
            out += bytes(-len(out) % 8) + head
            put_value(out, value)
