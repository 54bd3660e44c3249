# SPDX-License-Identifier: Apache-2.0
"""The directory for swapped memory: its check, and the disk budget while it is unusable."""

import os
import socket
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from nvshared.lanes import here
from nvshared.machine import disk
from nvshared.machine.nvml import Sample
from nvshared.report import systemd
from nvshared.report.systemd import Notifier
from nvshared.settings.config import load
from nvshared.sharing.disk import AGAIN, APART, LEFT_MOST, Disk, File
from nvshared.sharing.manager import Manager
from nvshared.units import GIB, SECOND
from tests import pages
from tests.unit.scripted import DEFAULTS, FACTS, Time, peer


@pytest.mark.parametrize(("kind", "words"), [
    ("tmpfs", "is on tmpfs, which is memory itself"),
    ("nfs4", "is on nfs4: it must be on a disk of this machine"),
    ("fuse.sshfs", "is on fuse.sshfs: it must be on a disk of this machine"),
    ("overlay", "is in a container's own layers: mount a disk's directory there"),
])
def test_disk_check_refuses_a_directory_on_an_unsuitable_file_system(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, words: str) -> None:
    monkeypatch.setattr(disk, "_file_system", lambda _: kind)
    assert disk.fault(tmp_path, GIB) == f"{tmp_path} {words}"


def test_disk_check_refuses_a_missing_directory_a_plain_file_and_a_too_large_size(
        tmp_path: Path) -> None:
    assert disk.fault(tmp_path, GIB) == ""
    assert not [*tmp_path.iterdir()]
    assert disk.fault(Path("/dev/shm"), GIB) == "/dev/shm is on tmpfs, which is memory itself"
    assert disk.fault(tmp_path / "none", GIB) == f"{tmp_path}/none: No such file or directory"
    (tmp_path / "file").write_text("")
    assert disk.fault(tmp_path / "file", GIB) == f"{tmp_path}/file: Not a directory"
    assert "1048576.0 GiB are more than the file system of" in disk.fault(tmp_path, 1 << 50)


def test_disk_check_refuses_a_directory_that_cannot_be_written_to(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "write", full)
    assert disk.fault(tmp_path, 1) == f"{tmp_path} cannot be written to: No space left on device"
    monkeypatch.setattr(disk, "open_file", full)
    assert disk.fault(tmp_path, 1) == f"{tmp_path} cannot be written to: No space left on device"


def test_disk_settings_of_the_lab_server_page_are_accepted(tmp_path: Path) -> None:
    file = tmp_path / "nvshared.conf"
    file.write_text(pages.block("docs/lab-server.md", "[gpu]"))
    config = load(file, {}, {})
    assert config.disk == (Path("/var/lib/nvshare/swap"), 200 * GIB)
    assert config.park_after == 600 * SECOND


@pytest.fixture
def manager(time: Time) -> Manager:
    made = Manager(lambda: DEFAULTS, time.clock, time.timer)
    made.add(FACTS, Sample(memory_used=0), gather=False)
    return made


def budget(manager: Manager) -> int:
    """Bytes of the disk that the card may use."""
    return manager.gpus[0].snapshot().budgets["disk"].size


def test_disk_budget_is_zero_while_the_directory_is_missing(tmp_path: Path, manager: Manager,
                                                            time: Time) -> None:
    folder = tmp_path / "swap"
    folder.mkdir()
    manager.disk.use((folder, GIB))
    for _ in range(1000):               # a client may report any number of errors
        manager.disk.failed(peer(), 28)
    time.pass_by(SECOND)
    assert (budget(manager), manager.disk.fault) == (GIB, "")
    folder.rmdir()
    said: list[str] = []
    manager.disk.client_failed.connect(lambda client, words: said.append(f"{client} {words}"))
    manager.disk.failed(peer(), 5)
    assert said == ["python[4711] its memory could not go to the disk: Input/output error"]
    time.pass_by(APART)
    assert (budget(manager), manager.disk.fault) == (0, f"{folder}: No such file or directory")
    folder.mkdir()
    time.pass_by(AGAIN)
    assert (budget(manager), manager.disk.fault) == (GIB, "")


@pytest.mark.parametrize("is_changed", [False, True], ids=["times out", "setting changed"])
def test_disk_budget_is_zero_when_the_directory_check_times_out_or_the_setting_is_changed(
        tmp_path: Path, is_changed: bool) -> None:
    answers: list[Callable[[object], None]] = []
    time = Time()
    made = Disk(time.clock, time.timer, lambda key, call, answer, patience: answers.append(answer))
    made.use((tmp_path, GIB))
    assert made.budget.shared.size == GIB      # reconnecting clients may have bytes on the disk
    if is_changed:
        made.use(None)
    answers.pop()("it is gone" if is_changed else None)
    fault = "" if is_changed else f"{tmp_path} does not answer"
    assert (made.budget.shared.size, made.fault) == (0, fault)


def test_user_with_files_of_disconnected_processes_gets_no_further_file(tmp_path: Path) -> None:
    time = Time()
    made = Disk(time.clock, time.timer, here)
    made.setting = tmp_path, GIB
    files: list[File | None] = []
    for _ in range(LEFT_MOST + 1):
        made.open("client-1", peer(uid=1000), lambda _: None, files.append)
        for file in files:
            if file is not None:
                made.release(file)
    made.open("client-1", peer(uid=1001), lambda _: None, files.append)
    assert [file is None for file in files] == [False] * LEFT_MOST + [True, False]
    for file in files:
        if file is not None:
            made.release(file)
            os.close(file.descriptor)


def test_second_file_of_a_connection_has_a_name_of_its_own_and_is_the_one_that_is_claimed(
        tmp_path: Path) -> None:
    time = Time()
    made = Disk(time.clock, time.timer, here)
    made.setting = tmp_path, GIB
    files: list[File | None] = []
    for _ in range(3):
        made.open("client-1", peer(), lambda _: None, files.append)
    found = [file for file in files if file is not None]
    for file in found:
        made.release(file)
    following = Disk(time.clock, time.timer, here)
    with closing(Notifier({})) as keeper:
        following.keep(keeper, {file.name: file.descriptor for file in found})
        claimed = following.claim("client-1", peer(), lambda _: None)
    assert claimed is not None
    assert claimed.descriptor == found[-1].descriptor
    for file in found:
        os.close(file.descriptor)


def test_disk_makes_no_file_whose_name_systemd_has_no_room_for(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time()
    made = Disk(time.clock, time.timer, here)
    made.setting = tmp_path, GIB
    said: list[str] = []
    made.client_failed.connect(lambda client, words: said.append(f"{client} {words}"))
    files: list[File | None] = []
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener, ExitStack() as stack:
        listener.bind(str(tmp_path / "notify"))
        keeper = stack.enter_context(closing(Notifier(os.environ)))
        monkeypatch.setattr(systemd, "NAMES_MOST", systemd.NAMES_OF_SOCKETS + 40)
        made.keep(keeper, {})
        before = len([*Path("/proc/self/fd").iterdir()])
        for connection in ("client-1", "client-2"):
            made.open(connection, peer(), lambda _: None, files.append)
        first, second = files
        assert first is not None
        assert second is None
        assert len([*Path("/proc/self/fd").iterdir()]) == before + 2  # of the one file
        assert said == ["python[4711] its memory does not go to the disk: systemd has no room for "
                        "the name of another file"]
        assert listener.recv(200).startswith(b"FDSTORE=1\nFDNAME=disk-client-1-")
        made.release(first)
        os.close(first.descriptor)
