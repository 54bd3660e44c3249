# SPDX-License-Identifier: Apache-2.0
"""Getting on the bus, being refused, and coming back."""

import asyncio
import io
import logging
import socket
import threading
from pathlib import Path

import pytest
from dbus_next.constants import MessageType
from dbus_next.message import Message
from dbus_next.signature import SignatureTree, Variant

from nvshared.bus import Publication, publish
from nvshared.bus.connection import BusConnection
from nvshared.bus.reading import LONGEST, LONGEST_HEADER, TYPES_REMEMBERED, Reader, _types
from nvshared.errors import AlreadyRunning, BusUnavailable, InvalidArgs, NotPermitted
from nvshared.names import MANAGER_INTERFACE, MANAGER_PATH
from nvshared.sharing.manager import Manager
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


class HastyBus:
    """Lets one in and says what it is called, and is gone when it asks for a name."""

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
            start = said.read(16)
            fields = int.from_bytes(start[12:], "little")
            said.read(fields + -fields % 8)
            connection.sendall(Message(
                message_type=MessageType.METHOD_RETURN, destination=":1.0", serial=1,
                reply_serial=int.from_bytes(start[8:12], "little"), signature="s", body=[":1.0"],
            )._marshall())              # type: ignore[no-untyped-call]
            said.read(1)

    def gone(self) -> None:
        """Returns once it has hung up."""
        self._thread.join()
        self._socket.close()


async def test_a_bus_that_hangs_up_when_asked_for_the_name(
    manager: Manager, tmp_path: Path
) -> None:
    path = tmp_path / "bus"
    hasty = HastyBus(path)
    with pytest.raises(BusUnavailable, match=r"before we owned com\.nvshare: it did not answer"):
        await publish(manager, f"unix:path={path}")
    hasty.gone()


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


async def test_the_bus_goes_again_while_we_come_back(
    manager: Manager, private: PrivateBus, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("nvshared.bus.publication.RETRY", 0.01)
    caplog.set_level(logging.INFO)
    lost, back = said("lost the message bus"), said("back on the message bus")
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


async def test_what_nobody_foresaw_does_not_end_the_trying(
    manager: Manager, private: PrivateBus, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("nvshared.bus.publication.RETRY", 0.01)
    caplog.set_level(logging.INFO)
    lost, back = said("lost the message bus"), said("back on the message bus")
    connect, faults = BusConnection.open, [ZeroDivisionError("one"), ZeroDivisionError("two")]

    async def faulty(address: str) -> BusConnection:
        if faults:
            raise faults.pop()
        return await connect(address)

    async with published(manager, private.address):
        monkeypatch.setattr(BusConnection, "open", faulty)
        private.stop()
        await lost
        private.start()
        await back
    assert caplog.text.count("cannot get back") == 1


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
    read = Reader(io.BytesIO(odd)).unmarshall()     # type: ignore[no-untyped-call]
    assert (read.member, read.body) == ("ListGPUs", [body])


def a_call(signature: str, *body: object) -> bytes:
    """As somebody on the bus would send it."""
    message = Message(
        destination="com.nvshare", path=MANAGER_PATH, interface=MANAGER_INTERFACE,
        member="SetTQ", signature=signature, body=list(body), serial=5,
    )
    return bytes(message._marshall())   # type: ignore[no-untyped-call]


def test_a_body_longer_than_any_is_not_read() -> None:
    reader = Reader(io.BytesIO(a_call("ay", bytes(LONGEST))))   # type: ignore[no-untyped-call]
    message = reader.unmarshall()       # type: ignore[no-untyped-call]
    assert message.body == []
    assert message.signature == f"ay, and {LONGEST + 4} bytes long"
    reader = Reader(io.BytesIO(a_call("ay", bytes(LONGEST - 4))))   # type: ignore[no-untyped-call]
    assert reader.unmarshall().body == [bytes(LONGEST - 4)]     # type: ignore[no-untyped-call]


def test_a_header_longer_than_any_is_passed_over() -> None:
    call = Message(
        destination="com.nvshare", path=MANAGER_PATH, interface=MANAGER_INTERFACE,
        member="ListGPUs", serial=5,
    )
    call.path = "/" + "a" * LONGEST_HEADER
    two = call._marshall() + a_call("u", 7)     # type: ignore[no-untyped-call]
    stream = io.BytesIO(two)
    reader = Reader(stream)             # type: ignore[no-untyped-call]
    assert reader.unmarshall() is None  # type: ignore[no-untyped-call]
    assert reader.complete
    assert Reader(stream).unmarshall().body == [7]      # type: ignore[no-untyped-call]


def test_a_kind_that_nobody_knows_and_signals_are_passed_over() -> None:
    for kind in (4, 5, 200):
        odd = bytearray(a_call("u", 7))
        odd[1] = kind
        reader = Reader(io.BytesIO(odd))        # type: ignore[no-untyped-call]
        assert reader.unmarshall() is None      # type: ignore[no-untyped-call]
        assert reader.complete


def test_it_goes_on_where_it_was_cut_off() -> None:
    whole = a_call("su", "x" * 100, 7)

    class Slow:
        """Has one byte at a time, and every other time none."""

        def __init__(self) -> None:
            self.at = 0

        def read(self, _: int) -> bytes | None:
            self.at += 1
            return whole[self.at // 2:self.at // 2 + 1] if self.at % 2 == 0 else None

    slow = Slow()
    slow.at = -1
    reader = Reader(slow)               # type: ignore[no-untyped-call]
    calls = 0
    while not reader.complete:
        reader.unmarshall()             # type: ignore[no-untyped-call]
        calls += 1
    assert calls > len(whole)
    assert reader.message is not None
    assert reader.message.body == ["x" * 100, 7]


def test_types_that_senders_make_up_are_forgotten() -> None:
    start = a_call("v", Variant("u", 7))[:-8]
    kept = len(SignatureTree._cache)
    for number in range(TYPES_REMEMBERED + 50):
        made_up = f"{number:012b}".translate({ord("0"): "u", ord("1"): "i"})
        body = bytes([len(made_up) + 2]) + f"({made_up})".encode() + bytes(1)
        body += bytes(-len(body) % 8) + bytes(4 * len(made_up))
        call = bytearray(start + body)
        call[4:8] = len(body).to_bytes(4, "little")
        message = Reader(io.BytesIO(call)).unmarshall()     # type: ignore[no-untyped-call]
        assert message.body[0].value == [0] * len(made_up)
    assert len(SignatureTree._cache) == kept
    assert _types.cache_info().currsize <= TYPES_REMEMBERED
