# SPDX-License-Identifier: Apache-2.0
"""The sandboxed daemon may open the device nodes of the NVIDIA driver and no others.

There is no driver here, so no node can be opened, but the errors differ: a process
that may open a node gets ENXIO (no such device), a process that may not gets EPERM.
systemd reads the driver's device numbers from /proc/devices, over which the test
mounts a list with these numbers.
"""

from collections.abc import Iterator

import pytest

from tests.system import card
from tests.system.container import Container

# Names and numbers as drivers from 470 to 580 register them. Those above 195 vary.
DRIVER = "195 nvidia\n195 nvidiactl\n195 nvidia-modeset\n501 nvidia-uvm\n502 nvidia-caps\n"
NODES = {
    "nvidia0": (195, 0), "nvidia1": (195, 1), "nvidiactl": (195, 255), "nvidia-modeset": (195, 254),
    "nvidia-uvm": (501, 0), "nvidia-uvm-tools": (501, 1), "nvidia-caps/nvidia-cap2": (502, 2),
}
OTHERS = {"somedisk": (503, 0), "mem": (1, 1)}
OPENER = "/usr/local/bin/open-devices"
FOUND = "/var/lib/nvshare/opened"

# Runs as ExecStartPre of the service, with the daemon's user, groups and device rules.
PROGRAM = f"""\
import errno, os
with open({FOUND!r}, "w") as found:
    for name in {[*NODES, *OTHERS]!r}:
        try:
            os.close(os.open("/dev/" + name, os.O_RDWR))
            print(name, "opened", file=found)
        except OSError as error:
            print(name, errno.errorcode[error.errno], file=found)
"""

# Replaces nvidia-modprobe, the driver's tool: makes device nodes of the minor numbers after -c.
TOOL = """\
#!/bin/sh
while getopts c: option; do
    [ $OPTARG = 255 ] && continue       # nvidiactl, which is there
    mknod -m 660 /dev/nvidia$OPTARG c 195 $OPTARG && chgrp video /dev/nvidia$OPTARG
done
"""
CARDS = "/proc/driver/nvidia/gpus"


@pytest.fixture(scope="module")
def machine(installed: Container) -> Container:
    """A machine on which nvshared.service records at each start which device nodes it can open."""
    installed.run("mkdir", "-p", "/dev/nvidia-caps")
    for name, (major, minor) in (NODES | OTHERS).items():
        installed.run("mknod", "-m", "660", f"/dev/{name}", "c", str(major), str(minor))
        installed.run("chgrp", "video", f"/dev/{name}")
    installed.write(OPENER, PROGRAM)
    card.drop_in(installed, "opener", f"ExecStartPre=/usr/bin/python3 {OPENER}\n")
    return installed


def opened(container: Container) -> dict[str, str]:
    """Restarts the service. Returns "opened" or the error of opening each device node, by name."""
    container.run("systemctl", "restart", "nvshared")
    lines = container.output("cat", FOUND).splitlines()
    return dict(line.split() for line in lines)


def test_systemd_unit_without_a_driver_may_open_no_device(machine: Container) -> None:
    assert set(opened(machine).values()) == {"EPERM"}


@pytest.fixture
def driver(machine: Container) -> Iterator[None]:
    """Simulate a driver with device numbers and two cards."""
    devices = machine.output("cat", "/proc/devices")
    machine.write("/etc/devices", devices.replace("devices:\n", f"devices:\n{DRIVER}", 1) + "\n")
    machine.run("mount", "--bind", "/etc/devices", "/proc/devices")
    machine.run("mount", "-t", "tmpfs", "tmpfs", "/proc/driver")
    for number in range(2):
        machine.write(f"{CARDS}/0000:0{number}:00.0/information", f"Device Minor: \t {number}\n")
    yield
    machine.run("umount", "/proc/devices", "/proc/driver")


@pytest.mark.usefixtures("driver")
def test_systemd_unit_with_a_driver_may_open_only_nvidia_devices(machine: Container) -> None:
    assert opened(machine) == dict.fromkeys(NODES, "ENXIO") | dict.fromkeys(OTHERS, "EPERM")


@pytest.mark.usefixtures("driver")
def test_systemd_unit_makes_missing_nvidia_device_nodes(machine: Container) -> None:
    machine.run("rm", "/dev/nvidia0", "/dev/nvidia1")
    machine.write("/usr/bin/nvidia-modprobe", TOOL, mode=0o755)
    found = opened(machine)
    assert (found["nvidia0"], found["nvidia1"]) == ("ENXIO", "ENXIO")
