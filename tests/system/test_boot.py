# SPDX-License-Identifier: Apache-2.0
"""The machine the other tests rely on is one."""

from tests.system.container import Container


def test_systemd_runs_and_nothing_failed(bare: Container) -> None:
    assert bare.output("systemctl", "is-system-running") == "running"
    assert bare.output("cat", "/proc/1/comm") == "systemd"


def test_there_is_a_message_bus(bare: Container) -> None:
    assert "org.freedesktop.systemd1" in bare.output("busctl", "list", "--no-pager", "--no-legend")


def test_what_was_written_outlives_a_reboot_and_nothing_else(bare: Container) -> None:
    bare.write("/etc/written", "yes\n")
    bare.write("/run/written", "yes\n")
    bare.reboot()
    assert bare.output("cat", "/etc/written") == "yes"
    assert bare.run("test", "-e", "/run/written", check=False).returncode == 1
