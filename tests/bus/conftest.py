# SPDX-License-Identifier: Apache-2.0
"""A bus, a manager on it, and a D-Bus client of the manager, for each test."""

from collections.abc import AsyncIterator, Iterator

import pytest

from nvshared.bus import Publication
from nvshared.bus.dispatch import Caller
from nvshared.sharing.manager import Manager
from tests.bus.service import (
    OTHER_UID,
    Peeper,
    PrivateBus,
    a_manager,
    peeper,
    private_bus,
    published,
)
from tests.unit.scripted import script


@pytest.fixture
def private() -> Iterator[PrivateBus]:
    """A dbus-daemon of the test's own."""
    with private_bus() as bus:
        yield bus


@pytest.fixture
async def manager(monkeypatch: pytest.MonkeyPatch) -> Manager:
    """Two GPUs without clients."""
    script(monkeypatch)
    return a_manager()


@pytest.fixture
async def publication(manager: Manager, private: PrivateBus) -> AsyncIterator[Publication]:
    async with published(manager, private.address) as publication:
        yield publication


@pytest.fixture
async def other(publication: Publication, private: PrivateBus) -> AsyncIterator[Peeper]:
    async with peeper(private.address) as someone:
        yield someone


@pytest.fixture
def other_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers are neither root nor the daemon's user."""

    async def uid(_caller: Caller) -> int:
        return OTHER_UID

    monkeypatch.setattr(Caller, "uid", uid)


@pytest.fixture
async def caller(manager: Manager, private: PrivateBus, other_user: None,
                 monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Peeper]:
    """A D-Bus client of user OTHER_UID; a private bus replaces the system bus."""
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", private.address)
    async with published(manager, "system"), peeper(private.address) as someone:
        yield someone
