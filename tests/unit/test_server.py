# SPDX-License-Identifier: Apache-2.0
"""The server of hooks: its socket, descriptors, quotas and turns of users."""

import asyncio
import errno
import gc
import os
import socket
import stat
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event as ThreadEvent

import pytest

from nvshared.containers import names
from nvshared.errors import AlreadyRunning, InvalidArgs, NvshareError, ProtocolError
from nvshared.hook import connection
from nvshared.hook.connection import (
    ROOT,
    WORK_SLICE,
    HookConnection,
    Rotation,
    Server,
    may_connect,
)
from nvshared.hook.listening import BACKLOG, Listening
from nvshared.hook.packets import LONGEST
from nvshared.hook.protocol import OrderRecord, Refusal, ReportRecord, Type
from nvshared.hook.session import Session
from nvshared.lanes import Lanes
from nvshared.machine.nvml import Sample
from nvshared.machine.peer import Peer
from nvshared.machine.tenant import Kind, Tenant
from nvshared.report import systemd
from nvshared.report.systemd import Notifier
from nvshared.scheduler.events import Event
from nvshared.settings.config import Config
from nvshared.sharing.gpu import Client
from nvshared.sharing.manager import Manager
from nvshared.sharing.sampler import Sampler
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
    known: ThreadEvent
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
        return one.recv(LONGEST, socket.MSG_PEEK)
    except BlockingIOError:
        return b""


def refusal(packet: bytes) -> int | None:
    return decode_order(packet).refusal if packet else None


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
    loop, time, known = asyncio.get_running_loop(), Time(), ThreadEvent()
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
            manager, listening, Config(), open_files, complain, keeper, {}, lanes, lanes, lanes,
            names.Names())
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


async def test_server_drops_a_client_that_sends_descriptors_on_kernels_that_allow_descriptors(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "refuse_descriptors", lambda _: None)   # before Linux 6.16
    with serving(tmp_path) as site:
        client = await site.connect()
        socket.send_fds(client, [HELLO], [client.fileno()])
        site.known.set()
        await until(lambda: "malformed" in [kind for _, kind in site.complaints])


async def test_order_whose_descriptor_the_kernel_refuses_is_reported_to_its_session(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ETOOMANYREFS, "Too many references: cannot splice")

    lost: list[Type] = []
    monkeypatch.setattr(Session, "descriptor_lost", lambda _, kind: lost.append(kind))
    with serving(tmp_path) as site:
        await site.connect(hello=encode_report(ReportRecord(Type.NAME, text="one")))
        site.known.set()
        await until(lambda: bool(site.server._connections))
        (one,) = site.server._connections
        with monkeypatch.context() as patch:
            patch.setattr(socket, "send_fds", refuse)
            one.send(OrderRecord(Type.STORE), os.open("/dev/null", os.O_RDONLY))
        await until(lambda: bool(lost))
        assert lost == [Type.STORE]
        assert "crowded" in [kind for _, kind in site.complaints]


async def test_server_serves_a_client_whose_name_systemd_has_no_room_for(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemd, "NAMES_MOST", 0)
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    with serving(tmp_path) as site, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.setblocking(False)
        with closing(Notifier(os.environ)) as site.server.keeper:
            client = await site.connect(hello=encode_report(ReportRecord(Type.NAME, text="one")))
            site.known.set()
            await until(lambda: bool(site.server._connections))
            assert [kind for _, kind in site.complaints] == ["unstored"]
            client.close()
            await until(lambda: not site.server._connections)
            with pytest.raises(BlockingIOError):
                listener.recv(200)      # neither stored nor removed


@pytest.mark.parametrize(("known", "tenant", "complaints"), [
    ({"a" * 64: "trainer"}, "container:trainer", []),
    ({}, f"container:{'a' * 64}", ["unnamed"]),
])
async def test_server_gives_a_container_its_name_before_the_client_joins(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: dict[str, str], tenant: str,
        complaints: list[str]) -> None:
    one = Peer(os.getpid(), 0, 0, "python", (
        Tenant(Kind.USER, "0"), Tenant(Kind.CONTAINER, "a" * 64)), is_contained=True)
    monkeypatch.setattr("nvshared.hook.connection.peer.identify", lambda *_: one)
    monkeypatch.setattr(names, "listed", lambda: [names.Named(*pair) for pair in known.items()])
    with serving(tmp_path) as site:
        await site.connect(hello=encode_report(ReportRecord(Type.NAME, text="one")))
        site.known.set()
        await until(lambda: bool(site.server._connections))
        (served,) = site.server._connections
        assert str(served.peer.tenant) == served.account == tenant
        assert [kind for _, kind in site.complaints] == complaints


