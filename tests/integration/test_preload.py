# SPDX-License-Identifier: Apache-2.0
"""nvsharectl preload as a process, on the root folder of another system, and on a copy of this
machine's /etc in a mount namespace."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from nvshared import library
from nvshared.cli.machine import RESCUE
from nvshared.errors import ExitCode
from nvshared.preload.switch import entries

ROOT = Path(__file__).parents[2]
PROGRAM = "import sys; from nvshared.cli.main import main; sys.exit(main())"
CTL = [sys.executable, "-c", PROGRAM, "preload"]
INSIDE = "/usr/lib/libnvshare.so"
OTHERS = "# entries of other products\n/opt/other.so /opt/more.so\n"
PROGRAMS = ("true", "sh", "env", "cat", "mount")

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change owners")


def namespaces() -> bool:
    done = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    return done.returncode == 0


own_mounts = pytest.mark.skipif(
    os.geteuid() != 0 or not namespaces(), reason="mount namespaces are forbidden here")


@dataclass(frozen=True, slots=True)
class System:
    top: Path

    @property
    def list(self) -> Path:
        return self.top / "etc" / "ld.so.preload"

    def ctl(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*CTL, *arguments, "--root", str(self.top)], cwd=ROOT, text=True,
            capture_output=True, check=False)

    def enable(self) -> "subprocess.CompletedProcess[str]":
        return self.ctl("enable", "--library", INSIDE)

    def refused(self, code: ExitCode, *words: str) -> None:
        """Enabling fails with one sentence, and the folder of the list is as it was."""
        before = {path: path.read_bytes() for path in self.list.parent.iterdir()}
        done = self.enable()
        assert (done.returncode, done.stdout) == (code, ""), done
        assert done.stderr.count("\n") == 1
        for word in words:
            assert word in done.stderr
        assert {path: path.read_bytes() for path in self.list.parent.iterdir()} == before


@pytest.fixture
def system(tmp_path: Path) -> System:
    """A root file system with the library and this machine's programs."""
    top = tmp_path / "top"
    for folder in ("etc", "usr/lib", "bin", "usr/bin", "tmp"):
        (top / folder).mkdir(parents=True)
    top.chmod(0o755)
    for program in PROGRAMS:
        there = shutil.which(program)
        assert there is not None
        shutil.copy(there, top / "bin" / program)
        copy_libraries(there, top)
    shutil.copy(shutil.which("env") or "", top / "usr" / "bin" / "env")
    shutil.copy(library.hook(), top / INSIDE[1:])
    copy_libraries(str(library.hook()), top)
    return System(top)


def copy_libraries(program: str, top: Path) -> None:
    shown = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    for word in shown.split():
        if word.startswith("/") and not (top / word[1:]).exists():
            (top / word[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(word, top / word[1:])


def test_preload_enable_adds_and_disable_removes_the_library(system: System) -> None:
    done = system.enable()
    assert (done.returncode, done.stderr) == (0, "")
    assert "is preloaded into every program that starts from now on" in done.stdout
    assert system.list.read_text() == f"{INSIDE}\n"
    assert system.list.stat().st_mode & 0o7777 == 0o644
    shown = system.ctl("status")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert INSIDE in shown.stdout
    assert json.loads(system.ctl("status", "--json").stdout)["entries"] == [INSIDE]
    again = system.enable()
    assert "already" in again.stdout
    done = system.ctl("disable")
    assert (done.returncode, done.stderr) == (0, "")
    assert not system.list.exists()
    assert "No libnvshare.so is in" in system.ctl("status").stdout
    assert "No libnvshare.so is in" in system.ctl("disable").stdout


@as_root
def test_preload_enable_and_disable_keep_foreign_entries_and_the_owner_and_mode_of_ld_so_preload(
    system: System
) -> None:
    system.list.write_text(OTHERS)
    system.list.chmod(0o640)
    os.chown(system.list, 1234, 4321)
    for verb, text in ((system.enable, OTHERS + INSIDE + "\n"),
                       (partial(system.ctl, "disable"), OTHERS)):
        assert verb().returncode == 0
        assert system.list.read_text() == text
        status = system.list.stat()
        assert (status.st_mode & 0o7777, status.st_uid, status.st_gid) == (0o640, 1234, 4321)


def put_byte(path: Path, at: int, byte: int) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:at] + bytes([byte]) + data[at + 1:])


