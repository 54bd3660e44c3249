# SPDX-License-Identifier: Apache-2.0
"""Dataclasses that cost a program's start little: the standard library's, whose `__init__` is
compiled when it is called for the first time.

    @dataclass(frozen=True, slots=True)
    class Memory:
        allocated: int = 0

The standard one compiles up to eight methods for each class: half a millisecond, which was a
third of the daemon's start. Type checkers see the standard one. They alone guard what is frozen,
which therefore is made as fast as what is not.
"""

import dataclasses
from operator import attrgetter
from typing import TYPE_CHECKING, Any


def _dataclass(*, frozen: bool = False, slots: bool = False, eq: bool = True) -> Any:
    def decorate(given: type) -> Any:
        # Fields, slots and what pattern matching needs; no methods.
        cls: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(given)
        cls.__init__ = _first_init(cls, slots=slots)
        cls.__repr__ = _repr
        if eq:
            _compare(cls, hashed=frozen)
        return cls

    return decorate


def _first_init(cls: Any, *, slots: bool) -> Any:
    """The `__init__` that makes the one which then takes its place."""

    def __init__(self: Any, *values: Any, **more: Any) -> None:     # noqa: N807
        # The standard library makes it, for a class with the same fields.
        fields = [(one.name, one.type, one) for one in dataclasses.fields(cls)]
        then = {"__post_init__": None} if hasattr(cls, "__post_init__") else {}
        like: Any = dataclasses.make_dataclass(
            cls.__name__, fields, namespace=then, repr=False, eq=False, slots=slots,
        )
        cls.__init__ = like.__init__
        like.__init__(self, *values, **more)

    return __init__


def _compare(cls: Any, *, hashed: bool) -> None:
    names = [one.name for one in dataclasses.fields(cls) if one.compare]
    values = attrgetter(*names) if names else type

    def __eq__(self: Any, other: object) -> bool:   # noqa: N807
        if other.__class__ is not self.__class__:
            return NotImplemented
        return bool(values(self) == values(other))

    def __hash__(self: Any) -> int:     # noqa: N807
        return hash(values(self))

    cls.__eq__ = __eq__
    cls.__hash__ = __hash__ if hashed else None


def _repr(self: Any) -> str:
    fields = (f"{one.name}={getattr(self, one.name)!r}" for one in dataclasses.fields(self)
              if one.repr)
    return f"{type(self).__qualname__}({', '.join(fields)})"


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = _dataclass
