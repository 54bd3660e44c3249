# SPDX-License-Identifier: Apache-2.0
"""Programs are saved by CRIU and restored, on simulated cards, by the real daemon and helpers."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from random import Random

import pytest

from nvshared import caller, saver
from nvshared.control import Daemon as Control
from nvshared.errors import NvshareError
from tests.integration.conftest import (
    OPEN_CARDS,
    Site,
    Start,
    kill,
    make_site,
    public_build,
    simulate,
    wait_until,
)
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
        return caller.started(self.pid) is not None

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
def site(short_path: Path) -> Iterator[Site]:
    """A site in a folder that every user may enter, with cards that every user may use."""
    short_path.chmod(0o755)
    for site in make_site(short_path, simulate(short_path / "cards")):
        subprocess.run([sys.executable, "-c", OPEN_CARDS], env=site.environment, check=True)
        for path in (short_path / "cards", *(short_path / "cards").iterdir()):
            path.chmod(0o777)
        site.environment["NVSHARE_SAVED"] = str(site.folder / "saved")
        if "NVSHARE_CRIU" in os.environ:
            site.environment["NVSHARE_CRIU"] = os.environ["NVSHARE_CRIU"]
        yield site
        mine = f"NVSHARE_SIM_DIR={site.environment['NVSHARE_SIM_DIR']}".encode()
        for process in Path("/proc").iterdir():     # the test has not started what was restored
            with suppress(OSError):
                if mine in (process / "environ").read_bytes().split(b"\0"):
                    os.kill(int(process.name), signal.SIGKILL)


class Fault:
    """CRIU of a site, with criu.c preloaded, and when it is to be killed."""

    def __init__(self, site: Site) -> None:
        library, fake, self._file = (site.folder / name for name in ("criu.so", "criu", "fault"))
        subprocess.run(
            ["gcc", "-shared", "-fPIC", Path(__file__).with_name("criu.c"), "-o", library],
            check=True)
        real = site.environment.get("NVSHARE_CRIU") or shutil.which("criu", path=saver.PATHS)
        fake.write_text(f"#!/bin/sh\n. {self._file}\nexec env LD_PRELOAD={library} {real} \"$@\"\n")
        fake.chmod(0o755)
        site.environment["NVSHARE_CRIU"] = str(fake)
        self.clear()

    def clear(self) -> None:
        self._file.write_text("")

    def at(self, order: str, *, call: int = 0, line: str = "", helper: bool = False) -> None:
        """Has CRIU killed in an order, dump or restore, before this call of ptrace() or this line
        of its log, or as the program's memory is read; `helper`: nvshare-save with it."""
        what = (f"NVSHARE_TEST_PTRACE={call}" if call
                else f"NVSHARE_TEST_LINE='{line}'" if line else "NVSHARE_TEST_READING=1")
        both = "NVSHARE_TEST_PARENT=1" if helper else ""
        self._file.write_text(f'[ "$1" != {order} ] || export {what} {both}\n')


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
    kill(site.started[-1])
    control = start()                   # it takes over the restored program
    wait_until(lambda: state(control, program) == "parked")
    assert [one.state for one in control.saved()] == ["restored"]
    wait_until(lambda: [one.terms["weight"] for one in control.snapshot().clients] == [300])
    assert program.ask("read()") == "{9}"
    wait_until(lambda: control.saved() == [])


def helpers(site: Site, *, criu: bool = True) -> list[int]:
    """The processes of nvshare-save of this site. `criu`: also of CRIU, which it is an action of.
    """
    mine = f"NVSHARE_SAVED={site.environment['NVSHARE_SAVED']}".encode()
    works, found = f"{saver.FOLDER}=".encode(), []
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            variables = (process / "environ").read_bytes().split(b"\0")
            if b"saver.py" in (process / "cmdline").read_bytes() and mine in variables and (
                    criu or not any(one.startswith(works) for one in variables)):
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
    (folder / "restoring.json.new").touch()     # nvshare-save was killed as it wrote that
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


NOBODY = 65534