def need_newer_c_library(path: Path) -> None:
    """Patches the required glibc version to a version that the system lacks."""
    data = path.read_bytes()
    newest = max(map(int, re.findall(rb"GLIBC_2\.(\d\d)\0", data)))
    path.write_bytes(data.replace(b"GLIBC_2.%d\0" % newest, b"GLIBC_2.99\0"))


def compile_library(path: Path, script: str) -> None:
    subprocess.run(["sh", "-ec", script, "sh", str(path)], cwd=path.parent, check=True)


ENDS_PROGRAMS = """
echo '#include <unistd.h>
__attribute__((constructor)) static void bad(void) { _exit(9); }' |
    cc -shared -fPIC -x c - -o "$1"
"""
UNFIT: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "missing": (Path.unlink, [f"there is no {{top}}{INSIDE}"]),
    "for i386": (lambda path: put_byte(path, 18, 3), ["cannot be preloaded", "this system"]),
    "for a newer system": (need_newer_c_library, ["GLIBC_2.99' not found"]),
    "ends programs": (lambda path: compile_library(path, ENDS_PROGRAMS), [
        "a simple program ended with 9", "the list is as it was"]),
}


@as_root
@pytest.mark.parametrize("how", UNFIT)
def test_preload_enable_of_a_library_that_programs_cannot_load_is_refused(
    system: System, how: str
) -> None:
    damage, words = UNFIT[how]
    damage(system.top / INSIDE[1:])
    system.refused(ExitCode.FAILURE, *(word.format(top=system.top) for word in words))


def test_preload_enable_without_programs_or_folders_is_refused(
    system: System, tmp_path: Path
) -> None:
    shutil.rmtree(system.top / "bin")
    system.refused(ExitCode.FAILURE, "no program", "--root")
    done = System(tmp_path / "none").enable()
    assert done.returncode == ExitCode.INVALID_ARGS
    assert "is no folder" in done.stderr
    shutil.rmtree(system.top / "etc")
    done = system.enable()
    assert done.returncode == ExitCode.FAILURE
    assert "No such file or directory" in done.stderr
    assert not (system.top / "etc").exists()


@pytest.mark.parametrize("is_link", [False, True])
def test_preload_enable_of_a_library_writable_by_others_is_refused(
    system: System, is_link: bool
) -> None:
    path = changed = system.top / INSIDE[1:]
    if is_link:
        changed = system.top / "home"
        changed.mkdir()
        path.rename(changed / path.name)
        path.symlink_to(f"/home/{path.name}")
    changed.chmod(changed.stat().st_mode | 0o002)
    system.refused(ExitCode.FAILURE, f"others than root can change {changed}: all users may")
    changed.chmod(0o755)
    assert system.enable().returncode == 0
    changed.chmod(0o757)
    done = system.ctl("status")
    assert done.returncode == ExitCode.FAILURE
    assert "the list has a fault" in done.stderr
    assert system.ctl("disable").returncode == 0


@as_root
def test_preload_enable_of_a_library_of_another_user_is_refused(system: System) -> None:
    os.chown(system.top / "usr", 1234, 0)
    system.refused(ExitCode.FAILURE, "it belongs to uid 1234")
    os.chown(system.top / "usr", 0, 4321)
    (system.top / "usr").chmod(0o775)
    system.refused(ExitCode.FAILURE, "the group 4321 may write it")


@pytest.mark.parametrize("path", ["usr/lib/libnvshare.so", "/usr/my lib/libnvshare.so"])
def test_preload_enable_of_a_relative_path_or_a_path_with_a_blank_is_refused(
    system: System, path: str
) -> None:
    (system.top / "usr" / "my lib").mkdir()
    shutil.copy(library.hook(), system.top / "usr" / "my lib")
    done = system.ctl("enable", "--library", path)
    assert done.returncode == ExitCode.INVALID_ARGS
    assert repr(path) in done.stderr
    assert not system.list.exists()


