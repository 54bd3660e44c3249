# SPDX-License-Identifier: Apache-2.0
"""A whole machine with the library in /etc/ld.so.preload: it boots, and everything works.

Each command is run with the daemon there and with it gone. A program that minds
the library says so on standard error, and so does ld.so if it cannot load it.
"""

import pytest

from tests.system.container import Container
from tests.system.packages import LIBRARY

LIST = "/etc/ld.so.preload"

COMMANDS = {
    "python": ("python3", "-c", "import ssl, ctypes, threading, subprocess; print(1)"),
    "shell": ("bash", "-lc", "ls / | sort | head -3; echo $(id -un)"),
    "perl": ("perl", "-e", "print 1"),
    "pipes": ("sh", "-c", "tar c /etc/hostname 2>/dev/null | gzip | gzip -d | tar t"),
    "setuid": ("passwd", "--status"),
}
AS_ROOT = {
    "apt": ("apt-get", "check"),
    "dpkg": ("dpkg", "--verify"),
    "sudo": ("sudo", "--user", "bob", "sudo", "-n", "true"),
    "su": ("su", "-", "alice", "-c", "id"),
    "units": ("systemd-run", "--quiet", "--wait", "--pipe", "--collect", "id"),
    "logger": ("sh", "-c", "logger preloaded && journalctl --sync"),
}


@pytest.fixture(scope="module", params=["daemon", "no daemon"])
def machine(running: Container, request: pytest.FixtureRequest) -> Container:
    """Booted with the line in place, and a daemon or none."""
    running.write(LIST, f"{LIBRARY}\n")
    running.write("/etc/sudoers.d/bob", "bob ALL=(ALL) NOPASSWD: ALL\n", mode=0o440)
    verb = "enable" if request.param == "daemon" else "disable"
    running.run("systemctl", verb, "nvshared.service", "nvshared.socket")
    running.reboot()
    return running


def quiet(container: Container, *command: str, user: str = "") -> str:
    """Runs a command that must end well and has nothing to complain of."""
    done = container.run(*command, user=user)
    assert done.stderr == ""
    return done.stdout


def test_it_boots_and_nothing_failed(machine: Container) -> None:
    assert machine.output("systemctl", "is-system-running") == "running"
    assert "ld.so" not in machine.output("journalctl", "--boot", "--no-pager")
    assert LIBRARY in machine.output("cat", "/proc/1/maps")


@pytest.mark.parametrize("user", ["", "alice"], ids=["root", "user"])
@pytest.mark.parametrize("name", COMMANDS)
def test_programs_work(machine: Container, name: str, user: str) -> None:
    assert quiet(machine, *COMMANDS[name], user=user)


@pytest.mark.parametrize("name", AS_ROOT)
def test_programs_of_root_work(machine: Container, name: str) -> None:
    quiet(machine, *AS_ROOT[name])


def test_ssh_works(machine: Container) -> None:
    machine.run("rm", "-rf", "/home/alice/.ssh")
    machine.run(
        "sh", "-c",
        "mkdir -m 700 ~/.ssh && ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519 "
        "&& cp ~/.ssh/id_ed25519.pub ~/.ssh/authorized_keys",
        user="alice",
    )
    done = machine.run(
        "ssh", "-q", "-o", "StrictHostKeyChecking=no", "alice@localhost", "id", "-un",
        user="alice",
    )
    assert done.stdout == "alice\n"
    assert "ld.so" not in done.stderr


def test_cron_works(machine: Container) -> None:
    machine.run("rm", "-f", "/home/alice/cron")
    machine.run("crontab", "-", user="alice", given="@reboot echo ran >~/cron 2>&1\n")
    machine.reboot()
    machine.until(
        lambda: machine.run("cat", "/home/alice/cron", check=False).stdout == "ran\n",
        "cron has run it",
    )


def test_a_setuid_program_is_not_led_astray(machine: Container) -> None:
    done = machine.run(
        "passwd", "--status", user="alice",
        environment={"NVSHARE_DEBUG": "1", "NVSHARE_SOCKET": "/tmp/elsewhere"},
    )
    assert done.stderr == ""
