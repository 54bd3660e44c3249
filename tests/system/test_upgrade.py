# SPDX-License-Identifier: Apache-2.0
"""Upgrade while programs run, removal, and a purge that leaves no file."""

import subprocess
from pathlib import Path

import pytest

from tests.system import card, packages
from tests.system.card import Launch
from tests.system.conftest import install
from tests.system.container import PATIENCE, Container
from tests.system.packages import LIBRARY, Packages

LIST = "/etc/ld.so.preload"
# Every file except the state of apt, dpkg and systemd, and the files of the tests themselves.
EVERYTHING = """
find / -xdev \\( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp \\
    -o -path /root -o -path /home -o -path /var/log -o -path /var/cache -o -path /var/lib/dpkg \\
    -o -path /var/lib/apt -o -path /var/lib/systemd -o -path /var/tmp \\
    -o -name '*-' -o -name ld.so.cache \\) -prune -o -print | sort
sha256sum /etc/passwd /etc/group /etc/shadow /etc/gshadow
find / -xdev -path /root -prune -o \\( -name '*nvshare*' \\
    -not -path '/var/log/*' -not -path '/proc/*' \\) -print
"""
# Starts programs in a loop; ld.so prints an error in each if it cannot load the library.
STARTER = """
until [ -e /run/enough ]; do /bin/true || echo failed; done
"""


@pytest.fixture(scope="module")
def before(bare: Container) -> list[str]:
    return bare.output("sh", "-c", EVERYTHING).splitlines()


@pytest.fixture(scope="module")
def machine(before: list[str], running: Container) -> Container:
    """A machine with nvshared enabled, all settings changed, and the library in LIST."""
    assert before
    running.write("/etc/nvshare/nvshared.conf", "[gpu]\ntq = 7\n")
    running.write("/etc/nvshare/nvshared.conf.d/mine.conf", "[gpu]\nstuck-after = 20s\n")
    running.run("systemctl", "reload", "nvshared")
    running.run("nvsharectl", "anti-thrash", "on")
    running.run("systemctl", "enable", "--now", "nvshare-saved")
    running.write(LIST, f"# ours\n{LIBRARY}\n")
    return running


def test_package_upgrade_with_wrong_settings_keeps_the_daemon_running(
    machine: Container, built: Packages, tmp_path: Path
) -> None:
    wrong = "/etc/nvshare/nvshared.conf.d/wrong.conf"
    machine.write(wrong, "[gpu]\ntq = soon\n")
    pid = machine.output("systemctl", "show", "nvshared", "-P", "MainPID")
    install(machine, packages.newer(built, tmp_path, "+before"))
    assert machine.output("systemctl", "show", "nvshared", "-P", "MainPID") == pid
    assert machine.output("systemctl", "is-active", "nvshared") == "active"
    machine.run("rm", wrong)


def test_package_upgrade_with_a_driver_that_needs_a_reboot_keeps_the_daemon_running(
    machine: Container, built: Packages, tmp_path: Path
) -> None:
    library = tmp_path / "libnvidia-ml.so.1"    # the daemon in the container uses another one
    subprocess.run(
        ["gcc", "-shared", "-x", "c", "-", "-o", str(library)], check=True, text=True,
        input="int nvmlInitWithFlags(unsigned flags) { return flags ? 0 : 18; }")
    machine.copy(library, "/usr/lib/libnvidia-ml.so.1")
    pid = machine.output("systemctl", "show", "nvshared", "-P", "MainPID")
    install(machine, packages.newer(built, tmp_path, "+before+reboot"))
    assert machine.output("systemctl", "show", "nvshared", "-P", "MainPID") == pid
    machine.run("rm", "/usr/lib/libnvidia-ml.so.1")


def test_needrestart_leaves_the_daemon_alone_after_an_upgrade_of_libraries(
    machine: Container
) -> None:
    program = ("our %nrconf = (override_rc => {qr(^dbus) => 0}); "
               "do '/etc/needrestart/conf.d/nvshared.conf' // die $@; "
               "print grep { 'nvshared.service' =~ /$_/ } keys %{$nrconf{override_rc}}")
    assert "nvshared" in machine.output("perl", "-e", program)