@as_root
def test_preload_enable_without_permission_exits_as_not_permitted(system: System) -> None:
    # The capability lets the user read the checkout, which may lie below /root.
    done = subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
         "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search", "--", *CTL, "enable",
         "--root", str(system.top), "--library", INSIDE],
        cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == ExitCode.NOT_PERMITTED
    assert "ld.so.preload cannot be written: Permission denied; run it with sudo" in done.stderr
    assert not system.list.exists()


@own_mounts
def test_preload_enable_on_a_full_disk_keeps_the_old_ld_so_preload(system: System) -> None:
    script = (
        'mount -t tmpfs -o size=4k full "$1/etc"; shift\n'
        'printf "/opt/other.so\\n" >"$1/etc/ld.so.preload" || exit 99\n'
        'while printf "%4096s" x 2>/dev/null >>"$1/etc/fill"; do :; done\n'
        'shift; "$@"; echo "status $?"; cat "$TOP/etc/ld.so.preload"; ls -A "$TOP/etc"\n'
    )
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "bash", "-c", script, "bash",
         str(system.top), str(system.top), *CTL, "enable", "--root", str(system.top),
         "--library", INSIDE],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "TOP": str(system.top)})
    assert "No space left on device; the disk is full; the list is as it was" in done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == ["status 1", "/opt/other.so"]
    assert set(lines[2:]) <= {"fill", "ld.so.preload"}


@own_mounts
def test_preload_enable_with_a_read_only_file_system_prints_the_remedy(
        system: System) -> None:
    script = 'mount -t tmpfs -o ro none "$1/etc"; shift; exec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "bash", "-c", script, "bash",
         str(system.top), *CTL, "enable", "--root", str(system.top), "--library", INSIDE],
        cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == ExitCode.FAILURE
    assert "Read-only file system; the list is as it was. Make the file system" in done.stderr


@pytest.fixture
def private_etc(tmp_path: Path) -> list[str]:
    """Begins a command that sees a copy of this machine's /etc, and an /opt with the library."""
    shutil.copytree("/etc", tmp_path / "etc", symlinks=True)
    (tmp_path / "opt").mkdir()
    shutil.copy(library.hook(), tmp_path / "opt" / "libnvshare.so")
    (tmp_path / "opt").chmod(0o755)
    script = 'mount --bind "$1/etc" /etc; mount --bind "$1/opt" /opt; shift; exec "$@"'
    return [
        "unshare", "--mount", "--propagation", "private", "bash", "-c", script, "bash",
        str(tmp_path),
    ]


@own_mounts
def test_preload_enable_and_disable_take_effect_on_a_running_system(private_etc: list[str]) -> None:
    script = """
set -e
"$@" enable --library /opt/libnvshare.so
cat /proc/self/maps | grep -q /opt/libnvshare.so && echo mapped
"$@" status
"$@" disable
cat /proc/self/maps | grep -q /opt/libnvshare.so || echo gone
"""
    done = subprocess.run(
        [*private_etc, "bash", "-c", script, "bash", *CTL], cwd=ROOT, capture_output=True,
        text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    for words in ("a simple program works", "Python with threads and children works",
                  "a setuid program works", "mapped", "gone"):
        assert words in done.stdout


@own_mounts
def test_preload_rescue_command_lets_an_open_shell_run_programs_again(
    private_etc: list[str]
) -> None:
    """The open shell empties a preload list whose library ends every program."""
    (line,) = [one.strip() for one in RESCUE.splitlines() if one.strip().startswith(": >")]
    source = "__attribute__((constructor)) static void bad(void) { __builtin_trap(); }"
    script = f"""
echo '{source}' | cc -shared -fPIC -x c - -o /opt/bad.so && mv /opt/bad.so /opt/libnvshare.so
printf '/opt/libnvshare.so\\n' >/etc/ld.so.preload
/bin/true 2>/dev/null && echo "it should not have run"
{line}
/bin/true && echo mended
"""
    done = subprocess.run(
        [*private_etc, "bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "mended\n", done.stderr


def test_preload_rescue_command_removes_the_library_from_a_mounted_system(system: System) -> None:
    (line,) = [one.strip() for one in RESCUE.splitlines() if "sed -i" in one]
    system.list.write_text(f"/opt/other.so\n{INSIDE}\n")
    command = line.replace("/mnt", str(system.top))
    subprocess.run(command.split(), check=True)
    assert entries(system.list.read_bytes()) == ["/opt/other.so"]
