# SPDX-License-Identifier: Apache-2.0
"""A machine with the library in /etc/ld.so.preload boots, and common programs work on it.

Each command runs once with the daemon and once without. If the library disturbs a program or
ld.so cannot load it, an error is printed.
"""

from collections.abc import Iterator

import pytest

from tests.system import card
from tests.system.container import PATIENCE, Container
from tests.system.packages import LIBRARY

PEOPLE = pytest.mark.parametrize("user", ["", "alice"], ids=["root", "user"])

COMMANDS = {
    "python": ("python3", "-c", "import ssl, ctypes, threading, subprocess; print(1)"),
    "shell": ("bash", "-lc", "ls / | sort | head -3; echo $(id -un)"),
    "perl": ("perl", "-e", "print 1"),
    "pipes": ("sh", "-c", "tar c /etc/hostname 2>/dev/null | gzip | gzip -d | tar t"),
    "setuid": ("passwd", "--status"),
}
AS_ROOT = {
    "dpkg": ("dpkg", "--verify"),
    "sudo": ("sudo", "--user", "bob", "sudo", "-n", "true"),
    "su": ("su", "-", "alice", "-c", "id"),
    "units": ("systemd-run", "--quiet", "--wait", "--pipe", "--collect", "id"),
    "logger": ("sh", "-c", "logger preloaded && journalctl --sync"),
}


@pytest.fixture(scope="module", params=["daemon", "no daemon"])
def machine(running: Container, request: pytest.FixtureRequest) -> Container:
    """A machine booted with the library in /etc/ld.so.preload, with or without a daemon."""
    running.run("nvsharectl", "preload", "enable")
    running.write("/etc/sudoers.d/bob", "bob ALL=(ALL) NOPASSWD: ALL\n", mode=0o440)
    verb = "enable" if request.param == "daemon" else "disable"
    running.run("systemctl", verb, "nvshared.service", "nvshared.socket")
    running.reboot()
    return running


def quiet(container: Container, *command: str, user: str = "") -> str:
    """Runs a command. Fails unless it succeeds and prints no error."""
    done = container.run(*command, user=user)
    assert done.stderr == ""
    return done.stdout


def test_preloaded_system_boots_without_failed_units(machine: Container) -> None:
    assert machine.output("systemctl", "is-system-running") == "running"
    assert "ld.so" not in machine.output("journalctl", "--boot", "--no-pager")
    assert LIBRARY in machine.output("cat", "/proc/1/maps")


@PEOPLE
@pytest.mark.parametrize("name", COMMANDS)
def test_preloaded_system_runs_programs_of_users_without_messages_of_the_library(
    machine: Container, name: str, user: str
) -> None:
    assert quiet(machine, *COMMANDS[name], user=user)


@pytest.mark.parametrize("name", AS_ROOT)
def test_preloaded_system_runs_programs_of_root_without_messages_of_the_library(
    machine: Container, name: str
) -> None:
    quiet(machine, *AS_ROOT[name])


def test_preloaded_system_installs_and_purges_by_apt(machine: Container) -> None:
    """The package installed is in apt's cache of the container."""
    for verb in ("install", "purge"):
        done = machine.run(
            "apt-get", verb, "-y", "python3-prometheus-client",
            environment={"DEBIAN_FRONTEND": "noninteractive"})
        assert "ld.so" not in done.stdout + done.stderr
    assert machine.output("dpkg", "--audit") == ""


@PEOPLE
def test_preloaded_system_accepts_ssh_logins(machine: Container, user: str) -> None:
    machine.run(
        "sh", "-c",
        "rm -rf ~/.ssh && mkdir -m 700 ~/.ssh && "
        "ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519 && "
        "cp ~/.ssh/id_ed25519.pub ~/.ssh/authorized_keys",
        user=user)
    name = user or "root"
    done = machine.run(
        "ssh", "-q", "-o", "StrictHostKeyChecking=no", f"{name}@localhost", "id", "-un", user=user)
    assert done.stdout == f"{name}\n"
    assert "ld.so" not in done.stderr


def test_preloaded_system_runs_cron_jobs_at_reboot(machine: Container) -> None:
    homes = {"": "/root", "alice": "/home/alice"}
    for user, home in homes.items():
        machine.run("rm", "-f", f"{home}/cron")
        machine.run("crontab", "-", user=user, given="@reboot echo ran >~/cron 2>&1\n")
    machine.reboot()
    done = [f"{home}/cron" for home in homes.values()]
    machine.until(
        lambda: machine.run("cat", *done, check=False).stdout == "ran\n" * len(done),
        "cron has run both")


@pytest.fixture
def tool(machine: Container) -> Iterator[str]:
    """A setuid root program that uses the GPU. The driver is in a system folder, as ld.so and the
    library ignore LD_LIBRARY_PATH and nvshare's variables in a setuid program."""
    path, places = "/usr/local/bin/gpu-tool", "/etc/ld.so.conf.d/simulator.conf"
    machine.run("install", "-m", "4755", card.WORKLOAD, path)
    machine.write(places, f"{card.HOME}/simulator\n")
    machine.run("ldconfig")
    yield path
    # A setuid program may outlive its parent, which cannot kill it.
    machine.run("pkill", "--signal", "KILL", "gpu-tool", check=False)
    machine.run("rm", path, places)
    machine.run("ldconfig")


def test_setuid_program_ignores_socket_and_debug_settings_of_the_caller(
    machine: Container, tool: str
) -> None:
    """The caller can choose neither the daemon nor the library's log level."""
    daemon = machine.run("systemctl", "is-active", "nvshared", check=False).stdout == "active\n"
    program = machine.start(
        tool, "--memory", "16MiB", "--steps", "100000" if daemon else "10", user="alice",
        environment={"NVSHARE_DEBUG": "1", "NVSHARE_SOCKET": "/tmp/elsewhere"})
    if daemon:
        machine.until(
            lambda: [one["command"].split()[0] for one in card.clients(machine)] == [tool],
            "it is a client of the machine's daemon")
        machine.run("pkill", "gpu-tool")
    said, _ = program.communicate(timeout=PATIENCE)
    assert "nvshare[" not in said
    assert daemon or program.returncode == 0, said
