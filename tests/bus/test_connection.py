# SPDX-License-Identifier: Apache-2.0
"""The daemon connects to a message bus, reports failures, and reconnects."""

import asyncio
import logging
import socket
import threading
from pathlib import Path

import pytest
from dbus_next.message import Message

from nvshared.bus import Publication, publish
from nvshared.bus.connection import BusConnection, Take
from nvshared.control import Daemon
from nvshared.dbus import START, Received, pack, size
from nvshared.errors import AlreadyRunning, BusUnavailable, InvalidArgs, NotPermitted
from nvshared.sharing.manager import Manager
from tests.bus.service import PrivateBus, a_client, peeper, private_bus, published


@pytest.mark.parametrize(("address", "words"), [
    ("unix:path=/nothing", "No such file"), ("session", "session"), ("nonsense:", "nonsense:"),
    ("unix:", "unix:"), ("unix:path", "unix:path"), ("", "''"),
])
async def test_publishing_the_daemon_on_dbus_fails_at_an_address_without_a_bus(
        manager: Manager, monkeypatch: pytest.MonkeyPatch, address: str, words: str) -> None:
    monkeypatch.delenv("DBUS_SESSION_BUS_ADDRESS", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    with pytest.raises((BusUnavailable, InvalidArgs), match=words) as error:
        await publish(manager, address)
    assert "/nothing" not in address or "--bus" in error.value.hint


class HastyBus:
    """A bus that authenticates a client, replies to Hello, and closes at the next call.

    With `rude`, the bus closes during authentication.
    """

    def __init__(self, path: Path, *, rude: bool = False) -> None:
        self._rude = rude
        self._socket = socket.socket(socket.AF_UNIX)
        path.unlink(missing_ok=True)
        self._socket.bind(str(path))
        self._socket.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._socket.accept()
        with connection, connection.makefile("rb") as said:
            assert b"AUTH EXTERNAL" in said.readline()
            if self._rude:
                return
            connection.sendall(b"OK 1234deadbeef1234deadbeef12345678\r\n")
            assert said.readline() == b"BEGIN\r\n"
            start = said.read(START)
            hello = Received(start + said.read(size(start)[0] - START), b"").message
            connection.sendall(pack(Message.new_method_return(hello, "s", [":1.0"]), 1))
            said.read(1)

    def gone(self) -> None:
        self._thread.join()
        self._socket.close()


@pytest.mark.parametrize(("rude", "words"), [
    (True, "cannot connect"), (False, r"owned com\.nvshare: it closed the connection"),
])
async def test_publishing_the_daemon_on_dbus_fails_when_the_bus_closes_at_authentication_or_later(
        manager: Manager, tmp_path: Path, rude: bool, words: str) -> None:
    path = tmp_path / "bus"
    hasty = HastyBus(path, rude=rude)
    with pytest.raises(BusUnavailable, match=words):
        await publish(manager, f"unix:path={path}")
    hasty.gone()


async def test_publishing_the_daemon_on_dbus_fails_when_another_daemon_owns_the_bus_name(
        manager: Manager, publication: Publication, private: PrivateBus) -> None:
    with pytest.raises(AlreadyRunning, match="another nvshared"):
        await publish(manager, private.address)
    async with peeper(private.address) as other:    # the first daemon still replies
        assert len(await other.result("ListGPUs")) == 2


async def test_publishing_the_daemon_on_dbus_fails_with_a_hint_when_the_bus_forbids_the_name(
        manager: Manager) -> None:
    with private_bus(own="") as bus:
        with pytest.raises(NotPermitted, match=r"com\.nvshare") as error:
            await publish(manager, bus.address)
        assert "root" in error.value.hint


def logged(words: str) -> "asyncio.Future[None]":
    """A future that is done once a log line begins with `words`."""
    future = asyncio.get_running_loop().create_future()
    logger = logging.getLogger("nvshared.bus")

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage().startswith(words):
                logger.removeHandler(self)
                future.set_result(None)

    logger.addHandler(Handler())
    return future


@pytest.mark.parametrize("trouble", ["", "the bus ends again", "faults"])
async def test_daemon_reconnects_to_dbus_until_the_bus_has_restarted(
        manager: Manager, private: PrivateBus, monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture, trouble: str) -> None:
    monkeypatch.setattr("nvshared.bus.publication.RETRY", 0.01)
    caplog.set_level(logging.INFO)
    lost, back = logged("lost the message bus"), logged("back on the message bus")
    connect = BusConnection.open
    faults = [ZeroDivisionError("one"), ZeroDivisionError("two")] if trouble == "faults" else []

    async def faulty(address: str, take: Take) -> BusConnection:
        if faults:
            raise faults.pop()
        return await connect(address, take)

    async with published(manager, private.address):
        monkeypatch.setattr(BusConnection, "open", faulty)
        private.stop()
        await lost
        client = a_client(manager, manager.gpus[0])     # joins while there is no bus
        if trouble == "the bus ends again":
            hasty = HastyBus(Path(private.address.removeprefix("unix:path=")))
            await asyncio.to_thread(hasty.gone)
        private.start()
        await back
        async with peeper(private.address) as other:
            ((number, *_),) = await other.result("ListClients")
    assert number == client.id
    levels = [one.levelname for one in caplog.records if one.name.startswith("nvshared.bus")]
    assert trouble or levels == ["ERROR", "INFO"]
    assert caplog.text.count("unexpected exception") == (trouble == "faults")


async def test_drain_lasts_while_a_caller_is_there_that_has_an_earlier_callers_name(
        manager: Manager, private: PrivateBus, monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("nvshared.bus.publication.RETRY", 0.01)
    monkeypatch.setattr("nvshared.bus.dispatch.DEPARTURE_INTERVAL", 0.01)
    monkeypatch.setattr("nvshared.bus.services.DRAINER_LINGER", 1)
    async with published(manager, private.address) as publication:
        async with peeper(private.address) as one:
            await one.call("Drain")
            name = one.bus.unique_name
            (drain,) = publication._manager_interface._drainers.values()
        lost, back = logged("lost the message bus"), logged("back on the message bus")
        private.stop()
        await lost
        private.start()
        await back
        async with peeper(private.address) as other:
            assert other.bus.unique_name == name
            await other.call("Drain")
            await asyncio.wait([drain])
            assert manager.gpus[0].settings.draining


async def test_daemon_on_a_restarted_bus_with_an_earlier_daemons_name_counts_as_another(
        manager: Manager, private: PrivateBus) -> None:
    def peer() -> str:
        with Daemon(private.address) as daemon:
            daemon.tenants()
            return daemon.peer

    peers = []
    for _ in range(2):                  # the daemon is the first on the bus each time
        async with published(manager, private.address):
            peers += [await asyncio.to_thread(peer), await asyncio.to_thread(peer)]
        private.stop()
        private.start()
    first, again, after, last = peers
    assert first == again != after == last
