# SPDX-License-Identifier: Apache-2.0
"""The disk tier: systemd keeps the clients' files while the daemon is restarted."""

import re
from collections.abc import Iterator

import pytest

from nvshared.machine import disk
from nvshared.units import GIB
from tests.system import card
from tests.system.card import Launch
from tests.system.conftest import USERS, install, leave_out
from tests.system.container import OPTIONS, Container
from tests.system.packages import Packages
from tests.system.test_failure import kept, main_pid, until_another

FOLDER = "/mnt/disk"
# Host memory has room for one of four programs, the card for one and a half.
SETTINGS = f"[gpu]\ndisk = {FOLDER}, 1GiB\nswap-budget = 160MiB\ntq = 200ms\n"


@pytest.fixture(scope="module")
def machine(
    request: pytest.FixtureRequest, built: Packages, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Container]:
    """A machine whose swapped memory may go on to a folder of this machine's disk."""
    folder = tmp_path_factory.mktemp("disk")
    if why := disk.fault(folder, GIB):
        leave_out(request.config, f"{why}; --basetemp names another folder")

    class WithDisk(Container):
        options = f"{OPTIONS} --bind={folder}:{FOLDER}"

    with WithDisk(request.getfixturevalue("tree")) as container:
        for user in USERS:
            container.run("useradd", "--create-home", "--shell", "/bin/bash", user)
        install(container, built)
        card.plug_in(container)
        container.run("chown", "nvshare", FOLDER)
        container.write("/etc/nvshare/nvshared.conf.d/disk.conf", SETTINGS)
        card.drop_in(container, "disk", f"ReadWritePaths={FOLDER}\n")
        container.run("systemctl", "enable", "--now", "nvshared")
        yield container
        print(container.story())


def files(container: Container) -> set[str]:
    """The names of the unnamed files that the daemon has open, such as #1234.

    Their folder is not shown once the mounts of the daemon that opened them are gone. ls fails, and
    goes on, when another descriptor is closed meanwhile."""
    listed = container.run("ls", "-l", f"/proc/{main_pid(container)}/fd/", check=False)
    return set(re.findall("/(#[0-9]+)", listed.stdout))


@pytest.mark.parametrize("command", [("restart",), ("kill", "--signal=KILL")])
def test_next_daemon_has_the_files_of_the_disk_that_systemd_keeps_and_no_byte_is_lost(
    machine: Container, launch: Launch, command: tuple[str, ...]
) -> None:
    programs = [
        launch(machine, user, memory=card.MEMORY * 6 // 10, cpu_ms=20, seed=seed)
        for seed, user in enumerate((*USERS, *USERS), 1)
    ]
    count = len(programs)
    machine.until(lambda: len(files(machine)) == count, "each program has a file")
    machine.until(lambda: kept(machine) == 2 * count, "systemd keeps connections and files")
    machine.until(
        lambda: any(one["on_disk"] for one in card.clients(machine)), "memory is on the disk")
    all_pids, all_files = {one["pid"] for one in card.clients(machine)}, files(machine)
    before = main_pid(machine)
    machine.run("systemctl", *command, "nvshared")
    until_another(machine, before)
    machine.until(
        lambda: {one["pid"] for one in card.clients(machine)} == all_pids, "it knows all again")
    turns = card.status(machine)["gpus"][0]["turns"]
    machine.until(lambda: card.status(machine)["gpus"][0]["turns"] > turns + 2 * count, "turns")
    assert files(machine) == all_files  # no file is lost, and no other one was made
    assert kept(machine) == 2 * count
    card.finish(programs)
    machine.until(lambda: (files(machine), kept(machine)) == (set(), 0), "all are closed")
    assert "disk" not in "".join(
        line for line in machine.output("journalctl", "-u", "nvshared", "-o", "cat").splitlines()
        if "could not go" in line or "bytes to the disk" in line)
