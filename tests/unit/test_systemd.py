# SPDX-License-Identifier: Apache-2.0
"""Sockets that systemd passes to the daemon, and the daemon's notifications to systemd."""

import array
import os
import select
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvshared.errors import InvalidArgs
from nvshared.report import systemd
from nvshared.report.systemd import Notifier, inherited


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
