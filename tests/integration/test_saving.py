# SPDX-License-Identifier: Apache-2.0
"""Programs are saved by CRIU and restored, on simulated cards, by the real daemon and helpers."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random

import pytest

from nvshared import saver
from nvshared.control import Daemon as Control
from nvshared.errors import NvshareError
from tests.integration.conftest import Site, Start, kill, wait_until
from tests.integration.zygote import Daemon
from tests.seeds import seeds


def missing() -> str:
    """Why nothing can be saved here; "": it can."""
    if os.geteuid() != 0:
        return "only root can save programs"
    try:
        saver.criu()
    except saver.Refused as refused:
        return str(refused)
    return ""


pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "it can be done")


class Program:
    """A program without pipes and without a parent that waits for it."""

    def __init__(self, site: Site, name: str = "program", **environment: str) -> None:
        self.folder = site.folder / name
        self.folder.mkdir()
        self.steps = 0
        log = (site.folder / f"{name}.log").open("wb")
        popen = site.program(
            [sys.executable, "-m", "tests.integration.saved", self.folder, "16", "7"], environment,
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        log.close()
        self.pid = popen.pid
        wait_until((self.folder / "ready").exists)
        self.reap = popen.poll

    @property
    def is_alive(self) -> bool:
        self.reap()
        return saver.started(self.pid) is not None

    def tell(self, line: str) -> int:
        (self.folder / "line").write_text(line)
        (self.folder / "line").rename(self.folder / f"step-{self.steps}")
        self.steps += 1
        return self.steps - 1

    def answer(self, step: int) -> str:
        path = self.folder / f"out-{step}"
        wait_until(lambda: path.exists() or not self.is_alive)
        return path.read_text()

    def ask(self, line: str) -> str:
        return self.answer(self.tell(line))


@pytest.fixture
def site(own_site: Site) -> Iterator[Site]:
    own_site.environment["NVSHARE_SAVED"] = str(own_site.folder / "saved")
    if "NVSHARE_CRIU" in os.environ:
        own_site.environment["NVSHARE_CRIU"] = os.environ["NVSHARE_CRIU"]
    yield own_site
    mine = f"NVSHARE_SIM_DIR={own_site.environment['NVSHARE_SIM_DIR']}".encode()
    for process in Path("/proc").iterdir():     # the test has not started what was restored
        with suppress(OSError):
            if mine in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)


def client_of(control: Control, program: Program) -> int:
    (found,) = control.clients_of(program.pid)
    return found


def save(control: Control, program: Program, to: str = "") -> str:
    folder = control.save(client_of(control, program), to)
    assert not program.is_alive
    return folder


def state(control: Control, program: Program) -> str:
    found = [one.state for one in control.snapshot().clients if one.pid == program.pid]
    return found[0] if found else ""


def test_saved_program_is_restored_by_a_later_daemon_and_continues_with_the_same_bytes(
    site: Site, start: Start
) -> None:
    control = start()
    program = Program(site)
    control.set_client_term(client_of(control, program), "weight", 300)
    folder = save(control, program)
    assert [(one.folder, one.state) for one in control.saved()] == [(folder, "saved")]
    site.started[-2].terminate()
    site.started[-2].wait()
    control = start()
    asked = program.tell("read()")
    assert control.restore(folder) == program.pid
    assert program.answer(asked) == "{7}"
    (client,) = [one for one in control.snapshot().clients if one.pid == program.pid]
    assert client.terms["weight"] == 300
    wait_until(lambda: control.saved() == [])
    assert not Path(folder).exists()
    assert program.ask("fill(9)") == "None"
    folder = save(control, program)
    assert control.restore(folder) == program.pid
    assert state(control, program) == "parked"
    assert [one.state for one in control.saved()] == ["restored"]
    assert program.ask("read()") == "{9}"


def helpers(site: Site) -> list[int]:
    """The processes of nvshare-save of this site."""
    mine = f"NVSHARE_SAVED={site.environment['NVSHARE_SAVED']}".encode()
    found = []
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            if b"saver.py" in (process / "cmdline").read_bytes() and (
                    mine in (process / "environ").read_bytes().split(b"\0")):
                found.append(int(process.name))
    return found


def refuse_to_save(control: Control, program: Program, reason: str) -> None:
    """Fails unless saving is refused for `reason`, nothing is left, and the program goes on."""
    with pytest.raises(NvshareError, match=reason):
        control.save(client_of(control, program))
    wait_until(lambda: state(control, program) in ("idle", "running"))
    assert control.saved() == []
    assert program.ask("read()") == "{7}"


def test_program_that_criu_cannot_dump_continues_and_the_error_has_the_words_of_criu(
    site: Site, start: Start, short_path: Path
) -> None:
    control, program = start(), Program(site)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(short_path / "sock"))
        listening.listen()
        assert program.ask("globals().update(s=__import__('socket').socket(1)) or "
                           f"s.connect({str(short_path / 'sock')!r})") == "None"
        with listening.accept()[0]:
            refuse_to_save(control, program, "CRIU says: .*unix")
    assert program.ask("s.close()") == "None"
    folder = save(control, program)
    assert control.restore(folder) == program.pid
    assert program.ask("read()") == "{7}"


@pytest.mark.parametrize(("script", "reason"), [
    ("", "CRIU is not installed|cannot be run"),
    ("echo Version: 3.17.1", "CRIU is too old: its version is 3.17"),
    ("[ $1 = check ] || { echo Version: 4.1; exit; }\n"
     "echo '(00.1) Error (criu/cr-check.c:1): no vdso' >&2; exit 1",
     "cannot work with this kernel: no vdso"),
])
def test_program_is_neither_parked_nor_saved_without_a_usable_criu(
    site: Site, start: Start, script: str, reason: str
) -> None:
    fake = site.folder / "criu"
    site.environment["NVSHARE_CRIU"] = str(fake)
    if script:
        fake.write_text(f"#!/bin/sh\n{script}\n")
        fake.chmod(0o755)
    control, program = start(), Program(site)
    with pytest.raises(NvshareError, match=reason):
        control.save(client_of(control, program))
    assert state(control, program) in ("idle", "running")
    assert not list(site.folder.glob("saved/*/"))
    assert program.ask("read()") == "{7}"


def test_programs_with_a_terminal_or_a_disk_file_or_too_large_for_the_disk_are_refused(
    site: Site, start: Start
) -> None:
    control, program = start(), Program(site)
    master, slave = os.openpty()
    assert program.ask(f"globals().update(t=open({os.ttyname(slave)!r}, 'wb', 0))") == "None"
    refuse_to_save(control, program, "has the terminal /dev/pts/")
    assert program.ask("t.close()") == "None"
    os.close(master)
    os.close(slave)
    for folder, reason in (("/proc/self", "links are not followed"), ("rel", "no absolute path"),
                           (str(site.folder / "none"), "No such file")):
        with pytest.raises(NvshareError, match=reason):
            control.save(client_of(control, program), folder)
    others = site.folder / "others"
    others.mkdir()
    os.chown(others, 1000, 1000)
    with pytest.raises(NvshareError, match=r"belongs to .*, not to root"):
        control.save(client_of(control, program), str(others))
    os.chown(others, 0, 0)
    others.chmod(0o777)
    with pytest.raises(NvshareError, match="others than root may write to"):
        control.save(client_of(control, program), str(others))
    others.chmod(0o755)
    if subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4M,mode=755", "saved", others], check=False,
            capture_output=True).returncode == 0:
        try:
            with pytest.raises(NvshareError, match=r"has \d MiB left for the"):
                control.save(client_of(control, program), str(others))
        finally:
            subprocess.run(["umount", others], check=True)
    assert program.ask("read()") == "{7}"
    folder = save(control, program, str(others))
    assert Path(folder).parent == others
    assert [one.folder for one in control.saved(str(others))] == [folder]
    assert control.restore(folder) == program.pid
    assert program.ask("read()") == "{7}"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_images_that_were_changed_replaced_or_given_away_are_not_restored(
    site: Site, start: Start
) -> None:
    control, program = start(), Program(site)
    folder = Path(save(control, program))
    assert folder.stat().st_mode & 0o777 == 0o700

    def refused(reason: str) -> None:
        with pytest.raises(NvshareError, match=reason):
            control.restore(str(folder))
        assert not program.is_alive

    core, pages = folder / f"core-{program.pid}.img", folder / "pages-1.img"
    for path in (core, pages):
        flip(path)
        refused("was changed since it was saved")
        flip(path)
    content = core.read_bytes()
    core.unlink()
    refused("was changed since it was saved")
    core.symlink_to("/etc/passwd")
    refused("is no file of root's")
    core.unlink()
    core.write_bytes(content)
    os.chown(core, 1000, 1000)
    refused("is no file of root's")
    os.chown(core, 0, 0)
    (folder / "more.img").write_bytes(b"")
    refused("was changed since it was saved")
    (folder / "more.img").unlink()
    os.chown(folder, 1000, 1000)
    refused("belongs to .*, and the program to root")
    assert folder.stat().st_uid == 1000
    os.chown(folder, 0, 0)
    manifest = folder / "manifest.json"
    right = manifest.read_text()
    manifest.write_text(right.replace('"uid": 0', '"uid": 1'))
    refused("was not saved by this machine, or was changed since")
    manifest.write_text(right)
    key = folder.parent / "key"
    key.rename(folder.parent / "other")
    refused("was not saved by this machine, or was changed since")
    (folder.parent / "other").rename(key)
    assert control.restore(str(folder)) == program.pid
    assert program.ask("read()") == "{7}"


def test_folder_of_a_saved_program_is_its_users_and_can_be_removed(
    site: Site, start: Start
) -> None:
    control, program = start(), Program(site)
    folder = save(control, program)
    control.remove_saved(folder)
    assert control.saved() == []
    assert not Path(folder).exists()
    for name in (folder, "/etc", "unknown"):
        with pytest.raises(NvshareError, match="there is no saved program"):
            control.remove_saved(name)


def dumpers(site: Site) -> list[int]:
    """CRIU's own processes of this site; not processes that CRIU is about to restore."""
    folders = [one for one in site.folder.glob("saved/*/") if one.is_dir()]
    return [pid for folder in folders for pid in saver.workers(folder)
            if saver.parent(pid) in (*helpers(site), 1) or saver.comm(pid) != "criu"]


