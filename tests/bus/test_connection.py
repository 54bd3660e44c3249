# SPDX-License-Identifier: Apache-2.0
"""Connecting to a bus, failures to connect, and reconnecting."""

import asyncio
import logging
import socket
import threading
from pathlib import Path

import pytest
from dbus_next.message import Message

from nvshared.bus import Publication, publish
from nvshared.bus.connection import BusConnection, Take
from nvshared.dbus import START, Received, pack, size
from nvshared.errors import AlreadyRunning, BusUnavailable, InvalidArgs, NotPermitted
from nvshared.sharing.manager import Manager
from tests.bus.service import PrivateBus, a_client, peeper, private_bus, published


async def test_publishing_the_daemon_on_dbus_fails_with_a_hint_when_the_bus_socket_is_missing(
        manager: Manager, tmp_path: Path) -> None:
    with pytest.raises(BusUnavailable, match="No such file") as error:
        await publish(manager, f"unix:path={tmp_path}/nothing")
    assert "--bus" in error.value.hint


@pytest.mark.parametrize("address", ["nonsense:", "unix:", "unix:path", ""])
async def test_publishing_the_daemon_on_dbus_fails_at_an_invalid_bus_address(
        manager: Manager, address: str) -> None:
    with pytest.raises((BusUnavailable, InvalidArgs)):
        await publish(manager, address)


async def test_publishing_the_daemon_on_dbus_fails_without_a_session_bus(
        manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DBUS_SESSION_BUS_ADDRESS", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    with pytest.raises(BusUnavailable, match="session"):
        await publish(manager, "session")


async def test_publishing_the_daemon_on_dbus_fails_when_the_bus_closes_during_authentication(
        manager: Manager, tmp_path: Path) -> None:
    path = tmp_path / "bus"
    with socket.socket(socket.AF_UNIX) as rude:
        rude.bind(str(path))
        rude.listen()

        def hang_up() -> None:
            connection, _ = rude.accept()
            connection.recv(100)
            connection.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(BusUnavailable, match="cannot connect"):
            await publish(manager, f"unix:path={path}")
        thread.join()


class HastyBus:
    """A bus that authenticates a client, replies to Hello, and closes at the next call."""

    def __init__(self, path: Path) -> None:
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
            connection.sendall(b"OK 1234deadbeef1234deadbeef12345678\r\n")
            assert said.readline() == b"BEGIN\r\n"
            start = said.read(START)
            hello = Received(start + said.read(size(start)[0] - START), b"").message
            connection.sendall(pack(Message.new_method_return(hello, "s", [":1.0"]), 1))
            said.read(1)

    def gone(self) -> None:
        self._thread.join()
        self._socket.close()


async def test_publishing_the_daemon_on_dbus_fails_when_the_bus_closes_at_the_name_request(
        manager: Manager, tmp_path: Path) -> None:
    path = tmp_path / "bus"
    hasty = HastyBus(path)
    with pytest.raises(BusUnavailable, match=r"owned com\.nvshare: it closed the connection"):
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
    """Done once a line of the log contains these words."""
    future = asyncio.get_running_loop().create_future()
    logger = logging.getLogger("nvshared.bus")

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if words in record.getMessage():
                logger.removeHandler(self)
                future.set_result(None)

    logger.addHandler(Handler())
    return future


async def test_daemon_reconnects_to_dbus_when_the_bus_restarts(
        manager: Manager, private: PrivateBus, monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("nvshared.bus.publication.RETRY", 0.01)
    caplog.set_level(logging.INFO)
    lost, back = logged("lost the message bus"), logged("back on the message bus")
    async with published(manager, private.address):
        private.stop()
        await lost
        client = a_client(manager, manager.gpus[0])     # a client joins meanwhile
        private.start()
        await back
        async with peeper(private.address) as other:
            ((number, *_),) = await other.result("ListClients")
    assert number == client.id
    assert [one.levelname for one in caplog.records if one.name.startswith("nvshared.bus")] == [
        "ERROR", "INFO"]


async def test_daemon_reconnects_to_dbus_when_the_bus_ends_during_an_earlier_reconnection(
        manager: Manager, private: PrivateBus, monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("nvshared.bus.publication.RETRY", 0.01)
    caplog.set_level(logging.INFO)
    lost, back = logged("lost the message bus"), logged("back on the message bus")
    path = Path(private.address.removeprefix("unix:path="))
    async with published(manager, private.address):
        private.stop()
        await lost
        hasty = HastyBus(path)
        await asyncio.to_thread(hasty.gone)
        private.start()
        await back
        async with peeper(private.address) as other:
            assert len(await other.result("ListGPUs")) == 2


async def test_dbus_reconnection_continues_after_an_unexpected_exception(
        manager: Manager, private: PrivateBus, monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("nvshared.bus.publication.RETRY", 0.01)
    caplog.set_level(logging.INFO)
    lost, back = logged("lost the message bus"), logged("back on the message bus")
    connect, faults = BusConnection.open, [ZeroDivisionError("one"), ZeroDivisionError("two")]

    async def faulty(address: str, take: Take) -> BusConnection:
        if faults:
            raise faults.pop()
        return await connect(address, take)

    async with published(manager, private.address):
        monkeypatch.setattr(BusConnection, "open", faulty)
        private.stop()
        await lost
        private.start()
        await back
    assert caplog.text.count("cannot get back") == 1
