# SPDX-License-Identifier: Apache-2.0
"""systemd finds no fault in nvshared.service, and the sandbox of the service works."""

import pytest

from tests.system.container import Container

MOST_EXPOSED = 20                       # 2.0 on systemd's scale from 0 to 10


def test_units_pass_systemd_analyze_verify(installed: Container) -> None:
    done = installed.run(
        "systemd-analyze", "verify", "/lib/systemd/system/nvshared.service", check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_systemd_unit_stays_below_the_exposure_limit_of_systemd_analyze_security(
    installed: Container
) -> None:
    done = installed.run(
        "systemd-analyze", "security", f"--threshold={MOST_EXPOSED}", "--no-pager",
        "nvshared.service", check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("denied", ["/root", "/home/alice"])
def test_systemd_unit_cannot_read_home_folders(running: Container, denied: str) -> None:
    pid = running.output("systemctl", "show", "nvshared", "-P", "MainPID")
    assert running.output("ls", "-A", "/home/alice")
    there = running.run("ls", "-A", f"/proc/{pid}/root{denied}", check=False)
    assert there.stdout == ""


def test_systemd_unit_can_write_only_the_state_folder(running: Container) -> None:
    pid = running.output("systemctl", "show", "nvshared", "-P", "MainPID")
    inside = ("nsenter", "--target", pid, "--mount", "--setuid", "0")
    assert running.run(*inside, "touch", "/etc/x", check=False).returncode != 0
    assert running.run(*inside, "touch", "/usr/x", check=False).returncode != 0
    running.run(*inside, "touch", "/var/lib/nvshare/x")


def test_systemd_unit_log_level_is_set_by_systemctl(running: Container) -> None:
    running.run("systemctl", "service-log-level", "nvshared", "debug")
    assert running.output("systemctl", "service-log-level", "nvshared") == "debug"
    running.run("systemctl", "service-log-level", "nvshared", "info")
