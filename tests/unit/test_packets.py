# SPDX-License-Identifier: Apache-2.0
"""The event loop neither receives nor closes a client's descriptors: the last close may block."""

import asyncio
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from nvshared.errors import ProtocolError
from nvshared.hook import connection

LINGER = 600                            # seconds; a close that waits for it fails the test
PATIENCE = 60


class Pair:
    """Our end of a client's connection, the client's, and the reading end of a full TCP stream."""

    def __init__(self, stack: ExitStack) -> None:
        self.ours, self.client = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.prepare(self.ours)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self._full = socket.create_connection(listening.getsockname())
            self.reading, _ = listening.accept()
        # The reading end closes first, so that no other close waits.
        for one in (self.ours, self.client, self._full, self.reading):
            stack.enter_context(one)
        self._full.setblocking(False)
        with suppress(BlockingIOError):
            while self._full.send(bytes(1 << 16)):
                continue
        self._full.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER))

    def send_lingering(self, packet: bytes) -> None:
        """Sends the TCP connection along, so that its last close is the receiver's."""
        socket.send_fds(self.client, [packet], [self._full.fileno()])
        self._full.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(stack)


def test_receive_refuses_a_packet_with_descriptors_and_leaves_the_packet_queued(pair: Pair) -> None:
    pair.send_lingering(b"packet")
    for _ in range(2):
        with pytest.raises(ProtocolError, match="descriptors"):
            connection.receive(pair.ours, 10)


def test_connection_close_returns_before_descriptors_sent_by_the_client_are_released(
        pair: Pair) -> None:
    async def closes() -> None:
        emptied = asyncio.Event()
        pair.client.send(b"")           # an attacker may send packets before the descriptor
        pair.send_lingering(b"packet")
        connection.shut_down(pair.ours, asyncio.get_running_loop(), emptied.set)
        await asyncio.sleep(0.2)
        assert not emptied.is_set()
        pair.reading.close()            # ends the wait of close()
        await asyncio.wait_for(emptied.wait(), PATIENCE)

    asyncio.run(closes())
    assert pair.ours.fileno() == -1


def test_close_of_a_duplicate_socket_keeps_the_original_with_unread_descriptors_open(
        pair: Pair) -> None:
    number = pair.ours.fileno()
    pair.send_lingering(b"packet")
    connection.close_copy(pair.ours)
    left = socket.socket(fileno=number)
    with pytest.raises(ProtocolError):
        connection.receive(left, 10)
    pair.reading.close()
    left.close()


@pytest.mark.parametrize("before", range(4))
def test_refused_client_that_has_already_sent_packets_receives_the_refusal(
        tmp_path: Path, before: int) -> None:
    async def refuses() -> bytes:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening, \
                socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            listening.bind(str(tmp_path / "socket"))
            listening.listen()
            connection.refuse_descriptors(listening)
            client.connect(str(tmp_path / "socket"))
            for _ in range(before):
                client.send(b"name")
            connection.turn_away(listening.accept()[0], asyncio.get_running_loop())
            return client.recv(len(connection.TOO_MANY))

    assert asyncio.run(refuses()) == connection.TOO_MANY
