# SPDX-License-Identifier: Apache-2.0
"""Class Server: connections of libraries while the daemon identifies the connected process."""

import asyncio
import gc
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import pytest

from nvshared.hook import connection
from nvshared.hook.connection import HookConnection, Server
from nvshared.hook.protocol import SIZE, Refusal, ReportRecord, Type
from nvshared.lanes import Lanes
from nvshared.machine.nvml import Sample
from nvshared.machine.peer import Peer
from nvshared.report.systemd import Notifier
from nvshared.settings.config import Config
from nvshared.sharing.gpu import Client
from nvshared.sharing.manager import Manager
from nvshared.sharing.sampler import Sampler
from nvshared.units import SECOND
from tests.records import decode_order, encode_report
from tests.unit.scripted import DEFAULTS, FACTS, Time

ATTACKER, NEIGHBOUR, OTHER = 65_534, 65_533, 65_532     # user ids
HELLO = encode_report(ReportRecord(Type.HELLO, uuid=bytes(16)))

another_user = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@dataclass
class Site:
    """A server that identifies processes only once `known` is set."""

    path: Path
    server: Server
    known: Event
    complaints: list[tuple[str, str]]   # account and kind
    clients: list[socket.socket] = field(default_factory=list)

    async def connect(self, uid: int | None = None, hello: bytes = HELLO) -> socket.socket:
        """A connection of user `uid` that the server has accepted and that has sent HELLO."""
        made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.clients.append(made)
        if uid is not None:
            os.seteuid(uid)
        try:
            made.connect(str(self.path))
        finally:
            os.seteuid(os.getuid())
        made.setblocking(False)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if not answer(made):
            made.send(hello)
        return made


def answer(one: socket.socket) -> bytes:
    try:
        return one.recv(SIZE, socket.MSG_PEEK)
    except BlockingIOError:
        return b""


def refusal(packet: bytes) -> int | None:
    return decode_order(packet).flags if packet else None


async def until(condition: Callable[[], bool]) -> None:
    while not condition():             # noqa: ASYNC110 (sockets of clients have no event)
        await asyncio.sleep(0.001)


async def connected_process(path: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c",
        "import socket, sys; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); "
        "s.connect(sys.argv[1]); sys.stdin.read()", str(path), stdin=asyncio.subprocess.PIPE)


@contextmanager
def serving(folder: Path, open_files: int = 4096) -> Iterator[Site]:
    loop, time, known = asyncio.get_running_loop(), Time(), Event()
    complaints: list[tuple[str, str]] = []

    def post(call: Callable[[], None]) -> None:
        with suppress(RuntimeError):    # a thread may end after the test
            loop.call_soon_threadsafe(call)

    def complain(sender: Peer, kind: str, _words: str) -> None:
        complaints.append((sender.account, kind))

    lanes = Lanes("test", 1, post, time.clock, time.timer)
    lanes.run("gate", known.wait, lambda _: None)
    with ExitStack() as stack:
        listening = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        listening.bind(str(folder / "socket"))
        listening.listen()
        folder.chmod(0o755)
        (folder / "socket").chmod(0o666)
        keeper = stack.enter_context(closing(Notifier({})))
        manager = Manager(lambda: DEFAULTS, time.clock, time.timer)
        server = Server(
            manager, listening, Config(), open_files, complain, keeper, {}, lanes, lanes)
        site = Site(folder / "socket", server, known, complaints)
        stack.callback(server.close)
        stack.callback(known.set)
        yield site
        for client in site.clients:
            client.close()


@pytest.fixture
def public() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="nvshare-test-") as folder:
        yield Path(folder)


async def test_server_drops_a_client_that_sends_descriptors_where_the_kernel_allows_it(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "refuse_descriptors", lambda _: None)   # before Linux 6.16
    with serving(tmp_path) as site:
        client = await site.connect()
        socket.send_fds(client, [HELLO], [client.fileno()])
        site.known.set()
        await until(lambda: "malformed" in [kind for _, kind in site.complaints])


async def test_server_close_does_not_wait_for_a_client_that_is_being_identified(
        tmp_path: Path) -> None:
    with serving(tmp_path) as site:
        client = await site.connect()
        site.server.close()
        assert client.recv(1) == b""


async def test_server_ends_a_connection_when_the_process_ends_during_the_identification(
        tmp_path: Path) -> None:
    with serving(tmp_path) as site:
        process = await connected_process(site.path)
        await until(lambda: bool(site.server.unserved))
        process.kill()
        await process.wait()
        site.known.set()
        await until(lambda: not site.server.unserved)
        assert not site.server._connections
    assert site.complaints == []


async def test_process_with_many_unserved_connections_leaves_room_for_other_processes_of_the_user(
        tmp_path: Path) -> None:
    with serving(tmp_path, open_files=800) as site:     # enough for 100 connections
        for _ in range(60):
            await site.connect()
        refused, unserved = len(site.complaints), len(site.server.unserved)
        assert refused > 0
        process = await connected_process(site.path)
        await until(lambda: len(site.server.unserved) > unserved or len(site.complaints) > refused)
        assert len(site.complaints) == refused
        process.kill()
        await process.wait()


@another_user
async def test_user_with_many_unserved_connections_is_refused_and_other_users_are_served(
        public: Path) -> None:
    with serving(public, open_files=800) as site:       # enough for 100 connections
        flood = [await site.connect(ATTACKER) for _ in range(60)]
        refused = [one for one in flood if answer(one)]
        assert {refusal(answer(one)) for one in refused} == {Refusal.TOO_MANY_CLIENTS}
        assert site.complaints == [(f"user:{ATTACKER}", "unserved")] * len(refused)
        others = [await site.connect(uid) for uid in (NEIGHBOUR, OTHER, OTHER) for _ in range(2)]
        assert not any(map(answer, others))
        site.known.set()
        await until(lambda: all(map(answer, [*flood, *others])))
        assert {refusal(answer(one)) for one in others} == {Refusal.NO_SUCH_GPU}
        assert 0 < len(refused) <= 50
        # The answered connections no longer count, so as many new connections are answered.
        late = [await site.connect(ATTACKER) for _ in range(5)]
        await until(lambda: all(map(answer, late)))
        assert {refusal(answer(one)) for one in late} == {Refusal.NO_SUCH_GPU}


async def test_ended_connection_is_freed_without_the_garbage_collector(tmp_path: Path) -> None:
    """Garbage collection of thousands of connections would delay all other clients."""
    with serving(tmp_path) as site:
        time, manager = Time(), site.server.manager
        gpu = manager.add(FACTS, Sample(memory_used=0), gather=False)
        Sampler(lambda _: Sample(), lambda *_: None, time.clock, time.timer, SECOND).add(gpu)
        site.known.set()
        gc.collect()
        gc.disable()
        try:
            client = await site.connect(hello=encode_report(
                ReportRecord(Type.HELLO, uuid=FACTS.uuid_bytes)))
            await until(lambda: bool(gpu.clients))
            client.close()
            await until(lambda: not gpu.clients)
            await asyncio.sleep(0)      # the event loop has dropped its last callback
            left = [
                one for one in gc.get_objects()
                if (isinstance(one, HookConnection) and one._server is site.server)
                or (isinstance(one, Client) and one.gpu is gpu)]
        finally:
            gc.enable()
        assert left == []
