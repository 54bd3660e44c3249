# SPDX-License-Identifier: Apache-2.0
"""nvshare-save takes orders from root and the owner of its socket's file alone."""

import ctypes
import fcntl
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from nvshared import caller, checkpointer, saver
from nvshared.errors import NvshareError
from nvshared.machine import saving

OWNER, OTHER = 64321, 64322             # users; the first has the socket, as nvshare by the unit
PATIENCE = 60                           # seconds until a caller must have connected
CALL = """
import socket, sys
one = socket.socket(socket.AF_UNIX)
one.connect(sys.argv[1])
try:
    one.sendall(b'{"order": "list"}\\n')
    print(one.makefile().readline(), end="")
except ConnectionError:
    pass
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")
@pytest.mark.parametrize(("uid", "served"), [(0, True), (OWNER, True), (OTHER, False)])
def test_orders_are_taken_only_from_root_and_the_owner_of_the_socket(
    tmp_path: Path, uid: int, served: bool
) -> None:
    with tempfile.TemporaryDirectory() as name, socket.socket(socket.AF_UNIX) as listening:
        path = Path(name) / "save.sock"
        path.parent.chmod(0o755)
        listening.bind(str(path))
        listening.listen()
        listening.settimeout(PATIENCE)
        path.chmod(0o666)
        os.chown(path, OWNER, OWNER)
        with subprocess.Popen(
            ["setpriv", f"--reuid={uid}", "--clear-groups", "/usr/bin/python3", "-I",
             "-c", CALL, str(path)],
            stdout=subprocess.PIPE, text=True) as caller:
            taken, _ = listening.accept()
            with taken:
                helper = subprocess.Popen(
                    [sys.executable, "-I", saver.__file__], stdin=taken.fileno(),
                    stdout=taken.fileno(),
                    stderr=subprocess.PIPE, text=True,
                    env={**os.environ, "NVSHARE_SAVED": str(tmp_path / "saved")})
            said, _ = caller.communicate()
        _, line = helper.communicate()
    if served:
        assert (said, helper.returncode, line) == ('{"done": "", "entries": []}\n', 0, "")
    else:
        assert (said, helper.returncode) == ("", 3)
        assert line.endswith(f"of uid {OTHER}: this is not the user of nvshared\n")


@pytest.mark.parametrize(("helper", "order"), [
    (checkpointer, "state 1"), (saver, '{"order": "list", "to": ""}')])
def test_helper_ends_well_when_the_daemon_ends_without_reading_its_answer(
    tmp_path: Path, helper: ModuleType, order: str
) -> None:
    if helper is saver and os.geteuid() != 0:
        pytest.skip("only root can save programs")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ended = subprocess.Popen(
            [sys.executable, "-I", str(helper.__file__)], stdin=theirs.fileno(),
            stdout=theirs.fileno(), stderr=subprocess.PIPE, text=True,
            env={**os.environ, "NVSHARE_SAVED": str(tmp_path / "saved")})
        theirs.close()
        ours.settimeout(PATIENCE)
        ours.send(f"{order}\n".encode())
        assert ours.recv(1, socket.MSG_PEEK)
    _, said = ended.communicate()
    assert (ended.returncode, said) == (0, "")


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The usual folder of saved programs."""
    if os.geteuid() != 0:
        pytest.skip("only root can save programs")
    for one in (saver, saving):
        monkeypatch.setattr(one, "BASE", tmp_path / "saved")
    saver.mac({})                       # makes the folder, and the key in it
    return tmp_path / "saved"


def saved(base: Path, name: str) -> Path:
    """A folder as of a saved program that has no memory."""
    folder = base / f"{name}-1-20261129T080000"
    folder.mkdir(mode=0o700)
    body = {"pid": 1, "uid": OWNER, "name": folder.name, "bytes": 1, "saved": 1, "note": {},
            "exe": "", "files": {}}
    saver.write(folder, saver.MANIFEST, {"body": body, "mac": saver.mac(body)})
    return folder


def test_list_leaves_folders_alone_that_nvshare_save_has_not_made(base: Path) -> None:
    """An administrator may name any folder: --to /home."""
    others = [base / name for name in ("new-people", "backup.partial", "new-backup.partial")]
    for path in others:
        path.mkdir()
        (path / "file").touch()
        os.utime(path, (1, 1))
    stale = base / "new-program-1-20261129T080000"
    stale.mkdir()
    os.utime(stale, (1, 1))
    assert saver.entries({}) == []
    assert [path for path in others if not (path / "file").exists()] == []
    assert not stale.exists()


def test_restore_action_when_the_list_of_files_is_missing_fails_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert saver.act("post-restore") == 1
    why = (saver.read(tmp_path, saver.STRANGE) or {})["why"]
    assert why.startswith("the files of the program cannot be checked: KeyError")


@pytest.mark.parametrize("name", [saver.RESTORED, saver.RESTORING, saver.FAILED])
def test_list_shows_other_programs_when_a_user_mixes_files_of_two_saved_programs(
    base: Path, name: str
) -> None:
    """Root owns the files, the user owns the folder and may rename files in it."""
    given, mixed, other = (saved(base, one) for one in "abc")
    (given / saver.MANIFEST).rename(mixed / name)
    assert str(other) in [one["folder"] for one in saver.entries({})]


