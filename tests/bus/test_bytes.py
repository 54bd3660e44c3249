# SPDX-License-Identifier: Apache-2.0
"""What is put together piece by piece is what dbus-next makes of the same values, to the byte."""

from string import ascii_letters
from typing import Any

import pytest
from dbus_next.constants import PropertyAccess
from dbus_next.signature import Variant
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvshared.bus.interface import Emits, Interface, array, dbus_property, entry, joined
from nvshared.bus.manager import rows
from nvshared.dbus import marshalled
from nvshared.names import client_path
from nvshared.sharing.manager import Manager
from tests.bus.service import a_client

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
Properties = dict[str, tuple[str, Any]]
PROPERTIES: st.SearchStrategy[Properties] = st.dictionaries(NAMES, st.sampled_from(
    sorted(VALUES)).flatmap(lambda one: st.tuples(st.just(one), VALUES[one])), max_size=8)
SLOWLY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def an_interface(properties: Properties, name: str) -> Interface:
    """With these properties, whose values may be changed."""
    def declare(at: str, type_: str) -> Any:
        def get(self: Interface) -> Any:
            return properties[at][1]

        get.__name__, get.__annotations__["return"] = at, type_
        return dbus_property(Emits.NOTHING, access=PropertyAccess.READ)(get)

    members = {at: declare(at, type_) for at, (type_, _) in properties.items()}
    made: Interface = type("Made", (Interface,), members)(name)
    return made


def values(properties: Properties) -> dict[str, Variant]:
    """In the order in which dbus-next lists them."""
    return {name: Variant(*properties[name]) for name in sorted(properties)}


@SLOWLY
@given(properties=PROPERTIES, changed=VALUES["u"])
def test_entries_are_what_dbus_next_makes_of_the_present_values(
    properties: Properties, changed: int
) -> None:
    interface = an_interface(properties, "com.nvshare.Made")
    for _ in range(2):                  # the second time, most is remembered
        assert array(interface.entries()) == marshalled("a{sv}", values(properties))
        for name, (type_, _) in properties.items():
            if type_ == "u":
                properties[name] = (type_, changed)


@SLOWLY
@given(first=PROPERTIES, second=PROPERTIES, path=TEXT.map(lambda word: f"/com/{len(word)}"))
def test_objects_are_what_dbus_next_makes_of_them(
    first: Properties, second: Properties, path: str
) -> None:
    entries = joined([
        entry("com.A", an_interface(first, "com.A").entries()),
        entry("com.Longer.Name", an_interface(second, "com.Longer.Name").entries()),
    ])
    expected = {"com.A": values(first), "com.Longer.Name": values(second)}
    assert entry(path, entries) == marshalled("oa{sa{sv}}", path, expected)
    both = array(joined([entry(path, entries), entry(path + "/x", entries)]))
    assert both == marshalled("a{oa{sa{sv}}}", {path: expected, path + "/x": expected})


@pytest.mark.parametrize("number", range(4))
def test_lists_of_clients(manager: Manager, number: int) -> None:
    clients = [a_client(manager, manager.gpus[1], pid=10 ** at) for at in range(number)]
    assert rows(clients) == marshalled("a(uuuoa{sv})", [
        [one.id, one.peer.pid, 1, client_path(one.id), {}] for one in clients
    ])
