# SPDX-License-Identifier: Apache-2.0
"""The listening socket: its owner, its permissions, and its removal."""

import os
import socket
import stat
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from nvshared.errors import AlreadyRunning, InvalidArgs, NvshareError
from nvshared.hook.listening import BACKLOG, Listening


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


def test_listening_backlog_equals_that_of_the_systemd_unit(path: Path) -> None:
    made, queued = Listening(path), 0
    with closing(made), ExitStack() as stack, suppress(BlockingIOError):
        while queued <= 1000:
            one = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            one.setblocking(False)
            one.connect(str(path))
            queued += 1
    assert queued == BACKLOG + 1        # the kernel admits one connection more than the backlog
    assert f"\nBacklog={BACKLOG}\n" in Path("systemd/nvshared.socket").read_text()
