# SPDX-License-Identifier: Apache-2.0
"""nvsharectl doctor finds what is wrong with units and sockets, and its advice is enough."""

import json

import pytest

from tests.system import card
from tests.system.card import Launch
from tests.system.container import Container

SOCKET, SERVICE = "nvshared.socket", "nvshared.service"
HELPER, SAVER = "nvshare-checkpoint.socket", "nvshare-save.socket"
NAMES = "nvshare-names.socket"
STOP = f"systemctl stop {SERVICE} {SOCKET}"

# Commands that do damage, and the topics of the doctor's findings.
DAMAGE = {
    "disabled": ("systemctl disable nvshared", {SOCKET, SERVICE}),
    "stopped": (STOP, {SOCKET, SERVICE, "socket", "bus"}),
    "masked": (f"systemctl mask {SERVICE}; {STOP}", {SERVICE, SOCKET, "socket", "bus"}),
    "masked while it runs": (f"systemctl mask {SERVICE}", {SERVICE}),
    "masked until the reboot": (
        f"systemctl mask --runtime {SERVICE}; {STOP}", {SERVICE, SOCKET, "socket", "bus"}),
    "both units masked": (
        f"systemctl mask {SERVICE} {SOCKET}; {STOP}", {SOCKET, SERVICE, "socket", "bus"}),
    "socket masked": (f"systemctl mask {SOCKET}; {STOP}", {SOCKET, SERVICE, "socket", "bus"}),
    "socket removed": ("rm /run/nvshare/nvshare.sock", {"socket", "socket-removed"}),
    "folder removed": ("rm -r /run/nvshare", {"socket", "socket-removed"}),
    "socket closed to users": ("chmod 600 /run/nvshare/nvshare.sock", {"socket"}),
    "checkpoint's socket removed": ("rm /run/nvshare-checkpoint/checkpoint.sock", {HELPER}),
    "checkpoint's folder removed": ("rm -r /run/nvshare-checkpoint", {HELPER, SAVER, NAMES}),
    "checkpoint's folder closed to nvshared": (
        "chmod 700 /run/nvshare-checkpoint", {HELPER, SAVER, NAMES}),
    "socket of nvshare-save removed": ("rm /run/nvshare-checkpoint/save.sock", {SAVER}),
    "checkpoint's socket stopped": (f"systemctl stop {HELPER}", {HELPER}),
    "checkpoint's socket masked": (f"systemctl mask {HELPER}; systemctl stop {HELPER}", {HELPER}),
}


def advice(container: Container) -> dict[str, str]:
    """The doctor's advice on each topic that has a fault or a warning; {}: it is content."""
    done = container.run(
        "nvsharectl", "doctor", "--json", check=False, environment=card.ENVIRONMENT)
    found = json.loads(done.stdout)["findings"]
    # few-descriptors: some machines give no container as many as the unit asks for.
    return {
        one["topic"]: one["advice"] for one in found
        if one["grade"] in ("fault", "warning") and one["topic"] != "few-descriptors"}


@pytest.mark.parametrize("name", DAMAGE)
def test_doctor_is_content_after_its_advice_on_a_unit_or_socket(
    running: Container, launch: Launch, name: str
) -> None:
    program = launch(running, "alice", memory=64, cpu_ms=20)
    program.await_memory()
    assert advice(running) == {}
    damage, topics = DAMAGE[name]
    running.run("sh", "-c", damage)
    running.until(lambda: set(advice(running)) == topics, f"the doctor finds {topics}")
    for _ in topics:                    # the first advice often ends the other findings, too
        if left := [*advice(running).values()]:
            running.run("sh", "-ec", left[0].rpartition(": ")[2])
    assert advice(running) == {}
    running.until(lambda: len(card.clients(running)) == 1, "the program goes on")
    program.finish()
    running.until(lambda: not card.clients(running), "it has ended")


def test_program_is_parked_after_the_doctors_advice_on_the_socket_of_nvshare_checkpoint(
    running: Container, launch: Launch
) -> None:
    running.write(
        "/etc/systemd/system/nvshare-checkpoint@.service.d/simulator.conf",
        "[Service]\n" + "".join(f"Environment={a}={b}\n" for a, b in card.ENVIRONMENT.items()))
    running.run("systemctl", "daemon-reload")
    program = launch(running, "alice", memory=64)
    program.await_memory()
    pid = str(card.clients(running)[0]["pid"])
    running.run("nvsharectl", "suspend", "--wait", pid, user="alice")
    running.run("chmod", "700", "/run/nvshare-checkpoint")
    assert running.run("nvsharectl", "park", pid, check=False).returncode != 0
    running.run("sh", "-ec", advice(running)[HELPER])
    running.run("nvsharectl", "park", pid)
    assert card.clients(running)[0]["state"] == "parked"
    running.until(lambda: advice(running) == {}, "the fault has ended")
    running.run("nvsharectl", "resume", pid)
    program.finish()