class Steps:
    """The program of steps.c, as the user nobody."""

    def __init__(self, site: Site, *descriptors: int, child: str = "") -> None:
        """`descriptors`: of open files that the program is given. `child`: a command of a shell
        that is a child of the program's."""
        build, self.work = public_build(site), site.folder / "work"
        self.work.mkdir()
        os.chown(self.work, NOBODY, NOBODY)
        program = site.folder / "steps"
        subprocess.run(["gcc", Path(__file__).with_name("steps.c"), "-o", program,
                        build / "simulator/libcuda.so.1"], check=True)
        self.steps = 0
        beside = f"{child} & " if child else ""
        popen = site.program(
            ["sh", "-c", f"{beside}exec {program} {self.work}"],
            {"LD_PRELOAD": str(build / "libnvshare.so"),
             "LD_LIBRARY_PATH": str(build / "simulator")},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True, user=NOBODY, group=NOBODY, extra_groups=[100, NOBODY],
            pass_fds=descriptors)
        self.pid, self.reap = popen.pid, popen.poll

    @property
    def is_alive(self) -> bool:
        self.reap()
        return caller.started(self.pid) is not None

    def step(self) -> str:
        """Has it check and change all of its memory. Returns the number of wrong words."""
        (self.work / f"step-{self.steps}").touch()
        answer = self.work / f"out-{self.steps}"
        self.steps += 1
        wait_until(answer.exists)
        return answer.read_text()

    def identity(self) -> list[str]:
        """What the kernel takes the process for: users, groups, capabilities."""
        return [line for line in Path(f"/proc/{self.pid}/status").read_text().splitlines()
                if line.startswith(("Uid:", "Gid:", "Groups:", "Cap", "NoNewPrivs:"))]


def test_program_of_a_user_is_restored_as_exactly_that_user(site: Site, start: Start) -> None:
    Fault(site)
    control, program = start(), Steps(site)
    assert program.step() == "0"
    before = program.identity()
    assert before[0].split() == ["Uid:", *[str(NOBODY)] * 4]
    (client,) = control.clients_of(program.pid)
    folder = Path(control.save(client))
    assert not program.is_alive
    assert (folder.stat().st_uid, folder.stat().st_mode & 0o777) == (NOBODY, 0o700)
    assert {(one.stat().st_uid, one.stat().st_mode & 0o077) for one in folder.iterdir()} == {(0, 0)}
    assert control.restore(str(folder)) == program.pid
    assert program.identity() == before
    (client_after,) = control.snapshot().clients
    assert (client_after.pid, client_after.uid) == (program.pid, NOBODY)
    assert program.step() == "0"


@pytest.mark.parametrize("what", ["file", "folder"])
def test_program_gets_no_file_of_roots_that_its_user_has_linked_in_the_place_of_its_own(
    site: Site, start: Start, what: str
) -> None:
    """CRIU opens files by their paths, as root. The program was given the log by root."""
    Fault(site)
    control = start()
    log, mine, secret = (site.folder / name for name in ("log", "mine", "secret"))
    for one in (mine, secret):
        one.mkdir()
        (one / "data").write_text("as long")
        (one / "data").chmod(0o600)
    secret.chmod(0o700)
    for path in (mine, mine / "data"):
        os.chown(path, NOBODY, NOBODY)
    with log.open("ab") as first, (mine / "data").open("r+b") as second:
        log.chmod(0o600)
        program = Steps(site, first.fileno(), second.fileno())
    assert program.step() == "0"
    (client,) = control.clients_of(program.pid)
    folder = control.save(client)
    assert not program.is_alive
    swapped = mine / "data" if what == "file" else mine
    swapped.rename(site.folder / "old")
    swapped.symlink_to(secret / "data" if what == "file" else secret)
    with pytest.raises(NvshareError, match=f"would have {secret}/data open to write, which "
                                           "belongs to root"):
        control.restore(folder)
    assert not program.is_alive
    assert [one.state for one in control.saved()] == ["saved"]
    swapped.unlink()
    (site.folder / "old").rename(swapped)
    assert control.restore(folder) == program.pid
    assert program.step() == "0"


