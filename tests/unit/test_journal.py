# SPDX-License-Identifier: Apache-2.0
"""Log lines, status and sockets: what the daemon exchanges with journal and systemd."""

import array
import asyncio
import logging
import os
import select
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from threading import Thread

import pytest

from nvshared.errors import InvalidArgs
from nvshared.machine.nvml import Sample
from nvshared.report import journal, log, systemd
from nvshared.report.log import BURST, INTERVAL, Limited
from nvshared.report.systemd import Notifier, inherited
from nvshared.scheduler.actions import (
    ClientState,
    Pinned,
    Stuck,
    TurnEnd,
    TurnEnded,
    TurnStarted,
)
from nvshared.scheduler.events import Memory, PinReason, Tick
from nvshared.settings.config import Config
from nvshared.sharing.dispatcher import OVERDUE
from nvshared.sharing.manager import Manager
from tests.unit.scripted import DEFAULTS, FACTS, OTHER, Noted, Scripted, Time, joined, peer, script


@pytest.fixture
def stopped() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch, stopped: asyncio.Event) -> Manager:
    script(monkeypatch)
    time = Time()
    made = Manager(lambda: DEFAULTS, time.clock, time.timer)
    limited = Limited(logging.getLogger("nvshared.test"), time.clock, time.timer)
    for facts in (OTHER, FACTS):
        journal.follow(made.add(facts, Sample(), gather=False), limited, stopped)
    return made


def test_journal_names_programs_with_swapped_memory_when_the_daemon_stops(
        manager: Manager, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(journal.MOST_NAMED + 2):
        joined(manager.gpus[0], number, Noted(), Memory(3 << 30, 1 << 30))
    journal.log_waiting_clients(manager)
    assert len(caplog.messages) == journal.MOST_NAMED + 1
    first = manager.gpus[0].clients[0]
    assert f"{first} of {first.user}" in caplog.messages[0]
    assert "2048 MiB in host memory" in caplog.messages[0]
    assert caplog.messages[-1].startswith("2 more")


class Systemd(Notifier):
    """Records the notifications; its watchdog has a long interval."""

    def __init__(self, watchdog: int = 3_600_000_000) -> None:
        super().__init__({})
        self.watchdog = watchdog
        self.words: list[str] = []
        self.pings = 0
        self.tries = 0                  # number of calls of catch_up()
        self.heard = asyncio.Event()    # set when a status is sent
        self.stopped = asyncio.Event()  # set at the third ping

    @property
    def listened(self) -> bool:
        return True

    def status(self, words: str) -> None:
        self.words.append(words)
        self.heard.set()

    def alive(self) -> None:
        self.pings += 1
        if self.pings == 3:
            self.stopped.set()

    def catch_up(self) -> None:
        self.tries += 1


async def test_systemd_status_is_sent_only_after_events_of_clients_and_turns(
        manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "STATUS_INTERVAL", 0.001)
    stopped, systemd = asyncio.Event(), Systemd()
    report = asyncio.create_task(journal.report(systemd, manager, stopped))
    await systemd.heard.wait()
    await asyncio.sleep(0.05)           # 50 status intervals without an event
    gpu = manager.gpus[0]             # the GPU with the latest scripted scheduler
    for happen in (
        lambda: joined(gpu, 1, Noted()),
        lambda: gpu.reported.emit(gpu.clients[1], TurnStarted(1)),
        lambda: gpu.leave(gpu.clients[1]),
    ):
        Scripted.latest.holders = (1,) if systemd.words[-1].endswith("1 client") else ()
        systemd.heard.clear()
        happen()
        await systemd.heard.wait()
    stopped.set()
    await report
    assert systemd.words == [
        "2 GPUs, 0 clients", "2 GPUs, 1 client", "2 GPUs, 1 client, gpu0: python[4001]",
        "2 GPUs, 0 clients"]


async def test_systemd_status_names_few_of_many_holders_of_a_gpu(
        manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "STATUS_INTERVAL", 0.001)
    stopped, systemd = asyncio.Event(), Systemd()
    gpu = manager.gpus[0]               # the GPU with the latest scripted scheduler
    for number in range(1, 6):
        joined(gpu, number, Noted())
    Scripted.latest.holders = tuple(gpu.clients)
    report = asyncio.create_task(journal.report(systemd, manager, stopped))
    await systemd.heard.wait()
    stopped.set()
    await report
    (words,) = systemd.words
    assert words.startswith("2 GPUs, 5 clients, gpu0: ")
    assert words.count("python[") == 3
    assert words.endswith(" and 2 more")


def test_systemd_status_that_is_too_long_for_a_notification_is_cut(listener: socket.socket) -> None:
    """systemd ignores notifications of 4,096 bytes, with a warning in the journal."""
    notifier = notifier_for(listener)
    for words in ("é" * 3000, "x" + "é" * 3000, "y" * 4096, "z" * 4088):
        notifier.status(words)
        said = listener.recv(10_000)
        assert 4080 < len(said) < 4096
        shown = said.decode().removeprefix("STATUS=").removesuffix("…")
        assert words.startswith(shown)
    notifier.close()


def test_systemd_status_with_a_path_that_is_not_utf_8_is_sent(listener: socket.socket) -> None:
    """Such a settings file with a wrong line ended the daemon with a traceback and status 1."""
    notifier = notifier_for(listener)
    notifier.status(os.fsdecode(b"/etc/nvshared.conf.d/\xff.conf:1: wrong"))
    assert listener.recv(10_000) == b"STATUS=/etc/nvshared.conf.d/?.conf:1: wrong"
    notifier.close()


@pytest.mark.parametrize("fault", ["stuck", "overdue"])
async def test_systemd_watchdog_gets_no_ping_while_a_scheduler_hangs(
        manager: Manager, caplog: pytest.LogCaptureFixture, fault: str) -> None:
    gpu = manager.gpus[0]
    scheduler = gpu.scheduler
    assert isinstance(scheduler, Scripted)
    systemd = Systemd(watchdog=3000)
    if fault == "stuck":
        gpu._handling = True            # as while the scheduler handles an event
    else:
        scheduler.due = gpu._clock() - OVERDUE - 1
    report = asyncio.create_task(journal.report(systemd, manager, systemd.stopped))
    while not caplog.messages:          # noqa: ASYNC110 - the watchdog sends no event
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.02)  # 20 ms: without the hang about 20 pings would have been sent
    report.cancel()
    assert systemd.pings == 0
    assert caplog.messages == ["nothing is decided any more on gpu0"]
    gpu._handling, scheduler.due = False, None
    await journal.report(systemd, manager, systemd.stopped)
    assert systemd.pings == 3


