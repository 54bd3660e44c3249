# SPDX-License-Identifier: Apache-2.0
"""Getting on the bus, being refused, and coming back."""

import asyncio
import io
import logging
import socket
import threading
from pathlib import Path

import pytest
from dbus_next.message import Message
from dbus_next.signature import Variant

from nvshared.bus import Publication, publish
from nvshared.bus.connection import Tolerant
from nvshared.errors import AlreadyRunning, BusUnavailable, InvalidArgs, NotPermitted
from nvshared.manager import Manager
from nvshared.names import MANAGER_INTERFACE, MANAGER_PATH
from tests.bus.service import PrivateBus, a_client, peeper, private_bus, published


async def test_no_bus(manager: Manager, tmp_path: Path) -> None:
    with pytest.raises(BusUnavailable, match="No such file") as error:
        await publish(manager, f"unix:path={tmp_path}/nothing")
    assert "--bus" in error.value.hint


@pytest.mark.parametrize("address", ["nonsense:", "unix:", "unix:path", ""])
async def test_no_address(manager: Manager, address: str) -> None:
    with pytest.raises((BusUnavailable, InvalidArgs)):
        await publish(manager, address)


async def test_no_session_bus(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DBUS_SESSION_BUS_ADDRESS", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    with pytest.raises(BusUnavailable, match="session"):
        await publish(manager, "session")


async def test_a_bus_that_hangs_up_while_we_introduce_ourselves(
    manager: Manager, tmp_path: Path
) -> None:
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


async def test_the_name_is_taken(
    manager: Manager, publication: Publication, private: PrivateBus
) -> None:
    with pytest.raises(AlreadyRunning, match="another nvshared"):
        await publish(manager, private.address)
    async with peeper(private.address) as other:    # the first one is none the worse
        assert len(await other.result("ListGPUs")) == 2


async def test_the_bus_does_not_let_us_have_the_name(manager: Manager) -> None:
    with private_bus(own="") as bus:
        with pytest.raises(NotPermitted, match=r"com\.nvshare") as error:
            await publish(manager, bus.address)
        assert "root" in error.value.hint


def said(words: str) -> "asyncio.Future[None]":
    """Done once a line of the log contains these words."""
    future = asyncio.get_running_loop().create_future()
    logger = logging.getLogger("nvshared.bus")

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if words in record.getMessage():
                logger.removeHandler(self)
                future.set_result(None)

    logger.addHandler(Ear())
    return future


async def test_the_bus_goes_and_comes_back(
    manager: Manager, private: PrivateBus, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("nvshared.bus.publication.RETRY", 0.01)
    caplog.set_level(logging.INFO)
    lost, back = said("lost the message bus"), said("back on the message bus")
    async with published(manager, private.address):
        private.stop()
        await lost
        client = a_client(manager, manager.gpus[0])     # life goes on
        private.start()
        await back
        async with peeper(private.address) as other:
            ((number, *_),) = await other.result("ListClients")
    assert number == client.id
    assert [one.levelname for one in caplog.records if one.name.startswith("nvshared.bus")] == [
        "ERROR", "INFO",
    ]


def test_a_field_that_nobody_knows_is_left_out() -> None:
    """dbus-daemon would remove it, so it takes another bus to send such a thing."""
    body = [[77, Variant("s", "kept: this is no header")]]
    call = Message(
        destination="com.nvshare", path=MANAGER_PATH, interface=MANAGER_INTERFACE,
        member="ListGPUs", signature="a(yv)", body=[body], serial=5,
    )._marshall()                       # type: ignore[no-untyped-call]
    fields = int.from_bytes(call[12:16], "little")
    end = 16 + fields + -fields % 8
    extra = bytes([77, 1, ord("s"), 0]) + (1).to_bytes(4, "little") + b"x\0"
    length = fields + -fields % 8 + len(extra)
    odd = (
        call[:12] + length.to_bytes(4, "little") + call[16:end]
        + extra + bytes(-len(extra) % 8) + call[end:]
    )
    read = Tolerant(io.BytesIO(odd)).unmarshall()   # type: ignore[no-untyped-call]
    assert (read.member, read.body) == ("ListGPUs", [body])
