# SPDX-License-Identifier: Apache-2.0
"""The service as systemd sees it: sound, and shut in."""

import pytest

from tests.system.container import Container

MOST_EXPOSED = 20                       # 2.0 on systemd's scale from 0 to 10


def test_systemd_finds_nothing_wrong_with_the_units(installed: Container) -> None:
    done = installed.run(
        "systemd-analyze", "verify", "/lib/systemd/system/nvshared.service", check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_it_is_shut_in(installed: Container) -> None:
    done = installed.run(
        "systemd-analyze", "security", f"--threshold={MOST_EXPOSED}", "--no-pager",
        "nvshared.service", check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "denied", ["/root", "/home/alice"],
)
def test_it_sees_nobodys_home(running: Container, denied: str) -> None:
    pid = running.output("systemctl", "show", "nvshared", "-P", "MainPID")
    assert running.output("ls", "-A", "/home/alice")
    there = running.run("ls", "-A", f"/proc/{pid}/root{denied}", check=False)
    assert there.stdout == ""


def test_it_writes_to_its_state_alone(running: Container) -> None:
    pid = running.output("systemctl", "show", "nvshared", "-P", "MainPID")
    inside = ("nsenter", "--target", pid, "--mount", "--setuid", "0")
    assert running.run(*inside, "touch", "/etc/x", check=False).returncode != 0
    assert running.run(*inside, "touch", "/usr/x", check=False).returncode != 0
    running.run(*inside, "touch", "/var/lib/nvshare/x")


def test_its_log_level_is_changed_as_any_services(running: Container) -> None:
    running.run("systemctl", "service-log-level", "nvshared", "debug")
    assert running.output("systemctl", "service-log-level", "nvshared") == "debug"
    running.run("systemctl", "service-log-level", "nvshared", "info")
