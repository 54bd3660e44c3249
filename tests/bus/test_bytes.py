# SPDX-License-Identifier: Apache-2.0
"""What is put together piece by piece is what dbus-next makes of the same values, to the byte."""

import pytest

from nvshared.bus import Publication
from nvshared.bus.services import rows
from nvshared.dbus import marshalled
from nvshared.names import client_path
from nvshared.sharing.manager import Manager
from tests.bus.service import Peeper, a_client


@pytest.mark.parametrize("number", range(4))
def test_rows_of_clients_marshalled_at_once_equal_dbus_next(manager: Manager, number: int) -> None:
    clients = [a_client(manager, manager.gpus[1], pid=10 ** at) for at in range(number)]
    assert rows(clients) == marshalled("a(uuuoa{sv})", [
        [one.id, one.peer.pid, 1, client_path(one.id), {}] for one in clients
    ])


@pytest.mark.parametrize("number", range(4))
async def test_managed_objects_marshalled_at_once_equal_dbus_next(
    manager: Manager, publication: Publication, other: Peeper, number: int
) -> None:
    for _ in range(number):
        a_client(manager, manager.gpus[0])
    found = await other.result(
        "GetManagedObjects", interface="org.freedesktop.DBus.ObjectManager")
    assert len(found) == number + 2
    made = await publication._bus.everything()
    # Some figures have moved since, none in its size.
    assert len(made) == len(marshalled("a{oa{sa{sv}}}", found))