def test_package_upgrade_keeps_settings_and_running_programs(
    machine: Container, built: Packages, tmp_path: Path, launch: Launch
) -> None:
    programs = [
        launch(machine, user, memory=card.MEMORY * 7 // 10, cpu_ms=100, seed=seed)
        for seed, user in enumerate(("alice", "bob"), 1)
    ]
    machine.until(lambda: len(card.clients(machine)) == 2, "both are there")
    all_pids = {one["pid"] for one in card.clients(machine)}
    pid = machine.output("systemctl", "show", "nvshared", "-P", "MainPID")
    starter = machine.start("sh", "-c", STARTER)
    machine.run("touch", "/run/nvshare/checkpoint.sock")       # of an earlier version
    install(machine, packages.newer(built, tmp_path))
    assert machine.output("ls", "/run/nvshare", "/run/nvshare-checkpoint").split() == [
        "/run/nvshare:", "nvshare.sock",
        "/run/nvshare-checkpoint:", "checkpoint.sock", "names.sock", "save.sock"]
    machine.run("touch", "/run/enough")
    said, _ = starter.communicate(timeout=PATIENCE)
    assert said == ""
    assert machine.output("dpkg-query", "-W", "-f", "${Version}", "nvshared").endswith("+next")
    assert machine.output("systemctl", "show", "nvshared", "-P", "MainPID") not in ("0", pid)
    machine.until(
        lambda: {one["pid"] for one in card.clients(machine)} == all_pids, "it knows both again")
    assert LIBRARY in machine.output("cat", LIST)
    assert card.tq(machine) == 7
    assert card.status(machine)["anti_thrash"] == "on"
    card.finish(programs)


def states(container: Container) -> list[str]:
    return sorted(one["state"] for one in card.clients(container))


def test_package_removal_is_refused_while_a_program_is_swapped(
    machine: Container, launch: Launch
) -> None:
    machine.run("nvsharectl", "set-tq", "300")
    programs = [
        launch(machine, user, memory=card.MEMORY * 7 // 10, kernel_us=5000, seed=seed)
        for seed, user in enumerate(("alice", "bob"), 1)
    ]
    machine.until(lambda: states(machine) == ["running", "waiting"], "one waits for the other")
    (waiter,) = [one["pid"] for one in card.clients(machine) if one["state"] == "waiting"]
    done = machine.run("apt-get", "remove", "-y", "nvshared", "libnvshare", check=False)
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert f"nvshare-workload[{waiter}] on GPU 0" in said
    assert "1 program would stand still without nvshared" in said
    assert "systemctl stop nvshared" in said
    assert machine.output("systemctl", "is-active", "nvshared") == "active"
    assert LIBRARY in machine.output("cat", LIST)
    assert machine.output("dpkg", "--audit") == ""
    card.finish(programs)


def test_programs_keep_running_after_the_packages_are_removed(
    machine: Container, launch: Launch
) -> None:
    program = launch(machine, "alice", memory=64, cpu_ms=50)
    machine.until(lambda: states(machine) == ["running"], "it runs")
    done = machine.run("apt-get", "remove", "-y", "nvshared", "libnvshare")
    assert "ld.so" not in done.stdout + done.stderr
    # Only a comment is left in the list.
    assert machine.output("cat", LIST) == "# ours"
    program.finish()
    assert machine.run("/bin/true").stderr == ""
    # Settings are kept until a purge.
    assert "tq = 7" in machine.output("cat", "/etc/nvshare/nvshared.conf")


def test_package_purge_leaves_no_file_and_no_failed_unit(
    machine: Container, before: list[str]
) -> None:
    machine.run("apt-get", "purge", "-y", "--auto-remove", "nvshared", "libnvshare")
    machine.run(
        "rm", "-rf", "/etc/systemd/system/nvshared.service.d", "/etc/tmpfiles.d/simulator.conf",
        LIST)
    machine.run("systemctl", "daemon-reload")
    after = machine.output("sh", "-c", EVERYTHING).splitlines()
    assert [line for line in after if line not in before] == []
    assert machine.output("systemctl", "--failed", "--quiet", "--plain") == ""
    machine.reboot()
    assert machine.output("systemctl", "is-system-running") == "running"
    assert machine.run("getent", "passwd", "nvshare", check=False).returncode == 2