def kill_all(found: list[int]) -> None:
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(0, 4))
def test_program_is_not_lost_when_daemon_helper_or_restoring_criu_is_killed(
    site: Site, start: Start, seed: int
) -> None:
    random = Random(seed)
    control, program = start(), Program(site)
    byte = 7
    act: Callable[[], object]

    def rest() -> str:
        """Waits until nothing works. Returns "saved" or "runs"; the daemon may be another one."""
        wait_until(lambda: not helpers(site) and not any(
            one.state in ("saving", "restoring") for one in control.saved()))
        return "runs" if program.is_alive else "saved"

    def is_there() -> bool:
        return any(one.pid == program.pid for one in control.snapshot().clients)

    for _ in range(8):
        before = rest()
        victim = random.choice(["none", "daemon", "helper", "criu"] if before == "saved" else
                               ["none", "daemon", "helper"])
        daemon = [one for one in site.started if isinstance(one, Daemon)][-1]
        with ThreadPoolExecutor(1) as pool:
            if before == "runs":
                wait_until(is_there)
                act = partial(control.save, client_of(control, program))
            else:
                (folder,) = [one.folder for one in control.saved()]
                act = partial(control.restore, folder)
            done = pool.submit(act)
            time.sleep(random.uniform(0, 1.5))
            if victim == "daemon":
                kill(daemon)
            elif victim != "none":
                kill_all(helpers(site) if victim == "helper" else dumpers(site))
            error = done.exception()
        assert victim != "none" or error is None, error
        if victim == "daemon":
            control = start()
        if rest() == "runs":
            assert program.ask("read()") == f"{{{byte}}}", (before, victim, error)
            byte = random.randrange(1, 256)
            assert program.ask(f"fill({byte})") == "None"
        else:
            assert [one.state for one in control.saved()] == ["saved"], (before, victim, error)