def test_program_is_connected_to_no_socket_of_roots_that_its_user_has_linked(
    site: Site, start: Start
) -> None:
    """CRIU connects datagram sockets by their paths, as root."""
    Fault(site)
    control, mine, secret = start(), site.folder / "mine", site.folder / "secret"
    for folder in (mine, secret):
        folder.mkdir(mode=0o700)
    os.chown(mine, NOBODY, NOBODY)
    made = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(5)]
    with ExitStack() as closed:
        roots, other, *given = map(closed.enter_context, made)
        roots.bind(str(secret / "sock"))
        other.bind(str(mine / "sock"))
        given[0].connect(str(mine / "sock"))
        given[1].bind(str(mine / "own"))
        given[2].connect(str(mine / "own"))     # between sockets of its own
        program = Steps(site, *(one.fileno() for one in given))
        for one in given:
            one.close()
        assert program.step() == "0"
        (client,) = control.clients_of(program.pid)
        saved = control.save(client)
        assert not program.is_alive
        (mine / "sock").rename(mine / "old")
        (mine / "sock").symlink_to(secret / "sock")
        with pytest.raises(NvshareError, match=f"would have the socket {secret}/sock open"):
            control.restore(saved)
        assert not program.is_alive
        (mine / "old").rename(mine / "sock")
        assert control.restore(saved) == program.pid
        assert program.step() == "0"


def test_program_with_a_child_that_has_the_rights_of_root_is_not_saved_by_its_user(
    site: Site, start: Start
) -> None:
    """A setuid program could check its input before a save, and use another one after it."""
    Fault(site)
    control, sleep = start(), site.folder / "sleep"
    shutil.copy("/bin/sleep", sleep)
    sleep.chmod(0o4755)
    program = Steps(site, child=f"{sleep} 1000")
    assert program.step() == "0"
    (client,) = control.clients_of(program.pid)
    with pytest.raises(NvshareError, match=r"process \d+ has the rights of another user or group"):
        control.save(client)
    assert program.is_alive
    assert program.step() == "0"
    assert control.saved() == []


@pytest.mark.long
def test_program_stays_saved_when_criu_is_killed_at_any_step_of_a_restore(
    site: Site, start: Start
) -> None:
    fault = Fault(site)
    control, program = start(), Steps(site)
    assert program.step() == "0"
    (client,) = control.clients_of(program.pid)
    folder = Path(control.save(client))
    kills = 0
    while not program.is_alive:
        # Early ones find out what the kernel can do; later ones are made once for each thread.
        fault.at("restore", call=1 + 7 * kills)
        try:
            control.restore(str(folder))
        except NvshareError:
            kills += 1
            assert not program.is_alive, kills
            assert folder.stat().st_uid == NOBODY
            assert [one.state for one in control.saved()] == ["saved"]
    assert kills > 3
    assert program.step() == "0"


@pytest.mark.parametrize("helper", [False, True], ids=["criu", "criu and helper"])
def test_program_stays_saved_when_criu_is_killed_while_its_memory_is_read(
    site: Site, start: Start, helper: bool
) -> None:
    fault = Fault(site)
    control, program = start(), Steps(site)
    assert program.step() == "0"
    (client,) = control.clients_of(program.pid)
    folder = control.save(client)
    assert not program.is_alive
    fault.at("restore", helper=helper)
    with pytest.raises(NvshareError):
        control.restore(folder)
    fault.clear()
    wait_until(lambda: [one.state for one in control.saved()] == ["saved"])
    assert not program.is_alive
    assert control.restore(folder) == program.pid
    assert program.step() == "0"


@pytest.mark.parametrize(
    "helper", [False, pytest.param(True, marks=pytest.mark.long)], ids=["criu", "criu and helper"])
@pytest.mark.parametrize("line", ["Unfreezing tasks into 2", "Writing stats"])
def test_program_runs_or_is_saved_when_criu_is_killed_at_the_end_of_a_dump(
    site: Site, start: Start, line: str, helper: bool
) -> None:
    fault = Fault(site)
    control, program = start(), Steps(site)
    assert program.step() == "0"
    (client,) = control.clients_of(program.pid)
    fault.at("dump", line=line, helper=helper)
    with suppress(NvshareError):
        control.save(client)
    fault.clear()
    if line == "Writing stats":         # the program has been ended
        assert not program.is_alive
        (saved,) = control.saved()
        assert control.restore(saved.folder) == program.pid
    else:
        assert program.is_alive
        assert control.saved() == []
    assert program.step() == "0"


def test_folder_of_a_save_whose_criu_and_helper_were_killed_is_not_shown_as_saving(
    site: Site, start: Start
) -> None:
    fault = Fault(site)
    control, program = start(), Steps(site)
    assert program.step() == "0"
    (client,) = control.clients_of(program.pid)
    fault.at("dump", call=4, helper=True)   # a process of CRIU waits for it
    with pytest.raises(NvshareError, match="nvshare-save has ended without an answer"):
        control.save(client)
    fault.clear()
    assert control.saved() == []
    assert program.step() == "0"


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
