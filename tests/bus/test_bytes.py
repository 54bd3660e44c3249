# SPDX-License-Identifier: Apache-2.0
"""What is written piece by piece is what dbus-next makes of the same values, to the byte."""

from functools import partial
from string import ascii_letters
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvshared.bus.manager import rows
from nvshared.bus.members import Changes, Interface, Property
from nvshared.bus.tree import Tree
from nvshared.dbus.types import Variant
from nvshared.dbus.writing import begin, encode, end
from nvshared.names import client_path
from nvshared.sharing.manager import Manager
from tests.bus.service import a_client
from tests.unit.dbusnext import marshalled

TEXT = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=20)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "s": TEXT,
    "o": st.integers(0, 10**6).map(client_path),
    "u": st.integers(0, 2**32 - 1),
    "i": st.integers(-(2**31), 2**31 - 1),
    "t": st.integers(0, 2**64 - 1),
    "x": st.integers(-(2**63), 2**63 - 1),
    "d": st.floats(allow_nan=False),
    "b": st.booleans(),
    "ao": st.lists(st.integers(0, 99).map(client_path), max_size=4),
    "a(su)": st.lists(st.tuples(TEXT, st.integers(0, 9)).map(list), max_size=3),
}
NAMES = st.text(ascii_letters, min_size=1, max_size=13).map(str.capitalize)
PROPERTIES = st.lists(
    st.sampled_from(sorted(VALUES)).flatmap(
        lambda type_: st.tuples(
            NAMES, st.just(type_), VALUES[type_],
            st.sampled_from(Changes),
        )
    ),
    max_size=8, unique_by=lambda one: one[0],
)


SLOWLY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def an_interface(properties: list[tuple[str, str, Any, Changes]], name: str) -> Interface:
    """With these properties: name, type, value, how it changes."""
    listed = tuple(
        Property(name, type_, changes, partial(lambda value, _: value, value))
        for name, type_, value, changes in properties
    )
    made: Interface = type("Made", (Interface,), {"listed": listed}, name=name)()
    return made


def values(properties: list[tuple[str, str, Any, Changes]]) -> dict[str, Variant]:
    """In the order in which they are written: what never changes first."""
    ordered = sorted(properties, key=lambda one: one[3] is not Changes.NEVER)
    return {name: Variant(type_, value) for name, type_, value, _ in ordered}


@SLOWLY
@given(properties=PROPERTIES)
def test_properties(properties: list[tuple[str, str, Any, Changes]]) -> None:
    interface = an_interface(properties, "com.nvshare.Made")
    for _ in range(2):                  # the second time, a part is remembered
        out = bytearray()
        whole = begin(out)
        interface.put(out)
        end(out, whole)
        assert out == marshalled("a{sv}", values(properties))


@SLOWLY
@given(first=PROPERTIES, second=PROPERTIES, path=TEXT.map(lambda word: f"/com/{len(word)}"))
def test_objects(
    first: list[tuple[str, str, Any, Changes]], second: list[tuple[str, str, Any, Changes]],
    path: str,
) -> None:
    tree = Tree("/com")
    tree.add(path, an_interface(first, "com.A"), an_interface(second, "com.Longer.Name"))
    expected = {"com.A": values(first), "com.Longer.Name": values(second)}
    out = bytearray()
    tree.put(out, path)
    assert out == marshalled("oa{sa{sv}}", path, expected)
    tree.add(path + "/x", an_interface(first, "com.A"), an_interface(second, "com.Longer.Name"))
    out = bytearray()
    both = begin(out)
    tree.put(out, path)
    tree.put(out, path + "/x")
    end(out, both)
    assert out == marshalled("a{oa{sa{sv}}}", {path: expected, path + "/x": expected})


ARGUMENTS = st.lists(
    st.sampled_from(sorted(VALUES)).flatmap(lambda one: st.tuples(st.just(one), VALUES[one])),
    max_size=6,
)


@SLOWLY
@given(carried=ARGUMENTS)
def test_arguments_of_signals(carried: list[tuple[str, Any]]) -> None:
    signature, given_values = "".join(one[0] for one in carried), [one[1] for one in carried]
    assert encode(signature, given_values) == marshalled(signature, *given_values)


@pytest.mark.parametrize("number", range(4))
def test_lists_of_clients(manager: Manager, number: int) -> None:
    clients = [a_client(manager, manager.gpus[1], pid=10 ** at) for at in range(number)]
    assert rows(clients) == marshalled("a(uuuoa{sv})", [
        [one.id, one.peer.pid, 1, client_path(one.id), {}] for one in clients
    ])
