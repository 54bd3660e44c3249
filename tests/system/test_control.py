# SPDX-License-Identifier: Apache-2.0
"""Permissions to change settings, their persistence, and changed configuration files."""

import subprocess

from tests.system import card
from tests.system.container import Container

RULE = """\
polkit.addRule(function (action, subject) {
    if (action.id == "com.nvshare.set-tq" && subject.isInGroup("gpu"))
        return polkit.Result.YES;
});
"""


def set_tq(container: Container, seconds: int, user: str = "") -> subprocess.CompletedProcess[str]:
    return container.run(
        "busctl", "call", "com.nvshare", "/com/nvshare", "com.nvshare.Manager", "SetTQ", "u",
        str(seconds), user=user, check=False)


def test_user_without_privileges_may_not_set_the_quantum(running: Container) -> None:
    set_tq(running, 17)
    done = set_tq(running, 5, user="alice")
    assert done.returncode != 0
    done = running.run("nvsharectl", "set-tq", "5", user="alice", check=False)
    assert done.returncode == 4
    assert "com.nvshare.set-tq" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert card.tq(running) == 17


def test_user_permitted_by_a_polkit_rule_may_set_the_quantum(running: Container) -> None:
    set_tq(running, 17)
    running.run("groupadd", "gpu")
    running.run("usermod", "--append", "--groups", "gpu", "alice")
    running.write("/etc/polkit-1/rules.d/gpu.rules", RULE)
    running.until(lambda: set_tq(running, 5, user="alice").returncode == 0, "polkit has read it")
    assert card.tq(running) == 5
    assert set_tq(running, 6, user="bob").returncode != 0
    denied = running.run("nvsharectl", "anti-thrash", "on", user="alice", check=False)
    assert denied.returncode == 4
    assert len(denied.stderr.splitlines()) == 1


def test_changed_quantum_outlives_restart_and_reboot_until_reset(running: Container) -> None:
    set_tq(running, 23)
    running.run("systemctl", "restart", "nvshared")
    assert card.tq(running) == 23
    running.reboot()
    assert card.tq(running) == 23
    running.run("nvsharectl", "reset")
    assert card.tq(running) == 30
