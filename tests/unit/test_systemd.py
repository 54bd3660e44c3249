# SPDX-License-Identifier: Apache-2.0
"""What systemd hands over and hears."""

import os
import socket
from pathlib import Path

import pytest

from nvshared import systemd
from nvshared.errors import InvalidArgs
from nvshared.systemd import Notifier, listening_socket


@pytest.mark.parametrize("environment", [
    {}, {"LISTEN_FDS": "1"}, {"LISTEN_FDS": "1", "LISTEN_PID": "1"},
    {"LISTEN_FDS": "0", "LISTEN_PID": str(os.getpid())},
])
def test_sockets_for_others_are_not_ours(environment: dict[str, str]) -> None:
    assert listening_socket(environment) is None


@pytest.mark.parametrize("kind", [socket.SOCK_SEQPACKET, socket.SOCK_STREAM])
def test_only_a_socket_of_the_right_kind_is_taken(
    monkeypatch: pytest.MonkeyPatch, kind: socket.SocketKind
) -> None:
    environment = {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())}
    given = socket.socket(socket.AF_UNIX, kind)
    monkeypatch.setattr(systemd, "FIRST_DESCRIPTOR", given.detach())
    if kind is socket.SOCK_SEQPACKET:
        taken = listening_socket(environment)
        assert taken is not None
        assert not taken.get_inheritable()
        taken.close()
    else:
        with pytest.raises(InvalidArgs, match="one ListenSequentialPacket="):
            listening_socket(environment)
        os.close(systemd.FIRST_DESCRIPTOR)


def test_without_systemd_nothing_is_told() -> None:
    notifier = Notifier({})
    notifier.ready()
    assert not notifier.listened
    assert notifier.watchdog is None


def test_systemd_hears_how_we_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(path)
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        notifier = Notifier({"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "30000000"})
        assert notifier.listened
        assert notifier.watchdog == 30_000_000
        notifier.ready()
        notifier.status("2 GPUs")
        notifier.alive()
        notifier.stopping()
        notifier.close()
        told = [listener.recv(100) for _ in range(4)]
    assert told == [b"READY=1", b"STATUS=2 GPUs", b"WATCHDOG=1", b"STOPPING=1"]


def test_who_does_not_listen_any_more_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(path)
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        notifier = Notifier({"NOTIFY_SOCKET": path})
        notifier.ready()
        for number in range(10_000):    # far more than fit into its queue
            notifier.status(str(number))
        assert listener.recv(100) == b"READY=1"
        notifier.close()


def test_a_watchdog_for_another_process_is_not_fed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(path)
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        environment = {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "3", "WATCHDOG_PID": "1"}
        notifier = Notifier(environment)
        assert notifier.watchdog is None
        notifier.close()
        notifier.ready()
        with pytest.raises(BlockingIOError):
            listener.recv(100, socket.MSG_DONTWAIT)
