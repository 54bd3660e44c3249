# SPDX-License-Identifier: Apache-2.0
"""The machine the other tests rely on is one."""

from tests.system.container import Container


def test_container_boots_systemd_without_failed_units(bare: Container) -> None:
    assert bare.output("systemctl", "is-system-running") == "running"
    assert bare.output("cat", "/proc/1/comm") == "systemd"


def test_container_runs_a_message_bus(bare: Container) -> None:
    assert "org.freedesktop.systemd1" in bare.output("busctl", "list", "--no-pager", "--no-legend")


def test_container_reboot_keeps_etc_and_clears_run(bare: Container) -> None:
    bare.write("/etc/written", "yes\n")
    bare.write("/run/written", "yes\n")
    bare.reboot()
    assert bare.output("cat", "/etc/written") == "yes"
    assert bare.run("test", "-e", "/run/written", check=False).returncode == 1