async def test_server_close_does_not_wait_for_a_client_that_is_being_identified(
        tmp_path: Path) -> None:
    with serving(tmp_path) as site:
        client = await site.connect()
        site.server.close()
        site.known.set()
        await until(lambda: not site.server._lanes._lanes)
        assert not site.server._connections
        with pytest.raises(BlockingIOError):
            client.recv(1)              # the end of the process closes the connection


async def test_server_close_tells_the_scheduler_of_no_client_that_left_and_reads_no_packet(
        tmp_path: Path) -> None:
    with serving(tmp_path) as site:
        gpu = site.server.manager.add(FACTS, Sample(memory_used=0), gather=False)
        site.known.set()
        client = await site.connect(hello=encode_report(
            ReportRecord(Type.HELLO, uuid=FACTS.uuid_bytes)))
        await until(lambda: bool(gpu.clients))
        happened: list[Event] = []
        gpu.happens.connect(lambda _, event: happened.append(event))
        (served,) = site.server._connections
        number = served._socket.fileno()
        client.send(b"for the next daemon")
        site.server.close()
        with socket.socket(fileno=number) as left:
            assert left.recv(LONGEST) == b"for the next daemon"
        assert gpu.clients
        assert not happened


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
        late = [await site.connect(ATTACKER) for _ in range(len(flood) - len(refused))]
        await until(lambda: all(map(answer, late)))
        assert {refusal(answer(one)) for one in late} == {Refusal.NO_SUCH_GPU}


async def test_server_ends_the_connection_of_a_refused_client(tmp_path: Path) -> None:
    with serving(tmp_path) as site:
        site.known.set()
        client = await site.connect()   # its HELLO names no GPU
        async with asyncio.timeout(5):  # half of the time within which a client must send HELLO
            await until(lambda: bool(answer(client)))
            assert refusal(client.recv(LONGEST)) == Refusal.NO_SUCH_GPU
            await until(lambda: not site.server._connections)
        assert client.recv(1) == b""


async def test_ended_connection_is_freed_without_the_garbage_collector(tmp_path: Path) -> None:
    """Garbage collection of thousands of connections would delay all other clients."""
    with serving(tmp_path) as site:
        time, manager = Time(), site.server.manager
        gpu = manager.add(FACTS, Sample(memory_used=0), gather=False)
        Sampler(lambda _: Sample(), lambda *_: None, time.clock, time.timer).add(gpu)
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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "sock"


def test_listening_socket_is_open_to_every_user_and_removed_at_close(path: Path) -> None:
    before = os.umask(0o077)
    try:
        listening = Listening(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755
    assert not listening.found_stale
    listening.close()
    assert not path.parent.exists()


def test_close_of_the_listening_socket_keeps_a_folder_that_existed_or_has_other_files(
        path: Path) -> None:
    path.parent.mkdir()
    Listening(path).close()
    assert list(path.parent.iterdir()) == []
    path.parent.rmdir()
    listening = Listening(path)
    (path.parent / "other").touch()
    listening.close()
    assert [one.name for one in path.parent.iterdir()] == ["other"]


def test_listening_is_refused_while_another_daemon_has_a_full_queue_of_connections(
        path: Path) -> None:
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as busy:
        busy.bind(str(path))
        busy.listen(0)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.connect(str(path))
            with pytest.raises(AlreadyRunning):
                Listening(path)


@pytest.mark.parametrize("kind", [socket.SOCK_SEQPACKET, socket.SOCK_STREAM])
def test_listening_replaces_a_socket_file_on_which_no_process_listens(
        path: Path, kind: socket.SocketKind) -> None:
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX, kind) as left:
        left.bind(str(path))
    listening = Listening(path)
    assert listening.found_stale
    listening.close()


