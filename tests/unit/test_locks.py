# SPDX-License-Identifier: Apache-2.0
"""Any user may lock a folder for ever; that keeps neither the daemon nor a command waiting."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from nvshared import locks
from nvshared.hook.listening import Listening
from nvshared.preload import switch
from nvshared.preload.tree import Tree


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that another process has locked."""
    monkeypatch.setattr(locks, "PATIENCE", 0)
    (folder := tmp_path / "etc").mkdir()
    other = os.open(folder, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    yield folder
    os.close(other)


def test_daemon_listens_in_a_folder_that_another_process_keeps_locked(
        held: Path, caplog: pytest.LogCaptureFixture) -> None:
    with closing(Listening(held / "nvshare.sock")) as listening:
        assert listening.path.is_socket()
    assert f"another process has locked {held}" in caplog.text


def test_preload_list_in_a_folder_that_another_process_keeps_locked_is_changed(
        held: Path, caplog: pytest.LogCaptureFixture) -> None:
    (held / "ld.so.preload").write_text("/a.so\n")
    switch.change(Tree(held.parent), lambda before: before + b"/b.so\n")
    assert (held / "ld.so.preload").read_text() == "/a.so\n/b.so\n"
    assert f"another process has locked {held}" in caplog.text
