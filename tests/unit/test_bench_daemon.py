# SPDX-License-Identifier: Apache-2.0
"""What the clients of `make bench-daemon` say is what the protocol means by it."""

import socket
from pathlib import Path

from bench.daemon.crowd import Client
from nvshared.hook.protocol import SIZE, ReportRecord, Type, decode_report
from nvshared.scheduler.events import Memory
from nvshared.units import GIB
from tests.unit.scripted import FACTS


def test_a_client_of_the_crowd_speaks_the_protocol(tmp_path: Path) -> None:
    path = tmp_path / "sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(path))
        listening.listen()
        client = Client(path, FACTS.uuid_bytes, GIB)
        accepted, _ = listening.accept()
    with accepted, client.socket:
        client.say(Type.HELLO, size=GIB)
        client.say(Type.COMMIT, number=1, size=GIB)
        hello, question = (decode_report(accepted.recv(SIZE + 1)) for _ in range(2))
    memory = Memory(allocated=GIB, host=GIB)
    assert hello == ReportRecord(Type.HELLO, commit=GIB, memory=memory, uuid=FACTS.uuid_bytes)
    assert question == ReportRecord(Type.COMMIT, number=1, commit=GIB, memory=memory)
