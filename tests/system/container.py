# SPDX-License-Identifier: Apache-2.0
"""A container with a real systemd as PID 1, and commands in it.

All files that the container writes go to an overlay in memory, on top of the tree: the
files survive a reboot and are gone when the container stops. The container's own network
reaches no other machine. A container boots in a second, so each group of tests has its
own.
"""

import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PATIENCE = 600.0                        # seconds; only a failing test waits this long
POLL = 0.05
POWER_OFF = signal.SIGRTMIN + 4         # the signal on which systemd as PID 1 powers off

# The container ends with the test process, even after SIGKILL. The mounts are in a private mount
# namespace and end with the last process there. (At a reboot systemd-nspawn removes its files
# below /run/systemd/nspawn, but only on a tmpfs, which /run is not on every machine.)
START = """
mkdir -p /run/systemd/nspawn && mount -t tmpfs tmpfs /run/systemd/nspawn || exit
mount -t tmpfs -o mode=755 tmpfs "$2" && mkdir "$2/upper" "$2/work" "$2/root" || exit
mount -t overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" overlay "$2/root" || exit
GROUPS
while
    setpriv --pdeathsig TERM sh -c '
        for group in $1; do echo $$ >"$group/cgroup.procs" || exit; done
        shift && exec "$@"
    ' sh "$groups" systemd-nspawn --quiet --directory="$2/root" --boot --register=no --keep-unit \\
        --private-network --console=read-only --link-journal=no --machine="nvshare-$$" OPTIONS
    [ $? = 133 ]
do
    : it wants to be booted again
done
for group in $groups; do find "$group" -depth -type d -exec rmdir {} +; done
"""
# Control groups are version 2, whatever this machine's systemd uses: only in version 2 may the
# container's systemd restrict the devices that a service may open, by BPF programs.
GROUPS = """
groups=/sys/fs/cgroup/nvshare-$$
mount -t cgroup2 cgroup2 /sys/fs/cgroup && mkdir "$groups" || exit
"""
OPTIONS = "--capability=CAP_BPF,CAP_MKNOD --system-call-filter=bpf"


class Failed(AssertionError):
    """A command in the container had the wrong exit status; the message is its output."""


class Container:
    """A running system; as a context manager, it powers the system off at the end."""

    groups, options = GROUPS, OPTIONS   # control group commands and nspawn options for START

    def __init__(self, tree: Path) -> None:
        """Boots. Raises Failed with the console's last lines if that takes too long."""
        start = START.replace("GROUPS", self.groups).replace("OPTIONS", self.options)
        self._console = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._mounts = tempfile.TemporaryDirectory(prefix="nvshare-system-")
        self._shell = subprocess.Popen(
            [
                "setpriv", "--pdeathsig", "TERM",
                "unshare", "--mount", "sh", "-c", start, "sh", str(tree), self._mounts.name,
            ],
            stdin=subprocess.DEVNULL, stdout=self._console, stderr=subprocess.STDOUT,
            start_new_session=True)
        self._pid = 0                   # the container's PID 1 by its pid on this machine
        try:
            self._await_boot()
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def run(
        self, *command: str, user: str = "", check: bool = True, given: str = "",
        environment: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self._entering(command, user, environment), capture_output=True, text=True,
            input=given, errors="replace", timeout=PATIENCE, check=False)
        if check and done.returncode != 0:
            raise Failed(
                f"`{shlex.join(command)}` as {user or 'root'} ended with {done.returncode}:\n"
                f"{done.stdout}{done.stderr}")
        return done

    def output(self, *command: str, user: str = "") -> str:
        return self.run(*command, user=user).stdout.strip()

    def start(
        self, *command: str, user: str = "", environment: dict[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
    ) -> subprocess.Popen[str]:
        """Starts a command and returns its process on this machine, with pipes for its output.

        Killing that process kills the command in the container.
        """
        return subprocess.Popen(
            self._entering(command, user, environment), stdin=stdin,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        self.run("mkdir", "-p", str(Path(path).parent))
        self.run("tee", path, given=text)
        self.run("chmod", f"{mode:o}", path)

    def copy(self, source: Path, target: str) -> None:
        self.run("mkdir", "-p", str(Path(target).parent))
        with source.open("rb") as file:
            subprocess.run(
                self._entering(("tee", target), "", None), stdin=file,
                stdout=subprocess.DEVNULL, check=True)
        self.run("chmod", "755" if os.access(source, os.X_OK) else "644", target)

    def until(self, done: Callable[[], Any], condition: str) -> Any:
        """Waits until `done()` is true and returns its value. Raises Failed with `condition`."""
        deadline = time.monotonic() + PATIENCE
        while not (result := done()):
            if self._shell.poll() is not None or time.monotonic() > deadline:
                raise Failed(f"waited {PATIENCE:.0f} s in vain until {condition}\n{self.story()}")
            time.sleep(POLL)
        return result

    def reboot(self) -> None:
        before = self._pid
        self.run("systemctl", "reboot", "--no-block")
        self.until(lambda: self._first_process() not in (0, before), "another first process runs")
        self._await_boot()

    def story(self) -> str:
        """The console and the journal of nvshared, for the report of a failure."""
        self._console.seek(0)
        lines = self._console.read().splitlines()[-20:]
        if self._pid and self._shell.poll() is None:
            journal = self.run(
                "journalctl", "--no-pager", "--lines=60", "--unit=nvshared.service",
                "--unit=nvshared.socket", "--unit=dbus.service", check=False)
            lines += journal.stdout.splitlines()
        return "\n".join(lines)

    def stop(self) -> None:
        first = self._first_process()
        if first:
            with suppress(ProcessLookupError):
                os.kill(first, POWER_OFF)
        else:
            self._shell.terminate()
        try:
            self._shell.wait(timeout=30)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.kill(first, signal.SIGKILL)
            self._shell.kill()
            self._shell.wait()
        self._console.close()
        self._mounts.cleanup()

    def _entering(
        self, command: tuple[str, ...], user: str, environment: dict[str, str] | None
    ) -> list[str]:
        into = ["nsenter", f"--target={self._pid}", "--all", "setpriv", "--pdeathsig", "KILL"]
        if user:
            into += ["--reuid", user, "--regid", user, "--init-groups"]
        settings = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LANG": "C.UTF-8", "HOME": f"/home/{user}" if user else "/root",
            **(environment or {}),
        }
        assignments = [f"{name}={value}" for name, value in settings.items()]
        return [*into, "env", "--chdir=/", "--ignore-environment", *assignments, *command]

    def _await_boot(self) -> None:
        self.until(self._booted, "it has booted")

    def _first_process(self) -> int:
        """The pid on this machine of the container's PID 1; 0: it does not exist yet."""
        pid = self._shell.pid
        for _ in ("systemd-nspawn", "its child"):
            children = Path(f"/proc/{pid}/task/{pid}/children")
            try:
                found = children.read_text().split()
            except (FileNotFoundError, ProcessLookupError):
                return 0
            if not found:
                return 0
            pid = int(found[0])
        return pid

    def _booted(self) -> bool:
        self._pid = self._first_process()
        if not self._pid:
            return False
        state = self.run("systemctl", "is-system-running", check=False).stdout.strip()
        return state in ("running", "degraded")
