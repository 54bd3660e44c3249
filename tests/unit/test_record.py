# SPDX-License-Identifier: Apache-2.0
"""Our dataclasses behave as the standard library's do, and compile nothing before they are used."""

import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from nvshared import record

Decorator = Callable[..., Any]
WAYS = [
    {}, {"slots": True}, {"frozen": True}, {"frozen": True, "slots": True},
    {"eq": False, "slots": True},
]
both = pytest.mark.parametrize("way", WAYS, ids=str)


def a_family(decorator: Decorator, **way: bool) -> tuple[Any, Any]:
    """A class with every kind of field that we use, and one that inherits from it."""

    @decorator(**way)
    class Parent:
        """With all there is."""

        number: int
        text: str = "a"
        items: list[int] = dataclasses.field(default_factory=list)
        ignored: int = dataclasses.field(default=0, compare=False)
        hidden: int = dataclasses.field(default=1, repr=False)
        later: int | None = dataclasses.field(default=None, init=False)

    @decorator(**way)
    class Child(Parent):
        """With one more."""

        more: int = 5

    return Parent, Child


@both
@pytest.mark.parametrize("which", [0, 1])
def test_it_is_as_the_standard_one(way: dict[str, bool], which: int) -> None:
    ours, theirs = a_family(record.dataclass, **way)[which], \
        a_family(dataclasses.dataclass, **way)[which]

    def seen(kind: Any) -> list[Any]:
        one, same, other = kind(1, items=[2]), kind(number=1, items=[2], ignored=9), kind(2)
        return [
            repr(one), one == same, one == other, one == 1, kind.__match_args__,
            dataclasses.asdict(one), repr(dataclasses.replace(one, text="b")),
            repr(copy.copy(one)), repr(copy.deepcopy(one)), one.later, hasattr(one, "__dict__"),
            kind.__hash__ is None, kind.__doc__,
        ]

    assert seen(ours) == seen(theirs)


@both
def test_wrong_arguments_are_refused(way: dict[str, bool]) -> None:
    kind, _ = a_family(record.dataclass, **way)
    for _again in range(2):
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'number'"):
            kind()
        with pytest.raises(TypeError, match="unexpected keyword argument 'no'"):
            kind(1, no=2)


def test_what_is_frozen_can_be_hashed() -> None:
    @record.dataclass(frozen=True, slots=True)
    class Key:
        one: int
        two: str = ""

    assert {Key(1, "a"), Key(1, "a"), Key(1)} == {Key(1), Key(1, "a")}


def test_one_without_fields_equals_another() -> None:
    @record.dataclass(frozen=True)
    class Nothing:
        pass

    assert Nothing() == Nothing()
    assert hash(Nothing()) == hash(Nothing())
    assert repr(Nothing()).endswith("Nothing()")


def test_what_follows_the_making_is_done_each_time() -> None:
    @record.dataclass(slots=True)
    class Counted:
        number: int
        twice: int = dataclasses.field(init=False)

        def __post_init__(self) -> None:
            self.twice = 2 * self.number

    assert [Counted(number).twice for number in (1, 2, 3)] == [2, 4, 6]


def test_a_class_of_the_product_can_be_pickled() -> None:
    from nvshared.scheduler.events import Memory

    assert pickle.loads(pickle.dumps(Memory(3, room=4))) == Memory(3, room=4)


def test_nothing_is_compiled_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    make = dataclasses.make_dataclass

    def noted(name: str, *rest: Any, **more: Any) -> type:
        made.append(name)
        return make(name, *rest, **more)

    monkeypatch.setattr(dataclasses, "make_dataclass", noted)
    kind, _ = a_family(record.dataclass, slots=True)
    assert not made
    kind(1)
    kind(2)
    assert made == ["Parent"]