def test_journal_has_lines_for_the_connection_turns_and_faults_of_a_client(
        manager: Manager, stopped: asyncio.Event, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    gpu = manager.gpus[0]
    client = joined(gpu, 1, Noted())
    Scripted.latest.decide = lambda event: [
        TurnStarted(1), TurnEnded(1, TurnEnd.QUANTUM, 1_500_000),
        Stuck(1, ClientState.DRAINING, 10_000_000), Pinned(1, PinReason.UNDRAINED),
    ] if isinstance(event, Tick) else []
    gpu.tell(Tick())
    gpu.leave(client)
    time = Time()
    limited = Limited(logging.getLogger("nvshared.test"), time.clock, time.timer)
    journal.log_fault(limited, lambda _: "user:root", peer(uid=0), "silent", "it said nothing")
    last = joined(gpu, 2, Noted(), running=True)
    stopped.set()
    gpu.leave(last)                     # no line, as all clients leave when the daemon stops
    assert [record.getMessage() for record in caplog.records] == [
        "gpu0: python[4001] came",
        "gpu0: python[4001] runs",
        "gpu0: python[4001] ran for 1.500 s: quantum",
        "gpu0: python[4001] does not answer, draining for 10 s",
        "gpu0: python[4001] stays on the GPU from now on, and other programs share the rest: its "
        "work does not end, or cannot be waited for",
        "gpu0: python[4001] left", "python[4711] of root: it said nothing",
        "gpu0: python[4002] goes on"]   # an earlier daemon knew it


def test_journal_limits_the_number_of_lines_about_a_client_that_reconnects_often(
        manager: Manager, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    gpu = manager.gpus[0]
    for number in range(1, 200):
        gpu.leave(joined(gpu, number, Noted()))
    assert caplog.messages.count("gpu0: python[4001] came") == 1
    assert len(caplog.messages) == 2 * BURST


LONG = 60.0                             # seconds that a busy machine may take


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """Puts the root logger back as it was."""
    logger = logging.getLogger()
    handlers, level = list(logger.handlers), logger.level
    yield logger
    logger.handlers[:] = handlers
    logger.setLevel(level)


@pytest.mark.parametrize("under_systemd", [True, False])
def test_log_lines_have_a_priority_only_under_systemd(
        root: logging.Logger, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
        under_systemd: bool) -> None:
    status = os.fstat(2)
    stream = f"{status.st_dev}:{status.st_ino}" if under_systemd else "1:1"
    stderr = os.fdopen(os.dup(2), "w")
    monkeypatch.setattr("sys.stderr", stderr)
    log.start({"JOURNAL_STREAM": stream}, debug=False)
    logging.getLogger("nvshared.x").warning("two\nlines")
    logging.getLogger("nvshared.x").debug("not said")
    stderr.close()
    said = capfd.readouterr().err
    assert said.startswith("<4>two\n<4>lines\n") is under_systemd
    assert said.endswith("lines\n")
    log.set_debug(True)
    assert root.level == logging.DEBUG


def test_log_line_is_dropped_when_a_write_to_stderr_would_block(
        monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as journal, os.fdopen(writing, "w") as stderr:
        monkeypatch.setattr("sys.stderr", stderr)
        log.write_line("read")
        telling = Thread(target=lambda: log.write_line("x" * (1 << 22)), daemon=True)
        telling.start()                 # writes far more than a pipe holds
        telling.join(LONG)
        assert not telling.is_alive()
        assert journal.readline() == b"read\n"


@pytest.fixture
def limited(time: Time) -> Limited:
    return Limited(logging.getLogger("nvshared.test"), time.clock, time.timer)


def test_rate_limited_log_omits_lines_of_a_kind_after_a_burst_and_logs_the_number_omitted(
        caplog: pytest.LogCaptureFixture, time: Time, limited: Limited) -> None:
    for number in range(BURST + 5):
        limited.say(logging.WARNING, "garbage", partial("line {}".format, number))
    limited.say(logging.ERROR, ("garbage", 1001), lambda: "another kind")  # with a user id
    assert caplog.messages == [*(f"line {number}" for number in range(BURST)), "another kind"]
    caplog.clear()
    time.pass_by(INTERVAL)              # the summary needs no further line
    assert caplog.record_tuples == [(
        "nvshared.test", logging.WARNING,
        f"5 more such lines were left out within 30 s, the last: line {BURST + 4}")]
    caplog.clear()
    limited.say(logging.WARNING, "garbage", lambda: "again")
    assert caplog.messages == ["again"]
    time.pass_by(INTERVAL)
    assert caplog.messages == ["again"]
    assert not time.timers


def test_rate_limited_log_forgets_old_kinds_and_does_not_format_omitted_lines(
        time: Time, limited: Limited) -> None:
    made: list[int] = []

    def words(uid: int) -> str:
        made.append(uid)
        return "came"

    for uid in range(1000):
        limited.say(logging.INFO, ("came", uid), partial(words, uid))
        time.pass_by(INTERVAL // 10)
    assert len(limited._kinds) <= 10
    for _ in range(BURST * 3):
        limited.say(logging.INFO, ("came", 7), partial(words, 7))
    assert len(made) == 1000 + BURST


@pytest.fixture
def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket on which a service manager receives notifications."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", made.getsockname())
        yield made


def notifier_for(listener: socket.socket, **environment: str) -> Notifier:
    return Notifier({"NOTIFY_SOCKET": listener.getsockname(), **environment})


@pytest.mark.parametrize("environment", [
    {}, {"LISTEN_FDS": "1"}, {"LISTEN_FDS": "1", "LISTEN_PID": "1"},
    {"LISTEN_FDS": "0", "LISTEN_PID": str(os.getpid())},
])
def test_systemd_sockets_passed_to_another_process_are_ignored(environment: dict[str, str]) -> None:
    assert inherited(environment).listening is None
    assert not inherited(environment).kept


@pytest.mark.parametrize("kind", [socket.SOCK_SEQPACKET, socket.SOCK_STREAM])
def test_systemd_socket_other_than_seqpacket_is_refused(
        monkeypatch: pytest.MonkeyPatch, kind: socket.SocketKind) -> None:
    environment = {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())}
    given = socket.socket(socket.AF_UNIX, kind)
    monkeypatch.setattr(systemd, "FIRST_DESCRIPTOR", given.detach())
    if kind is socket.SOCK_SEQPACKET:
        taken = inherited(environment).listening
        assert taken is not None
        assert not taken.get_inheritable()
        taken.close()
    else:
        with pytest.raises(InvalidArgs, match="one ListenSequentialPacket="):
            inherited(environment)
        os.close(systemd.FIRST_DESCRIPTOR)


@pytest.mark.parametrize("names", [["nvshared.socket", "client-a"], ["client-a", "nvshared.socket"],
                                   ["client-a", "client-b"], ["client-a", "nvshared.socket", "x"]])
def test_connections_stored_by_systemd_are_separated_from_the_listening_socket(
        monkeypatch: pytest.MonkeyPatch, names: list[str]) -> None:
    first, sockets = 300, [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in names]
    for number, one in enumerate(sockets):
        os.dup2(one.fileno(), first + number)
        one.close()
    monkeypatch.setattr(systemd, "FIRST_DESCRIPTOR", first)
    environment = {
        "LISTEN_FDS": str(len(names)), "LISTEN_PID": str(os.getpid()),
        "LISTEN_FDNAMES": ":".join(names)}
    if "x" in names:
        with pytest.raises(InvalidArgs, match="one ListenSequentialPacket="):
            inherited(environment)
        for number in range(len(names)):
            os.close(first + number)
        return
    taken = inherited(environment)
    assert (taken.listening is not None) == ("nvshared.socket" in names)
    assert list(taken.kept) == [name for name in names if name != "nvshared.socket"]
    for one in [*taken.kept.values(), *([taken.listening] if taken.listening else [])]:
        assert not one.get_inheritable()
        one.close()


def test_files_stored_by_systemd_are_separated_from_sockets(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(systemd, "FIRST_DESCRIPTOR", 300)
    with (tmp_path / "file").open("w") as file:
        os.dup2(file.fileno(), 300)
    taken = inherited({"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid()),
                       "LISTEN_FDNAMES": "disk-client-a-1-2-3"})
    assert taken == (None, {}, {"disk-client-a-1-2-3": 300})
    assert not os.get_inheritable(300)
    os.close(300)


def test_systemd_notifier_resends_descriptors_that_did_not_fit_a_full_queue(
        listener: socket.socket) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        notifier = notifier_for(listener)
        notifier.ready()
        assert listener.recv(100) == b"READY=1"
        for _ in range(10_000):
            notifier.alive()
        notifier.keep("client-late", ours.fileno())
        notifier.keep("client-gone", ours.fileno())
        notifier.forget("client-gone")
        while select.select([listener], [], [], 0)[0]:
            assert listener.recv(100) == b"WATCHDOG=1"
        notifier.catch_up()
        notifier.catch_up()
        notifier.forget("client-late")
        words, passed, _, _ = listener.recvmsg(100, 100)
        assert words == b"FDSTORE=1\nFDNAME=client-late"
        number = array.array("i", passed[0][2])[0]
        assert os.fstat(number).st_ino == os.fstat(ours.fileno()).st_ino
        os.close(number)
        assert listener.recv(100) == b"FDSTOREREMOVE=1\nFDNAME=client-late"
        notifier.close()
    notifier.keep("client-after", 0)
    notifier.catch_up()


def keep(notifier: Notifier, listener: socket.socket, name: str) -> bool:
    """Has the listener store a descriptor; False: refused."""
    with Path("/dev/null").open() as file:
        if not notifier.keep(name, file.fileno()):
            return False
    words, passed, _, _ = listener.recvmsg(200, 100)
    os.close(array.array("i", passed[0][2])[0])
    assert words.decode() == f"FDSTORE=1\nFDNAME={name}"
    return True


def begins(names: list[str]) -> bool:
    """Whether systemd could start a daemon with these stored descriptors."""
    text = ":".join(["nvshared.socket", *names])
    return subprocess.run(["/bin/true"], env={"LISTEN_FDNAMES": text}, check=True).returncode == 0


def test_names_of_the_most_clients_with_files_of_the_disk_leave_a_daemon_startable(
        listener: socket.socket) -> None:
    most, stored = Config().max_clients, list[str]()
    assert most <= 4096
    with closing(notifier_for(listener)) as notifier:
        files = 0
        for _ in range(most):           # files leave room for the sockets of later clients
            stored.append(notifier.new_name())
            assert keep(notifier, listener, stored[-1])
            longest = f"disk-{stored[-1]}-4194304-4294967294-{10 * 365 * 86400 * 100}"
            if keep(notifier, listener, longest):
                stored.append(longest)
                files += 1
            else:
                notifier.forget(longest)
        assert len({*stored}) == most + files
        assert files > 1500
        assert begins([*stored, "x" * 2048])


def test_systemd_notifier_refuses_names_with_which_no_daemon_would_start(
        listener: socket.socket) -> None:
    stored = list[str]()
    with closing(notifier_for(listener)) as notifier:
        while keep(notifier, listener, name := notifier.new_name()):
            stored.append(name)
        notifier.forget(name)
        assert len(stored) > 2 * Config().max_clients
        assert begins([*stored, "x" * 2048])
    environment = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDNAMES": ":".join(stored)}
    with closing(notifier_for(listener, **environment)) as following:
        assert following.new_name() not in stored
        assert not keep(following, listener, "client-more")
        following.forget("client-more")
        following.forget(stored[0])
        assert listener.recv(200).decode() == f"FDSTOREREMOVE=1\nFDNAME={stored[0]}"
        assert keep(following, listener, stored[0])


def test_systemd_notifier_sends_ready_status_and_watchdog_pings(listener: socket.socket) -> None:
    silent = Notifier({})               # without systemd
    silent.ready()
    assert (silent.listened, silent.watchdog) == (False, None)
    notifier = notifier_for(listener, WATCHDOG_USEC="30000000")
    assert notifier.listened
    assert notifier.watchdog == 30_000_000
    notifier.ready()
    notifier.status("2 GPUs")
    notifier.alive()
    notifier.stopping()
    notifier.close()
    assert [listener.recv(100) for _ in range(4)] == [
        b"READY=1", b"STATUS=2 GPUs", b"WATCHDOG=1", b"STOPPING=1"]
