# SPDX-License-Identifier: Apache-2.0
"""The server of hooks ends without waiting for clients."""

import asyncio
import os
import socket
from contextlib import closing
from pathlib import Path
from threading import Event

from nvshared.hook.server import Server
from nvshared.lanes import Lanes
from nvshared.machine import subordinate
from nvshared.report.systemd import Notifier
from nvshared.settings.config import Config
from nvshared.sharing.manager import Manager
from tests.unit.scripted import DEFAULTS, Time


async def test_close_while_a_silent_client_is_being_identified_does_not_wait(
    tmp_path: Path
) -> None:
    time, known = Time(), Event()
    lanes = Lanes("test", 1, lambda _: None, time.clock, time.timer)
    lanes.run(subordinate.lender(os.geteuid()), known.wait, lambda _: None)  # it stays unknown
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client,
        closing(Notifier({})) as keeper,
    ):
        listening.bind(str(tmp_path / "socket"))
        listening.listen()
        server = Server(
            Manager(lambda: DEFAULTS, time.clock, time.timer), listening, Config(), 1024,
            lambda *_: None, keeper, {}, lanes, lanes)
        client.connect(str(tmp_path / "socket"))
        await asyncio.sleep(0)          # it accepts
        await asyncio.sleep(0)
        server.close()
        assert client.recv(1) == b""
    known.set()
