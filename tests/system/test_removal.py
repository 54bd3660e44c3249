# SPDX-License-Identifier: Apache-2.0
"""Removal of either package takes libnvshare.so out of /etc/ld.so.preload, whatever the file holds.

The removal ends, whether or not programs run and nvshared and the bus answer.
"""

from collections.abc import Callable, Iterator

import pytest

from tests.system import card
from tests.system.card import Launch
from tests.system.conftest import USERS, install
from tests.system.container import Container
from tests.system.packages import LIBRARY, TRIPLET, Packages

LIST = "/etc/ld.so.preload"
OTHER = f"/usr/lib/{TRIPLET}/libz.so.1"
LINK = "/usr/lib/nvshared/nvshared/lib/libnvshare.so\n"

LISTS = {
    "alone": (f"{LIBRARY}\n", None),
    "without a line's end": (LIBRARY, None),
    "by name": ("libnvshare.so\n", None),
    "with a token": ("/usr/$LIB/libnvshare.so\n", None),
    "with a token in braces": ("/usr/${LIB}/libnvshare.so\n", None),
    "by its older folder": (f"/lib/{TRIPLET}/libnvshare.so\n", None),
    "by our link": (LINK, None),
    "first": (f"{LIBRARY}\n{OTHER}\n", f"{OTHER}\n"),
    "beside another": (f"{OTHER} {LIBRARY}\n", f"{OTHER}\n"),
    "with colons": (f"{LIBRARY}:{OTHER}\n", f"{OTHER}\n"),
    "twice": (f"{LIBRARY}\n{OTHER}\nlibnvshare.so\n", f"{OTHER}\n"),
    "with a remark": (f"{LIBRARY} # shares the GPU\n", "# shares the GPU\n"),
    "below a remark": (f"# shares the GPU\n{LIBRARY}\n", "# shares the GPU\n"),
    "not at all": (f"{OTHER}\n", f"{OTHER}\n"),
}


@pytest.fixture(scope="module")
def machine(bare: Container, built: Packages) -> Container:
    """A container with the dependencies; a test may have removed the packages themselves."""
    install(bare, built)
    return bare


@pytest.mark.parametrize("name", LISTS)
def test_package_removal_removes_only_the_library_from_ld_so_preload(
    machine: Container, built: Packages, name: str
) -> None:
    written, left = LISTS[name]
    machine.run("dpkg", "--install", *built.put_into(machine))
    for package in ("nvshared", "libnvshare"):
        machine.write(LIST, written, mode=0o640)
        done = machine.run("dpkg", "--remove", package)
        assert "ld.so" not in done.stdout + done.stderr
        there = machine.run("cat", LIST, check=False)
        assert (there.stdout if there.returncode == 0 else None) == left
        if left is not None:
            assert machine.output("stat", "--format=%a", LIST) == "640"
        if written == LINK:
            break                       # removal of the library has broken the link
    machine.run("dpkg", "--remove", "libnvshare")
    assert machine.run("/bin/true").stderr == ""
    machine.run("rm", "-f", LIST)
    assert machine.output("sh", "-c", "ls /etc/ld.so.preload* 2>/dev/null || true") == ""


@pytest.fixture
def occupied(machine: Container, built: Packages, launch: Launch) -> Iterator[Container]:
    """A machine with nvshared and two programs that do not fit together and take turns."""
    machine.run("dpkg", "--install", *built.put_into(machine))
    card.plug_in(machine)
    machine.run("systemctl", "enable", "--now", "nvshared")
    machine.run("nvsharectl", "set-tq", "200ms")
    programs = [
        launch(machine, user, memory=card.MEMORY * 7 // 10, kernel_us=5000, seed=seed)
        for seed, user in enumerate(USERS, 1)
    ]
    machine.until(
        lambda: sorted(one["swapped"] > 0 for one in card.clients(machine)) == [False, True],
        "one has the place of the other")
    yield machine
    for program in programs:
        program.kill()


def stop_the_bus(machine: Container) -> None:
    """Stops the message bus, so that nvsharectl and nvshared cannot connect."""
    machine.run("systemctl", "stop", "dbus.socket", "dbus.service")


def hang(machine: Container) -> None:
    card.drop_in(machine, "no-watchdog", "WatchdogSec=0\n")
    machine.run("systemctl", "restart", "nvshared")
    machine.run("systemctl", "kill", "--signal=STOP", "nvshared")


def kill(machine: Container) -> None:
    machine.run("systemctl", "mask", "--runtime", "nvshared.service")
    machine.run("systemctl", "kill", "--signal=KILL", "nvshared")


@pytest.mark.parametrize("trouble", [None, stop_the_bus, hang, kill])
def test_package_removal_while_programs_run_succeeds_or_names_the_command_to_stop_nvshared(
    occupied: Container, trouble: Callable[[Container], None] | None
) -> None:
    if trouble is not None:
        trouble(occupied)
    # A removal that waits for the programs would never end; 400 s are below the tests' limit.
    done = occupied.run("timeout", "400", "dpkg", "--remove", "nvshared", "libnvshare", check=False)
    said = done.stdout + done.stderr
    assert done.returncode != 124, said
    if done.returncode:
        assert "To remove nvshared nevertheless, stop it first: systemctl stop nvshared" in said
        # dpkg keeps "deinstall" as the wanted state, as for any package that refuses removal.
        assert occupied.output(
            "dpkg-query", "-W", "-f", "${db:Status-Status}", "nvshared") == "installed"
        occupied.run("timeout", "60", "systemctl", "stop", "nvshared")
        occupied.run("timeout", "400", "dpkg", "--remove", "nvshared", "libnvshare")
    occupied.run("systemctl", "unmask", "--runtime", "nvshared.service", check=False)
    occupied.run("systemctl", "start", "dbus.socket")
    assert occupied.run("/bin/true").stderr == ""