def test_listening_at_a_too_long_path_or_on_a_regular_file_is_refused_with_the_reason(
        tmp_path: Path) -> None:
    with pytest.raises(InvalidArgs, match="longer than the 107 bytes"):
        Listening(tmp_path / ("x" * 120))
    (tmp_path / "file").write_text("precious")
    with pytest.raises(InvalidArgs, match="exists and is no socket"):
        Listening(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "precious"
    with pytest.raises(NvshareError, match=r"the socket .*/file/sock cannot be made: Not a dir"):
        Listening(tmp_path / "file" / "sock")


def test_listening_socket_queues_as_many_connections_as_the_socket_of_the_systemd_unit(
        path: Path) -> None:
    queued = 0
    with closing(Listening(path)), ExitStack() as stack, suppress(BlockingIOError):
        while queued <= 1000:
            one = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            one.setblocking(False)
            one.connect(str(path))
            queued += 1
    assert queued == BACKLOG + 1        # the kernel admits one connection more than the backlog
    assert f"\nBacklog={BACKLOG}\n" in Path("systemd/nvshared.socket").read_text()


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


def fill(connected: Counter[str], account: str, most: int = 4096) -> int:
    before = connected[account]
    while may_connect(account, connected, most, 1024):
        connected[account] += 1
    return connected[account] - before


@pytest.mark.parametrize("greedy", [1, 4, 40])
def test_connection_quota_leaves_connections_for_root_and_new_users(greedy: int) -> None:
    connected = Counter[str]()
    for uid in range(1000, 1000 + greedy):
        assert fill(connected, f"user:{uid}") <= 1024
    assert fill(connected, "user:2000") >= 8
    for uid in range(3000, 3020):
        assert may_connect(f"user:{uid}", connected, 4096, 1024)
        connected[f"user:{uid}"] += 1
    assert fill(connected, ROOT) >= 4096 // 16


def test_connection_quota_of_many_new_users_leaves_a_sixteenth_for_root() -> None:
    connected = Counter[str]()
    while may_connect(f"user:{connected.total()}", connected, 4096, 1024):
        connected[f"user:{connected.total()}"] += 1
    assert fill(connected, ROOT) == 4096 // 16


def test_connection_quota_bounds_each_user_except_root() -> None:
    assert fill(Counter(), "user:1000") == 1024
    assert fill(Counter(), ROOT) == 4096
    assert fill(Counter(), "user:1000", 1) == 1


class Loop(asyncio.SelectorEventLoop):
    """An event loop with a clock that only the test's work moves."""

    now = 1000.0

    def time(self) -> float:
        return self.now


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def done(loop: Loop) -> list[str]:
    return []


def work(loop: Loop, done: list[str], name: str, seconds: float) -> Callable[[], None]:
    def do() -> None:
        done.append(name)
        loop.now += seconds

    return do


def passes(loop: Loop, done: list[str]) -> list[list[str]]:
    found: list[list[str]] = []
    while True:
        before = len(done)
        loop.call_soon(loop.stop)
        loop.run_forever()
        if len(done) == before:
            loop.close()
            return found
        found.append(done[before:])


@pytest.mark.parametrize(("part", "pause"), [(0.05, 0), (0.6, 0.6)])
def test_rotation_of_users_runs_work_within_the_time_slice_immediately_and_renews_the_slice(
        loop: Loop, done: list[str], part: float, pause: float) -> None:
    rotation = Rotation(loop)
    for number in range(10):
        assert rotation.offer(number % 2, work(loop, done, str(number), WORK_SLICE * part))
        loop.now += WORK_SLICE * pause
    assert done == [str(number) for number in range(10)]
    assert passes(loop, done) == []


def test_rotation_of_users_alternates_once_the_time_slice_is_used(
        loop: Loop, done: list[str]) -> None:
    rotation = Rotation(loop)
    assert rotation.offer(1, work(loop, done, "at once", 2 * WORK_SLICE))
    for number in range(6):
        assert not rotation.offer(1, work(loop, done, f"loud {number}", WORK_SLICE * 0.6))
    assert not rotation.offer(2, work(loop, done, "low 0", WORK_SLICE * 0.6))
    assert not rotation.offer(2, work(loop, done, "low 1", WORK_SLICE * 0.6))
    assert done == ["at once"]
    assert passes(loop, done) == [
        ["loud 0", "low 0"], ["loud 1", "low 1"], ["loud 2", "loud 3"], ["loud 4", "loud 5"]]


def test_rotation_of_users_serves_the_next_user_after_work_raises(
        loop: Loop, done: list[str]) -> None:
    failures: list[str] = []
    loop.set_exception_handler(lambda _, context: failures.append(str(context["exception"])))
    rotation = Rotation(loop)
    rotation.offer(0, work(loop, done, "at once", 2 * WORK_SLICE))

    def fail() -> None:
        raise ValueError("it failed")

    rotation.offer(1, fail)
    rotation.offer(2, work(loop, done, "next", WORK_SLICE))
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert failures == ["it failed"]
    assert passes(loop, done) == [["next"]]


def test_rotation_of_users_drops_waiting_work_when_closed(loop: Loop, done: list[str]) -> None:
    rotation = Rotation(loop)
    rotation.offer(0, work(loop, done, "at once", 2 * WORK_SLICE))
    rotation.offer(1, work(loop, done, "late", WORK_SLICE))
    rotation.close()
    assert passes(loop, done) == []