def test_list_shows_other_programs_when_a_user_has_mounted_a_file_system_on_a_folder(
    base: Path
) -> None:
    """fusermount mounts what a user wants on the user's folders; root may then not enter them."""
    mine, other = saved(base, "a"), saved(base, "b")
    libc = ctypes.CDLL(None)
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError:
        pytest.skip("no FUSE here")
    try:
        options = f"fd={device},rootmode=40000,user_id={OTHER},group_id={OTHER}"
        if libc.mount(b"fuse", bytes(mine), b"fuse", 0, options.encode()):
            pytest.skip("nothing can be mounted here")
        with pytest.raises(PermissionError):
            mine.lstat()
        assert [one["folder"] for one in saver.entries({})] == [str(other)]
        other.rename(base / "other")
        assert saving.has_saved()
    finally:
        libc.umount2(bytes(mine), 2)
        os.close(device)


NAMES = [b"\rUid: 0 0 0", "обучение".encode()[:15]]


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Callable[..., int]]:
    """Starts programs of another user that run this code and then wait."""
    started = []

    def start(code: str, **environment: str) -> int:
        one = subprocess.Popen(
            ["setpriv", f"--reuid={OTHER}", "--clear-groups", "/usr/bin/python3", "-I", "-c",
             f"{code}; print(flush=True); input()"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, env=environment, start_new_session=True)
        started.append(one)
        assert one.stdout is not None
        assert one.stdout.readline() == b"\n"
        return one.pid

    yield start
    for one in started:
        with one:
            one.kill()


@pytest.mark.parametrize("name", NAMES)
def test_saved_process_with_a_misleading_name_keeps_its_real_user(
    base: Path, process: Callable[..., int], name: bytes
) -> None:
    pid = process(f"import ctypes; ctypes.CDLL(None).prctl(15, {name!r})")
    assert Path(f"/proc/{pid}/comm").read_bytes() == name + b"\n"
    assert saver.owner_of(pid) == OTHER
    assert saver.comm(pid)
    assert saver.kilobytes(f"/proc/{pid}/status", "VmRSS") > 0


def test_saved_process_with_a_misleading_name_keeps_its_real_control_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cgroup").write_bytes(
        b"1:name=systemd:/user.slice/\r0::/system.slice\n0::/user.slice/a\xff\rb\n")
    monkeypatch.setattr(saver, "PROCESSES", tmp_path)
    assert saver.cgroup(7) == os.fsdecode(b"/user.slice/a\xff\rb")


def test_mapped_file_whose_name_is_no_text_spoils_no_order(
    base: Path, process: Callable[..., int]
) -> None:
    pid = process("import mmap, os, tempfile; file = open(tempfile.mkdtemp().encode() "
                  "+ b'/\\xff', 'w+b'); file.write(b'x'); file.flush(); "
                  "mapped = mmap.mmap(file.fileno(), 1); os.unlink(file.name)")
    assert saver.unnamed_code(pid) == []


def test_process_of_a_user_that_claims_to_be_criu_is_not_waited_for(
    base: Path, process: Callable[..., int]
) -> None:
    folder = saved(base, "a")
    pid = process("pass", **{saver.FOLDER: str(folder)})
    assert not saver.is_in_use(folder, 1 << 22)
    assert caller.started(pid) is not None


async def test_names_that_criu_quotes_reach_no_terminal_with_their_control_characters(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "SOCKET", tmp_path / "none")
    monkeypatch.setenv("NVSHARE_SAVED", str(base))
    folder = saved(base, "a")
    saver.write(folder, saver.FAILED, {"why": "CRIU says: no \x1b[2Jfile"})
    assert [one.why for one in await saving.saved()] == ["CRIU says: no ?[2Jfile"]
    with pytest.raises(NvshareError, match=r"no absolute path|\?\[2J") as caught:
        await saving.saved("/tmp/\x1b[2J")
    assert caught.value.message.isprintable()


def test_order_waits_for_a_list_that_has_locked_the_folder(base: Path) -> None:
    """Any user may list. A folder that was not removed would be restored after the next boot."""
    folder = saved(base, "a")
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    ends = threading.Timer(0.2, os.close, [descriptor])
    ends.start()
    saver.remove({"folder": str(folder)})
    ends.join()
    assert not folder.exists()


@pytest.mark.parametrize(("mode", "access", "writable"), [
    ("r+b", "ACCESS_WRITE", True), ("r+b", "ACCESS_READ", True), ("rb", "ACCESS_READ", False),
    ("r+b", "ACCESS_COPY", False)])
def test_list_of_opened_files_when_a_file_is_only_mapped_has_its_mode_and_owner(
    process: Callable[..., int], mode: str, access: str, writable: bool
) -> None:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        path = Path(name) / "one"
        path.write_text("x")
        os.chown(path, OTHER, OTHER)
        pid = process(f"import mmap, os; file = open({str(path)!r}, {mode!r}); "
                      f"mapped = mmap.mmap(file.fileno(), 1, access=mmap.{access}); file.close(); "
                      "mapped.size(); os.closerange(3, 99)")
        found = saver.opened(pid)
    assert [one for one in found if one[0] == str(path)] == [(str(path), writable, OTHER)]
    assert ("/", False, 0) in found
